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
"""Pools: independent job failures, and the initial state of workers."""

from __future__ import annotations

import concurrent.futures
import gc
import multiprocessing
import os
import pickle
import signal
import unittest

from concurrent_base import WAIT_S, in_thread, wait_until
from forked_script import run_forked_script
from multiprocessing_spawn_base import START_METHODS, over_start_methods
from thread_device_base import (
    ForkTestCase,
    current_handles,
    device_lists,
    needs_another_device,
    places_of_new_tensors,
    run_script,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core
from paddle.incubate.multiprocessing.pools import Pool, get_context

# A pool that is left ends workers that still import Paddle.
LEAVE_POOLS = """
from paddle.incubate.multiprocessing.pools import get_context
for _ in range(3):
    with get_context({method!r}).Pool(2) as pool:
        assert pool.map(len, ["a"]) == [1]
    pool.join()
"""

KINDS = (MemoryError, OSError, EOFError, ValueError)


class NotPicklableError(Exception):
    def __reduce__(self):
        raise pickle.PicklingError("this error has no pickle")


def fail(kind):
    raise kind("cannot be loaded here")


class CannotBeLoaded:
    """Raises `kind` when it is unpickled, as attaching a tensor may do."""

    def __init__(self, kind: type[BaseException]):
        self._kind = kind

    def __reduce__(self):
        return fail, (self._kind,)


# Functions for workers.


def echo(value):
    return value


def cannot_be_loaded(kind):
    return CannotBeLoaded(kind)


def second_cannot_be_loaded(index):
    return CannotBeLoaded(MemoryError) if index == 1 else index


def lambda_of(value):
    return lambda: value


def filled(tensor):
    return tensor.fill_(5)


def catches_sigterm(_):
    """Returns whether a handler is set, by Python or by a C library."""
    with open("/proc/self/status") as status:
        caught = next(x for x in status if x.startswith("SigCgt:")).split()[1]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@over_start_methods
class TestMessages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.context = get_context(cls.method)
        cls.pool = cls.context.Pool(2)
        cls.addClassCleanup(cls.pool.join)
        cls.addClassCleanup(cls.pool.terminate)

    def mapped(self, function, values) -> list:
        return self.pool.map_async(function, values, 1).get(WAIT_S)

    def assert_goes_on(self) -> None:
        # More jobs than workers; no worker may be lost.
        self.assertEqual(self.mapped(echo, range(6)), list(range(6)))

    def test_result_that_cannot_be_loaded_fails_only_its_job(self):
        for kind in KINDS:
            with self.subTest(kind):
                with self.assertRaisesRegex(kind, "cannot be loaded here"):
                    self.mapped(cannot_be_loaded, [kind] * 3)
                self.assert_goes_on()

    def test_task_that_cannot_be_loaded_fails_only_its_job(self):
        for kind in KINDS:
            with self.subTest(kind):
                with self.assertRaisesRegex(kind, "cannot be loaded here"):
                    self.mapped(echo, [CannotBeLoaded(kind)] * 3)
                self.assert_goes_on()

    def test_exit_while_a_message_is_loaded_fails_only_its_job(self):
        for function, value in (
            (cannot_be_loaded, SystemExit),
            (echo, CannotBeLoaded(SystemExit)),
        ):
            with self.subTest(function):
                with self.assertRaisesRegex(RuntimeError, "raised SystemExit"):
                    self.mapped(function, [value])
                self.assert_goes_on()

    def test_workers_end_at_sigterm_without_paddles_handler(self):
        self.assertEqual(self.mapped(catches_sigterm, range(4)), [False] * 4)

    def test_other_results_of_an_iterator_arrive(self):
        results = self.pool.imap(second_cannot_be_loaded, range(3))
        self.assertEqual(results.next(WAIT_S), 0)
        with self.assertRaises(MemoryError):
            results.next(WAIT_S)
        self.assertEqual(results.next(WAIT_S), 2)

    def test_error_that_a_worker_cannot_send_is_named(self):
        result = self.pool.apply_async(
            echo, [CannotBeLoaded(NotPicklableError)]
        )
        with self.assertRaisesRegex(
            multiprocessing.pool.MaybeEncodingError, "has no pickle"
        ):
            result.get(WAIT_S)
        self.assert_goes_on()

    def test_result_that_cannot_be_pickled_is_named(self):
        with self.assertRaisesRegex(
            multiprocessing.pool.MaybeEncodingError, "lambda"
        ):
            self.pool.apply_async(lambda_of, [5]).get(WAIT_S)
        self.assert_goes_on()

    def test_task_that_cannot_be_pickled_is_an_error(self):
        with self.assertRaises((pickle.PicklingError, AttributeError)):
            self.pool.apply_async(echo, [lambda: 5]).get(WAIT_S)
        self.assert_goes_on()

    def test_traceback_of_a_task_that_cannot_be_loaded_arrives(self):
        result = self.pool.apply_async(echo, [CannotBeLoaded(ValueError)])
        with self.assertRaises(ValueError) as caught:
            result.get(WAIT_S)
        self.assertIn("in fail", str(caught.exception.__cause__))


def messages() -> int:
    return sharing.shared_memory_stats()["messages"]


class TestPool(unittest.TestCase):
    def test_pool_of_the_module_has_the_default_start_method(self):
        method = multiprocessing.get_start_method()
        with Pool(1) as pool:
            self.assertIs(pool._ctx, get_context(method))

    def test_a_forked_worker_gets_no_sigterm_before_it_has_begun(self):
        run_script(
            self,
            """
            import signal
            from paddle.incubate.multiprocessing.pools import get_context
            def is_blocked(_=None):
                mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
                return signal.SIGTERM in mask
            reader, writer = os.pipe()
            os.register_at_fork(
                after_in_child=lambda: os.write(writer, b"%d" % is_blocked())
            )
            with get_context("fork").Pool(1) as pool:
                assert os.read(reader, 1) == b"1"
                assert pool.map(is_blocked, [0]) == [False]
            assert not is_blocked()
            """,
            ["cpu"],
        )

    def test_a_pool_may_be_left_while_its_workers_start(self):
        for method in ("spawn", "forkserver"):
            script = LEAVE_POOLS.format(method=method)
            done = run_forked_script(self, script)
            self.assertNotIn("FatalError", done.stdout + done.stderr)

    def test_arguments_are_those_of_python(self):
        for arguments in (
            {"processes": 0},
            {"initializer": 5},
            {"maxtasksperchild": 0},
        ):
            with self.assertRaises((ValueError, TypeError)):
                Pool(**arguments)

    def test_initializer_is_called_in_each_worker(self):
        with get_context("fork").Pool(
            1, paddle.seed, [5], maxtasksperchild=1
        ) as pool:
            drawn = pool.map_async(paddle.rand, [[2]] * 3, 1).get(WAIT_S)
            first, *others = [tensor.tolist() for tensor in drawn]
        self.assertEqual(others, [first] * 2)

    def test_replaced_workers_keep_no_descriptors(self):
        """Not even until a garbage collection."""
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)

        def descriptors():
            return len(os.listdir("/proc/self/fd"))

        with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            before = descriptors()
            for i in range(5):
                self.assertEqual(pool.apply_async(echo, [i]).get(WAIT_S), i)
            # A worker that is being replaced has some of its own.
            wait_until(
                lambda: descriptors() <= before, "the descriptors are closed"
            )

    def test_workers_are_named_as_pythons_are(self):
        with get_context("fork").Pool(1) as pool:
            (worker,) = pool._pool
            self.assertRegex(worker.name, r"^ForkPoolWorker-\d+$")

    def test_closed_pool_ends_with_all_results(self):
        pool = get_context("fork").Pool(2)
        result = pool.map_async(filled, [paddle.zeros([2]) for _ in range(9)])
        pool.close()
        pool.join()
        self.assertEqual(
            [each.tolist() for each in result.get(0)], [[5, 5]] * 9
        )

    def test_messages_of_untaken_tasks_are_freed(self):
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(messages(), 0)
        context = get_context("fork")
        pool = context.Pool(1, context.Event().wait, [WAIT_S])
        tensors = [paddle.ones([2]).cpu() for _ in range(9)]
        pool.map_async(filled, tensors, 1)
        wait_until(lambda: messages() == 9, "all tasks are put")
        pool.terminate()
        pool.join()
        self.assertEqual(messages(), 0)


