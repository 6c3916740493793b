# Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""enable_static and disable_static act on the calling thread."""

from __future__ import annotations

import threading
import unittest

from concurrent_base import WAIT_S, Worker, in_thread
from thread_device_base import (
    ForkTestCase,
    needs_another_device,
    on_every_device_list,
    places_of_new_tensors,
    run_script,
)

import paddle
from paddle.base import framework


def before_and_after(entered, has_moved):
    """Returns the thread's places now, and after `has_moved` is set."""
    first = places_of_new_tensors()
    entered.set()
    if not has_moved.wait(WAIT_S):
        raise TimeoutError
    return first, places_of_new_tensors()


@on_every_device_list
class TestStaticGraph(unittest.TestCase):
    def test_enable_static_acts_on_the_calling_thread(self):
        is_static, may_end = threading.Event(), threading.Event()

        def static():
            paddle.enable_static()
            is_static.set()
            self.assertTrue(may_end.wait(WAIT_S))
            return paddle.in_dynamic_mode()

        worker = Worker(static)
        self.assertTrue(is_static.wait(WAIT_S))
        self.assertTrue(paddle.in_dynamic_mode())
        self.assertTrue(in_thread(paddle.in_dynamic_mode))
        may_end.set()
        self.assertFalse(worker.result())

    def test_device_survives_a_switch_to_static_mode(self):
        def static_and_back():
            paddle.set_device(self.other)
            paddle.enable_static()
            in_static = paddle.get_device()
            paddle.disable_static()
            return in_static, places_of_new_tensors()

        self.assertEqual(in_thread(static_and_back), (self.other, {self.other}))

    def test_device_set_in_static_mode_applies_in_dynamic_mode(self):
        def set_between():
            paddle.enable_static()
            paddle.set_device(self.other)
            paddle.disable_static()
            return places_of_new_tensors()

        self.assertEqual(in_thread(set_between), {self.other})

    def test_setting_the_first_device_also_fixes_the_mode(self):
        has_device, main_is_static = threading.Event(), threading.Event()

        def places():
            paddle.set_device(self.other)
            has_device.set()
            self.assertTrue(main_is_static.wait(WAIT_S))
            return paddle.in_dynamic_mode() and places_of_new_tensors()

        worker = Worker(places)
        self.assertTrue(has_device.wait(WAIT_S))
        self.addCleanup(paddle.disable_static)
        paddle.enable_static()
        main_is_static.set()
        self.assertEqual(worker.result(), {self.other})

    def test_disable_static_on_a_thread_gives_it_the_device_passed(self):
        def dynamic_on_other():
            paddle.enable_static()
            paddle.disable_static(self.other)
            return places_of_new_tensors()

        self.assertEqual(in_thread(dynamic_on_other), {self.other})

    def test_parameters_have_distinct_names_after_disable_static(self):
        def name():
            return paddle.nn.Linear(1, 1).weight.name

        def name_in_dynamic_mode():
            paddle.disable_static()
            return name(), in_thread(name)

        def name_after_static_mode():
            paddle.enable_static()
            paddle.disable_static()
            return name(), in_thread(name)

        names = [name()]
        for on_thread in (name_in_dynamic_mode, name_after_static_mode):
            names += [*in_thread(on_thread), name()]
        self.assertEqual(len(set(names)), 7, names)

    def test_disable_static_on_a_thread_keeps_the_programs_of_others(self):
        has_left, may_end = threading.Event(), threading.Event()

        def leave_static_mode():
            paddle.enable_static()
            paddle.disable_static()
            has_left.set()
            self.assertTrue(may_end.wait(WAIT_S))

        program = framework.default_main_program()
        worker = Worker(leave_static_mode)
        self.assertTrue(has_left.wait(WAIT_S))
        now = framework.default_main_program()
        may_end.set()
        worker.result()
        self.assertIs(now, program)

    @needs_another_device
    def test_thread_in_dygraph_guard_still_follows_the_main_thread(self):
        entered, has_moved = threading.Event(), threading.Event()

        def follow():
            with paddle.base.dygraph.guard():
                entered.set()
                self.assertTrue(has_moved.wait(WAIT_S))
                return places_of_new_tensors()

        worker = Worker(follow)
        self.assertTrue(entered.wait(WAIT_S))
        paddle.set_device(self.devices[1])
        has_moved.set()
        self.assertEqual(worker.result(), {self.devices[1]})

    def test_device_set_without_a_tracer_applies_when_it_is_restored(self):
        def set_inside():
            paddle.set_device("cpu")
            # to_static does this while it traces.
            with framework._dygraph_guard(None):
                paddle.set_device(self.other)
            return places_of_new_tensors()

        self.assertEqual(in_thread(set_inside), {self.other})

    def test_thread_started_in_static_mode_of_a_guard_is_in_dynamic_mode(self):
        # to_static does this while it traces.
        with framework._dygraph_guard(None):
            self.assertTrue(in_thread(paddle.in_dynamic_mode))
            self.assertFalse(paddle.in_dynamic_mode())
        self.assertTrue(in_thread(paddle.in_dynamic_mode))

    @needs_another_device
    def test_threads_without_a_device_follow_the_main_thread_into_a_guard(self):
        entered, has_moved = threading.Event(), threading.Event()
        worker = Worker(before_and_after, entered, has_moved)
        self.assertTrue(entered.wait(WAIT_S))
        with paddle.base.dygraph.guard():
            # Inside the guard, the main thread uses another tracer.
            paddle.set_device(self.devices[1])
            has_moved.set()
            seen = worker.result()
        self.assertEqual(seen, ({self.devices[0]}, {self.devices[1]}))

    @needs_another_device
    def test_thread_started_while_another_is_in_a_guard_follows_main(self):
        def own():
            place = paddle.device._convert_to_place(self.devices[1])
            with paddle.base.dygraph.guard(place):
                return in_thread(places_of_new_tensors)

        self.assertEqual(in_thread(own), {self.devices[0]})

    @needs_another_device
    def test_thread_started_while_main_is_in_a_guard_keeps_following(self):
        entered, has_moved = threading.Event(), threading.Event()
        with paddle.base.dygraph.guard():
            worker = Worker(before_and_after, entered, has_moved)
            self.assertTrue(entered.wait(WAIT_S))
        paddle.set_device(self.devices[1])
        has_moved.set()
        self.assertEqual(
            worker.result(), ({self.devices[0]}, {self.devices[1]})
        )

    def test_main_thread_can_turn_static_if_a_thread_imported_paddle(self):
        run_script(
            self,
            """
            def first():
                import paddle

            thread = threading.Thread(target=first)
            thread.start()
            thread.join()
            import paddle
            assert paddle.in_dynamic_mode()
            paddle.enable_static()
            assert not paddle.in_dynamic_mode()
            """,
            self.devices,
            tests_import=True,
        )

    def test_disable_static_inside_a_guard_does_not_invert_the_modes(self):
        run_script(
            self,
            """
            import paddle

            paddle.enable_static()
            with paddle.base.dygraph.guard():
                paddle.disable_static()
                assert paddle.in_dynamic_mode()
            assert not paddle.in_dynamic_mode()
            paddle.disable_static()
            assert paddle.in_dynamic_mode()
            paddle.enable_static()
            assert not paddle.in_dynamic_mode()
            """,
            self.devices,
        )


