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
"""Worker threads: what they begin with, how they end, and prefetching."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import threading
import time
import traceback
import unittest
import weakref
from unittest import mock

import numpy as np
from concurrent_base import (
    WAIT_S,
    in_thread,
    wait_until,
    wait_until_threads_end,
)
from shared_tensor_base import setUpModule, tearDownModule
from thread_device_base import run_script

import paddle
from paddle.base import core
from paddle.base.threads.host_context import host_context
from paddle.incubate.multiprocessing import Prefetcher, WorkerThread
from paddle.incubate.multiprocessing.worker_thread import Waiters

__all__ = ["setUpModule", "tearDownModule"]


def in_worker(function, **options):
    """Returns what `function` returns in a worker that is started here."""
    results = []
    worker = WorkerThread(lambda: results.append(function()), **options)
    worker.start()
    worker.join(WAIT_S)
    return results[0]


def draw(count=4):
    return paddle.rand([count]).tolist()


def wait_for_stop():
    """A target that listens to `stop`."""
    worker = threading.current_thread()
    while not worker.should_stop():
        time.sleep(0.001)


def held_back(gate):
    """An item that is made when `gate` is set; an error if nobody sets it."""
    if not gate.wait(WAIT_S):
        raise AssertionError("nobody has set the gate")
    yield 1


class DeliberateError(Exception):
    pass


def fail():
    raise DeliberateError("said so")


def end(thread):
    threading.Thread.join(thread, WAIT_S)
    if thread.is_alive():
        raise AssertionError(f"{thread.name} has not ended in {WAIT_S} s")


class WorkerTestCase(unittest.TestCase):
    """Checks that no test leaves a thread or an unexpected report."""

    def setUp(self):
        # disable_static changes it.
        self.addCleanup(paddle.set_device, "cpu")
        before = set(threading.enumerate())
        self.reports = []
        hook = mock.patch.object(
            threading, "excepthook", lambda args: self.reports.append(args)
        )
        hook.start()
        self.addCleanup(hook.stop)
        self.addCleanup(self.check_nothing_is_left, before)

    def check_nothing_is_left(self, before):
        wait_until_threads_end(before)
        self.assertEqual(self.reports, [])

    def take_reports(self):
        """Returns the errors reported so far, as none that is left over."""
        errors = [report.exc_value for report in self.reports]
        self.reports.clear()
        return errors


class TestGradientsAndModes(WorkerTestCase):
    def test_a_worker_that_is_started_in_no_grad_is_in_it(self):
        with paddle.no_grad():
            self.assertFalse(in_worker(paddle.is_grad_enabled))
            # What is lost without.
            self.assertTrue(in_thread(paddle.is_grad_enabled))
        self.assertTrue(in_worker(paddle.is_grad_enabled))

    def test_operators_of_a_worker_started_in_no_grad_record_nothing(self):
        weight = paddle.ones([2])
        weight.stop_gradient = False
        with paddle.no_grad():
            self.assertTrue(in_worker(lambda: (weight * 2).stop_gradient))
        self.assertFalse(in_worker(lambda: (weight * 2).stop_gradient))

    def test_the_state_is_that_of_start(self):
        results = []
        worker = WorkerThread(lambda: results.append(paddle.is_grad_enabled()))
        with paddle.no_grad():
            worker.start()
        worker.join(WAIT_S)
        self.assertEqual(results, [False])

    def test_what_the_starter_changes_later_does_not_reach_the_worker(self):
        go = threading.Event()
        results = []

        def work():
            go.wait(WAIT_S)
            results.append(paddle.is_grad_enabled())

        with paddle.no_grad():
            worker = WorkerThread(work)
            worker.start()
        go.set()
        worker.join(WAIT_S)
        self.assertEqual(results, [False])

    def test_what_a_worker_changes_ends_with_it(self):
        def change():
            paddle.set_grad_enabled(False)
            paddle.enable_static()

        in_worker(change)
        for run in (lambda function: function(), in_thread, in_worker):
            self.assertTrue(run(paddle.is_grad_enabled))
            self.assertTrue(run(paddle.in_dynamic_mode))

    def test_a_worker_of_a_thread_in_static_mode_is_in_it(self):
        def static():
            paddle.enable_static()
            return in_thread(paddle.in_dynamic_mode), in_worker(
                paddle.in_dynamic_mode
            )

        # The first is what is lost without.
        self.assertEqual(in_thread(static), (True, False))

    def test_a_worker_of_a_thread_in_dynamic_mode_is_in_it(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        program = paddle.static.default_main_program()

        def dynamic():
            paddle.disable_static()
            total = in_worker(lambda: paddle.ones([2]).sum().item())
            paddle.enable_static()
            return total

        self.assertFalse(in_worker(paddle.in_dynamic_mode))
        self.assertEqual(in_thread(dynamic), 2)
        self.assertIs(paddle.static.default_main_program(), program)

    def test_a_worker_changes_no_default_program(self):
        started, go = threading.Event(), threading.Event()

        def work():
            started.set()
            go.wait(WAIT_S)

        before = paddle.static.default_main_program()
        with WorkerThread(work):
            self.assertTrue(started.wait(WAIT_S))
            self.assertIs(paddle.static.default_main_program(), before)
            go.set()

    def test_a_worker_can_train(self):
        paddle.seed(3)
        layer = paddle.nn.Linear(4, 2)

        def gradient():
            layer.clear_gradients()
            layer(paddle.ones([3, 4])).sum().backward()
            return layer.weight.grad.numpy()

        np.testing.assert_array_equal(in_worker(gradient), gradient())


class TestRandomNumbers(WorkerTestCase):
    def test_the_numbers_depend_on_the_seed_alone(self):
        numbers = in_worker(draw, seed=7)
        paddle.seed(99)
        self.assertEqual(in_worker(draw, seed=7), numbers)
        self.assertNotEqual(in_worker(draw, seed=8), numbers)

    def test_workers_side_by_side_draw_what_each_draws_alone(self):
        turns = 200
        alone = [
            in_worker(lambda: [draw() for _ in range(turns)], seed=seed)
            for seed in range(3)
        ]
        barrier = threading.Barrier(3)
        together = [[] for _ in alone]

        def work(numbers):
            for _ in range(turns):
                barrier.wait(WAIT_S)
                numbers.append(draw())

        workers = [
            WorkerThread(work, [numbers], seed=seed)
            for seed, numbers in enumerate(together)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(WAIT_S)
        self.assertEqual(together, alone)

    def test_the_seed_is_drawn_from_the_starters_sequence(self):
        def numbers_of_two():
            paddle.seed(5)
            return [in_worker(draw) for _ in range(2)]

        first, second = numbers_of_two()
        self.assertNotEqual(first, second)
        self.assertEqual(numbers_of_two(), [first, second])

    def test_the_starters_sequence_does_not_depend_on_what_a_worker_draws(self):
        def numbers_after(count):
            paddle.seed(5)
            in_worker(lambda: draw(count))
            return draw()

        self.assertEqual(numbers_after(0), numbers_after(1000))

    def test_a_seed_that_is_given_leaves_the_starters_sequence_alone(self):
        paddle.seed(5)
        expected = draw()
        paddle.seed(5)
        in_worker(draw, seed=1)
        self.assertEqual(draw(), expected)

    def test_running_it_without_starting_it_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "call start"):
            WorkerThread(draw).run()

    def test_a_worker_that_is_never_started_draws_no_seed(self):
        paddle.seed(5)
        expected = draw()
        paddle.seed(5)
        self.assertIsNone(WorkerThread(draw).seed)
        self.assertEqual(draw(), expected)

    def test_workers_of_workers_draw_their_seeds_from_them(self):
        def numbers_of_child():
            return in_worker(lambda: in_worker(draw), seed=7)

        paddle.seed(1)
        numbers = numbers_of_child()
        paddle.seed(2)
        self.assertEqual(numbers_of_child(), numbers)

    def test_the_seed_that_was_drawn_gives_the_same_numbers_again(self):
        numbers = []
        worker = WorkerThread(lambda: numbers.append(draw()))
        worker.start()
        worker.join(WAIT_S)
        self.assertEqual(in_worker(draw, seed=worker.seed), numbers[0])

    def test_seeds_of_64_bits_are_taken(self):
        for seed in (0, 2**64 - 1, np.int64(3)):
            self.assertEqual(WorkerThread(draw, seed=seed).seed, seed)
            in_worker(draw, seed=seed)

    def test_bad_seeds_are_refused_by_their_value(self):
        for seed in (-1, 2**64):
            with self.assertRaisesRegex(ValueError, f"received {seed}"):
                WorkerThread(draw, seed=seed)
        for seed in ("seven", 1.5):
            with self.assertRaisesRegex(TypeError, f"received {seed!r}"):
                WorkerThread(draw, seed=seed)


class TestThreads(WorkerTestCase):
    def test_the_target_gets_its_arguments(self):
        results = []

        def work(*args, **kwargs):
            results.append((args, kwargs))

        worker = WorkerThread(
            work, (1, 2), {"x": 3}, name="reader", daemon=True
        )
        self.assertEqual((worker.name, worker.daemon), ("reader", True))
        worker.start()
        worker.join(WAIT_S)
        self.assertEqual(results, [((1, 2), {"x": 3})])

    def test_a_target_that_cannot_be_called_is_refused(self):
        with self.assertRaisesRegex(TypeError, "received 3"):
            WorkerThread(3)

    def test_a_worker_can_be_started_once(self):
        worker = WorkerThread(draw)
        worker.start()
        worker.join(WAIT_S)
        paddle.seed(5)
        expected = draw()
        paddle.seed(5)
        with self.assertRaises(RuntimeError):
            worker.start()
        self.assertEqual(draw(), expected)

    def test_a_worker_that_was_not_started_cannot_be_joined(self):
        with self.assertRaises(RuntimeError):
            WorkerThread(draw).join()

    def test_a_worker_keeps_nothing_of_its_target_when_it_has_ended(self):
        class Argument:
            pass

        argument = Argument()
        worker = WorkerThread(lambda argument: None, [argument])
        worker.start()
        worker.join(WAIT_S)
        left = weakref.ref(argument)
        del argument
        self.assertIsNone(left())

    def test_a_worker_that_has_ended_is_gone_when_it_is_dropped(self):
        worker = WorkerThread(draw)
        worker.start()
        worker.join(WAIT_S)
        left = weakref.ref(worker)
        gc.disable()
        self.addCleanup(gc.enable)
        del worker
        self.assertIsNone(left())


class TestStop(WorkerTestCase):
    def test_the_target_is_told_to_stop(self):
        worker = WorkerThread(wait_for_stop)
        worker.start()
        self.assertFalse(worker.should_stop())
        worker.join(0.05)
        self.assertTrue(worker.is_alive())
        worker.stop()
        worker.join(WAIT_S)
        self.assertFalse(worker.is_alive())

    def test_a_worker_may_be_stopped_before_it_starts_and_after_its_end(
        self,
    ):
        worker = WorkerThread(wait_for_stop)
        worker.stop()
        worker.start()
        worker.join(WAIT_S)
        worker.stop()
        self.assertFalse(worker.is_alive())

    def test_leaving_the_context_stops_and_joins(self):
        with WorkerThread(wait_for_stop) as worker:
            self.assertTrue(worker.is_alive())
        self.assertFalse(worker.is_alive())

    def test_leaving_the_context_by_an_error_stops_and_joins_too(self):
        with self.assertRaises(KeyError), WorkerThread(wait_for_stop) as worker:
            raise KeyError
        self.assertFalse(worker.is_alive())

    def test_a_worker_that_waits_for_items_ends_when_it_is_stopped(self):
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


class TestErrors(WorkerTestCase):
    def failed(self, function=fail):
        worker = WorkerThread(function)
        worker.start()
        end(worker)
        return worker

    def test_join_raises_the_error_of_the_target_with_its_traceback(self):
        error = DeliberateError()

        def fail_so():
            raise error

        try:
            self.failed(fail_so).join()
        except DeliberateError as raised:
            self.assertIs(raised, error)
            last = traceback.extract_tb(raised.__traceback__)[-1]
            self.assertEqual(last.name, "fail_so")
        else:
            self.fail("join has not raised it")

    def test_every_join_raises_it(self):
        worker = self.failed()
        for _ in range(3):
            with self.assertRaises(DeliberateError):
                worker.join(WAIT_S)

    def test_the_traceback_has_no_more_entries_in_later_joins(self):
        worker = self.failed()

        def length():
            try:
                worker.join()
            except DeliberateError as error:
                return len(traceback.extract_tb(error.__traceback__))

        self.assertEqual(length(), length())

    def test_a_join_that_was_in_vain_raises_nothing(self):
        go = threading.Event()

        def fail_later():
            go.wait(WAIT_S)
            fail()

        worker = WorkerThread(fail_later)
        worker.start()
        worker.join(0.01)
        self.assertTrue(worker.is_alive())
        go.set()
        with self.assertRaises(DeliberateError):
            worker.join(WAIT_S)

    def test_errors_that_are_no_exceptions_are_raised_too(self):
        for kind in (KeyboardInterrupt, SystemExit):

            def end_so(kind=kind):
                raise kind("said so")

            with self.assertRaisesRegex(kind, "said so"):
                self.failed(end_so).join()

    def test_leaving_the_context_raises_it(self):
        with self.assertRaises(DeliberateError), WorkerThread(fail):
            pass

    def test_an_error_of_both_sides_goes_on_and_is_reported(self):
        def both():
            with WorkerThread(fail):
                raise KeyError

        with self.assertRaises(KeyError):
            both()
        errors = self.take_reports()
        self.assertEqual([type(error) for error in errors], [DeliberateError])

    def test_an_error_that_nobody_joined_for_is_reported_once(self):
        gc.disable()
        self.addCleanup(gc.enable)
        worker = self.failed()
        name = worker.name
        self.assertEqual(self.reports, [])
        del worker
        (report,) = self.reports
        self.assertIs(report.exc_type, DeliberateError)
        self.assertIs(report.exc_traceback, report.exc_value.__traceback__)
        self.assertEqual(report.thread.name, name)
        del report
        self.assertEqual(len(self.take_reports()), 1)
        self.assertEqual(self.take_reports(), [])

    def test_an_error_of_a_worker_that_was_dropped_is_reported_at_its_end(self):
        gc.disable()
        self.addCleanup(gc.enable)
        may_fail = threading.Event()

        def fail_later():
            may_fail.wait(WAIT_S)
            fail()

        WorkerThread(fail_later).start()
        may_fail.set()
        wait_until(lambda: self.reports, "the error is reported")
        self.assertIs(self.reports.pop().exc_type, DeliberateError)

    def test_local_variables_of_the_target_stay_in_the_traceback(self):
        def fail_with(secret):
            fail()

        worker = self.failed(lambda: fail_with(7))
        try:
            worker.join()
        except DeliberateError as error:
            frames = traceback.walk_tb(error.__traceback__)
            found = [frame.f_locals.get("secret") for frame, _ in frames]
        self.assertIn(7, found)

    def test_an_error_that_was_joined_for_is_not_reported(self):
        worker = self.failed()
        with self.assertRaises(DeliberateError):
            worker.join()
        del worker
        self.assertEqual(self.take_reports(), [])

    def test_what_prevents_the_start_is_raised_by_join(self):
        # Say, a Paddle without contexts of threads.
        with mock.patch(
            "paddle.incubate.multiprocessing.worker_thread.host_context",
            side_effect=NotImplementedError("no contexts"),
        ):
            worker = self.failed(draw)
        with self.assertRaisesRegex(NotImplementedError, "no contexts"):
            worker.join()


class Source:
    """Counts; knows how many items it has made and whether it was closed."""

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

    def test_items_are_made_by_another_thread_while_nobody_asks(self):
        source = Source()
        with Prefetcher(source, capacity=3) as prefetcher:
            wait_until(lambda: source.made == 3, "items are made ahead")
            self.assertEqual(next(prefetcher), 0)
        self.assertIs(source.closed_by, prefetcher._thread)

    def test_no_more_items_are_made_than_there_is_room_for(self):
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

    def test_the_error_of_the_iterable_comes_after_the_items_before_it(self):
        def items():
            yield from range(3)
            fail()

        prefetcher = Prefetcher(items(), capacity=9)
        self.assertEqual([next(prefetcher) for _ in range(3)], [0, 1, 2])
        for _ in range(2):
            with self.assertRaisesRegex(DeliberateError, "said so"):
                next(prefetcher)

    def test_what_cannot_be_iterated_over_is_an_error_of_the_first_item(self):
        with self.assertRaisesRegex(TypeError, "not iterable"):
            next(Prefetcher(3))

    def test_what_prevents_the_start_of_the_thread_reaches_the_consumer(self):
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

    def test_an_end_by_close_is_not_taken_for_the_end_of_the_items(self):
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

    def test_a_change_is_not_missed_by_a_thread_about_to_wait(self):
        # As by a finalizer, or a signal handler, that comes just then.
        def predicate():
            looks.append(True)
            if len(looks) == 1:
                waiters.notify_all()
            return len(looks) > 1

        looks, waiters = [], Waiters()
        in_thread(waiters.wait_for, predicate)

    def test_a_prefetcher_in_a_cycle_is_collected(self):
        prefetcher = Prefetcher(Source())
        prefetcher.itself = prefetcher
        thread = prefetcher._thread
        del prefetcher
        gc.collect()
        end(thread)

    def test_an_error_that_nobody_came_to_is_reported(self):
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

    def test_prefetchers_make_a_pipeline_that_ends_as_one(self):
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

    def test_the_thread_is_in_the_state_of_the_one_that_made_it(self):
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
        with self.assertRaisesRegex(TypeError, "received 1.5"):
            Prefetcher(range(3), 1.5)


class TestStress(WorkerTestCase):
    def test_pipelines_that_are_left_at_any_moment_leave_nothing(self):
        seed = int(os.environ.get("WORKER_THREAD_SEED", time.time_ns() % 2**32))
        print(f"WORKER_THREAD_SEED={seed}")
        choose = random.Random(seed)

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
        # Those that nobody came to.
        errors = {type(error) for error in self.take_reports()}
        self.assertLessEqual(errors, {DeliberateError})

    def test_workers_that_are_stopped_at_any_moment_end(self):
        prefetcher = Prefetcher(Source(), capacity=1)
        for _ in range(200):
            workers = [WorkerThread(list, [prefetcher]) for _ in range(3)]
            # A list that never ends would grow: these are short-lived.
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join(WAIT_S)
                self.assertFalse(worker.is_alive())
        prefetcher.close()


# A process whose threads are at work when it ends, and what it says then.
LEAVES_THREADS = """
import time
import paddle
paddle.set_device("cpu")
from paddle.incubate.multiprocessing import Prefetcher, WorkerThread