class TestContexts(unittest.TestCase):
    def test_contexts_are_pythons_with_another_pool(self):
        for method in START_METHODS:
            context = get_context(method)
            theirs = multiprocessing.get_context(method)
            self.assertIsInstance(context, type(theirs))
            self.assertIs(context.Process, theirs.Process)
            self.assertIs(get_context(method), context)
            self.assertIs(context.get_context(method), context)
            self.assertIs(context.get_context(), context)
            self.assertIs(pickle.loads(pickle.dumps(context)), context)

    def test_context_without_a_name_is_the_default_one(self):
        self.assertEqual(
            get_context().get_start_method(),
            multiprocessing.get_start_method(),
        )

    def test_start_method_that_does_not_exist_is_named(self):
        with self.assertRaisesRegex(ValueError, "carrier pigeon"):
            get_context("carrier pigeon")

    def test_executor_takes_the_context_and_breaks_with_the_reason(self):
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=get_context("fork")
        ) as executor:
            self.assertEqual(executor.submit(echo, 5).result(WAIT_S), 5)
            with self.assertRaises(
                concurrent.futures.process.BrokenProcessPool
            ) as caught:
                executor.submit(cannot_be_loaded, MemoryError).result(WAIT_S)
        self.assertIn("cannot be loaded here", str(caught.exception.__cause__))


