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
"""Per-thread streams: thread exit, process exit and forks."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import textwrap
import threading
import unittest
import weakref
from unittest import mock

from concurrent_base import WAIT_S, Worker, in_thread, wait_until
from thread_device_base import (
    ForkTestCase,
    StreamTestCase,
    check_has_streams,
    current_handles,
    handle,
    on_every_device_list,
    places_of_new_tensors,
    run_script,
)

import paddle
from paddle.base.threads import streams
from paddle.device import Stream, set_stream, stream_guard

# Checks for scripts, on the first device.
CHECK = """
from thread_device_base import *
from paddle.device import Stream, set_stream, stream_guard

def current():
    return handle(paddle.device.current_stream())

def check_computes():
    assert (paddle.full([4], 3.0) * 2).tolist() == [6.0] * 4

def check_on(expected):
    assert current() == expected, (current(), expected)
    check_computes()

default = current()
"""


def with_checks(body: str) -> str:
    return CHECK + textwrap.dedent(body)


def run_on_a_native_thread(*callbacks):
    """
    Runs each function as a separate callback, all on the same native
    (non-Python) thread: the second thread of an OpenMP team, which OpenMP
    reuses for the next team.
    """
    openmp = ctypes.CDLL("libgomp.so.1")
    caller, left = threading.get_ident(), list(callbacks)
    threads, errors = set(), []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def region(_):
        if threading.get_ident() == caller:
            return
        threads.add(threading.get_native_id())
        try:
            left.pop(0)()
        except BaseException as error:  # raised again below
            errors.append(error)

    while left and not errors:
        openmp.GOMP_parallel(region, None, 2, 0)
    for error in errors:
        raise error
    assert len(threads) == 1, threads


def compute_in_new_process(devices: list[str]):
    """Checks that a new process starts without its parent's state."""
    paddle.set_device(devices[0])
    defaults = current_handles(devices[:-1])
    assert in_thread(current_handles, devices[:-1]) == defaults
    stream = Stream()
    with stream_guard(stream):
        assert (paddle.full([4], 3.0) * 2).tolist() == [6.0] * 4
    assert current_handles(devices[:-1]) == defaults


@on_every_device_list
class TestNativeThreads(StreamTestCase):
    """Native (non-Python) threads that call back into Python."""

    def setUp(self):
        super().setUp()
        self.stream = Stream(self.accelerators[-1])
        self.states = []

    def set_own(self):
        paddle.set_device(self.accelerators[-1])
        set_stream(self.stream)

    def check_own(self):
        self.assertEqual(places_of_new_tensors(), {self.accelerators[-1]})
        self.assertEqual(self.current()[-1], handle(self.stream))

    def test_device_and_stream_end_with_the_callback(self):
        def check_none():
            self.assertEqual(places_of_new_tensors(), {self.devices[0]})
            self.assertEqual(self.current(), self.defaults)

        run_on_a_native_thread(self.set_own, check_none)

    def test_device_and_stream_last_while_the_thread_state_is_kept(self):
        def keep():
            self.states.append(ctypes.pythonapi.PyGILState_Ensure())
            self.set_own()

        def release():
            self.check_own()
            ctypes.pythonapi.PyGILState_Release(self.states.pop())

        run_on_a_native_thread(keep, self.check_own, release)

    def test_contexts_entered_by_each_callback_take_effect(self):
        def callback():
            with paddle.device.device(self.accelerators[-1]):
                with stream_guard(self.stream):
                    self.check_own()

        run_on_a_native_thread(callback, callback)


