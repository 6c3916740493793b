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
"""Prefetchers: their items, their errors, and their end."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import threading
import time
import unittest
import weakref
from unittest import mock

from concurrent_base import WAIT_S, in_fork, wait_until
from shared_tensor_base import setUpModule, tearDownModule
from thread_device_base import run_script
from worker_thread_base import (
    DeliberateError,
    WorkerTestCase,
    draw,
    end,
    fail,
    in_worker,
)

import paddle
from paddle.incubate.multiprocessing.prefetcher import Prefetcher
from paddle.incubate.multiprocessing.worker_thread import WorkerThread

__all__ = ["setUpModule", "tearDownModule"]


def held_back(gate):
    """Yields an item once `gate` is set; fails if it is never set."""
    if not gate.wait(WAIT_S):
        raise AssertionError("nobody has set the gate")
    yield 1


class Source:
    """Counts up; records its number of items and whether it was closed."""

    def __init__(self, count=2**31):
        self.made = 0
        self.closed_by = None
        self._count = count

    def __iter__(self):
        try:
            while self.made < self._count:
                self.made += 1
                yield self.made - 1
        finally:
            self.closed_by = threading.current_thread()


class TestPrefetcher(WorkerTestCase):
    def test_items_come_in_order_and_then_the_end(self):
        for count in (0, 1, 2, 3, 50):
            prefetcher = Prefetcher(iter(range(count)), capacity=2)
            self.assertEqual(list(prefetcher), list(range(count)))
            self.assertEqual(list(prefetcher), [])
            self.assertFalse(prefetcher._thread.is_alive())

    def test_items_are_not_copied(self):
        tensors = [paddle.full([3], float(n)) for n in range(5)]
        for tensor, item in zip(tensors, Prefetcher(tensors)):
            self.assertIs(item, tensor)

    def test_items_are_made_by_another_thread_ahead_of_use(self):
        source = Source()
        with Prefetcher(source, capacity=3) as prefetcher:
            wait_until(lambda: source.made == 3, "items are made ahead")
            self.assertEqual(next(prefetcher), 0)
        self.assertIs(source.closed_by, prefetcher._thread)

    def test_no_more_items_are_made_than_the_capacity(self):
        for capacity in (1, 2, 5):
            source = Source(30)
            for taken, _ in enumerate(Prefetcher(source, capacity), start=1):
                all_there_is_room_for = min(30, taken + capacity)
                wait_until(
                    lambda source=source, room=all_there_is_room_for: (
                        source.made >= room
                    ),
                    "items are made ahead",
                )
                self.assertEqual(source.made, all_there_is_room_for)

    def test_the_thread_keeps_no_item_that_was_taken(self):
        class Item:
            pass

        def items():
            yield Item()
            yield from held_back(gate)

        gate = threading.Event()
        with Prefetcher(items(), capacity=1) as prefetcher:
            item = weakref.ref(next(prefetcher))
            wait_until(lambda: item() is None, "the item is gone")
            gate.set()

    def test_the_error_of_the_iterable_follows_the_earlier_items(self):
        def items():
            yield from range(3)
            fail()

        prefetcher = Prefetcher(items(), capacity=9)
        self.assertEqual([next(prefetcher) for _ in range(3)], [0, 1, 2])
        for _ in range(2):
            with self.assertRaisesRegex(DeliberateError, "said so"):
                next(prefetcher)

    def test_a_non_iterable_is_an_error_of_the_first_item(self):
        with self.assertRaisesRegex(TypeError, "not iterable"):
            next(Prefetcher(3))

    def test_a_failed_start_of_the_thread_reaches_the_consumer(self):
        with mock.patch(
            "paddle.incubate.multiprocessing.worker_thread.host_context",
            side_effect=NotImplementedError("no contexts"),
        ):
            prefetcher = Prefetcher(range(3))
            with self.assertRaisesRegex(NotImplementedError, "no contexts"):
                next(prefetcher)

    def test_close_ends_a_thread_that_waits_for_room(self):
        source = Source()
        prefetcher = Prefetcher(source, capacity=1)
        wait_until(lambda: prefetcher._thread._wake, "the thread waits")
        prefetcher.close()
        self.assertFalse(prefetcher._thread.is_alive())
        self.assertIs(source.closed_by, prefetcher._thread)
        prefetcher.close()

    def test_close_drops_the_items(self):
        class Item:
            def __init__(self):
                made.append(weakref.ref(self))

        made = []
        prefetcher = Prefetcher(iter(Item, None), capacity=3)
        wait_until(lambda: len(made) == 3, "items are made ahead")
        prefetcher.close()
        gc.collect()
        self.assertEqual([item() for item in made], [None] * len(made))

    def test_close_by_the_iterable_itself_ends_it(self):
        def items():
            ready.wait(WAIT_S)
            prefetcher.close()
            yield 1

        ready = threading.Event()
        prefetcher = Prefetcher(items())
        ready.set()
        with self.assertRaisesRegex(RuntimeError, "was closed"):
            next(prefetcher)
        end(prefetcher._thread)

    def test_close_is_not_mistaken_for_the_end_of_the_items(self):
        prefetcher = Prefetcher(Source())
        next(prefetcher)
        prefetcher.close()
        for _ in range(2):
            with self.assertRaisesRegex(RuntimeError, "was closed"):
                next(prefetcher)

    def test_close_after_the_end_changes_nothing(self):
        with Prefetcher(range(3)) as prefetcher:
            self.assertEqual(list(prefetcher), [0, 1, 2])
        self.assertEqual(list(prefetcher), [])

    def test_close_wakes_a_consumer_that_waits(self):
        gate = threading.Event()

        def consume():
            with self.assertRaisesRegex(RuntimeError, "was closed"):
                next(prefetcher)
            gate.set()

        prefetcher = Prefetcher(held_back(gate))
        with WorkerThread(consume) as consumer:
            wait_until(lambda: consumer._wake, "the consumer waits")
            prefetcher.close()

    def test_a_consumer_that_leaves_early_ends_the_thread(self):
        source = Source()
        for item in Prefetcher(source, capacity=1):
            if item == 3:
                break
        wait_until(lambda: source.closed_by, "the iterable is left")

    def test_a_consumer_that_fails_ends_the_thread(self):
        with self.assertRaises(DeliberateError):
            with Prefetcher(Source()) as prefetcher:
                next(prefetcher)
                fail()
        self.assertFalse(prefetcher._thread.is_alive())

    def test_a_prefetcher_in_a_cycle_is_collected(self):
        prefetcher = Prefetcher(Source())
        prefetcher.itself = prefetcher
        thread = prefetcher._thread
        del prefetcher
        gc.collect()
        end(thread)

    def test_an_error_that_was_never_raised_is_reported(self):
        def items():
            yield 1
            fail()

        prefetcher = Prefetcher(items())
        end(prefetcher._thread)
        prefetcher.close()
        del prefetcher
        errors = self.take_reports()
        self.assertEqual([type(error) for error in errors], [DeliberateError])

    def test_several_consumers_share_the_items_and_all_see_the_end(self):
        taken = [[] for _ in range(4)]
        prefetcher = Prefetcher(range(2000), capacity=3)
        consumers = [
            WorkerThread(items.extend, [prefetcher]) for items in taken
        ]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join(WAIT_S)
        for items in taken:
            self.assertEqual(items, sorted(items))
        self.assertEqual(sorted(itertools.chain(*taken)), list(range(2000)))

    def test_all_of_several_consumers_get_the_error(self):
        def items():
            yield from range(20)
            fail()

        prefetcher = Prefetcher(items())
        consumers = [WorkerThread(list, [prefetcher]) for _ in range(3)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            with self.assertRaises(DeliberateError):
                consumer.join(WAIT_S)

    def test_a_pipeline_of_prefetchers_ends_together(self):
        source = Source(40)
        doubled = (2 * n for n in Prefetcher(source, capacity=2))
        stage = Prefetcher(doubled, capacity=2)
        self.assertEqual(list(stage), list(range(0, 80, 2)))

        source = Source()
        doubled = (2 * n for n in Prefetcher(source, capacity=2))
        stage = Prefetcher(doubled, capacity=2)
        del doubled
        self.assertEqual([next(stage) for _ in range(3)], [0, 2, 4])
        stage.close()
        del stage
        wait_until(lambda: source.closed_by, "the first stage is left")

    def test_close_reaches_a_stage_that_waits_for_another(self):
        gate = threading.Event()
        with Prefetcher(held_back(gate)) as first:
            second = Prefetcher(first)
            wait_until(lambda: second._thread._wake, "a stage waits")
            second.close()
            self.assertFalse(second._thread.is_alive())
            gate.set()

    def test_the_thread_inherits_the_state_of_its_creator(self):
        def items():
            yield paddle.is_grad_enabled()

        with paddle.no_grad():
            prefetcher = Prefetcher(items())
        self.assertEqual(list(prefetcher), [False])

    def test_random_items_do_not_depend_on_what_the_consumer_draws(self):
        def items():
            for _ in range(20):
                yield draw()

        def run(count):
            paddle.seed(5)
            numbers = []
            for item in Prefetcher(items()):
                draw(count)
                numbers.append(item)
            return numbers

        self.assertEqual(run(1), run(100))

    def test_bad_capacities_are_refused_by_their_value(self):
        for capacity in (0, -1):
            with self.assertRaisesRegex(ValueError, f"received {capacity}"):
                Prefetcher(range(3), capacity)
        for capacity in (1.5, True):
            with self.assertRaisesRegex(TypeError, f"received {capacity}"):
                Prefetcher(range(3), capacity)

    def test_a_worker_that_waits_for_items_ends_when_stopped(self):
        gate, cleaned_up, wrongly = threading.Event(), [], []

        def consume():
            try:
                for _ in prefetcher:
                    pass
                wrongly.append("an end that is none")
            finally:
                cleaned_up.append(True)

        with Prefetcher(held_back(gate)) as prefetcher:
            with WorkerThread(consume) as worker:
                wait_until(lambda: worker._wake, "the consumer waits")
            self.assertFalse(worker.is_alive())
            gate.set()
        self.assertEqual((cleaned_up, wrongly), ([True], []))


class TestStress(WorkerTestCase):
    def test_pipelines_that_are_left_at_any_moment_leave_nothing(self):
        seed = int(os.environ.get("WORKER_THREAD_SEED", time.time_ns() % 2**32))
        print(f"WORKER_THREAD_SEED={seed}")
        choose = random.Random(seed)
        # The thread of a pipeline that was left may still fail.
        self.ignored_errors = (DeliberateError,)

        def items(count, failing):
            yield from range(count)
            if failing:
                fail()

        for _ in range(300):
            count, failing = choose.randrange(12), choose.random() < 0.3
            taken = choose.randrange(14)
            prefetcher = Prefetcher(
                items(count, failing), choose.randrange(1, 4)
            )
            if choose.random() < 0.5:
                prefetcher = Prefetcher(prefetcher, choose.randrange(1, 4))
            got = []
            with contextlib.suppress(DeliberateError, StopIteration):
                for _ in range(taken):
                    got.append(next(prefetcher))
                    time.sleep(choose.choice((0, 0, 1e-4)))
            self.assertEqual(got, list(range(min(count, taken))))
            if choose.random() < 0.5:
                prefetcher.close()
                self.assertFalse(prefetcher._thread.is_alive())
            del prefetcher

    def test_workers_that_are_stopped_at_any_moment_end(self):
        prefetcher = Prefetcher(Source(), capacity=1)
        for _ in range(200):
            workers = [WorkerThread(list, [prefetcher]) for _ in range(3)]
            # The workers are short-lived, so the infinite lists stay small.
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(WAIT_S)
                self.assertFalse(worker.is_alive())
        prefetcher.close()


# A process whose prefetchers still run when it ends, and its output.
LEAVES_PREFETCHERS = """
import time
import paddle
paddle.set_device("cpu")
from paddle.incubate.multiprocessing.prefetcher import Prefetcher

