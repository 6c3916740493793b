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
"""Context managers that change the device act on the calling thread."""

from __future__ import annotations

import sys
import threading
import unittest
from unittest import mock

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
from paddle.base.threads import device_guards
from paddle.base.threads.devices import current_place
from paddle.base.threads.thread_value import UNSET


def contexts_for(device):
    """Returns a new context of each kind that sets a thread's device."""
    contexts = {
        "paddle.device.device": paddle.device.device(device),
        "paddle.device.device of a place": paddle.device.device(
            paddle.device._convert_to_place(device)
        ),
        "paddle.cuda.device": paddle.cuda.device(device),
        "paddle.device.device_guard": paddle.device.device_guard(device),
        "_dygraph_place_guard": framework._dygraph_place_guard(
            paddle.device._convert_to_place(device)
        ),
        "dygraph.guard": paddle.base.dygraph.guard(
            paddle.device._convert_to_place(device)
        ),
    }
    if device.split(":")[0] in ("cpu", "gpu"):
        contexts["paddle.device(...)"] = paddle.device(device)
    return contexts


@on_every_device_list
class TestContexts(unittest.TestCase):
    @needs_another_device
    def test_context_sets_the_device_and_restores_it(self):
        def check(before):
            for name, context in contexts_for(self.devices[1]).items():
                with self.subTest(name):
                    with context:
                        self.assertEqual(
                            places_of_new_tensors(), {self.devices[1]}
                        )
                    self.assertEqual(places_of_new_tensors(), {before})

        def own():
            paddle.set_device("cpu")
            check("cpu")

        check(self.devices[0])
        in_thread(check, self.devices[0])
        in_thread(own)

    @needs_another_device
    def test_leaving_a_context_restores_not_set(self):
        def follow_again(name):
            with contexts_for(self.devices[1])[name]:
                pass
            has_left.set()
            self.assertTrue(has_moved.wait(WAIT_S))
            return places_of_new_tensors()

        for name in contexts_for(self.devices[1]):
            with self.subTest(name):
                has_left, has_moved = threading.Event(), threading.Event()
                paddle.set_device(self.devices[0])
                worker = Worker(follow_again, name)
                self.assertTrue(has_left.wait(WAIT_S))
                paddle.set_device("cpu")
                has_moved.set()
                self.assertEqual(worker.result(), {"cpu"})

    def test_thread_has_no_device_of_its_own_after_its_first_context(self):
        def enter_and_leave():
            with paddle.device.device("cpu"):
                self.assertEqual(str(current_place.get_local()), "Place(cpu)")
            return current_place.get_local()

        self.assertIs(in_thread(enter_and_leave), UNSET)

    def test_leaving_a_context_by_an_exception_restores(self):
        def fail(name):
            with self.assertRaises(KeyError):
                with contexts_for(self.other)[name]:
                    raise KeyError
            return places_of_new_tensors()

        for name in contexts_for(self.other):
            with self.subTest(name):
                self.assertEqual(in_thread(fail, name), {self.devices[0]})

    def inside_on_a_thread(self, context):
        """Starts a thread inside `context`; returns it and its exit event."""
        entered, may_end = threading.Event(), threading.Event()

        def enter():
            context.__enter__()
            entered.set()
            self.assertTrue(may_end.wait(WAIT_S))
            return places_of_new_tensors()

        worker = Worker(enter)
        self.assertTrue(entered.wait(WAIT_S))
        return worker, may_end

    @needs_another_device
    def test_context_does_not_reach_other_threads(self):
        for name, context in contexts_for(self.devices[1]).items():
            with self.subTest(name):
                worker, may_end = self.inside_on_a_thread(context)
                self.assertEqual(places_of_new_tensors(), {self.devices[0]})
                self.assertEqual(
                    in_thread(places_of_new_tensors), {self.devices[0]}
                )
                may_end.set()
                self.assertEqual(worker.result(), {self.devices[1]})

    @needs_another_device
    def test_contexts_nest(self):
        def nest():
            with paddle.device.device(self.devices[1]):
                with paddle.device.device_guard("cpu"):
                    with paddle.device.device(self.devices[0]):
                        inner = places_of_new_tensors()
                    middle = places_of_new_tensors()
                outer = places_of_new_tensors()
            return inner, middle, outer

        self.assertEqual(
            in_thread(nest), ({self.devices[0]}, {"cpu"}, {self.devices[1]})
        )

    def test_reentered_context_object_restores_each_time(self):
        def twice():
            context = paddle.device.device(self.other)
            with context:
                paddle.set_device("cpu")
                with context:
                    inner = paddle.get_device()
                between = paddle.get_device()
            return inner, between, places_of_new_tensors()

        expected = (self.other, "cpu", {self.devices[0]})
        self.assertEqual(twice(), expected)
        self.assertEqual(in_thread(twice), expected)

    def test_contexts_left_out_of_order_restore_their_own(self):
        def out_of_order():
            outer = paddle.device.device(self.other)
            inner = paddle.device.device_guard("cpu")
            outer.__enter__()
            inner.__enter__()
            outer.__exit__(None, None, None)
            after_outer = paddle.get_device()
            inner.__exit__(None, None, None)
            return after_outer, paddle.get_device()

        self.assertEqual(in_thread(out_of_order), (self.devices[0], self.other))

    def test_leaving_a_context_that_was_never_entered_is_an_error(self):
        with paddle.device.device(self.other):
            with self.assertRaisesRegex(RuntimeError, "has not entered it"):
                paddle.device.device("cpu").__exit__(None, None, None)
            self.assertEqual(places_of_new_tensors(), {self.other})

    def test_threads_may_share_one_context_object(self):
        context = paddle.device.device_guard(self.other)
        together = threading.Barrier(4, timeout=WAIT_S)

        def share():
            with context:
                together.wait()
                inside = places_of_new_tensors()
                together.wait()
            return inside, places_of_new_tensors()

        workers = [Worker(share) for _ in range(4)]
        for worker in workers:
            self.assertEqual(worker.result(), ({self.other}, {self.devices[0]}))

    def test_context_left_on_another_thread_is_an_error_without_effect(self):
        contexts = contexts_for(self.other)
        # The error also leaves the name and program guards inside the context.
        del contexts["dygraph.guard"]
        for name, context in contexts.items():
            with self.subTest(name):
                worker, may_end = self.inside_on_a_thread(context)
                with self.assertRaisesRegex(
                    RuntimeError, "'MainThread', which has not entered it"
                ):
                    context.__exit__(None, None, None)
                self.assertEqual(places_of_new_tensors(), {self.devices[0]})
                may_end.set()
                self.assertEqual(worker.result(), {self.other})

    @needs_another_device
    def test_guard_of_a_finished_thread_does_not_move_another_thread(self):
        place = paddle.device._convert_to_place(self.devices[0])

        def suspend():
            paddle.set_device(self.devices[1])
            with paddle.base.dygraph.guard(place):
                yield

        def begin():
            suspended = suspend()
            next(suspended)
            return suspended

        def close_elsewhere(suspended):
            paddle.set_device("cpu")
            suspended.close()
            return places_of_new_tensors()

        # Some of these threads reuse the ident of the finished thread.
        for _ in range(20):
            self.assertEqual(
                in_thread(close_elsewhere, in_thread(begin)), {"cpu"}
            )

    def test_contexts_that_are_never_left_do_not_pile_up(self):
        def items(context):
            with context:
                yield 1
                yield 2

        def drop_on_another_thread(generators):
            # Leaving here raises an error, which Python reports as ignored.
            generators.clear()

        def serve():
            entered = device_guards._entered_by_thread()
            still_open = items(paddle.device.device(self.other))
            next(still_open)
            for i in range(50):
                device = self.other if i % 2 else self.devices[0]
                contexts = contexts_for(device)
                # A contextlib guard is left when it is dropped.
                del contexts["_dygraph_place_guard"], contexts["dygraph.guard"]
                generators = [items(each) for each in contexts.values()]
                for generator in generators:
                    next(generator)
                del contexts, generator
                in_thread(drop_on_another_thread, generators)
            with paddle.device.device(self.devices[0]):
                return len(entered)

        with mock.patch.object(sys, "unraisablehook", lambda _: None):
            self.assertEqual(in_thread(serve), 2)

    def test_context_for_a_refused_device_changes_nothing(self):
        with self.assertRaises(ValueError):
            with paddle.device.device(1.5):
                pass
        self.assertEqual(places_of_new_tensors(), {self.devices[0]})

    @needs_another_device
    def test_stream_guard_entered_twice_restores_the_first_stream(self):
        def current():
            return repr(paddle.device.current_stream())

        before = current()
        stream, other = paddle.device.Stream(), paddle.device.Stream()
        context = paddle.device.stream_guard(stream)
        with context:
            paddle.device.set_stream(other)
            with context:
                self.assertEqual(current(), repr(stream))
            self.assertEqual(current(), repr(other))
        self.assertEqual(current(), before)

    @needs_another_device
    def test_stream_guard_left_on_another_thread_is_an_error(self):
        context = paddle.device.stream_guard(paddle.device.Stream())
        with context:
            with self.assertRaisesRegex(RuntimeError, "has not entered it"):
                in_thread(context.__exit__, None, None, None)


