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
"""Worker threads: their initial state, seeds, stopping and errors."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import sys
import threading
import time
import traceback
import unittest
import weakref
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, in_fork, in_thread, wait_until
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
from paddle.base import core
from paddle.base.threads.host_context import host_context
from paddle.incubate.multiprocessing.worker_thread import (
    Waiters,
    WorkerThread,
    wait_for,
)

__all__ = ["setUpModule", "tearDownModule"]


def wait_for_stop():
    """A target that runs until `stop` is called."""
    worker = threading.current_thread()
    while not worker.should_stop():
        time.sleep(0.001)


class TestGradientsAndModes(WorkerTestCase):
    def test_a_worker_inherits_no_grad(self):
        with paddle.no_grad():
            self.assertFalse(in_worker(paddle.is_grad_enabled))
            # An ordinary thread does not inherit the mode.
            self.assertTrue(in_thread(paddle.is_grad_enabled))
        self.assertTrue(in_worker(paddle.is_grad_enabled))

    def test_operators_of_a_worker_started_in_no_grad_record_nothing(self):
        weight = paddle.ones([2])
        weight.stop_gradient = False
        with paddle.no_grad():
            self.assertTrue(in_worker(lambda: (weight * 2).stop_gradient))
        self.assertFalse(in_worker(lambda: (weight * 2).stop_gradient))

    def test_the_state_is_captured_at_start(self):
        results = []
        worker = WorkerThread(lambda: results.append(paddle.is_grad_enabled()))
        with paddle.no_grad():
            worker.start()
        worker.join(WAIT_S)
        self.assertEqual(results, [False])

    def test_later_changes_of_the_starter_do_not_reach_the_worker(self):
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

    def test_changes_of_a_worker_end_with_it(self):
        def change():
            paddle.set_grad_enabled(False)
            paddle.enable_static()

        in_worker(change)
        for run in (lambda function: function(), in_thread, in_worker):
            self.assertTrue(run(paddle.is_grad_enabled))
            self.assertTrue(run(paddle.in_dynamic_mode))

    def test_a_worker_inherits_static_mode(self):
        def static():
            paddle.enable_static()
            return in_thread(paddle.in_dynamic_mode), in_worker(
                paddle.in_dynamic_mode
            )

        # The ordinary thread, the first, does not inherit the mode.
        self.assertEqual(in_thread(static), (True, False))

    def test_a_worker_inherits_dynamic_mode(self):
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

    def test_concurrent_workers_draw_what_each_draws_alone(self):
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
        for seed in ("seven", 1.5, True, np.arange(2)):
            message = re.escape(f"received {seed!r}")
            with self.assertRaisesRegex(TypeError, message):
                WorkerThread(draw, seed=seed)


class TestThreads(WorkerTestCase):
    def test_a_wrong_argument_raises_only_one_error(self):
        with mock.patch("sys.unraisablehook") as finalizer_failed:
            for arguments in ({"target": print, "seed": 1.5}, {"target": 1}):
                with self.assertRaisesRegex(TypeError, "seed|callable"):
                    WorkerThread(**arguments)
            gc.collect()
        finalizer_failed.assert_not_called()

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
    def test_the_target_sees_the_stop_request(self):
        worker = WorkerThread(wait_for_stop)
        worker.start()
        self.assertFalse(worker.should_stop())
        worker.join(0.05)
        self.assertTrue(worker.is_alive())
        worker.stop()
        worker.join(WAIT_S)
        self.assertFalse(worker.is_alive())

    def test_join_takes_any_number_of_seconds(self):
        with WorkerThread(wait_for_stop) as worker:
            worker.join(-1)
            self.assertTrue(worker.is_alive())
            worker.stop()
            worker.join(float("inf"))
            self.assertFalse(worker.is_alive())

    def test_a_bad_timeout_of_join_is_named(self):
        for kind, wrong in ((TypeError, "soon"), (ValueError, float("nan"))):
            with WorkerThread(wait_for_stop) as worker:
                with self.assertRaisesRegex(kind, f"`timeout` .*{wrong!r}"):
                    worker.join(wrong)

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

    def test_a_join_that_times_out_raises_nothing(self):
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

    def test_base_exceptions_are_raised_too(self):
        for kind in (KeyboardInterrupt, SystemExit):

            def end_so(kind=kind):
                raise kind("said so")

            with self.assertRaisesRegex(kind, "said so"):
                self.failed(end_so).join()

    def test_leaving_the_context_raises_it(self):
        with self.assertRaises(DeliberateError), WorkerThread(fail):
            pass

    def test_an_error_of_the_body_is_raised_and_the_workers_is_reported(self):
        def both():
            with WorkerThread(fail):
                raise KeyError

        with self.assertRaises(KeyError):
            both()
        errors = self.take_reports()
        self.assertEqual([type(error) for error in errors], [DeliberateError])

    def test_an_error_that_no_join_raised_is_reported_once(self):
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

    def test_an_error_that_join_raised_is_not_reported(self):
        worker = self.failed()
        with self.assertRaises(DeliberateError):
            worker.join()
        del worker
        self.assertEqual(self.take_reports(), [])

    def test_a_failed_start_is_raised_by_join(self):
        # For example, in a Paddle without per-thread contexts.
        with mock.patch(
            "paddle.incubate.multiprocessing.worker_thread.host_context",
            side_effect=NotImplementedError("no contexts"),
        ):
            worker = self.failed(draw)
        with self.assertRaisesRegex(NotImplementedError, "no contexts"):
            worker.join()


class TestWaiters(unittest.TestCase):
    def test_a_change_is_not_missed_by_a_thread_about_to_wait(self):
        # As if a finalizer or a signal handler ran at this moment.
        def predicate():
            looks.append(True)
            if len(looks) == 1:
                waiters.notify_all()
            return len(looks) > 1

        looks, waiters = [], Waiters()
        in_thread(waiters.wait_for, predicate)


# A process whose workers still run when it ends, and its output.
LEAVES_WORKERS = """
import time
import paddle
paddle.set_device("cpu")
from paddle.incubate.multiprocessing.worker_thread import WorkerThread

