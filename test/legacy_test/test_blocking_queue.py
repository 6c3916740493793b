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
"""BlockingQueue: producers and consumers on several threads."""

from __future__ import annotations

import gc
import math
import os
import queue
import random
import sys
import time
import unittest
import weakref
from collections import deque

from concurrent_base import (
    WAIT_S,
    Worker,
    in_threads,
    switch_threads_often,
    wait_until,
)
from thread_device_base import run_script

from paddle.incubate.multiprocessing.blocking_queue import (
    BlockingQueue,
    ShutDown,
)
from paddle.incubate.multiprocessing.worker_thread import WorkerThread


class TestItems(unittest.TestCase):
    def test_items_come_in_first_in_first_out_order(self):
        items = BlockingQueue()
        for i in range(3):
            items.put(i)
        self.assertEqual([items.get() for _ in range(3)], [0, 1, 2])

    def test_items_are_neither_copied_nor_kept(self):
        class Item:
            pass

        items, item = BlockingQueue(), Item()
        kept = weakref.ref(item)
        items.put(item)
        self.assertIs(items.get(), item)
        del item
        gc.collect()
        self.assertIsNone(kept())

    def test_counts(self):
        items = BlockingQueue(maxsize=2)
        seen = []
        for _ in range(3):
            seen.append((items.qsize(), items.empty(), items.full()))
            if not items.full():
                items.put(None)
        self.assertEqual(
            seen, [(0, True, False), (1, False, False), (2, False, True)]
        )
        self.assertFalse(BlockingQueue().full())

    def test_without_waiting_a_full_or_empty_queue_is_an_error(self):
        items = BlockingQueue(maxsize=1)
        for call in (
            items.get_nowait,
            lambda: items.get(timeout=0),
            lambda: items.get(block=False, timeout=-1),
        ):
            with self.assertRaises(queue.Empty):
                call()
        items.put_nowait(1)
        for call in (
            lambda: items.put_nowait(2),
            lambda: items.put(2, timeout=0),
            lambda: items.put(2, timeout=0.01),
        ):
            with self.assertRaises(queue.Full):
                call()
        self.assertEqual(items.get_nowait(), 1)
        with self.assertRaises(queue.Empty):
            items.get(timeout=0.01)

    def test_a_consumer_waits_for_an_item(self):
        items = BlockingQueue()
        for timeout in (None, WAIT_S, 1e300, math.inf):
            consumer = Worker(lambda t=timeout: items.get(timeout=t))
            wait_until(lambda: items._not_empty._locked, "the consumer waits")
            items.put(3)
            self.assertEqual(consumer.result(), 3)

    def test_a_producer_waits_for_room(self):
        items = BlockingQueue(maxsize=1)
        items.put(1)
        producer = Worker(items.put, 2)
        wait_until(lambda: items._not_full._locked, "the producer waits")
        self.assertEqual(items.qsize(), 1)
        self.assertEqual(items.get(), 1)
        producer.result()
        self.assertEqual(items.get(), 2)

    def test_two_producers_do_not_get_the_same_room(self):
        class AddedMeanwhile(deque):
            def append(self, item):
                if item == 1:
                    producers.append(Worker(items.put_nowait, 2))
                    # Enough time to add its item, if that were allowed.
                    producers[0].join(0.1)
                super().append(item)

        items, producers = BlockingQueue(maxsize=1), []
        items._items = AddedMeanwhile()
        items.put(1)
        with self.assertRaises(queue.Full):
            producers[0].result()
        self.assertEqual(items.qsize(), 1)

    def test_bad_arguments_are_named(self):
        for error, message, call in (
            (
                TypeError,
                "an integer, but received 1.5",
                lambda: BlockingQueue(1.5),
            ),
            (TypeError, "maxsize.*True", lambda: BlockingQueue(True)),
            (ValueError, "at least 0.*-1", lambda: BlockingQueue(-1)),
            (
                ValueError,
                "received -2",
                lambda: BlockingQueue().get(timeout=-2),
            ),
            (
                TypeError,
                "number of seconds, but received 'soon'",
                lambda: BlockingQueue().get(timeout="soon"),
            ),
            (
                ValueError,
                "received nan",
                lambda: BlockingQueue().put(1, timeout=math.nan),
            ),
        ):
            with self.assertRaisesRegex(error, message):
                call()