class TestFork(ForkTestCase):
    @needs_another_device
    def test_guard_left_after_a_fork_gives_the_main_thread_its_own_tracer(self):
        run_script(
            self,
            """
            from thread_device_base import *

            def in_child(guard):
                guard.__exit__(None, None, None)
                paddle.set_device("cpu")
                # The main thread must not write to that device's tracer.
                in_thread(check_on, devices[1])

            def check_on(device):
                paddle.set_device(device)
                assert places_of_new_tensors() == {device}

            def fork_inside():
                paddle.set_device(devices[1])
                guard = paddle.base.dygraph.guard()
                guard.__enter__()
                forked(lambda: in_child(guard))

            in_thread(fork_inside)
            """,
            self.devices,
        )

    def test_graph_mode_outlives_a_fork_from_a_thread(self):
        # On stock, this child is in static graph mode: the fork drops the main
        # thread's state, and finalizes its guard on the forking thread.
        run_script(
            self,
            """
            from thread_device_base import *

            def dynamic():
                assert paddle.in_dynamic_mode()
                assert in_thread(paddle.in_dynamic_mode)
                paddle.enable_static()
                assert not paddle.in_dynamic_mode()
                paddle.disable_static()
                assert paddle.in_dynamic_mode()

            def static():
                assert not paddle.in_dynamic_mode()
                assert not in_thread(paddle.in_dynamic_mode)

            def fork_static():
                paddle.enable_static()
                forked(static)

            in_thread(forked, dynamic)
            in_thread(fork_static)
            """,
            self.devices,
        )

    def test_mode_of_a_thread_that_only_set_a_device_outlives_a_fork(self):
        run_script(
            self,
            """
            import paddle
            has_device, main_is_static = threading.Event(), threading.Event()

            def dynamic():
                assert paddle.in_dynamic_mode()

            def fork_with_device():
                paddle.set_device(devices[0])
                has_device.set()
                assert main_is_static.wait(WAIT_S)
                forked(dynamic)

            worker = Worker(fork_with_device)
            assert has_device.wait(WAIT_S)
            paddle.enable_static()
            main_is_static.set()
            worker.result()
            """,
            self.devices,
        )


if __name__ == "__main__":
    unittest.main()