class TestFork(ForkTestCase):
    @needs_another_device
    def test_guard_entered_before_the_fork_is_left_after_it(self):
        run_script(
            self,
            """
            from thread_device_base import *

            def fork_inside():
                place = paddle.device._convert_to_place(devices[1])
                guard = paddle.base.dygraph.guard(place)

                def leave():
                    assert places_of_new_tensors() == {devices[1]}
                    guard.__exit__(None, None, None)
                    assert places_of_new_tensors() == {devices[2]}

                with guard:
                    forked(leave)

            paddle.set_device(devices[2])
            in_thread(fork_inside)
            """,
            self.devices,
        )

    @needs_another_device
    def test_context_entered_before_the_fork_is_left_after_it(self):
        run_script(
            self,
            """
            from thread_device_base import *

            def fork_inside(outside):
                if outside:
                    paddle.set_device(outside)
                context = paddle.device.device(devices[1])

                def leave():
                    assert places_of_new_tensors() == {devices[1]}
                    context.__exit__(None, None, None)
                    # Before the fork, "not set" meant the main thread's device.
                    expected = outside or devices[2]
                    assert places_of_new_tensors() == {expected}

                with context:
                    forked(leave)

            paddle.set_device(devices[2])
            in_thread(fork_inside, None)
            in_thread(fork_inside, "cpu")
            """,
            self.devices,
        )


if __name__ == "__main__":
    unittest.main()
