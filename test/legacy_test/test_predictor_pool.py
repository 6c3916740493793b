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
"""PredictorPool, which threads call with arrays."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
import threading
import unittest
import unittest.mock
from typing import Callable

import numpy as np
from concurrent_base import WAIT_S, Worker, in_thread, in_threads
from inference_threads_base import (
    IMAGE,
    IMAGE_LEGACY,
    PAIR,
    PredictorTestCase,
    call,
    hook_once,
    output,
    save_layer,
)

import paddle
from paddle.inference import Config, Predictor, PredictorPool

CREATE = "paddle.inference.predictor_pool.create_predictor"
ONES = np.ones([1, 3, 4, 4], "float32")

X, Y = np.full([4], 5, "float32"), np.full([4], 2, "float32")


class TestPredictorPool(PredictorTestCase):
    def test_predict_takes_arrays_in_order_or_by_name(self):
        pool = PredictorPool(self.config(PAIR), 1)
        for inputs in ([X, Y], (X, Y), {"y": Y, "x": X}):
            difference, twice = pool.predict(inputs)
            np.testing.assert_array_equal(difference, X - Y)
            np.testing.assert_array_equal(twice, X * 2)

    def test_later_calls_do_not_overwrite_results(self):
        pool = PredictorPool(self.config(PAIR), 1)
        first, _ = pool.predict([X, Y])
        pool.predict([X * 10, Y])
        np.testing.assert_array_equal(first, X - Y)

    def hold(self, pool: PredictorPool) -> Callable[[], None]:
        """Lets a thread use the pool's predictor, and returns a function that
        ends the use."""
        entered, may_end = threading.Event(), threading.Event()

        def wait() -> None:
            entered.set()
            may_end.wait(WAIT_S)

        pool._predictors[0].register_input_hook(hook_once(wait))
        worker = Worker(pool.predict, [X, Y])
        self.addCleanup(may_end.set)
        self.assertTrue(entered.wait(WAIT_S))

        def end() -> None:
            may_end.set()
            np.testing.assert_array_equal(worker.result()[0], X - Y)

        return end

    def test_one_thread_per_predictor_runs_concurrently(self):
        pool = PredictorPool(self.config(PAIR), 2)
        met = threading.Barrier(2, timeout=WAIT_S)
        for predictor in pool._predictors:
            predictor.register_input_hook(hook_once(met.wait))
        for answers in in_threads(*[lambda: pool.predict([X, Y])] * 2):
            np.testing.assert_array_equal(answers[0], X - Y)

    def test_waiting_for_a_predictor_times_out(self):
        pool = PredictorPool(self.config(PAIR), 1)
        end = self.hold(pool)
        for timeout in (0.01, 0, -1):
            with self.assertRaisesRegex(
                TimeoutError, rf"All 1 predictors .* {timeout} s"
            ):
                pool.predict([X, Y], timeout=timeout)
        end()
        pool.predict([X, Y], timeout=WAIT_S)

    def test_timeout_that_is_no_number_costs_no_predictor(self):
        pool = PredictorPool(self.config(PAIR), 1)
        for timeout in ("1", [1]):
            with self.assertRaisesRegex(
                TypeError,
                rf"{re.escape(repr(timeout))}, of type .*seconds.*None",
            ):
                pool.predict([X, Y], timeout=timeout)
        with self.assertRaisesRegex(ValueError, "nan. Pass a number"):
            pool.predict([X, Y], timeout=float("nan"))
        for timeout in (1, np.float32(1), np.int64(1), None):
            answer, _ = pool.predict([X, Y], timeout=timeout)
            np.testing.assert_array_equal(answer, X - Y)

    def test_waiting_threads_get_a_predictor(self):
        pool = PredictorPool(self.config(PAIR), 1)
        end = self.hold(pool)
        workers = [
            Worker(pool.predict, [X, Y], timeout)
            for timeout in (None, WAIT_S, float("inf"))
        ]
        end()
        for worker in workers:
            np.testing.assert_array_equal(worker.result()[0], X - Y)

    def test_predictor_that_raised_is_not_used_again(self):
        pool = PredictorPool(self.config(PAIR), 1)
        (failed,) = pool._predictors
        with self.assertRaises(ValueError):
            pool.predict([X, np.ones([3], "float32")])
        difference, _ = pool.predict([X, Y], timeout=WAIT_S)
        np.testing.assert_array_equal(difference, X - Y)
        self.assertIsNot(pool._predictors[0], failed)

    def test_wrong_inputs_cost_no_predictor(self):
        pool = PredictorPool(self.config(PAIR), 1)
        first = pool._predictors[0]
        for inputs, error, text in (
            ([X], ValueError, "has 2 inputs"),
            ({"x": X, "z": Y}, ValueError, r"\['x', 'z'\]"),
            ({1: X, "x": Y}, ValueError, r"\[1, 'x'\]"),
            (None, TypeError, r"None, of type NoneType.* list .*\['x', 'y'\]"),
            (iter([X, Y]), TypeError, "of type list_iterator.* list .*dict"),
            (np.array(1.5), TypeError, "of type ndarray.* list .*dict"),
            ([X, [1, 2]], TypeError, "'y' is a list"),
            ([X, Y.astype("complex64")], TypeError, "incompatible"),
            ([X, Y.astype("float64")], TypeError, "'y' .* float64.* float32"),
            ([X, Y[None]], ValueError, r"'y' has the shape \[1, 4\].*\[-1\]"),
        ):
            with self.assertRaisesRegex(error, text):
                pool.predict(inputs)
            np.testing.assert_array_equal(pool.predict([X, Y])[0], X - Y)
        self.assertIs(pool._predictors[0], first)

    def test_wrong_types_cost_no_predictor(self):
        for model in (IMAGE, IMAGE_LEGACY):
            with self.subTest(model=model):
                pool = PredictorPool(self.config(model), 1)
                first = pool._predictors[0]
                for wrong in ("float64", "float16", "int32"):
                    with self.assertRaisesRegex(
                        TypeError, f"'x' .* {wrong},.* float32.*astype"
                    ):
                        pool.predict([ONES.astype(wrong)])
                pool.predict([ONES])
                self.assertIs(pool._predictors[0], first)

    def test_types_other_than_float32_are_accepted(self):
        class Same(paddle.nn.Layer):
            def forward(self, x: paddle.Tensor) -> paddle.Tensor:
                return x + x

        types = ("bool", "uint8", "int8", "int32", "int64", "float64")
        for dtype in types:
            with self.subTest(dtype=dtype), tempfile.TemporaryDirectory() as at:
                path = os.path.join(at, "same")
                spec = paddle.static.InputSpec([None], dtype, "x")
                program = paddle.jit.to_static(
                    Same(), full_graph=True, input_spec=[spec]
                )
                paddle.jit.save(program, path)
                config = Config(path + ".json", path + ".pdiparams")
                config.disable_glog_info()
                pool = PredictorPool(config, 1)
                x = np.ones([2], dtype)
                np.testing.assert_array_equal(pool.predict([x])[0], x + x)

    def test_arrays_of_the_other_byte_order_are_converted(self):
        pool = PredictorPool(self.config(PAIR), 1)
        swapped = X.astype(X.dtype.newbyteorder())
        np.testing.assert_array_equal(pool.predict([swapped, Y])[0], X - Y)

    def test_wrong_sizes_cost_no_predictor(self):
        for model in (IMAGE, IMAGE_LEGACY):
            with self.subTest(model=model):
                pool = PredictorPool(self.config(model), 1)
                first = pool._predictors[0]
                wrong = np.ones([1, 5, 4, 4], "float32")
                with self.assertRaisesRegex(ValueError, r"\[-1, 3, -1, -1\]"):
                    pool.predict([wrong])
                pool.predict([ONES])
                self.assertIs(pool._predictors[0], first)

    def test_batch_is_refused_by_a_model_that_was_saved_for_one_row(self):
        class Sum(paddle.nn.Layer):
            def forward(self, x: paddle.Tensor) -> paddle.Tensor:
                return paddle.reshape(x, [x.shape[0], -1]).sum(1)

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "sum")
            save_layer(Sum(), path, x=[1, 4])
            config = Config(path + ".json", path + ".pdiparams")
            config.disable_glog_info()
            pool = PredictorPool(config, 1)
        (one,) = pool.predict([np.ones([1, 4], "float32")])
        np.testing.assert_array_equal(one, [4])
        with self.assertRaisesRegex(ValueError, "None for the sizes"):
            pool.predict([np.ones([2, 4], "float32")])

    def test_stored_exception_does_not_occupy_a_predictor(self):
        pool = PredictorPool(self.config(PAIR), 1)
        errors = []
        for _ in range(3):
            try:
                pool.predict([X, np.ones([3], "float32")], timeout=WAIT_S)
            except ValueError as error:
                errors.append(error)
        self.assertEqual(len(errors), 3)
        np.testing.assert_array_equal(pool.predict([X, Y])[0], X - Y)

    def test_predictor_whose_outputs_could_not_be_read_is_not_used_again(self):
        class Unreadable:
            def __init__(self, predictor: Predictor) -> None:
                self.predictor = predictor

            def __getattr__(self, name: str) -> object:
                return getattr(self.predictor, name)

            def get_output_handle(self, name: str) -> None:
                raise OSError

        pool = PredictorPool(self.config(IMAGE_LEGACY), 1)
        expected = pool.predict([ONES])[0]
        (used,) = pool._predictors
        pool._predictors[0] = Unreadable(used)
        with self.assertRaises(OSError):
            pool.predict([ONES])
        np.testing.assert_array_equal(pool.predict([ONES])[0], expected)
        self.assertIsNot(pool._predictors[0], used)

    def test_failed_predictor_of_the_older_format_is_not_used_again(self):
        def fail(*_: object) -> None:
            raise ValueError

        pool = PredictorPool(self.config(IMAGE_LEGACY), 1)
        expected = pool.predict([ONES])[0]
        used = []
        for _ in range(3):
            used += pool._predictors
            pool._predictors[0].register_output_hook(hook_once(fail))
            with self.assertRaises(ValueError):
                pool.predict([ONES])
            np.testing.assert_array_equal(pool.predict([ONES])[0], expected)
            self.assertNotIn(pool._predictors[0], used)

    def test_failure_to_clone_loses_no_predictor(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, PAIR)
            files = [path + suffix for suffix in (".json", ".pdiparams")]
            for file in files:
                shutil.copy(
                    os.path.join(self.folder, os.path.basename(file)), folder
                )
            config = Config(*files)
            config.disable_glog_info()
            pool = PredictorPool(config, 1)
            os.rename(files[1], path)
            with self.assertRaisesRegex(ValueError, "InvalidArgument"):
                pool.predict([X, np.ones([3], "float32")])
            with self.assertRaisesRegex(FileNotFoundError, "pdiparams"):
                pool.predict([X, Y])
            os.rename(path, files[1])
            np.testing.assert_array_equal(pool.predict([X, Y])[0], X - Y)

    def test_retrieved_predictor_is_no_longer_used_by_predict(self):
        pool = PredictorPool(self.config(PAIR), 2)
        mine = pool.retrieve(0)
        self.assertIs(pool.retrieve(0), mine)
        mine.get_input_handle("x").copy_from_cpu(X)
        mine.get_input_handle("y").copy_from_cpu(Y)
        for _ in range(3):
            pool.predict([X * 10, Y])
        mine.run()
        np.testing.assert_array_equal(output(mine), X - Y)
        pool.retrieve(1)
        with self.assertRaisesRegex(RuntimeError, "they were retrieved"):
            pool.predict([X, Y])

    def test_retrieve_replaces_a_predictor_that_has_failed(self):
        pool = PredictorPool(self.config(PAIR), 1)
        (failed,) = pool._predictors
        with self.assertRaises(ValueError):
            pool.predict([X, np.ones([3], "float32")])
        mine = pool.retrieve(0)
        self.assertIsNot(mine, failed)
        np.testing.assert_array_equal(call(mine, X, Y), X - Y)
        self.assertIs(pool.retrieve(0), mine)

    def test_retrieve_replaces_a_failed_predictor_after_a_failure_to_clone(
        self,
    ):
        class Unclonable:
            def clone(self) -> None:
                raise OSError

        pool = PredictorPool(self.config(PAIR), 1)
        (failed,) = pool._predictors
        with self.assertRaises(ValueError):
            pool.predict([X, np.ones([3], "float32")])
        pool._predictors[0] = Unclonable()
        with self.assertRaises(OSError):
            pool.retrieve(0)
        pool._predictors[0] = failed
        self.assertIsNot(pool.retrieve(0), failed)

    def test_threads_that_replace_a_failed_predictor_get_the_same_one(self):
        cloning = threading.Barrier(2, timeout=WAIT_S)

        class Failed:
            def clone(self) -> object:
                cloning.wait()
                return object()

        pool = PredictorPool(self.config(PAIR), 1)
        with self.assertRaises(ValueError):
            pool.predict([X, np.ones([3], "float32")])
        pool._predictors[0] = Failed()
        first, second = in_threads(*[lambda: pool.retrieve(0)] * 2)
        self.assertIs(first, second)
        self.assertIs(pool.retrieve(0), first)

    def after_removal(
        self, pool: PredictorPool, action: Callable[[], object]
    ) -> None:
        """Makes the next `retrieve` call `action` after it has removed the
        predictor from those that `predict` uses."""
        idle = pool._idle

        class Idle:
            def remove(self, idx: int) -> bool | None:
                pool._idle = idle
                has_failed = idle.remove(idx)
                action()
                return has_failed

        pool._idle = Idle()

    def test_two_threads_retrieve_one_predictor(self):
        pool, others = PredictorPool(self.config(PAIR), 1), []
        self.after_removal(
            pool, lambda: others.append(in_thread(pool.retrieve, 0))
        )
        self.assertIs(pool.retrieve(0), others[0])

    def test_interrupted_retrieve_can_be_repeated(self):
        def interrupt() -> None:
            raise KeyboardInterrupt

        for fails in (False, True):
            with self.subTest(fails=fails):
                pool = PredictorPool(self.config(PAIR), 1)
                (failed,) = pool._predictors
                if fails:
                    with self.assertRaises(ValueError):
                        pool.predict([X, np.ones([3], "float32")])
                self.after_removal(pool, interrupt)
                with self.assertRaises(KeyboardInterrupt):
                    pool.retrieve(0)
                self.assertEqual(pool.retrieve(0) is not failed, fails)

    def test_predictor_in_use_cannot_be_retrieved(self):
        pool = PredictorPool(self.config(PAIR), 1)
        end = self.hold(pool)
        with self.assertRaisesRegex(RuntimeError, "predict.. is using it"):
            pool.retrieve(0)
        end()
        pool.retrieve(0)

    @unittest.skipUnless(hasattr(signal, "setitimer"), "needs timers")
    def test_interrupts_lose_no_predictor(self):
        pool = PredictorPool(self.config(PAIR), 2)
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                pool.predict([X, Y])

        workers = [Worker(keep_busy) for _ in range(2)]
        interrupts = 0

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            while interrupts < 300:
                try:
                    # Each interrupt occurs at a different step of a call.
                    after = 1e-4 + interrupts * 1e-5
                    signal.setitimer(signal.ITIMER_REAL, after)
                    while True:
                        answer, _ = pool.predict([X * 3, Y])
                        np.testing.assert_array_equal(answer, X * 3 - Y)
                except KeyboardInterrupt:
                    interrupts += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        stop.set()
        for worker in workers:
            worker.result()
        self.assertEqual(pool._idle.size, 2)
        leases = [pool._idle.take(0) for _ in range(2)]
        self.assertNotIn(None, leases)

    def test_sizes_and_indexes_are_checked(self):
        with self.assertRaisesRegex(ValueError, "0 predictors"):
            PredictorPool(self.config(PAIR), 0)
        with unittest.mock.patch(CREATE) as create:
            for size in (1.5, "2", None, True, np.arange(2)):
                message = f"{re.escape(repr(size))}, .* integer of 1 or more"
                with self.assertRaisesRegex(TypeError, message):
                    PredictorPool(self.config(PAIR), size)
            create.assert_not_called()
        PredictorPool(self.config(PAIR), np.int64(1)).predict([X, Y])
        pool = PredictorPool(self.config(PAIR), 2)
        for idx in (-1, 2):
            with self.assertRaisesRegex(IndexError, f"no predictor {idx}"):
                pool.retrieve(idx)
        for idx in ("a", 0.0, True):
            with self.assertRaisesRegex(
                TypeError, f"index .* {idx!r}, of type"
            ):
                pool.retrieve(idx)
        self.assertIs(pool.retrieve(np.int64(1)), pool.retrieve(1))


if __name__ == "__main__":
    unittest.main()
