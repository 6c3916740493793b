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
"""Calls that end a worker thread that is asked to stop."""

from __future__ import annotations

import math
import random
import sys
import threading
import time
import unittest
from concurrent.futures import CancelledError, Future, TimeoutError

from concurrent_base import (
    WAIT_S,
    Worker,
    in_threads,
    switch_threads_often,
    wait_until,
    wait_until_threads_end,
)

from paddle.incubate.multiprocessing.blocking_queue import BlockingQueue
from paddle.incubate.multiprocessing.interruptible import (
    InterruptibleEvent,
    InterruptibleLock,
    wait_for_result,
)
from paddle.incubate.multiprocessing.thread_group import start_threads
from paddle.incubate.multiprocessing.worker_thread import WorkerThread


class DeliberateError(Exception):
    pass


def end(worker):
    worker.join(WAIT_S)
    if worker.is_alive():
        raise AssertionError(f"{worker.name} has not ended in {WAIT_S} s")


class StopTestCase(unittest.TestCase):
    def setUp(self):
        self.before = set(threading.enumerate())

    def tearDown(self):
        wait_until_threads_end(self.before)

    def check(self, wait):
        """Checks that a waiting worker ends when it is stopped, and that a
        worker that was stopped before does not start to wait."""
        after = []

        def target():
            wait()
            after.append("the wait returned")

        worker = WorkerThread(target)
        worker.start()
        wait_until(lambda: worker._wake, "the worker waits")
        worker.stop()
        end(worker)
        stopped = WorkerThread(target)
        stopped.stop()
        stopped.start()
        end(stopped)
        self.assertEqual(after, [])

    def check_group(self, wait):
        """Checks that the failure of one thread ends the waiting threads."""

        def fail_or_wait(rank):
            group_started.wait(WAIT_S)
            if rank == 0:
                raise DeliberateError
            wait()

        group_started = threading.Barrier(3)
        with self.assertRaises(DeliberateError):
            start_threads(fail_or_wait, nthreads=3)


class TestQueue(StopTestCase):
    def test_a_worker_that_waits_for_an_item_ends(self):
        items = BlockingQueue()
        self.check(items.get)
        self.check(lambda: items.get(timeout=WAIT_S))
        self.check_group(items.get)

    def test_a_worker_that_waits_for_room_ends_and_adds_nothing(self):
        items = BlockingQueue(maxsize=1)
        items.put("there")
        self.check(lambda: items.put("not added"))
        self.check_group(lambda: items.put("not added"))
        self.assertEqual(items.get(), "there")
        self.assertTrue(items.empty())

    def test_a_worker_ends_although_there_are_always_items(self):
        items = BlockingQueue()

        def circulate():
            while True:
                items.put(items.get())

        items.put(1)
        worker = WorkerThread(circulate)
        worker.start()
        worker.stop()
        end(worker)
        # Between the two calls, the worker holds the item.
        self.assertLessEqual(items.qsize(), 1)


class TestEvent(StopTestCase):
    def test_a_worker_that_waits_ends(self):
        event = InterruptibleEvent()
        self.check(event.wait)
        self.check_group(event.wait)

    def test_set_and_clear_change_its_state(self):
        event = InterruptibleEvent()
        self.assertFalse(event.is_set())
        self.assertFalse(event.wait(0))
        self.assertFalse(event.wait(0.01))
        event.set()
        self.assertTrue(event.is_set())
        self.assertTrue(event.wait())
        event.clear()
        self.assertFalse(event.wait(0))

    def test_it_wakes_threads_of_all_kinds(self):
        event = InterruptibleEvent()
        results = []
        workers = [Worker(event.wait), Worker(event.wait, WAIT_S)]
        with WorkerThread(lambda: results.append(event.wait())) as worker:
            wait_until(
                lambda: len(event._waiters._locked) == 3, "all three wait"
            )
            event.set()
            end(worker)
        self.assertEqual(
            [*results, *(worker.result() for worker in workers)], [True] * 3
        )

    def test_waiting_threads_continue_although_it_is_cleared_immediately(self):
        event = InterruptibleEvent()
        worker = Worker(event.wait, WAIT_S)
        wait_until(lambda: event._waiters._locked, "it waits")
        event.set()
        event.clear()
        self.assertTrue(worker.result())