class TestShutDown(unittest.TestCase):
    def test_remaining_items_can_be_taken_but_none_added(self):
        items = BlockingQueue()
        items.put(1)
        items.shutdown()
        with self.assertRaisesRegex(ShutDown, "only those that are left"):
            items.put(2)
        self.assertEqual(items.get(), 1)
        for block in (True, False):
            with self.assertRaises(ShutDown):
                items.get(block)

    def test_immediate_shutdown_drops_the_items(self):
        items = BlockingQueue()
        items.put(1)
        items.shutdown(immediate=True)
        self.assertTrue(items.empty())
        with self.assertRaises(ShutDown):
            items.get()

    def test_shutdown_wakes_all_waiting_threads(self):
        empty, full = BlockingQueue(), BlockingQueue(maxsize=1)
        full.put(1)
        waiting = [Worker(empty.get) for _ in range(3)]
        waiting += [Worker(full.put, 2) for _ in range(3)]
        wait_until(
            lambda: len(empty._not_empty._locked) == 3
            and len(full._not_full._locked) == 3,
            "all wait",
        )
        empty.shutdown()
        full.shutdown()
        for worker in waiting:
            with self.assertRaises(ShutDown):
                worker.result()
        self.assertEqual(full.get(), 1)

    def test_a_finalizer_may_shut_down_a_queue_that_is_in_use(self):
        """The finalizer may run on the thread that holds the queue's mutex."""
        items = BlockingQueue()
        with items._mutex:
            items.shutdown()
        with self.assertRaises(ShutDown):
            items.get()

    def test_immediate_shutdown_while_an_item_is_taken(self):
        class DroppedMeanwhile(deque):
            def popleft(self):
                items.shutdown(immediate=True)
                return super().popleft()

        items = BlockingQueue()
        items._items = DroppedMeanwhile([1])
        with self.assertRaises(ShutDown):
            items.get()

    def test_immediate_shutdown_while_an_item_is_added_leaves_no_item(self):
        class ShutDownMeanwhile(deque):
            def append(self, item):
                items.shutdown(immediate=True)
                super().append(item)

        items = BlockingQueue()
        items._items = ShutDownMeanwhile()
        with self.assertRaises(ShutDown):
            items.put(1)
        self.assertTrue(items.empty())

    def test_it_is_the_exception_of_the_standard_library_if_that_has_one(self):
        self.assertIs(ShutDown, getattr(queue, "ShutDown", ShutDown))


class TestStress(unittest.TestCase):
    def setUp(self):
        switch_threads_often(self)

    def test_each_item_goes_to_one_consumer_in_the_order_of_its_producer(self):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        for _ in range(8):
            items = BlockingQueue(maxsize=rng.randint(0, 4))
            producers = rng.randint(1, 4)
            count = rng.randint(1, 300)
            ended = []

            def produce(number, items=items, ended=ended, count=count):
                for i in range(count):
                    items.put((number, i))
                ended.append(number)

            def consume(seed, items=items):
                mine, rng = [], random.Random(seed)
                while True:
                    try:
                        timeout = rng.choice([None, 0.0001])
                        mine.append(items.get(rng.random() < 0.9, timeout))
                    except queue.Empty:
                        continue
                    except ShutDown:
                        return mine

            def shut_down(items=items, ended=ended, producers=producers):
                wait_until(lambda: len(ended) == producers, "all items are in")
                items.shutdown()

            seeds = [rng.random() for _ in range(rng.randint(1, 4))]
            taken = in_threads(
                shut_down,
                *[lambda n=n: produce(n) for n in range(producers)],
                *[lambda s=s: consume(s) for s in seeds],
            )[1 + producers :]
            self.assertEqual(
                sorted(item for mine in taken for item in mine),
                [(n, i) for n in range(producers) for i in range(count)],
            )
            for mine in taken:
                for number in range(producers):
                    order = [i for n, i in mine if n == number]
                    self.assertEqual(order, sorted(order))

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_child_can_use_a_queue_that_threads_use(self):
        run_script(
            self,
            """
            import queue, signal
            from paddle.incubate.multiprocessing.blocking_queue import (
                BlockingQueue,
            )
            sys.setswitchinterval(1e-6)
            items = BlockingQueue(maxsize=4)
            def use():
                while True:
                    items.put(1)
                    items.get()
            for _ in range(3):
                threading.Thread(target=use, daemon=True).start()
            def child():
                signal.alarm(60)  # ends a child that hangs
                number = items.qsize()
                taken = [items.get_nowait() for _ in range(number)]
                assert taken == [1] * number, taken
                items.put_nowait(2)
                assert items.get_nowait() == 2
            for _ in range(20):
                forked(child)
            """,
            ["cpu"],
        )

    def test_an_item_is_not_lost_when_a_worker_that_waits_is_stopped(self):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        for _ in range(40):
            items, taken = BlockingQueue(), []

            def take(items=items, taken=taken):
                while True:
                    taken.append(items.get())

            workers = [WorkerThread(take) for _ in range(4)]
            for worker in workers:
                worker.start()
            for i in range(20):
                items.put(i)
                if rng.random() < 0.1:
                    workers[rng.randrange(4)].stop()
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(WAIT_S)
            left = [items.get() for _ in range(items.qsize())]
            self.assertEqual(sorted(taken + left), [*range(20)])


if __name__ == "__main__":
    unittest.main()
