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
"""Calls that end a worker thread that is asked to stop.

PADDLE_INTERRUPTION_LONG=1 makes the stress tests wait for minutes instead of
seconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import sys
import threading
import time
import unittest
from concurrent.futures import CancelledError, Future, TimeoutError
from unittest import mock

from concurrent_base import (
    WAIT_S,
    Worker,
    in_threads,
    switch_threads_often,
    wait_until,
    wait_until_threads_end,
)

from paddle.incubate.multiprocessing.blocking_queue import (
    BlockingQueue,
    ShutDown,
)
from paddle.incubate.multiprocessing.interruptible import (
    InterruptibleEvent,
    InterruptibleLock,
    wait_for_result,
)
from paddle.incubate.multiprocessing.prefetcher import Prefetcher
from paddle.incubate.multiprocessing.thread_group import start_threads
from paddle.incubate.multiprocessing.worker_thread import WorkerThread

LONG = bool(os.environ.get("PADDLE_INTERRUPTION_LONG"))


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
        for wrong in ("soon", None):
            with self.assertRaisesRegex(TypeError, f"`timeout` .* {wrong!r}"):
                InterruptibleLock().acquire(timeout=wrong)

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

    def test_an_argument_that_is_no_future_is_named(self):
        with self.assertRaisesRegex(TypeError, "Future, but received 3"):
            wait_for_result(3)

    def test_a_bad_timeout_is_named(self):
        for wait in (
            InterruptibleEvent().wait,
            lambda timeout: wait_for_result(Future(), timeout),
        ):
            for kind, wrong in ((TypeError, "soon"), (ValueError, math.nan)):
                with self.assertRaisesRegex(kind, f"`timeout` .*{wrong!r}"):
                    wait(wrong)

    def test_an_event_returns_at_once_after_a_negative_timeout(self):
        self.assertFalse(InterruptibleEvent().wait(-1))

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


class TestJoin(StopTestCase):
    def in_worker(self, function):
        """Returns the result or the error of `function` in a new worker."""
        results = []

        def target():
            try:
                results.append(function())
            except Exception as error:
                results.append(error)

        worker = WorkerThread(target)
        worker.start()
        end(worker)
        return results[0]

    def test_a_worker_that_waits_for_another_worker_ends(self):
        with WorkerThread(InterruptibleEvent().wait) as other:
            self.check(other.join)
            self.check(lambda: other.join(WAIT_S))
            self.check_group(other.join)
            self.assertTrue(other.is_alive())
            self.assertFalse(other.should_stop())

    def test_a_worker_that_waits_for_a_group_ends(self):
        event = InterruptibleEvent()
        group = start_threads(lambda _: event.wait(), nthreads=2, join=False)
        self.check(group.join)
        self.check(lambda: group.join(WAIT_S))
        self.check_group(group.join)
        self.assertFalse(group.join(0))
        event.set()
        self.assertTrue(group.join(WAIT_S))

    def test_an_error_ends_the_groups_that_the_threads_have_started(self):
        inner = threading.Barrier(3)

        def wait(rank):
            inner.wait(WAIT_S)
            InterruptibleEvent().wait()

        def fail_or_start(rank):
            if rank == 1:
                start_threads(wait, nthreads=2)
            inner.wait(WAIT_S)
            raise DeliberateError

        with self.assertRaises(DeliberateError):
            start_threads(fail_or_start, nthreads=2)
        wait_until_threads_end(self.before)

    def test_cleanup_of_a_stopped_worker_can_stop_and_join_others(self):
        gate, log = threading.Event(), []

        def end_slowly():
            try:
                InterruptibleEvent().wait()
            finally:
                gate.wait(WAIT_S)
                log.append("the other worker ended")

        def target():
            other = WorkerThread(end_slowly)
            other.start()
            group = start_threads(
                lambda rank: end_slowly(), nthreads=1, join=False
            )
            try:
                InterruptibleEvent().wait()
            finally:
                other.stop()
                group.stop()
                gate.set()
                other.join()
                group.join()
                log.append("the worker ended")

        worker = WorkerThread(target)
        worker.start()
        wait_until(lambda: worker._wake, "it waits")
        worker.stop()
        end(worker)
        self.assertEqual(log, ["the other worker ended"] * 2 + log[2:])
        self.assertEqual(log[2:], ["the worker ended"])

    def test_a_stopped_worker_that_leaves_a_context_joins_its_worker(self):
        ended = []

        def note_end():
            time.sleep(0.01)
            ended.append(True)

        def target():
            with WorkerThread(note_end):
                threading.current_thread().stop()
            ended.append("joined")

        worker = WorkerThread(target)
        worker.start()
        end(worker)
        self.assertEqual(ended, [True, "joined"])

    def test_a_worker_that_joins_gets_the_error_of_the_other(self):
        def fail():
            raise DeliberateError("of the other")

        other = WorkerThread(fail)
        other.start()
        error = self.in_worker(other.join)
        self.assertIsInstance(error, DeliberateError)
        with self.assertRaises(DeliberateError):
            other.join()

    def test_a_worker_that_joins_waits_until_the_timeout(self):
        with WorkerThread(InterruptibleEvent().wait) as other:
            for timeout in (-1, 0, 0.01):
                result = self.in_worker(lambda: other.join(timeout))  # noqa: B023
                self.assertIsNone(result)
            self.assertTrue(other.is_alive())

    def test_a_worker_cannot_join_itself_or_one_that_did_not_start(self):
        for name, join in (
            ("current thread", lambda: threading.current_thread().join()),
            ("before it is started", WorkerThread(print).join),
        ):
            error = self.in_worker(join)
            self.assertIsInstance(error, RuntimeError)
            self.assertIn(name, str(error))

    def test_a_worker_joins_one_of_a_class_with_its_own_run(self):
        class Own(WorkerThread):
            def run(self):
                began.wait(WAIT_S)

        began = threading.Event()
        own = Own(print)
        own.start()
        joins = WorkerThread(own.join)
        joins.start()
        wait_until(lambda: joins._wake, "it waits")
        began.set()
        end(joins)
        self.assertFalse(own.is_alive())


class Reading:
    """
    An iterator that workers read from, and the items they took.

    Args:
        items: the iterator.
        readers: how many threads may read at once.
        ended: matches the messages of errors that say that another worker was
            stopped, or that the source of the items has failed.
    """

    def __init__(self, items, readers=1, ended=None):
        self._items, self._ended = items, ended
        self._free = threading.Semaphore(readers)
        self.taken = []
        self.is_exhausted = self.has_failed = False

    def take(self):
        """Takes an item, unless other workers are reading."""
        if not self._free.acquire(blocking=False):
            return
        try:
            if not self.is_exhausted and not self.has_failed:
                self.taken.append(next(self._items))
        except StopIteration:
            self.is_exhausted = True
        except Exception as error:
            self.has_failed = True
            if not self._ended or not re.search(self._ended, str(error)):
                raise
            raise DeliberateError from error
        finally:
            self._free.release()

    def take_the_rest(self):
        with contextlib.suppress(DeliberateError):
            while not self.is_exhausted and not self.has_failed:
                self.take()


class Waits:
    """
    What the workers of a stress test wait for: one of each kind.

    Attributes:
        waits: the calls that wait. They may raise DeliberateError or ShutDown.
        feeds: calls that end some waits.
        failures: calls after which some waits raise.
        readings: the iterators. Each yields the numbers below `LENGTH`.
        ends: calls after which no thread or process of an iterator is left.
    """

    LENGTH = 60

    def __init__(self, rng):
        self.rng, self.future = rng, Future()
        self.waits, self.feeds, self.failures = [], [], []
        self.readings, self.ends = [], []
        self.add_all()

    def add_all(self):
        items, event, lock = BlockingQueue(1), InterruptibleEvent(), self.lock()
        self.waits += [items.get, lambda: items.put(0), event.wait, lock]
        self.waits.append(lambda: wait_for_result(self.future))
        self.feeds += [event.set, event.clear]
        self.feeds.append(lambda: self.next_future().set_result(0))
        self.failures.append(items.shutdown)
        self.failures.append(
            lambda: self.next_future().set_exception(DeliberateError())
        )
        numbers = map(self.slow_number(), range(self.LENGTH))
        self.read(Prefetcher(numbers), readers=2)

    def lock(self):
        """Returns a call that waits for a lock and holds it for a moment."""
        lock = InterruptibleLock()

        def hold():
            with lock:
                time.sleep(0.001)

        return hold

    def next_future(self):
        future, self.future = self.future, Future()
        return future

    def slow_number(self):
        """Returns a function that takes a moment to return its argument. In
        every second case, it raises for one argument."""
        bad = self.rng.randrange(2 * self.LENGTH)

        def number(i):
            time.sleep(0.001)
            if i == bad:
                raise DeliberateError
            return i

        return number

    def read(self, items, readers=1, ended=None):
        self.readings.append(Reading(items, readers, ended))
        self.waits.append(self.readings[-1].take)


class StressTestCase(StopTestCase):
    def check_stress(self, make_waits, rounds):
        """
        Checks that workers end that are stopped at random moments, or because
        one of them has failed, while they wait for random things.
        """
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        switch_threads_often(self)
        # Gets the errors that reach no worker, for example because the readers
        # of a source have left. pytest's hook would keep what they refer to.
        hook = mock.patch("threading.excepthook", lambda _: None)
        hook.start()
        self.addCleanup(hook.stop)
        for i in range(rounds):
            self.check_round(rng, make_waits(rng), fail=i % 2)
            # The next round may fork, which is safe without other threads.
            wait_until_threads_end(self.before)

    def check_round(self, rng, waits, fail):
        self.stop_or_fail(rng, waits, fail)
        for reading in waits.readings:
            reading.take_the_rest()
            count = len(reading.taken)
            if reading.is_exhausted:
                count = waits.LENGTH
            self.assertEqual(sorted(reading.taken), [*range(count)])
        for end_iterator in waits.ends:
            end_iterator()

    def stop_or_fail(self, rng, waits, fail):
        first = [None, *rng.sample(waits.waits, len(waits.waits))]
        seeds = [rng.random() for _ in first]

        def work(rank):
            rng = random.Random(seeds[rank])
            if rank == 0:
                feed(rng)
                return
            first[rank]()
            while True:
                rng.choice(waits.waits)()

        def feed(rng):
            while not threading.current_thread().should_stop():
                time.sleep(rng.random() / 500)
                rng.choice(waits.feeds)()
                if fail and rng.random() < 0.02:
                    rng.choice([*waits.failures, raise_error])()

        group = start_threads(work, nthreads=len(first), join=False)
        if not fail:
            for worker in rng.sample(group.threads, len(first)):
                time.sleep(rng.random() / 100)
                worker.stop()
        failed = []
        for worker in group.threads:
            try:
                end(worker)
            except (DeliberateError, ShutDown):
                failed.append(worker)
        self.assertTrue(failed or not fail)


def raise_error():
    raise DeliberateError


class TestStress(StressTestCase):
    def test_workers_that_wait_for_random_things_end(self):
        self.check_stress(Waits, rounds=1000 if LONG else 10)


if __name__ == "__main__":
    unittest.main()