@on_every_device_list
class TestThreadExit(StreamTestCase):
    def test_object_dropped_before_thread_exit_sees_the_threads_device(self):
        # An object destroyed with the thread's state may see the main thread's
        # device and stream.
        found, local = [], threading.local()

        class Probe:
            def __del__(self):
                found.append(paddle.get_device())

        def own():
            paddle.set_device(self.accelerators[-1])
            local.probe = Probe()
            local.__dict__.clear()

        in_thread(own)
        self.assertEqual(found, [self.accelerators[-1]])

    def test_stream_is_destroyed_with_the_thread_that_set_it(self):
        def own():
            stream = Stream()
            set_stream(stream)
            self.check_computes()
            return weakref.ref(stream.stream_base)

        stream = in_thread(own)
        gc.collect()
        self.assertIsNone(stream())

    def test_stream_is_destroyed_with_its_guard(self):
        def own():
            stream = Stream()
            with stream_guard(stream):
                self.check_computes()
            reference = weakref.ref(stream.stream_base)
            del stream
            gc.collect()
            self.assertIsNone(reference())

        in_thread(own)

    def test_threads_leak_no_streams(self):
        if self.devices[0] != "custom_cpu:0" or not os.path.isdir("/proc"):
            self.skipTest("counts the threads that the plugin has for streams")

        def own():
            set_stream(Stream())
            for device in self.accelerators:
                with stream_guard(Stream(device)):
                    self.check_computes()

        def count():
            gc.collect()
            return len(os.listdir("/proc/self/task"))

        in_thread(own)
        before = count()
        for _ in range(200):
            in_thread(own)
        # The kernel thread ends slightly after Python has joined it.
        wait_until(lambda: count() <= before, "their threads end")

    def test_thread_that_fails_leaves_its_stream(self):
        def fail():
            set_stream(Stream())
            raise KeyError

        with self.assertRaises(KeyError):
            in_thread(fail)
        self.assertEqual(in_thread(self.current), self.defaults)

    def test_thread_that_is_interrupted_while_it_sets_a_stream(self):
        # As by PyThreadState_SetAsyncExc, once Python code runs again.
        use = streams.native.use_thread_contexts

        def use_and_fail(*args):
            use(*args)
            raise KeyError

        def own():
            default = set_stream(Stream())
            stream = Stream()
            with mock.patch.object(
                streams.native, "use_thread_contexts", use_and_fail
            ):
                with self.assertRaises(KeyError):
                    set_stream(stream)
            gc.collect()
            self.check_computes()
            self.assertEqual(self.current(), self.with_first(stream))
            set_stream(default)
            self.assertEqual(self.current(), self.defaults)

        in_thread(own)

    def test_stream_used_by_another_thread_outlives_its_creator(self):
        stream = in_thread(Stream)

        def own():
            with stream_guard(stream):
                self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))

        in_thread(own)
        in_thread(own)

    def test_stream_dropped_while_it_is_current_is_kept_until_it_is_left(self):
        def own():
            default = paddle.device.current_stream()
            stream = Stream()
            expected = self.with_first(stream)
            reference = weakref.ref(stream.stream_base)
            set_stream(stream)
            del stream
            gc.collect()
            self.check_computes()
            self.assertEqual(self.current(), expected)
            set_stream(default)
            gc.collect()
            self.assertIsNone(reference())

        in_thread(own)

    def test_stream_dropped_inside_a_nested_guard_is_restored(self):
        def own():
            stream = Stream()
            expected = self.with_first(stream)
            set_stream(stream)
            with stream_guard(Stream()):
                del stream
                gc.collect()
                self.check_computes()
            self.check_computes()
            self.assertEqual(self.current(), expected)

        in_thread(own)

    def test_tensors_outlive_the_thread_and_the_stream(self):
        def make():
            stream = Stream()
            with stream_guard(stream):
                x = paddle.full([4], 3.0)
                leaf = paddle.full([4], 1.0)
                leaf.stop_gradient = False
                total = (leaf * x).sum()
                stream.synchronize()
            return x, leaf, total, weakref.ref(stream.stream_base)

        x, leaf, total, stream = in_thread(make)
        gc.collect()
        self.assertIsNone(stream())
        self.assertEqual((x * 2).tolist(), [6.0] * 4)
        total.backward()
        self.assertEqual(leaf.grad.tolist(), [3.0] * 4)
        del x, leaf, total
        gc.collect()
        self.check_computes()

    def test_main_thread_releases_a_stream(self):
        stream = Stream()
        with stream_guard(stream):
            self.check_computes()
        reference = weakref.ref(stream.stream_base)
        del stream
        gc.collect()
        self.assertIsNone(reference())
        self.check_computes()

    def test_thread_that_is_not_a_threading_thread(self):
        run_script(
            self,
            with_checks(
                """
                import _thread, queue

                answers = queue.Queue()

                def raw():
                    try:
                        check_on(default)
                        stream = Stream()
                        set_stream(stream)
                        check_on(handle(stream))
                    except BaseException as error:
                        answers.put(error)
                    else:
                        answers.put(None)

                for _ in range(5):
                    _thread.start_new_thread(raw, ())
                    error = answers.get(timeout=WAIT_S)
                    if error is not None:
                        raise error
                    check_on(default)
                """
            ),
            self.devices,
        )

    def test_paddle_imported_first_in_a_thread(self):
        run_script(
            self,
            """
            def first():
                import paddle
                from paddle.device import Stream, stream_guard
                with stream_guard(Stream()):
                    assert (paddle.full([4], 3.0) * 2).tolist() == [6.0] * 4

            thread = threading.Thread(target=first)
            thread.start()
            thread.join()
            from thread_device_base import *
            from paddle.device import Stream, set_stream

            default = current_handles(devices[:1])
            stream = Stream()
            set_stream(stream)
            assert current_handles(devices[:1]) == [handle(stream)]
            assert in_thread(current_handles, devices[:1]) == default
            """,
            self.devices,
            tests_import=True,
        )