def say(words):
    print(words, file=sys.stderr)

def forever():
    while True:
        yield paddle.ones([4])

full = Prefetcher(forever())
next(full)

def consume():
    for _ in shared:
        time.sleep(0.001)
    say("an end that is none")

shared = Prefetcher(forever())
threading.Thread(target=consume, daemon=True).start()
say("ends now")
"""

IS_STUCK = """
from paddle.incubate.multiprocessing.prefetcher import Prefetcher
def stuck():
    threading.Event().wait()
    yield 1
prefetcher = Prefetcher(stuck())
"""


class TestEndOfPython(unittest.TestCase):
    def test_interpreter_exit_is_not_mistaken_for_the_end_of_the_items(self):
        # This also tests that it ends although a thread waits for room.
        said = run_script(self, LEAVES_PREFETCHERS, [])
        self.assertIn("ends now", said)
        self.assertNotIn("an end that is none", said)

    def test_an_item_that_never_comes_does_not_prevent_the_end(self):
        run_script(self, IS_STUCK, [])


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class TestFork(WorkerTestCase):
    def test_a_prefetcher_of_the_parent_is_an_error_in_a_forked_child(self):
        def child():
            for call in (prefetcher.__next__, prefetcher._thread.join):
                with self.assertRaisesRegex(
                    RuntimeError, "in this forked process"
                ):
                    call()

        with Prefetcher(Source()) as prefetcher:
            next(prefetcher)
            in_fork(child)
            self.assertEqual([next(prefetcher) for _ in range(3)], [1, 2, 3])

    def test_a_forked_child_can_close_and_drop_prefetchers_of_the_parent(self):
        def child():
            for prefetcher in prefetchers:
                prefetcher.close()
            prefetchers.clear()
            gc.collect()

        # They keep working, so that some fork happens amid an operation.
        prefetchers = [Prefetcher(Source(), capacity=1) for _ in range(3)]
        for _ in range(10):
            for prefetcher in prefetchers:
                next(prefetcher)
            in_fork(child)
        for prefetcher in prefetchers:
            self.assertEqual(next(prefetcher), 10)
            prefetcher.close()

    def test_a_forked_child_can_create_prefetchers(self):
        def child():
            self.assertEqual(list(Prefetcher(range(9))), list(range(9)))

        with Prefetcher(Source()):
            in_fork(child)

    def test_a_forked_child_of_a_worker_can_create_prefetchers(self):
        def child():
            self.assertEqual(list(Prefetcher(range(9))), list(range(9)))

        in_worker(lambda: in_fork(child))


if __name__ == "__main__":
    unittest.main()