def say(words):
    print(words, file=sys.stderr)

def work():
    worker = threading.current_thread()
    while not worker.should_stop():
        paddle.ones([4])
    time.sleep(0.2)
    say("a worker has cleaned up")

worker = WorkerThread(work, daemon=True)
worker.start()

def fail():
    raise ValueError("said so")

failed = WorkerThread(fail, name="reader")
failed.start()
threading.Thread.join(failed)
# Which does not drop what it holds when Python ends.
paddle.held = failed
say("ends now")
"""

FAILS_IN_A_CHILD = """
import multiprocessing
from paddle.incubate.multiprocessing.worker_thread import WorkerThread

def fail():
    raise ValueError("said so")

def work():
    global worker
    worker = WorkerThread(fail, name="reader")
    worker.start()
    while worker.is_alive():
        pass

child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
print("ends now", flush=True)
"""


IS_INTERRUPTED = """
import signal
from paddle.incubate.multiprocessing.worker_thread import (
    Waiters,
    WorkerThread,
    wait_for,
)

WorkerThread(wait_for, [Waiters(), lambda: False]).start()
# While Python waits for the worker.
threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
"""


def fail_beside_a_worker():
    WorkerThread(wait_for, [Waiters(), lambda: False]).start()
    raise DeliberateError


def leave_work_to_a_worker(connection):
    """Returns while a worker, which needs a daemon worker, is at work."""

    def count(steps):
        while len(steps) < 10 and not threading.current_thread().should_stop():
            time.sleep(0.05)
            steps.append(len(steps))

    def work():
        steps = []
        helper = WorkerThread(count, [steps], daemon=True)
        helper.start()
        helper.join()
        connection.send((steps, threading.current_thread().should_stop()))
        connection.close()

    WorkerThread(work, daemon=False).start()


class TestEndOfPython(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.said = run_script(cls(), LEAVES_WORKERS, []).partition("ends now")

    def test_daemon_workers_are_asked_to_stop_and_waited_for(self):
        before, _, after = self.said
        self.assertNotIn("a worker has cleaned up", before)
        self.assertIn("a worker has cleaned up", after)

    def test_an_error_that_no_join_raised_is_reported_at_exit(self):
        before, _, after = self.said
        self.assertNotIn("ValueError", before)
        self.assertIn("Exception in thread reader", after)
        self.assertEqual(after.count("ValueError: said so"), 1)

    @unittest.skipUnless(sys.platform == "linux", "needs SIGINT")
    def test_ctrl_c_at_exit_stops_the_workers(self):
        run_script(self, IS_INTERRUPTED, [])

    @unittest.skipUnless(sys.platform == "linux", "needs worker processes")
    def test_a_process_of_multiprocessing_that_fails_does_not_wait(self):
        def fail_beside_a_worker():
            sys.stderr = os.fdopen(theirs, "w")
            WorkerThread(wait_for, [Waiters(), lambda: False]).start()
            raise DeliberateError

        ours, theirs = os.pipe()
        self.addCleanup(os.close, ours)
        context = multiprocessing.get_context("fork")
        child = context.Process(target=fail_beside_a_worker)
        child.start()
        os.close(theirs)
        child.join(WAIT_S)
        self.assertEqual(child.exitcode, 1)
        self.assertIn(b"DeliberateError", os.read(ours, 10000))

    @unittest.skipUnless(sys.platform == "linux", "needs worker processes")
    def test_a_process_that_is_not_forked_and_fails_does_not_wait(self):
        for method in ("spawn", "forkserver"):
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                child = context.Process(target=fail_beside_a_worker)
                child.start()
                self.addCleanup(child.kill)
                child.join(WAIT_S)
                self.assertEqual(child.exitcode, 1)

    @unittest.skipUnless(sys.platform == "linux", "needs worker processes")
    def test_a_process_of_multiprocessing_ends_after_its_workers(self):
        for method in ("fork", "spawn"):
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                receiver, sender = context.Pipe(duplex=False)
                child = context.Process(
                    target=leave_work_to_a_worker, args=[sender]
                )
                child.start()
                sender.close()
                self.assertTrue(receiver.poll(WAIT_S))
                self.assertEqual(receiver.recv(), ([*range(10)], False))
                child.join(WAIT_S)
                self.assertEqual(child.exitcode, 0)

    def test_an_error_is_reported_in_a_process_of_multiprocessing(self):
        said, _, _ = run_script(self, FAILS_IN_A_CHILD, []).partition("ends")
        self.assertEqual(said.count("ValueError: said so"), 1)


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class TestFork(WorkerTestCase):
    def test_a_fork_of_a_worker_goes_on_in_its_state(self):
        def child():
            self.assertEqual(draw(), expected)
            self.assertFalse(paddle.is_grad_enabled())

        # Not with a worker: Paddle cannot be forked while a thread runs.
        generator = core.Generator()
        generator.manual_seed(3)
        with host_context(generator=generator):
            expected = draw()
        with paddle.no_grad():
            in_worker(lambda: in_fork(child), seed=3)

    def test_a_fork_reports_no_error_of_the_parent(self):
        def child():
            workers.clear()
            gc.collect()
            self.assertEqual(self.reports, [])

        workers = [WorkerThread(fail)]
        workers[0].start()
        end(workers[0])
        in_fork(child)
        self.assertEqual(self.take_reports(), [])
        workers.clear()
        self.assertEqual(len(self.take_reports()), 1)


if __name__ == "__main__":
    unittest.main()