def state(_):
    """Returns the initial state of a worker."""
    return (
        places_of_new_tensors() if paddle.in_dynamic_mode() else None,
        paddle.get_device(),
        paddle.in_dynamic_mode(),
        paddle.is_grad_enabled(),
    )


def amp_state(_):
    amp = core._get_amp_attrs()
    return amp._amp_level, amp._amp_dtype


def streams(_):
    return current_handles(device_lists()["custom_cpu"][:-1])


def mapped_by_short_lived_workers(pool, function) -> list:
    """Returns the initial states of successive workers."""
    return pool.map_async(function, range(4), 1).get(WAIT_S)


class TestForkedPoolOnACpu(unittest.TestCase):
    def pool(self):
        pool = get_context("fork").Pool(1, maxtasksperchild=1)
        self.addCleanup(pool.join)
        self.addCleanup(pool.terminate)
        return pool

    def mapped(self, function) -> list:
        return mapped_by_short_lived_workers(self.pool(), function)

    def test_workers_are_in_the_graph_mode_of_the_creator(self):
        def mapped_in_static_mode():
            paddle.enable_static()
            return self.mapped(state)

        modes = [mode for _, _, mode, _ in in_thread(mapped_in_static_mode)]
        self.assertEqual(modes, [False] * 4)

    def test_workers_of_a_dynamic_thread_of_a_static_program(self):
        pool = in_thread(self.pool)
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        modes = [
            mode for _, _, mode, _ in mapped_by_short_lived_workers(pool, state)
        ]
        self.assertEqual(modes, [True] * 4)

    def test_workers_record_gradients_if_the_creator_does(self):
        with paddle.no_grad():
            grads = [grad for *_, grad in self.mapped(state)]
        self.assertEqual(grads, [False] * 4)

    def test_workers_cast_if_the_creator_does(self):
        amp, before = core._get_amp_attrs(), amp_state(None)
        self.addCleanup(setattr, amp, "_amp_level", before[0])
        self.addCleanup(setattr, amp, "_amp_dtype", before[1])
        # auto_cast itself needs devices that this machine may lack.
        amp._amp_level, amp._amp_dtype = core.AmpLevel.O2, "bfloat16"
        self.assertEqual(
            self.mapped(amp_state), [(core.AmpLevel.O2, "bfloat16")] * 4
        )


class TestForkedPoolOnDevices(ForkTestCase, TestForkedPoolOnACpu):
    def setUp(self):
        super().setUp()
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(self.devices[0])

    @needs_another_device
    def test_workers_are_on_the_device_of_the_creating_thread(self):
        def mapped_on_a_device():
            paddle.set_device(self.devices[2])
            return self.mapped(state)

        place = self.devices[2]
        for places, device, *_ in in_thread(mapped_on_a_device):
            self.assertEqual((places, device), ({place}, place))

    @needs_another_device
    def test_workers_stay_on_the_device_when_the_creator_moves(self):
        pool = self.pool()
        paddle.set_device(self.devices[1])
        for places, *_ in mapped_by_short_lived_workers(pool, state):
            self.assertEqual(places, {self.devices[0]})

    @needs_another_device
    def test_workers_are_on_the_streams_of_the_creator(self):
        def mapped_on_a_stream():
            stream = paddle.device.Stream(self.devices[0])
            with paddle.device.stream_guard(stream):
                expected = current_handles(self.devices[:-1])
                return expected, self.mapped(streams)

        expected, found = in_thread(mapped_on_a_stream)
        self.assertEqual(found, [expected] * 4)


class TestSpawnedPoolOnDevices(ForkTestCase):
    @needs_another_device
    def test_workers_are_on_the_default_device(self):
        def mapped_on_a_device():
            paddle.set_device(self.devices[2])
            with get_context("spawn").Pool(1, maxtasksperchild=2) as pool:
                return mapped_by_short_lived_workers(pool, state)

        default = in_thread(get_context("spawn").Pool(1).apply, state, (None,))
        self.assertEqual(in_thread(mapped_on_a_device), [default] * 4)


if __name__ == "__main__":
    unittest.main()