class TestLock(StopTestCase):
    def test_a_worker_that_waits_ends_without_the_lock(self):
        lock = InterruptibleLock()
        with lock:
            self.check(lock.acquire)
            self.check(lambda: lock.acquire(timeout=WAIT_S))
            self.check_group(lock.acquire)
        self.assertFalse(lock.locked())

    def test_a_worker_that_is_stopped_does_not_take_a_free_lock(self):
        lock = InterruptibleLock()
        worker = WorkerThread(lock.acquire)
        worker.stop()
        worker.start()
        end(worker)
        self.assertFalse(lock.locked())

    def test_a_with_statement_holds_it_during_the_body(self):
        lock = InterruptibleLock()
        with lock as taken:
            self.assertTrue(taken)
            self.assertTrue(lock.locked())
            for arguments in ((False,), (True, 0), (True, 0.01)):
                self.assertFalse(lock.acquire(*arguments))
        self.assertTrue(lock.acquire(timeout=0))
        lock.release()
        with self.assertRaises(RuntimeError):
            lock.release()

    def test_a_bad_timeout_is_named(self):
        for arguments in ((True, -5), (True, math.nan), (False, 5)):
            lock = InterruptibleLock()
            with self.assertRaisesRegex(ValueError, f"{arguments[1]}"):
                lock.acquire(*arguments)
            self.assertFalse(lock.locked())

    def test_one_thread_at_a_time_has_it(self):
        lock = InterruptibleLock()
        switch_threads_often(self)
        total = [0]

        def add():
            for _ in range(300):
                with lock:
                    total[0] += 1

        in_threads(*[add] * 4)
        self.assertEqual(total, [1200])


class TestFuture(StopTestCase):
    def test_a_waiting_worker_ends_and_the_future_continues(self):
        future = Future()
        self.check(lambda: wait_for_result(future))
        self.check_group(lambda: wait_for_result(future))
        future.set_result(5)
        self.assertEqual(wait_for_result(future), 5)

    def test_the_result_arrives(self):
        future = Future()
        worker = Worker(wait_for_result, future)
        wait_until(lambda: future._done_callbacks, "the thread waits")
        future.set_result(5)
        self.assertEqual(worker.result(), 5)

    def test_calls_that_time_out_leave_nothing_behind(self):
        future = Future()
        for _ in range(5):
            with self.assertRaises(TimeoutError):
                wait_for_result(future, timeout=0)
        self.assertEqual(len(future._done_callbacks), 1)

    def test_errors_arrive(self):
        future, cancelled = Future(), Future()
        with self.assertRaises(TimeoutError):
            wait_for_result(future, timeout=0.01)
        future.set_exception(DeliberateError())
        with self.assertRaises(DeliberateError):
            wait_for_result(future)
        cancelled.cancel()
        with self.assertRaises(CancelledError):
            wait_for_result(cancelled)


class TestStress(StopTestCase):
    def test_workers_that_are_stopped_at_any_moment_end(self):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        switch_threads_often(self)
        lock, event = InterruptibleLock(), InterruptibleEvent()
        items = BlockingQueue(maxsize=2)

        def work():
            while True:
                with lock:
                    pass
                event.wait(0.0001)
                wait_for_result(done)
                items.put(1)
                items.get()

        done = Future()
        done.set_result(None)
        for _ in range(30):
            workers = [WorkerThread(work) for _ in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                time.sleep(rng.random() / 1000)
                worker.stop()
                if rng.random() < 0.5:
                    event.set()
            for worker in workers:
                end(worker)
            event.clear()
            self.assertFalse(lock.locked())
            while not items.empty():
                items.get()


if __name__ == "__main__":
    unittest.main()