@on_every_device_list
class TestProcessExit(StreamTestCase):
    """A process exits without errors, whatever streams its threads use."""

    def run_quietly(self, body):
        quiet = 'import warnings\nwarnings.simplefilter("ignore")\n'
        said = run_script(self, quiet + with_checks(body), self.devices)
        self.assertEqual(said, "")

    def test_globals_keep_streams_and_tensors_of_threads_that_ended(self):
        self.run_quietly(
            """
            kept = []

            def own():
                stream = Stream()
                set_stream(stream)
                kept.append((stream, paddle.full([4], 3.0) * 2))

            for _ in range(3):
                in_thread(own)
            """
        )

    def test_thread_of_a_pool_has_a_stream(self):
        self.run_quietly(
            """
            from concurrent.futures import ThreadPoolExecutor

            pool = ThreadPoolExecutor(1)
            pool.submit(lambda: set_stream(Stream())).result(WAIT_S)
            pool.submit(check_computes).result(WAIT_S)
            """
        )

    def test_thread_ends_after_the_main_thread_has(self):
        self.run_quietly(
            """
            entered = threading.Event()

            def own():
                with stream_guard(Stream()):
                    entered.set()
                    threading.main_thread().join()
                    check_computes()

            threading.Thread(target=own).start()
            assert entered.wait(WAIT_S)
            """
        )

    def test_daemon_threads_sleep_inside_guards(self):
        self.run_quietly(
            """
            entered = threading.Barrier(4, timeout=WAIT_S)

            def sleep_inside():
                with stream_guard(Stream()):
                    check_computes()
                    kept = paddle.full([4], 3.0)
                    entered.wait()
                    threading.Event().wait()

            for _ in range(3):
                threading.Thread(target=sleep_inside, daemon=True).start()
            entered.wait()
            """
        )

    def test_main_thread_is_on_a_stream(self):
        self.run_quietly(
            """
            set_stream(Stream())
            check_computes()
            in_thread(check_on, default)
            """
        )

    def test_main_and_other_threads_are_on_streams_of_all_devices(self):
        self.run_quietly(
            """
            kept = []

            def own():
                for device in devices[:-1]:
                    set_stream(Stream(device))
                    paddle.set_device(device)
                    kept.append(paddle.full([4], 3.0) * 2)

            in_thread(own)
            own()
            """
        )

    def test_process_ends_by_an_exception_inside_a_guard(self):
        self.run_quietly(
            """
            def exit_inside():
                with stream_guard(Stream()):
                    check_computes()
                    sys.exit(0)

            thread = threading.Thread(target=exit_inside)
            thread.start()
            thread.join(WAIT_S)
            exit_inside()
            """
        )


