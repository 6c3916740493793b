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
"""Thread groups: ranks, errors, devices."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import traceback
import unittest
from unittest import mock

from concurrent_base import WAIT_S, Worker
from thread_device_base import (
    needs_another_device,
    on_every_device_list,
    run_script,
)

import paddle
from paddle.incubate.multiprocessing.prefetcher import Prefetcher
from paddle.incubate.multiprocessing.thread_group import start_threads
from paddle.incubate.multiprocessing.worker_thread import WorkerThread


class DeliberateError(Exception):
    pass


def wait_for_stop(rank):
    while not threading.current_thread().should_stop():
        time.sleep(0.001)


class TestStart(unittest.TestCase):
    def test_each_thread_has_its_rank_and_the_arguments(self):
        calls = []

        def note(rank, *args):
            worker = threading.current_thread()
            calls.append((rank, worker.rank, worker.world_size, args))

        self.assertIsNone(start_threads(note, ("a", calls), nthreads=3))
        self.assertEqual(
            sorted(calls, key=lambda call: call[0]),
            [(rank, rank, 3, ("a", calls)) for rank in range(3)],
        )

    def test_no_threads(self):
        group = start_threads(wait_for_stop, nthreads=0, join=False)
        self.assertEqual(group.threads, [])
        self.assertTrue(group.join())

    def test_threads_begin_in_the_state_of_the_caller(self):
        modes = []
        with paddle.no_grad():
            start_threads(
                lambda rank: modes.append(paddle.is_grad_enabled()), nthreads=2
            )
        self.assertEqual(modes, [False, False])

    def test_threads_draw_the_same_numbers_again_from_the_same_seed(self):
        def draw():
            drawn = [None] * 3

            def note(rank):
                drawn[rank] = paddle.rand([2]).tolist()

            paddle.seed(5)
            start_threads(note, nthreads=3)
            return drawn

        first = draw()
        self.assertEqual(draw(), first)
        self.assertNotEqual(first[0], first[1])

    def test_threads_are_daemons_if_asked(self):
        for daemon in (False, True):
            group = start_threads(
                wait_for_stop, nthreads=2, join=False, daemon=daemon
            )
            self.assertEqual([t.daemon for t in group.threads], [daemon] * 2)
            group.stop()
            self.assertTrue(group.join(WAIT_S))

    def test_where_no_more_threads_can_be_started_the_first_ones_stop(self):
        started = []

        def start(thread):
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(thread)
            WorkerThread.start(thread)

        with mock.patch(
            "paddle.incubate.multiprocessing.thread_group._RankedThread.start",
            start,
        ):
            with self.assertRaisesRegex(RuntimeError, "can't start"):
                start_threads(wait_for_stop, nthreads=3)
        for thread in started:
            threading.Thread.join(thread, WAIT_S)
            self.assertFalse(thread.is_alive())


class TestEnd(unittest.TestCase):
    def test_join_tells_whether_all_have_ended(self):
        group = start_threads(wait_for_stop, nthreads=2, join=False)
        self.assertFalse(group.join(timeout=0))
        group.stop()
        self.assertTrue(group.join(WAIT_S))
        self.assertTrue(group.join(0))

    def test_the_first_error_stops_the_others_and_is_raised(self):
        error = DeliberateError("rank 1")

        def fail_or_wait(rank):
            if rank == 1:
                raise error
            wait_for_stop(rank)

        with self.assertRaises(DeliberateError) as raised:
            start_threads(fail_or_wait, nthreads=3)
        self.assertIs(raised.exception, error)

    def test_the_error_has_the_traceback_of_its_thread(self):
        def fail(rank):
            raise DeliberateError

        try:
            start_threads(fail, nthreads=1)
        except DeliberateError:
            self.assertIn("in fail", traceback.format_exc())

    def test_of_several_errors_the_first_in_time_is_raised(self):
        def fail(rank):
            if rank == 0:
                wait_for_stop(rank)
                raise DeliberateError("afterwards")
            raise DeliberateError("first")

        reported = []
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = lambda args: reported.append(str(args.exc_value))
        with self.assertRaisesRegex(DeliberateError, "first"):
            start_threads(fail, nthreads=2)
        gc.collect()
        self.assertEqual(reported, ["afterwards"])

    def test_an_error_wakes_a_thread_that_waits_for_a_prefetcher(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        def endless():
            gate.wait(WAIT_S)
            yield 1

        prefetcher = Prefetcher(endless())

        def fail_or_take(rank):
            if rank == 0:
                raise DeliberateError
            next(prefetcher)

        with self.assertRaises(DeliberateError):
            start_threads(fail_or_take, nthreads=3)

    def test_an_error_that_no_join_raised_is_reported(self):
        reported = threading.Event()
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = lambda args: reported.set()

        def fail(rank):
            raise DeliberateError

        group = start_threads(fail, nthreads=1, join=False)
        threading.Thread.join(group.threads[0], WAIT_S)
        self.assertFalse(reported.is_set())
        del group
        gc.collect()
        self.assertTrue(reported.is_set())

    def test_a_thread_that_exits_has_failed(self):
        with self.assertRaisesRegex(SystemExit, "3"):
            start_threads(lambda rank: sys.exit(3), nthreads=1)

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_child_cannot_join_the_threads_of_its_parent(self):
        run_script(
            self,
            """
            from paddle.incubate.multiprocessing import thread_group
            gate = threading.Event()
            group = thread_group.start_threads(
                lambda rank: gate.wait(WAIT_S), nthreads=2, join=False
            )
            def child():
                try:
                    group.join()
                except RuntimeError as error:
                    assert "forked" in str(error)
                else:
                    raise AssertionError("joined")
            forked(child)
            gate.set()
            assert group.join(WAIT_S)
            """,
            ["cpu"],
        )


class TestArguments(unittest.TestCase):
    def check(self, error, message, *args, **options):
        with self.assertRaisesRegex(error, message):
            start_threads(*args, **options)

    def test_wrong_arguments_are_named(self):
        self.check(TypeError, "`fn` must be callable.*3", 3)
        self.check(TypeError, "`args` must be a tuple.*str", print, "ab")
        self.check(TypeError, "`nthreads` must be an int", print, nthreads=1.5)
        self.check(ValueError, "at least 0, but .* -1", print, nthreads=-1)

    def test_a_timeout_that_is_not_a_number_is_refused(self):
        group = start_threads(print, nthreads=0, join=False)
        with self.assertRaisesRegex(TypeError, "`timeout` .* 'soon'"):
            group.join("soon")

    def test_an_infinite_timeout_is_no_limit(self):
        event = threading.Event()
        group = start_threads(lambda rank: event.wait(), nthreads=2, join=False)
        waiting = Worker(group.join, float("inf"))
        event.set()
        self.assertTrue(waiting.result())


class Devices(unittest.TestCase):
    def places(self, **options):
        places = {}

        def note(rank):
            places[rank] = (paddle.get_device(), str(paddle.zeros([1]).place))

        start_threads(note, **options)
        return [places[rank] for rank in sorted(places)]

    def on(self, *devices):
        return [(device, f"Place({device})") for device in devices]

    def test_a_device_for_each_thread(self):
        devices = [self.devices[-1], self.devices[0], self.devices[0]]
        self.assertEqual(
            self.places(nthreads=3, devices=devices), self.on(*devices)
        )

    @needs_another_device
    def test_a_type_stands_for_its_first_devices(self):
        kind = self.devices[0].split(":")[0]
        count = len(self.devices) - 1
        self.assertEqual(
            self.places(nthreads=count, devices=kind),
            self.on(*self.devices[:-1]),
        )

    def test_devices_may_be_places_and_names_in_any_spelling(self):
        device = self.devices[-1]
        place = paddle.device._convert_to_place(device)
        spellings = (device.upper(), f" {device} ", place)
        self.assertEqual(
            self.places(nthreads=3, devices=spellings), self.on(*[device] * 3)
        )
        with paddle.device.device(device):
            of_tensor = paddle.zeros([1]).place
        self.assertEqual(
            self.places(nthreads=1, devices=[of_tensor]), self.on(device)
        )
        kind = self.devices[0].split(":")[0]
        self.assertEqual(
            self.places(nthreads=1, devices=f" {kind.upper()} "),
            self.on(self.devices[0]),
        )

    def test_the_device_of_the_caller_is_the_default_and_stays(self):
        self.assertEqual(self.places(nthreads=1), self.on(self.devices[0]))
        self.places(nthreads=1, devices=[self.devices[-1]])
        self.assertEqual(paddle.get_device(), self.devices[0])

    def test_missing_devices_and_too_few_devices_are_refused(self):
        for devices, message in (
            (["cpu"], "device per rank, but received 1 devices for 2 ranks"),
            (["cpu", "cpu:1"], "'cpu:1' has an index"),
            (["cpu", "TPU:0"], "must be one of .* received 'TPU:0'"),
            ("cpu:1", "'cpu:1' has an index"),
            (["cpu", 1.5], "received 1.5. The devices of this process are cpu"),
            (7, "`devices` must be None"),
        ):
            with self.subTest(devices):
                with self.assertRaisesRegex((TypeError, ValueError), message):
                    start_threads(print, nthreads=2, devices=devices)


on_every_device_list(Devices)
del Devices


if __name__ == "__main__":
    unittest.main()