def say(words):
    print(words, file=sys.stderr)

def forever():
    while True:
        yield paddle.ones([4])

full = Prefetcher(forever())
next(full)

def work():
    worker = threading.current_thread()
    while not worker.should_stop():
        paddle.ones([4])
    time.sleep(0.2)
    say("a worker has cleaned up")

worker = WorkerThread(work, daemon=True)
worker.start()

def consume():
    for _ in shared:
        time.sleep(0.001)
    say("an end that is none")

shared = Prefetcher(forever())
threading.Thread(target=consume, daemon=True).start()

def fail():
    raise ValueError("said so")

failed = WorkerThread(fail, name="reader")
failed.start()
threading.Thread.join(failed)
# Which does not drop what it holds when Python ends.
paddle.held = failed
say("ends now")
"""

IS_STUCK = """
from paddle.incubate.multiprocessing import Prefetcher
def stuck():
    threading.Event().wait()
    yield 1
prefetcher = Prefetcher(stuck())
"""


FAILS_IN_A_CHILD = """
import multiprocessing
import paddle.incubate.multiprocessing as mp

def fail():
    raise ValueError("said so")

def work():
    global worker
    worker = mp.WorkerThread(fail, name="reader")
    worker.start()
    while worker.is_alive():
        pass

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
print("ends now", flush=True)
"""


class TestEndOfPython(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # That it ends, although a thread waits for room, is a test too.
        cls.said = run_script(cls(), LEAVES_THREADS, []).partition("ends now")

    def test_daemon_workers_are_asked_to_stop_and_waited_for(self):
        before, _, after = self.said
        self.assertNotIn("a worker has cleaned up", before)
        self.assertIn("a worker has cleaned up", after)

    def test_it_is_not_taken_for_the_end_of_the_items(self):
        self.assertNotIn("an end that is none", self.said[2])

    def test_an_error_that_nobody_joined_for_is_reported_then(self):
        before, _, after = self.said
        self.assertNotIn("ValueError", before)
        self.assertIn("Exception in thread reader", after)
        self.assertEqual(after.count("ValueError: said so"), 1)

    def test_so_it_is_in_a_process_that_multiprocessing_has_started(self):
        said, _, _ = run_script(self, FAILS_IN_A_CHILD, []).partition("ends")
        self.assertEqual(said.count("ValueError: said so"), 1)

    def test_an_item_that_never_comes_does_not_prevent_the_end(self):
        run_script(self, IS_STUCK, [])


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class TestFork(WorkerTestCase):
    def in_fork(self, function):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        ends = []

        def has_ended():
            done, status = os.waitpid(pid, os.WNOHANG)
            ends.append(status)
            return done

        try:
            wait_until(has_ended, "the fork ends")
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self.assertEqual(ends[-1], 0)

    def test_a_prefetcher_of_the_parent_is_an_error_in_a_fork(self):
        def child():
            for call in (prefetcher.__next__, prefetcher._thread.join):
                with self.assertRaisesRegex(
                    RuntimeError, "in this forked process"
                ):
                    call()

        with Prefetcher(Source()) as prefetcher:
            next(prefetcher)
            self.in_fork(child)
            self.assertEqual([next(prefetcher) for _ in range(3)], [1, 2, 3])

    def test_a_fork_can_close_and_drop_prefetchers_of_the_parent(self):
        def child():
            for prefetcher in prefetchers:
                prefetcher.close()
            prefetchers.clear()
            gc.collect()

        # At work, so that some fork meets them in the middle of something.
        prefetchers = [Prefetcher(Source(), capacity=1) for _ in range(3)]
        for _ in range(10):
            for prefetcher in prefetchers:
                next(prefetcher)
            self.in_fork(child)
        for prefetcher in prefetchers:
            self.assertEqual(next(prefetcher), 10)
            prefetcher.close()

    def test_a_fork_makes_prefetchers_of_its_own(self):
        def child():
            self.assertEqual(list(Prefetcher(range(9))), list(range(9)))

        with Prefetcher(Source()):
            self.in_fork(child)

    def test_a_fork_of_a_worker_goes_on_in_its_state(self):
        def child():
            self.assertEqual(draw(), expected)
            self.assertFalse(paddle.is_grad_enabled())
            self.assertEqual(list(Prefetcher(range(9))), list(range(9)))

        # Not by a worker: Paddle cannot be forked while a thread goes.
        generator = core.Generator()
        generator.manual_seed(3)
        with host_context(generator=generator):
            expected = draw()
        with paddle.no_grad():
            in_worker(lambda: self.in_fork(child), seed=3)

    def test_a_fork_reports_no_error_of_the_parent(self):
        def child():
            workers.clear()
            gc.collect()
            self.assertEqual(self.reports, [])

        workers = [WorkerThread(fail)]
        workers[0].start()
        end(workers[0])
        self.in_fork(child)
        self.assertEqual(self.take_reports(), [])
        workers.clear()
        self.assertEqual(len(self.take_reports()), 1)


if __name__ == "__main__":
    unittest.main()