class TestFork(ForkTestCase):
    def setUp(self):
        super().setUp()
        check_has_streams(self)

    def run_with_checks(self, body):
        run_script(self, with_checks(body), self.devices)

    def test_fork_from_the_main_thread_in_a_guard(self):
        self.run_with_checks(
            """
            stream = Stream()

            def in_child():
                check_on(handle(stream))
                in_thread(check_on, default)

            with stream_guard(stream):
                forked(in_child)
                check_on(handle(stream))
            check_on(default)
            """
        )

    def test_steps_of_a_fork_do_not_depend_on_the_order_of_imports(self):
        self.run_with_checks(
            """
            from paddle.base.threads import fork

            def enter(stream):
                with stream_guard(stream):
                    check_on(handle(stream))

            def fork_with_a_stream():
                stream = Stream(devices[1])
                paddle.set_device(devices[1])
                set_stream(stream)

                def in_child():
                    assert paddle.base.threads.main_thread.is_main_thread()
                    assert places_of_new_tensors() == {devices[1]}
                    check_on(handle(stream))
                    # If the stream were still the thread's own, its context
                    # would be bound to the next stream.
                    set_stream(Stream(devices[1]))
                    in_thread(enter, stream)

                forked(in_child)

            in_thread(fork_with_a_stream)
            steps = list(fork._steps.items())
            fork._steps.clear()
            # As if the modules had been imported in another order.
            fork._steps.update(reversed(steps))
            in_thread(fork_with_a_stream)
            """
        )

    def test_fork_from_a_thread_in_a_guard(self):
        self.run_with_checks(
            """
            def fork_inside():
                stream = Stream()

                def in_child():
                    check_on(handle(stream))
                    in_thread(check_on, default)

                with stream_guard(stream):
                    forked(in_child)
                    check_on(handle(stream))
                check_on(default)

            in_thread(fork_inside)
            check_on(default)
            """
        )

    def test_fork_from_a_thread_without_a_stream(self):
        self.run_with_checks(
            """
            def in_child():
                check_on(default)
                in_thread(check_on, default)

            with stream_guard(Stream()):
                in_thread(forked, in_child)
            check_on(default)
            """
        )

    def test_fork_from_a_thread_while_another_is_in_a_guard(self):
        self.run_with_checks(
            """
            entered, may_leave = threading.Event(), threading.Event()

            def stay_inside():
                stream = Stream()
                with stream_guard(stream):
                    entered.set()
                    assert may_leave.wait(WAIT_S)
                    check_on(handle(stream))

            def in_child():
                check_on(default)
                in_thread(check_on, default)

            worker = Worker(stay_inside)
            assert entered.wait(WAIT_S)
            forked(in_child)
            in_thread(forked, in_child)
            may_leave.set()
            worker.result()
            """
        )

    def test_forked_child_leaves_the_guard_that_it_was_forked_in(self):
        self.run_with_checks(
            """
            def fork_inside():
                guard = stream_guard(Stream())

                def in_child():
                    guard.__exit__(None, None, None)
                    check_on(default)
                    in_thread(check_on, default)

                with guard:
                    forked(in_child)

            in_thread(fork_inside)
            fork_inside()
            """
        )

    def test_forking_thread_is_the_main_thread_of_its_child(self):
        self.run_with_checks(
            """
            def own_stream():
                stream = Stream()
                with stream_guard(stream):
                    check_on(handle(stream))
                check_on(default)

            def in_child():
                stream = Stream()
                with stream_guard(stream):
                    check_on(handle(stream))
                    in_thread(check_on, default)
                    in_thread(own_stream)
                check_on(default)

            def fork_here():
                with stream_guard(Stream()):
                    pass
                forked(in_child)

            in_thread(fork_here)
            forked(in_child)
            """
        )

    def test_child_of_a_child(self):
        self.run_with_checks(
            """
            def in_grandchild(stream):
                check_on(handle(stream))
                in_thread(check_on, default)

            def in_child():
                def fork_again():
                    stream = Stream()
                    with stream_guard(stream):
                        forked(lambda: in_grandchild(stream))

                in_thread(fork_again)

            def fork_inside():
                with stream_guard(Stream()):
                    forked(in_child)

            in_thread(fork_inside)
            """
        )

    def test_child_releases_the_streams_of_the_parent(self):
        self.run_with_checks(
            """
            import gc

            def fork_inside():
                stream = Stream()
                set_stream(stream)
                held = [stream]

                def in_child():
                    set_stream(Stream())
                    held.clear()
                    gc.collect()
                    check_computes()

                del stream
                forked(in_child)

            in_thread(fork_inside)
            """
        )

    def test_process_started_by_multiprocessing_from_a_thread(self):
        self.run_with_checks(
            """
            def start_process():
                stream = Stream()
                with stream_guard(stream):
                    process = multiprocessing.get_context("fork").Process(
                        target=check_on, args=(handle(stream),)
                    )
                    process.start()
                    process.join(WAIT_S)
                    return process.exitcode

            assert in_thread(start_process) == 0
            """
        )


@on_every_device_list
class TestSpawn(StreamTestCase):
    def start_process(self):
        process = multiprocessing.get_context("spawn").Process(
            target=compute_in_new_process, args=(self.devices,)
        )
        process.start()
        self.addCleanup(process.kill)
        process.join(WAIT_S)
        self.assertEqual(process.exitcode, 0)

    def test_process_spawned_by_a_thread_in_a_guard(self):
        def spawn_inside():
            stream = Stream()
            with stream_guard(stream):
                self.start_process()
                self.check_computes()
                self.assertEqual(self.current(), self.with_first(stream))

        Worker(spawn_inside).result()

    def test_process_spawned_by_the_main_thread_in_a_guard(self):
        stream = Stream()
        with stream_guard(stream):
            self.start_process()
            self.check_computes()
            self.assertEqual(self.current(), self.with_first(stream))


if __name__ == "__main__":
    unittest.main()
