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
"""Predictors on threads: calls without the GIL, and refused calls."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import pathlib
import pickle
import random
import sys
import tempfile
import threading
import time
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
from concurrent_base import (
    WAIT_S,
    Worker,
    in_thread,
    in_threads,
    pristine_environment,
    run_command,
    script_command,
)
from inference_threads_base import (
    IMAGE,
    IMAGE_LEGACY,
    PAIR,
    PredictorTestCase,
    call,
    hook_once,
    output,
    save_layer,
    save_legacy,
    switch_interval,
)

import paddle
import paddle.multiprocessing as mp
from paddle.base import core
from paddle.inference import Config, Predictor, create_predictor

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = np.ones([4, 3, 256, 256], "float32")
ONES = np.ones([1, 3, 4, 4], "float32")
ENDED = object()
X, Y = np.full([4], 5, "float32"), np.full([4], 2, "float32")


class TestOtherThreadsRun(PredictorTestCase):
    def check(self, function: Callable[[], Any]) -> None:
        """Checks that another thread runs before `function` returns."""
        may_run, has_run = threading.Event(), []

        def run() -> None:
            may_run.wait(WAIT_S)
            has_run.append(True)

        worker = Worker(run)
        # Python does not force any thread to release the GIL.
        deadline = time.monotonic() + WAIT_S
        with switch_interval(1000):
            may_run.set()
            while not has_run and time.monotonic() < deadline:
                function()
            seen = list(has_run)
        worker.result()
        self.assertTrue(seen, "the GIL was held")

    def test_other_threads_run_while_a_predictor_runs(self):
        predictor = self.predictor()
        predictor.get_input_handle("x").copy_from_cpu(LARGE)
        self.check(predictor.run)

    def test_other_threads_run_while_a_predictor_with_onednn_runs(self):
        predictor = self.predictor(onednn=True)
        predictor.get_input_handle("x").copy_from_cpu(LARGE)
        self.check(predictor.run)

    def test_other_threads_run_while_a_predictor_with_onednn_is_cloned(self):
        predictor = self.predictor(onednn=True)
        self.check(predictor.clone)

    def test_other_threads_run_while_a_predictor_runs_on_tensors(self):
        predictor = self.predictor()
        x = paddle.to_tensor(LARGE)
        self.check(lambda: predictor.run([x]))

    def test_other_threads_run_while_an_input_is_copied(self):
        predictor = self.predictor()
        handle = predictor.get_input_handle("x")
        self.check(lambda: handle.copy_from_cpu(LARGE))

    def test_other_threads_run_while_an_output_is_copied(self):
        predictor = self.predictor(PAIR)
        call(predictor, *[np.ones([1 << 22], "float32")] * 2)
        self.check(lambda: output(predictor))

    def test_other_threads_run_while_a_predictor_is_cloned(self):
        predictor = self.predictor()
        self.check(predictor.clone)

    def test_other_threads_run_while_a_predictor_is_created(self):
        configs = [self.config() for _ in range(50)]
        self.check(lambda: create_predictor(configs.pop()))

    def test_other_threads_run_while_the_constructor_creates_a_predictor(self):
        configs = [self.config() for _ in range(50)]
        self.check(lambda: Predictor(configs.pop()))


def check_primitives_of(one: Predictor, other: Predictor) -> None:
    """Checks predictors that run in parallel, with more shapes than a cache of
    primitives holds."""
    images = [
        np.full([1, 3, 8 + size, 8], size, "float32") for size in range(12)
    ]
    expected = [call(one, image) for image in images]

    def run(predictor: Predictor) -> None:
        for _ in range(20):
            for image, answer in zip(images, expected):
                np.testing.assert_array_equal(call(predictor, image), answer)

    with switch_interval(1e-6):
        in_threads(lambda: run(one), lambda: run(other))


class TestPredictorsWithOneDnn(PredictorTestCase):
    def test_one_runs_while_another_one_runs(self):
        slow, fast = (self.predictor(onednn=True) for _ in range(2))
        expected = call(fast, ONES)
        slow.get_input_handle("x").copy_from_cpu(
            np.ones([8, 3, 1024, 1024], "float32")
        )
        stop = threading.Event()
        run = 0  # of the slow one

        def keep_running() -> None:
            nonlocal run
            while not stop.is_set():
                run += 1
                slow.run()

        worker = Worker(keep_running)
        clock = time.pthread_getcpuclockid(worker.ident)

        def one_finishes_within_a_run_of_the_other() -> bool:
            this_run, begin = run, time.clock_gettime(clock)
            # It does not wait: it computes.
            while time.clock_gettime(clock) < begin + 0.01:
                time.sleep(0.001)
            np.testing.assert_array_equal(call(fast, ONES), expected)
            return run == this_run

        deadline = time.monotonic() + WAIT_S
        try:
            # Another attempt is needed if the operating system runs this
            # thread too late.
            while not one_finishes_within_a_run_of_the_other():
                self.assertLess(time.monotonic(), deadline, "serialized")
        finally:
            stop.set()
            worker.result()

    def test_primitives_outlive_the_thread_that_created_them(self):
        for model in (IMAGE, IMAGE_LEGACY):
            with self.subTest(model):
                predictor = self.predictor(model, onednn=True)
                expected = in_thread(call, predictor, ONES)
                for _ in range(20):
                    np.testing.assert_array_equal(
                        in_thread(call, predictor, ONES), expected
                    )

    def test_shapes_of_one_do_not_evict_primitives_of_another(self):
        check_primitives_of(*(self.predictor(onednn=True) for _ in range(2)))

    def test_tensors_that_end_in_an_operator_of_onednn_have_a_plain_layout(
        self,
    ):
        path = os.path.join(self.folder, "convolution.legacy")
        save_legacy(
            lambda x: paddle.static.nn.conv2d(x, 5, 3), path, [1, 3, 6, 6]
        )
        image = np.random.default_rng(0).random([1, 3, 6, 6], "float32")
        predictor = self.predictor("convolution.legacy", onednn=True)
        expected = call(predictor, image)
        (answer,) = predictor.run([paddle.to_tensor(image)])
        np.testing.assert_array_equal(answer.numpy(), expected)
        np.testing.assert_array_equal(answer.clone().numpy(), expected)
        np.testing.assert_array_equal((answer * 2).numpy(), expected * 2)


class TestPythonInsideARun(PredictorTestCase):
    def check_hooks(self, model: str) -> None:
        predictor = self.predictor(model)
        seen = []
        for register in (
            predictor.register_input_hook,
            predictor.register_output_hook,
        ):
            register(lambda *_: seen.append(threading.get_ident()))

        def run() -> int:
            call(predictor, ONES)
            return threading.get_ident()

        ident = in_thread(run)
        self.assertGreater(len(seen), 2)
        self.assertEqual(set(seen), {ident})

    def test_hooks_are_called_on_the_thread_that_runs(self):
        self.check_hooks(IMAGE)

    def test_hooks_of_the_older_format_are_called_on_the_thread_that_runs(self):
        self.check_hooks(IMAGE_LEGACY)

    def test_hook_may_use_its_predictor(self):
        predictor = self.predictor(PAIR)
        shapes = []
        predictor.register_output_hook(
            lambda *_: shapes.append(predictor.get_input_handle("x").shape())
        )
        call(predictor, X, Y)
        self.assertEqual(shapes[0], [4])

    def test_hook_lets_other_threads_run(self):
        predictor = self.predictor()
        met = threading.Barrier(2, timeout=WAIT_S)
        predictor.register_input_hook(hook_once(met.wait))
        worker = Worker(call, predictor, ONES)
        met.wait()
        worker.result()

    def check_hook_that_waits_for_a_run(self, onednn: bool) -> None:
        predictor = self.predictor(onednn=onednn)
        expected = call(predictor, ONES)
        other = predictor.clone()
        answers = []
        predictor.register_input_hook(
            hook_once(lambda: answers.append(in_thread(call, other, ONES)))
        )
        answers.append(call(predictor, ONES))
        self.assertEqual(len(answers), 2)
        for answer in answers:
            np.testing.assert_array_equal(answer, expected)

    def test_hook_may_wait_for_a_run_of_another_predictor(self):
        for onednn in (False, True):
            with self.subTest(onednn=onednn):
                self.check_hook_that_waits_for_a_run(onednn)

    def test_hook_may_make_and_drop_predictors_with_onednn(self):
        predictor = self.predictor(onednn=True)
        expected = call(predictor, ONES)

        def make_and_drop() -> None:
            call(predictor.clone(), ONES)
            call(self.predictor(onednn=True), ONES)
            gc.collect()

        predictor.register_output_hook(hook_once(make_and_drop))
        np.testing.assert_array_equal(call(predictor, ONES), expected)

    def test_program_that_a_hook_builds_outlives_the_predictor(self):
        predictor = self.predictor(onednn=True)
        layer = paddle.nn.Conv2D(3, 4, 3)
        layer.eval()
        x = paddle.to_tensor(ONES)
        expected = layer(x).numpy()
        program = paddle.jit.to_static(layer, full_graph=True)
        answers = []
        predictor.register_output_hook(
            hook_once(lambda: answers.append(program(x).numpy()))
        )
        call(predictor, ONES)
        del predictor
        gc.collect()
        answers.append(program(x).numpy())
        for answer in answers:
            np.testing.assert_allclose(answer, expected, rtol=1e-5)

    def test_hook_reads_outputs_in_the_layout_of_the_model(self):
        path = os.path.join(self.folder, "channels_last.pir")
        layer = paddle.nn.Conv2D(3, 8, 3, data_format="NHWC")
        save_layer(layer, path, x=[None, 6, 5, 3])
        image = np.random.default_rng(0).random([1, 6, 5, 3], "float32")
        predictor = self.predictor("channels_last.pir", onednn=True)
        seen = []

        def read(*_: Any) -> None:
            # Not all operators have set the predictor's output.
            with contextlib.suppress(RuntimeError):
                seen.append(output(predictor))

        predictor.register_output_hook(read)
        expected = call(predictor, image)
        np.testing.assert_allclose(
            expected, layer(paddle.to_tensor(image)), rtol=1e-5, atol=1e-6
        )
        self.assertTrue(seen)
        np.testing.assert_array_equal(seen[-1], expected)

    def test_error_of_a_hook_reaches_the_caller(self):
        predictor = self.predictor(IMAGE_LEGACY)

        def fail(*_: Any) -> None:
            raise KeyError("from the hook")

        predictor.register_output_hook(fail)
        with self.assertRaisesRegex(KeyError, "from the hook"):
            in_thread(call, predictor, ONES)

    def predictor_of_py_func(
        self, function: Callable[[Any], np.ndarray]
    ) -> Predictor:
        """Returns a predictor with oneDNN whose model calls `function`."""
        path = os.path.join(self.folder, "python")

        def build(x: Any) -> Any:
            block = paddle.static.default_main_program().current_block()
            out = block.create_var(
                name="doubled", dtype="float32", shape=[-1, 4]
            )
            y = paddle.static.py_func(function, paddle.static.nn.fc(x, 4), out)
            return paddle.scale(y, 0.5)

        save_legacy(build, path, [None, 3])
        config = Config(path + ".pdmodel", path + ".pdiparams")
        config.disable_glog_info()
        config.enable_mkldnn()
        return create_predictor(config)

    def test_py_func_of_predictors_on_threads(self):
        idents = []

        def twice(x: Any) -> np.ndarray:
            idents.append(threading.get_ident())
            return np.asarray(x) * 2

        first = self.predictor_of_py_func(twice)
        x = np.ones([1, 3], "float32")
        expected = call(first, x)

        def run() -> list:
            predictor = first.clone()
            return [call(predictor, x) for _ in range(20)]

        with switch_interval(1e-6):
            for answers in in_threads(run, run, run):
                for answer in answers:
                    np.testing.assert_array_equal(answer, expected)
        self.assertEqual(len(set(idents)), 4)

    def test_py_func_may_wait_for_a_run_of_another_predictor(self):
        other = self.predictor(onednn=True)
        expected = call(other, ONES)
        answers = []

        def twice(x: Any) -> np.ndarray:
            answers.append(in_thread(call, other, ONES))
            return np.asarray(x) * 2

        call(self.predictor_of_py_func(twice), np.ones([1, 3], "float32"))
        self.assertEqual(len(answers), 1)
        np.testing.assert_array_equal(answers[0], expected)

    def test_memory_of_an_array_is_freed_by_the_run_that_replaces_it(self):
        class Array(np.ndarray):
            """An array that supports weak references."""

        predictor = self.predictor()
        array = ONES.copy().view(Array)
        seen = weakref.ref(array)
        tensor = paddle.base.core.eager.Tensor(
            value=array, place=paddle.CPUPlace(), zero_copy=True
        )
        in_thread(predictor.run, [tensor])
        del array, tensor
        x = paddle.to_tensor(ONES)
        in_thread(predictor.run, [x])
        gc.collect()
        self.assertIsNone(seen())

    def test_profiler_records_runs_on_threads(self):
        predictors = [self.predictor() for _ in range(2)]
        expected = call(predictors[0], ONES)
        profiler = paddle.profiler.Profiler(
            targets=[paddle.profiler.ProfilerTarget.CPU],
            on_trace_ready=lambda _: None,
        )
        with profiler:
            answers = in_threads(
                *[lambda p=p: call(p, ONES) for p in predictors]
            )
        for answer in answers:
            np.testing.assert_array_equal(answer, expected)

    def test_errors_are_the_same_as_on_the_main_thread(self):
        predictor = self.predictor()
        wrong = np.ones([1, 5, 4, 4], "float32")
        for run in (lambda f, *args: f(*args), in_thread):
            with self.assertRaisesRegex(ValueError, "InvalidArgument"):
                run(call, predictor, wrong)
            with self.assertRaisesRegex(ValueError, "wrong feed input size"):
                run(predictor.run, [])


class TestMemoryOfTheCaller(PredictorTestCase):
    def relu(self) -> Predictor:
        path = os.path.join(self.folder, "relu.pir")
        save_layer(paddle.nn.ReLU(), path, x=[None])
        return self.predictor("relu.pir")

    def test_inputs_with_strides_are_copied_element_by_element(
        self,
    ):
        predictor = self.predictor(PAIR)
        values = np.arange(48, dtype="float32")
        bytes_of_one = np.zeros(4 * 24 + 1, "uint8")
        unaligned = bytes_of_one[1:].view("float32")
        unaligned[:] = values[:24]
        for strided in (
            values[::2],
            values[::-1],
            unaligned,
            unaligned[::3],
            np.broadcast_to(values[5:6], [7]),
            values[:0:2],
        ):
            zeros = np.zeros(strided.shape, "float32")
            np.testing.assert_array_equal(
                call(predictor, strided, zeros), strided
            )

    def test_later_runs_do_not_overwrite_returned_tensors(self):
        for model in (IMAGE, IMAGE_LEGACY):
            with self.subTest(model=model):
                predictor = self.predictor(model)
                (first,) = predictor.run([paddle.to_tensor(ONES)])
                before = first.numpy().copy()
                predictor.run([paddle.to_tensor(ONES * 7)])
                np.testing.assert_array_equal(first.numpy(), before)
                in_thread(call, predictor, ONES * 7)
                np.testing.assert_array_equal(first.numpy(), before)

    def test_returned_tensors_keep_their_values(self):
        for model, onednn in itertools.product(
            (IMAGE, IMAGE_LEGACY), (False, True)
        ):
            with self.subTest(model=model, onednn=onednn):
                predictor = self.predictor(model, onednn=onednn)
                of_handles = self.predictor(model, onednn=onednn)
                clone = predictor.clone()
                kept = []
                for i, size in enumerate([1, 4, 4, 300, 4, 1, 4, 300]):
                    image = np.full([size, 3, 4, 4], i, "float32")
                    # A tensor is changed, dropped, or kept.
                    for runner in (predictor, predictor, clone, predictor):
                        (answer,) = runner.run([paddle.to_tensor(image)])
                        expected = call(of_handles, image)
                        np.testing.assert_array_equal(output(runner), expected)
                        kept.append((answer, expected))
                    kept[-1][0].zero_()
                    del answer, kept[-2:]
                    call(predictor, image + 1)
                    for answer, expected in kept:
                        np.testing.assert_array_equal(answer.numpy(), expected)

    def test_large_outputs_are_not_copied(self):
        predictor = self.predictor(PAIR)
        tensor = paddle.ones([1 << 20])
        addresses = set()

        def is_copy() -> bool:
            difference, double = predictor.run([tensor, tensor])
            addresses.add(double.data_ptr())
            double.fill_(7)
            return output(predictor, 1)[0] != 7

        deadline = time.monotonic() + WAIT_S
        # Tensors are copied if the executor still has them.
        while is_copy():
            self.assertLess(time.monotonic(), deadline)

    def test_memory_of_dropped_tensors_is_used_again(self):
        predictor = self.relu()
        addresses = []
        for _ in range(10):
            (answer,) = predictor.run([paddle.ones([1 << 20])])
            addresses.append(answer.data_ptr())
        self.assertEqual(len(set(addresses)), 2, addresses)

    @unittest.skipIf(sys.platform != "linux", "needs paddle.multiprocessing")
    def test_memory_of_sent_tensors_is_not_used_again(self):
        predictor = self.relu()
        # Runs do not allocate in shared memory, even here.
        with mp.shared_allocation():
            (answer,) = predictor.run([paddle.ones([1 << 20])])
        message = ForkingPickler.dumps(answer)
        del answer
        for _ in range(3):
            predictor.run([paddle.full([1 << 20], 7.0)])
        received = pickle.loads(message)
        np.testing.assert_array_equal(received, np.ones([1 << 20]))

    def test_shrinking_frees_the_memory_of_dropped_tensors(self):
        def allocated() -> int:
            return core.host_memory_stat_current_value("Allocated", 0)

        predictor = self.relu()
        tensor = paddle.ones([1 << 20])
        first = predictor.run([tensor])
        second = predictor.run([tensor])
        before = allocated()
        del first, second
        predictor.try_shrink_memory()
        self.assertLessEqual(allocated(), before - (4 << 20))

    def test_small_tensor_does_not_keep_the_memory_of_a_large_one(self):
        predictor = self.relu()
        predictor.run([paddle.ones([1 << 20])])
        (small,) = predictor.run([paddle.ones([4])])
        small.zero_()
        np.testing.assert_array_equal(output(predictor), np.ones([4]))

    def test_change_of_a_tensor_does_not_change_parameters_or_inputs(self):
        class Aliases(paddle.nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.factor = self.create_parameter([2])

            def forward(self, x: paddle.Tensor) -> Any:
                return self.factor, x.reshape([2, 1]), self.factor + x

        def aliases(x: paddle.static.Variable) -> list[paddle.static.Variable]:
            factor = paddle.static.create_parameter([2], "float32")
            return [factor, x, x.reshape([2, 1]), factor + x]

        path = os.path.join(self.folder, "aliases.")
        save_layer(Aliases(), path + "pir", x=[2])
        save_legacy(aliases, path + "legacy", [2])
        paddle.set_device("cpu")  # disable_static has set another one
        x = np.ones([2], "float32")
        for suffix, onednn in itertools.product(
            ("pir", "legacy"), (False, True)
        ):
            with self.subTest(suffix=suffix, onednn=onednn):
                predictor = self.predictor(f"aliases.{suffix}", onednn=onednn)
                tensor = paddle.to_tensor(x)
                first = predictor.run([tensor])
                expected = [answer.numpy().copy() for answer in first]
                for _ in range(3):
                    for answer in predictor.run([tensor]):
                        answer.zero_()
                    np.testing.assert_array_equal(tensor.numpy(), x)
                    for answers in (first, predictor.run([tensor])):
                        for answer, value in zip(answers, expected):
                            np.testing.assert_array_equal(answer, value)

    def test_outputs_of_the_last_run_after_a_run_that_raised(self):
        predictor = self.predictor(PAIR)
        x, y = paddle.to_tensor(X), paddle.to_tensor(Y)
        kept = [predictor.run([x * i, y])[1] for i in range(1, 4)]
        for wrong in ([x], [x, paddle.ones([3])]):
            with self.assertRaises(ValueError):
                predictor.run(wrong)
            np.testing.assert_array_equal(output(predictor, 1), X * 6)
        predictor.run([x, y])
        for i, answer in enumerate(kept, 1):
            np.testing.assert_array_equal(answer.numpy(), X * i * 2)

    def test_runs_write_to_memory_that_the_program_shares_with_an_output(self):
        predictor = self.relu()
        x = paddle.to_tensor(X)
        predictor.run([x])
        handle = predictor.get_output_handle(predictor.get_output_names()[0])
        bound = paddle.zeros([4])
        handle.share_external_data(bound)
        for i in range(3):
            (answer,) = predictor.run([x * i])
            np.testing.assert_array_equal(bound, X * i)
            answer.zero_()
            np.testing.assert_array_equal(bound, X * i)

    def test_handle_keeps_its_predictor_alive(self):
        predictor = self.predictor()
        expected = call(predictor, ONES)
        handle = predictor.get_output_handle(predictor.get_output_names()[0])
        del predictor
        gc.collect()
        np.testing.assert_array_equal(handle.copy_to_cpu(), expected)

    def test_predictor_that_refers_to_its_handle_is_freed(self):
        class WithHandle(Predictor):
            def __init__(self, config: Config) -> None:
                super().__init__(config)
                self.handle = self.get_input_handle("x")

        self.check_is_freed(lambda model: WithHandle(self.config(model)))

    def test_predictor_whose_hook_refers_to_its_handle_is_freed(self):
        def make(model: str) -> Predictor:
            predictor = self.predictor(model)
            handle = predictor.get_input_handle("x")
            predictor.register_output_hook(lambda *_: handle.shape())
            return predictor

        self.check_is_freed(make)

    def test_last_handle_frees_its_predictor(self):
        handles = []

        def make(model: str) -> Predictor:
            predictor = self.predictor(model)
            handles[:] = [predictor.get_input_handle("x") for _ in range(2)]
            return predictor

        self.check_is_freed(make, handles.clear)

    def check_is_freed(
        self,
        make: Callable[[str], Predictor],
        drop: Callable[[], None] = lambda: None,
    ) -> None:
        def allocated() -> int:
            return paddle.base.core.host_memory_stat_current_value(
                "Allocated", 0
            )

        for model in (IMAGE, IMAGE_LEGACY):
            with self.subTest(model=model):
                before = 0
                for round_number in range(5):
                    predictor = make(model)
                    call(predictor, LARGE)
                    seen = weakref.ref(predictor)
                    del predictor
                    gc.collect()
                    self.assertIsNone(seen())
                    drop()
                    if round_number == 0:
                        before = allocated()
                self.assertLess(allocated() - before, LARGE.nbytes)

    def test_new_handle_may_have_the_address_of_a_dropped_one(self):
        predictor = self.predictor(PAIR)
        handle = predictor.get_input_handle("x")
        dropped = predictor.get_input_handle("y")
        dropped.copy_from_cpu(Y)
        made = []
        # Called after the C++ object is destroyed.
        seen = weakref.ref(
            dropped,
            lambda _: made.extend(
                predictor.get_input_handle("x") for _ in range(50)
            ),
        )
        del dropped
        self.assertIsNone(seen())
        for new in made:
            handle.copy_from_cpu(X)
            in_thread(new.copy_from_cpu, X * 10)
            with self.assertRaisesRegex(RuntimeError, "has overwritten 'x'"):
                predictor.run()


class TestConfigs(PredictorTestCase):
    def test_model_in_memory(self):
        path = os.path.join(self.folder, IMAGE_LEGACY)
        program, parameters = (
            pathlib.Path(path + suffix).read_bytes()
            for suffix in (".pdmodel", ".pdiparams")
        )
        config = Config()
        config.set_model_buffer(
            program, len(program), parameters, len(parameters)
        )
        config.disable_glog_info()
        config.disable_mkldnn()
        predictor = create_predictor(config)
        expected = call(self.predictor(IMAGE_LEGACY), ONES)
        for each in (predictor, predictor.clone()):
            np.testing.assert_array_equal(call(each, ONES), expected)

    def test_config_without_a_model_raises_value_error(self):
        for make in (Predictor, create_predictor):
            with self.assertRaisesRegex(ValueError, "names no model"):
                make(Config())

    def test_invalid_config_raises_type_error(self):
        for make in (Predictor, create_predictor):
            for config in (None, "model"):
                with self.assertRaises(TypeError):
                    make(config)


class TestClones(PredictorTestCase):
    def check_survivor(self, model: str, onednn: bool, survivor: int) -> None:
        predictors = [self.predictor(model, onednn)]
        predictors.append(predictors[0].clone())
        expected = [call(each, ONES) for each in predictors]
        del predictors[1 - survivor]
        gc.collect()
        np.testing.assert_array_equal(
            call(predictors[0], ONES), expected[survivor]
        )

    def test_any_clone_works_after_the_others_are_dropped(self):
        for model in (IMAGE, IMAGE_LEGACY):
            for onednn in (False, True):
                for survivor in (0, 1):
                    with self.subTest(
                        model=model, onednn=onednn, survivor=survivor
                    ):
                        self.check_survivor(model, onednn, survivor)

    def test_predictor_of_the_constructor_may_be_dropped_before_its_clone(self):
        predictor = Predictor(self.config(IMAGE_LEGACY))
        expected = call(predictor, ONES)
        clone = predictor.clone()
        del predictor
        gc.collect()
        np.testing.assert_array_equal(call(clone, ONES), expected)

    def test_clone_has_no_inputs_outputs_or_hooks_of_a_dropped_one(self):
        predictor = self.predictor(IMAGE_LEGACY)
        seen = []
        clone = predictor.clone()
        clone.register_output_hook(lambda *_: seen.append(1))
        call(clone, ONES)
        seen.clear()
        del clone
        gc.collect()
        clone = predictor.clone()
        with self.assertRaisesRegex(ValueError, "InvalidArgument"):
            clone.run()
        np.testing.assert_array_equal(
            call(clone, ONES * 2), call(predictor, ONES * 2)
        )
        self.assertEqual(seen, [])

    def test_dropped_clone_frees_its_tensors(self):
        def allocated() -> int:
            return paddle.base.core.host_memory_stat_current_value(
                "Allocated", 0
            )

        for model in (IMAGE, IMAGE_LEGACY):
            with self.subTest(model=model):
                predictor = self.predictor(model)
                call(predictor, ONES)
                call(predictor.clone(), ONES)
                gc.collect()
                before = allocated()
                for _ in range(5):
                    call(predictor.clone(), LARGE)
                    gc.collect()
                self.assertLess(allocated() - before, LARGE.nbytes)

    def test_clone_of_a_model_without_parameters(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "relu")
            save_layer(paddle.nn.ReLU(), path, x=[None])
            config = Config(path + ".json", path + ".pdiparams")
            config.disable_glog_info()
            clone = create_predictor(config).clone()
        given = np.array([-1, 2], "float32")
        np.testing.assert_array_equal(call(clone, given), [0, 2])

    def test_predictor_may_be_cloned_and_made_while_it_runs(self):
        predictor = self.predictor()
        expected = call(predictor, ONES)
        config = self.config(IMAGE_LEGACY)
        made = []

        def make() -> None:
            made.append(in_thread(predictor.clone))
            made.append(in_thread(create_predictor, config))

        predictor.register_input_hook(hook_once(make))
        np.testing.assert_array_equal(call(predictor, ONES), expected)
        np.testing.assert_array_equal(call(made[0], ONES), expected)
        call(made[1], ONES)


class OtherThread(PredictorTestCase):
    """Two threads, main and other, take turns with one predictor."""

    def setUp(self) -> None:
        self.shared = self.predictor(PAIR)
        # Calls for the other thread, one after the other.
        self.steps: list = []
        self.ready = threading.Semaphore(0)
        self.done = threading.Semaphore(0)
        self.results: list = []
        self.worker = Worker(self.work)
        self.addCleanup(self.other, None)

    def work(self) -> None:
        while True:
            self.ready.acquire(timeout=WAIT_S)
            step = self.steps.pop()
            try:
                self.results.append(step and step())
            except Exception as error:  # raised by other()
                self.results.append(error)
            self.done.release()
            if step is None:
                return

    def other(self, step: Callable[[], Any] | None) -> Any:
        """Calls a function on the other thread."""
        self.steps.append(step)
        self.ready.release()
        self.assertTrue(self.done.acquire(timeout=WAIT_S))
        result = self.results.pop()
        if isinstance(result, Exception):
            raise result
        return result

    def set_x(self, x: np.ndarray) -> None:
        self.shared.get_input_handle("x").copy_from_cpu(x)

    def read(self, index: int = 0) -> np.ndarray:
        return output(self.shared, index)

    def set_inputs(self, x: np.ndarray, y: np.ndarray) -> None:
        self.set_x(x)
        self.shared.get_input_handle("y").copy_from_cpu(y)


class TestPredictorMovesBetweenThreads(OtherThread):
    def check_steps(self, set_inputs, run, read) -> None:
        """Checks requests whose steps are each done by a function."""
        for i in range(4):
            set_inputs(lambda i=i: self.set_inputs(X * i, Y))
            run(self.shared.run)
            np.testing.assert_array_equal(read(self.read), X * i - Y)

    def test_steps_of_a_request_on_different_threads(self):
        threads = (lambda step: step()), self.other, in_thread
        for steps in itertools.product(threads, repeat=3):
            self.check_steps(*steps)

    def test_steps_on_threads_of_an_executor(self):
        async def request(x: np.ndarray) -> np.ndarray:
            self.set_inputs(x, Y)
            await asyncio.to_thread(self.shared.run)
            return self.read()

        async def requests() -> None:
            for i in range(4):
                np.testing.assert_array_equal(await request(X * i), X * i - Y)

        asyncio.run(requests())

    def test_input_that_the_main_thread_sets_once(self):
        self.shared.get_input_handle("y").copy_from_cpu(Y)

        def request(x: np.ndarray) -> np.ndarray:
            self.set_x(x)
            self.shared.run()
            return self.read()

        for i in range(4):
            answer = self.other(lambda i=i: request(X * i))
            np.testing.assert_array_equal(answer, X * i - Y)
            answer = in_thread(request, X * i)
            np.testing.assert_array_equal(answer, X * i - Y)
        np.testing.assert_array_equal(self.read(), X * 3 - Y)

    def test_input_of_another_thread_may_be_read(self):
        in_thread(call, self.shared, X, Y)
        handle = self.shared.get_input_handle("x")
        np.testing.assert_array_equal(handle.copy_to_cpu(), X)

    def test_any_thread_may_read_shape_type_and_lod(self):
        self.set_inputs(X, Y)
        self.other(lambda: call(self.shared, X, Y))
        for handle in (
            self.shared.get_input_handle("x"),
            self.shared.get_output_handle(self.shared.get_output_names()[0]),
        ):
            self.assertEqual(handle.shape(), [4])
            handle.type()
            handle.lod()

    def test_another_thread_may_free_memory_between_requests(self):
        predictor = self.predictor()
        predictor.get_input_handle("x").copy_from_cpu(ONES)
        predictor.run()
        expected = output(predictor)
        self.other(predictor.try_shrink_memory)
        predictor.run()
        np.testing.assert_array_equal(output(predictor), expected)

    def test_outputs_after_another_thread_has_set_inputs(self):
        self.set_inputs(X, Y)
        self.shared.run()
        self.other(lambda: self.set_inputs(X * 10, Y))
        np.testing.assert_array_equal(self.read(), X - Y)

    def test_successive_requests_on_any_thread(self):
        for i in range(6):
            x = X * i
            answer = (
                self.other(lambda x=x: call(self.shared, x, Y))
                if i % 2
                else call(self.shared, x, Y)
            )
            np.testing.assert_array_equal(answer, x - Y)
        for i in range(5):
            answer = in_thread(call, self.shared, X * i, Y)
            np.testing.assert_array_equal(answer, X * i - Y)

    def test_predictor_that_was_warmed_up_on_another_thread(self):
        self.set_inputs(X, Y)
        self.shared.run()
        answer = self.other(lambda: call(self.shared, X * 3, Y))
        np.testing.assert_array_equal(answer, X * 3 - Y)

    def test_one_thread_may_run_the_same_inputs_again(self):
        self.other(lambda: call(self.shared, X, Y))
        call(self.shared, X, Y)
        self.shared.get_input_handle("x").copy_from_cpu(X * 3)
        for _ in range(2):
            self.shared.run()
            np.testing.assert_array_equal(output(self.shared), X * 3 - Y)

    def test_thread_that_sets_inputs_once_may_run_many_times(self):
        for factor in (1, 2):
            self.other(lambda: call(self.shared, X * 10, Y))
            self.set_inputs(X * factor, Y)
            for _ in range(3):
                self.shared.run()
                np.testing.assert_array_equal(self.read(), X * factor - Y)

    def test_thread_that_never_sets_inputs_may_run_many_times(self):
        for factor in (1, 2):
            self.other(lambda x=X * factor: self.set_inputs(x, Y))
            for _ in range(3):
                self.shared.run()
                np.testing.assert_array_equal(self.read(), X * factor - Y)

    def test_thread_after_its_own_request_may_run_inputs_of_another_one(self):
        call(self.shared, X, Y)  # a warm-up
        for factor in (2, 3):
            self.other(lambda x=X * factor: self.set_inputs(x, Y))
            for _ in range(3):
                self.shared.run()
                np.testing.assert_array_equal(self.read(), X * factor - Y)

    def test_inputs_from_share_external_data(self):
        self.other(lambda: call(self.shared, X, Y))
        tensors = [paddle.to_tensor(X * 2), paddle.to_tensor(Y)]
        for name, tensor in zip("xy", tensors):
            self.shared.get_input_handle(name).share_external_data(tensor)
        self.shared.run()
        np.testing.assert_array_equal(output(self.shared), X * 2 - Y)

    def test_run_on_tensors_overwrites_all_inputs(self):
        self.set_inputs(X, Y)
        x = paddle.to_tensor(X * 10)
        answer = self.other(lambda: self.shared.run([x, x]))
        np.testing.assert_array_equal(answer[0].numpy(), X * 0)
        with self.assertRaisesRegex(RuntimeError, "overwritten 'x', 'y'"):
            self.shared.run()


class TestThreadsThatMixTheirRequests(OtherThread):
    def assert_refused(self, text: str, step: Callable[[], Any]) -> None:
        with self.assertRaisesRegex(
            RuntimeError, rf"{text}.*clone\(\).*PredictorPool"
        ):
            step()

    def test_run_after_another_thread_has_set_inputs(self):
        self.set_inputs(X, Y)
        self.other(lambda: self.set_inputs(X * 10, Y))
        self.assert_refused("has overwritten 'x', 'y'", self.shared.run)
        self.other(self.shared.run)
        answer = self.other(lambda: output(self.shared))
        np.testing.assert_array_equal(answer, X * 10 - Y)

    def test_run_and_read_after_another_thread_has_set_one_input(self):
        self.set_inputs(X, Y)
        self.other(lambda: self.set_x(X * 10))
        self.assert_refused("has overwritten 'x' of", self.shared.run)
        self.other(self.shared.run)
        self.assert_refused("has overwritten 'x' of", self.read)
        np.testing.assert_array_equal(self.other(self.read), X * 10 - Y)

    def test_run_after_two_threads_have_interleaved_their_inputs(self):
        self.set_x(X)
        self.other(lambda: self.set_inputs(X * 10, Y * 10))
        self.shared.get_input_handle("y").copy_from_cpu(Y)
        self.assert_refused("has overwritten 'x'", self.shared.run)
        self.assert_refused(
            "'MainThread' has overwritten 'y'",
            lambda: self.other(self.shared.run),
        )

    def test_later_request_of_a_thread_that_has_lost_an_input(self):
        call(self.shared, X, Y)
        self.other(lambda: call(self.shared, X * 10, Y * 10))
        self.set_x(X * 2)
        self.assert_refused("has overwritten 'y'", self.shared.run)
        self.shared.get_input_handle("y").copy_from_cpu(Y)
        self.shared.run()
        np.testing.assert_array_equal(self.read(), X * 2 - Y)

    def assert_run_is_refused_after_a_request_of(
        self, request: Callable[[], Any]
    ) -> None:
        """Checks that this thread cannot run its earlier inputs again."""
        call(self.shared, X, Y)
        self.other(request)
        for _ in range(2):
            self.assert_refused("has overwritten 'x'", self.shared.run)
        np.testing.assert_array_equal(call(self.shared, X, Y), X - Y)

    def test_running_inputs_again_that_another_thread_has_overwritten(self):
        def set_and_run() -> None:
            self.set_inputs(X * 10, Y)
            self.shared.run()

        x, y = paddle.to_tensor(X * 10), paddle.to_tensor(Y)
        for name, request in (
            ("read", lambda: call(self.shared, X * 10, Y)),
            ("not read", set_and_run),
            ("on tensors", lambda: self.shared.run([x, y])),
            (
                "one input",
                lambda: [self.set_x(X * 10), self.shared.run(), self.read()],
            ),
            (
                "only reshaped",
                lambda: self.shared.get_input_handle("x").reshape([4]),
            ),
        ):
            with self.subTest(name):
                self.shared = self.predictor(PAIR)
                self.assert_run_is_refused_after_a_request_of(request)

    def test_running_inputs_again_after_a_run_for_another_thread(self):
        call(self.shared, X, Y)
        self.other(lambda: self.set_inputs(X * 10, Y))
        self.shared.run()
        in_thread(call, self.shared, X * 20, Y)
        self.assert_refused("has overwritten 'x', 'y'", self.shared.run)

    def test_reshape_overwrites_an_input(self):
        self.set_inputs(X, Y)
        self.other(lambda: self.shared.get_input_handle("x").reshape([4]))
        self.other(lambda: self.shared.get_input_handle("y").set_lod([[0, 4]]))
        self.assert_refused("'x', 'y'", self.shared.run)

    def test_reading_an_input_that_another_thread_has_overwritten(self):
        self.set_inputs(X, Y)
        handle = self.shared.get_input_handle("x")
        self.other(lambda: self.set_x(X * 10))
        self.assert_refused("has overwritten 'x'", handle.copy_to_cpu)

    def test_reading_outputs_after_a_run_of_another_thread(self):
        self.set_inputs(X, Y)
        self.shared.run()
        self.other(lambda: call(self.shared, X * 10, Y))
        for index, name in enumerate(self.shared.get_output_names()):
            self.assert_refused(
                f"has overwritten output '{name}'",
                lambda index=index: self.read(index),
            )

    def test_reading_the_second_output_after_a_run_of_another_thread(self):
        call(self.shared, X, Y)
        self.other(lambda: call(self.shared, X * 10, Y))
        self.assert_refused("has overwritten output", lambda: self.read(1))

    def test_reading_lost_outputs_of_a_run_on_another_thread(self):
        self.set_inputs(X, Y)
        self.other(self.shared.run)
        in_thread(call, self.shared, X * 10, Y)
        self.assert_refused("has overwritten output", self.read)
        self.assert_refused(
            "has overwritten output", lambda: self.other(self.read)
        )

    def test_reading_another_threads_outputs_after_setting_inputs(self):
        call(self.shared, X, Y)
        self.other(lambda: self.set_inputs(X * 10, Y))
        self.assert_refused("has not run", lambda: self.other(self.read))

    def test_reading_outputs_after_a_run_that_raised(self):
        call(self.shared, X, Y)
        with self.assertRaises(ValueError):
            self.other(lambda: call(self.shared, X, np.ones([3], "float32")))
        self.assert_refused("has not run", lambda: self.other(self.read))

    def test_error_names_a_thread_that_has_ended(self):
        self.set_inputs(X, Y)
        in_thread(self.set_inputs, X, Y)
        self.assert_refused(
            ": a thread that has ended has overwritten", self.shared.run
        )

    def test_thread_is_remembered_after_many_others_have_ended(self):
        self.set_inputs(X, Y)
        for _ in range(100):
            in_thread(call, self.shared, X * 10, Y)
        self.assert_refused("has overwritten 'x', 'y'", self.shared.run)


class TestStepsInAnyOrder(PredictorTestCase):
    """Requests of several threads whose steps interleave randomly."""

    def request(self, number: int, rng: random.Random) -> Iterator[None]:
        """Performs one step of a request per iteration."""
        x, y = np.full([4], number, "float32"), np.full([4], 2, "float32")
        inputs = [("x", x), ("y", y)]
        rng.shuffle(inputs)
        for name, array in inputs:
            self.shared.get_input_handle(name).copy_from_cpu(array)
            yield
        self.shared.run()
        yield
        for index, expected in ((0, x - y), (1, x * 2)):
            np.testing.assert_array_equal(output(self.shared, index), expected)
            yield

    def test_requests_are_correct_or_refused(self):
        seed = os.environ.get(
            "PADDLE_INFERENCE_THREADS_SEED",
            random.SystemRandom().getrandbits(32),
        )
        print(f"PADDLE_INFERENCE_THREADS_SEED={seed}")
        rng = random.Random(int(seed))
        self.shared = self.predictor(PAIR)
        answered = refused = 0
        numbers = itertools.count()
        with contextlib.ExitStack() as stack:
            threads = [
                stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)
            ]
            requests = [iter(()) for _ in threads]
            for _ in range(3000):
                i = rng.randrange(len(threads))
                # Several steps in a row, so that some requests succeed.
                for _ in range(rng.randrange(1, 8)):
                    step = threads[i].submit(next, requests[i], ENDED)
                    try:
                        if step.result(WAIT_S) is not ENDED:
                            continue
                        answered += 1
                    except RuntimeError as error:
                        self.assertIn("clone()", str(error))
                        refused += 1
                    requests[i] = self.request(next(numbers), rng)
        self.assertGreater(answered, 10)
        self.assertGreater(refused, 10)


class TestCallsThatOverlap(PredictorTestCase):
    def test_every_call_is_refused_while_another_thread_runs(self):
        predictor = self.predictor(PAIR)
        expected = call(predictor, X, Y)
        handle = predictor.get_input_handle("x")
        outputs = predictor.get_output_handle(predictor.get_output_names()[0])
        x = paddle.to_tensor(X)
        refused = []

        def use() -> None:
            for step in (
                predictor.run,
                lambda: predictor.run([x, x]),
                lambda: handle.copy_from_cpu(X * 3),
                lambda: handle.share_external_data(x),
                lambda: handle.reshape([1]),
                outputs.copy_to_cpu,
                handle.shape,
                predictor.try_shrink_memory,
                predictor.clear_intermediate_tensor,
                lambda: predictor.register_output_hook(print),
            ):
                with self.assertRaisesRegex(
                    RuntimeError, r"is in a call of this.*clone\(\)"
                ):
                    step()
                refused.append(step)

        predictor.register_input_hook(hook_once(lambda: in_thread(use)))
        np.testing.assert_array_equal(call(predictor, X, Y), expected)
        self.assertEqual(len(refused), 10)
        np.testing.assert_array_equal(
            in_thread(call, predictor, X, Y), expected
        )


class TestMethods(PredictorTestCase):
    def test_replaced_methods_keep_their_docstrings(self):
        predictor = self.predictor()
        handle = predictor.get_input_handle("x")
        for method in (
            predictor.get_input_handle,
            predictor.try_shrink_memory,
            predictor.register_input_hook,
            handle.reshape,
            handle.copy_to_cpu,
        ):
            with self.subTest(method=method.__name__):
                # With the types of pybind/inference_api.cc.
                self.assertRegex(
                    method.__doc__,
                    rf"{method.__name__}\(self: [\w.]*PaddleInfer\w+[,)]",
                )


ON_ANOTHER_SYSTEM = """
import paddle
from concurrent_base import in_thread
from inference_threads_base import wrap_on_another_system
from paddle.base import core
from paddle.base.threads.host_context import host_context

def draw(*_):
    core.default_cpu_generator().manual_seed(5)
    return paddle.rand([3]).tolist()

methods = wrap_on_another_system(draw)
paddle.set_device("cpu")
expected = draw()

def check():
    with host_context(generator=core.Generator()):
        assert draw() != expected
        for method in methods:
            assert method(None) == expected, method

in_thread(check)
"""


class TestOnAnotherSystem(unittest.TestCase):
    def test_predictors_draw_from_the_generator_of_the_process(self):
        run_command(
            self, script_command(ON_ANOTHER_SYSTEM), pristine_environment()
        )


if __name__ == "__main__":
    unittest.main()
