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

"""A predictor runs on the stream that was current at its creation.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from host_device_control import (
    check_overlap,
    delay,
    take_trace,
    with_ample_delay,
)
from test_host_device import name_of, setUpModule
from test_thread_stream_order import (
    SIZE,
    StreamTest,
    handle,
    in_thread,
    in_threads,
    slow,
)
from test_thread_stream_programs import PredictorTest

sys.path.append(str(Path(__file__).parents[1] / "legacy_test"))

from concurrent_base import (
    WAIT_S,
    Worker,
    in_fork,
    pristine_environment,
    run_command,
    script_command,
)
from inference_threads_base import save_legacy, switch_interval

import paddle
from paddle.device import Stream, current_stream, stream_guard
from paddle.inference import (
    Config,
    Predictor,
    PredictorPool,
    create_predictor,
)
from paddle.nn.functional import relu

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["StreamTest", "setUpModule"]

# In microseconds: plenty of time for work that does not wait.
DELAY = 300_000
WIDTH = 256
# Elements for everything that a test allocates on a stream.
AMPLE = 1 << 20


class PredictorsOfThreadsTest(PredictorTest):
    def on_stream(self, stream: Stream, run: Callable[[], object]) -> object:
        """Call a function on a new thread, inside a stream guard."""

        def in_guard() -> object:
            with stream_guard(stream):
                return run()

        return in_thread(in_guard)

    def made_on(
        self, stream: Stream, function: Callable[[Config], Predictor]
    ) -> Predictor:
        return self.on_stream(stream, lambda: self.make(function))


class TestStreamOfPredictor(PredictorsOfThreadsTest):
    def check_is_created_and_runs_on(
        self, stream: Stream, function: Callable[[Config], Predictor]
    ) -> None:
        made = []
        with stream_guard(stream):
            self.assert_kernels_run_on(
                stream, lambda: made.append(self.make(function)), "scale"
            )
            self.check(made[0])
            self.assert_kernels_run_on(stream, made[0].run, "matmul", "relu")

    def test_all_ways_to_create_a_predictor(self):
        for function in (
            create_predictor,
            Predictor,
            lambda config: PredictorPool(config, 1).retrieve(0),
            lambda _: self.predictor.clone(),
        ):
            in_thread(self.check_is_created_and_runs_on, Stream(), function)

    def test_input_and_output_copies(self):
        stream = Stream()
        predictor = self.made_on(stream, create_predictor)
        x = np.full([2, 4], 5, "float32")

        def copy() -> None:
            (name,) = predictor.get_input_names()
            predictor.get_input_handle(name).copy_from_cpu(x)
            predictor.run()
            self.check_output(predictor)

        self.assert_kernels_run_on(
            stream, copy, "async_memory_copy_h2d", "async_memory_copy_d2h"
        )

    def test_default_stream_while_the_main_thread_uses_another(self):
        with stream_guard(Stream()):
            in_thread(
                self.check_is_created_and_runs_on,
                self.default,
                create_predictor,
            )

    def test_main_thread_changes_its_stream_while_a_thread_runs(self):
        streams = [Stream() for _ in range(4)]
        changes = 0

        def run() -> None:
            while changes < 2 * len(streams):
                self.check(self.predictor)
            for _ in range(100):
                self.check(self.predictor)

        with ThreadPoolExecutor(1) as worker:
            done = worker.submit(run)
            while not done.done():
                with stream_guard(streams[changes % len(streams)]):
                    changes += 1
            done.result()

    def test_copy_of_a_config_names_the_same_device(self):
        predictor = self.make(lambda config: create_predictor(Config(config)))
        self.check(predictor)
        with stream_guard(Stream()):
            in_thread(
                self.assert_kernels_run_on,
                self.default,
                predictor.run,
                "matmul",
            )

    def test_predictor_that_a_hook_creates_does_not_move_with_the_outer_one(
        self,
    ):
        made = []

        def create_once(*_: object) -> None:
            if not made:
                made.append(self.make(create_predictor))

        self.predictor.register_input_hook(create_once)
        self.check(self.predictor)
        self.check(made[0])
        with stream_guard(Stream()):
            self.check(self.predictor)
            in_thread(
                self.assert_kernels_run_on,
                self.default,
                made[0].run,
                "matmul",
            )

    def test_predictor_on_the_cpu_does_not_wait_for_streams(self):
        config = Config(self.path + ".json", self.path + ".pdiparams")
        config.disable_glog_info()
        predictor = create_predictor(config)
        x = np.full([2, 4], 5, "float32")

        def run() -> None:
            (name,) = predictor.get_input_names()
            predictor.get_input_handle(name).copy_from_cpu(x)
            predictor.run()
            (name,) = predictor.get_output_names()
            output = predictor.get_output_handle(name).copy_to_cpu()
            # The CPU's kernels add in another order.
            np.testing.assert_allclose(output, self.expected, rtol=1e-4)

        def run_on_a_stream() -> None:
            with stream_guard(Stream()):
                self.assertEqual(self.trace_of(run), [])

        in_thread(run_on_a_stream)

    def test_predictor_keeps_its_stream_after_its_thread_has_ended(self):
        stream = Stream()
        raw = handle(stream)
        predictor = self.made_on(stream, create_predictor)
        del stream
        gc.collect()
        self.check(predictor)
        trace = {
            each.kind: each.stream for each in self.trace_of(predictor.run)
        }
        self.assertEqual(trace["matmul"], raw)

    def test_a_clone_runs_on_the_stream_of_the_cloning_thread(self):
        original = self.made_on(Stream(), create_predictor)
        stream = Stream()
        clone = self.on_stream(stream, original.clone)
        self.check(clone)
        self.assert_kernels_run_on(stream, clone.run, "matmul", "relu")
        del original
        gc.collect()
        self.check(clone)

    def test_a_predictor_at_a_reused_address_runs_on_its_own_stream(self):
        for _ in range(5):
            stream = Stream()
            predictor = self.made_on(stream, create_predictor)
            self.check(predictor)
            self.assert_kernels_run_on(stream, predictor.run, "matmul")
            del predictor

    @with_ample_delay
    def test_predictors_run_on_their_own_streams_concurrently(self):
        x = np.full([2, 4], 5, "float32")

        def create() -> tuple[Predictor, Stream]:
            stream = Stream()
            with stream_guard(stream):
                predictor = self.make(create_predictor)
                (name,) = predictor.get_input_names()
                predictor.get_input_handle(name).copy_from_cpu(x)
                # The first run loads kernels, which is slow.
                predictor.run()
                self.check_output(predictor)
            return predictor, stream

        def run(predictor: Predictor, stream: Stream) -> None:
            with stream_guard(stream), delay(0, DELAY, handle(stream)):
                predictor.run()

        created = in_threads(create, create)
        self.finish()
        take_trace()
        in_threads(*(partial(run, *each) for each in created))
        self.finish()
        trace = take_trace()
        last = {each.stream: each for each in trace if each.kind == "relu"}
        self.assertEqual(set(last), {handle(stream) for _, stream in created})
        self.assertNotIn(
            "stream_wait_event",
            {each.kind for each in trace if each.stream in last},
        )
        check_overlap(*last.values())


class TestPools(PredictorsOfThreadsTest):
    def test_wrong_type_is_refused_before_the_run(self):
        pool = self.make(lambda config: PredictorPool(config, 1))
        with self.assertRaisesRegex(TypeError, "'float32'"):
            pool.predict([np.full([2, 4], 5, "float64")])
        (output,) = pool.predict([np.full([2, 4], 5, "float32")])
        np.testing.assert_allclose(output, self.expected, rtol=1e-6)

    def test_predictors_run_on_the_stream_where_the_pool_was_created(self):
        stream = Stream()
        pool = self.made_on(stream, lambda config: PredictorPool(config, 2))
        x = np.full([2, 4], 5, "float32")
        pool.predict([x])
        self.assert_kernels_run_on(
            stream, lambda: in_thread(pool.predict, [x]), "matmul", "relu"
        )


class TestOrderWithOtherStreams(PredictorsOfThreadsTest):
    def setUp(self) -> None:
        super().setUp()
        self.stream = Stream()
        self.predictor = self.made_on(self.stream, create_predictor)
        # The first run loads kernels, which is slow.
        self.check(self.predictor)
        relu(self.ones)
        self.finish()
        take_trace()

    def test_run_waits_for_pending_work_of_another_thread(self):
        def predict() -> None:
            with stream_guard(Stream()), slow(current_stream()):
                self.check(self.predictor)

        in_thread(predict)

    def test_run_waits_for_pending_work_of_the_main_thread(self):
        with slow(self.default):
            self.check(self.predictor)

    def test_other_streams_wait_for_the_run(self):
        def predict() -> None:
            with stream_guard(Stream()):
                with slow(current_stream()):
                    self.run_predictor(self.predictor)
                with slow(self.stream):
                    self.predictor.run()
                relu(self.ones)

        in_thread(predict)
        self.finish()
        operations = [
            (each.kind, each.stream == handle(self.stream))
            for each in take_trace()
        ]
        self.assertLess(
            operations.index(("scale", False)),
            operations.index(("matmul", True)),
        )
        self.assertEqual(operations[-1], ("relu", False))

    def test_main_thread_on_another_stream_waits_for_the_earlier_run(self):
        predictor = self.make(create_predictor)
        self.check(predictor)
        self.finish()
        take_trace()
        with slow(self.default):
            predictor.run()
        with stream_guard(Stream()):
            predictor.run()
            later = handle(current_stream())
        self.finish()
        trace = take_trace()
        (earlier,) = (
            each
            for each in trace
            if each.kind == "relu" and each.stream != later
        )
        (run,) = (
            each
            for each in trace
            if each.kind == "matmul" and each.stream == later
        )
        self.assertGreaterEqual(run.begin_ns, earlier.end_ns)

    def test_python_threads_run_while_a_run_waits_for_another_stream(self):
        # More than once, because the other thread may be late.
        self.assertTrue(
            any(self.other_thread_runs(self.predictor.run) for _ in range(10)),
            "the GIL was held",
        )

    def other_thread_runs(self, function: Callable[[], object]) -> bool:
        """Return whether another thread runs while `function` waits for the
        calling thread's stream."""
        may_run, has_run = threading.Event(), []

        def run() -> None:
            may_run.wait(WAIT_S)
            has_run.append(True)

        def call_on_a_slow_stream() -> bool:
            with stream_guard(Stream()), slow(current_stream()):
                relu(self.ones)
                worker = Worker(run)
                # Python does not force any thread to release the GIL.
                with switch_interval(1000):
                    may_run.set()
                    function()
                    seen = list(has_run)
                worker.result()
            return bool(seen)

        return in_thread(call_on_a_slow_stream)

    def test_run_waits_for_tensors_pending_on_another_thread(self):
        def predict() -> None:
            with stream_guard(Stream()), slow(current_stream()):
                (output,) = self.predictor.run([self.ones * 5])
                np.testing.assert_allclose(
                    output.numpy(), self.expected, rtol=1e-6
                )

        in_thread(predict)

    def test_returned_tensors_belong_to_the_callers_stream(self):
        ones = paddle.ones([SIZE // 4, 4])
        sevens = np.full([SIZE // 4, 4], 7, "float32")

        def take_memory() -> None:
            taken = [paddle.to_tensor(sevens) for _ in range(5)]
            current_stream().synchronize()
            del taken

        def predict() -> None:
            own = Stream()
            with stream_guard(own):
                (output,) = self.predictor.run([ones])
                expected = output.numpy() * 2
                with slow(own):
                    twice = output * 2
                    del output
                    self.on_stream(self.stream, take_memory)
                own.synchronize()
                np.testing.assert_array_equal(twice.numpy(), expected)

        in_thread(predict)


class TestDroppedClones(PredictorsOfThreadsTest):
    """
    Clones that share a parameter, in the pre-PIR format. The parameter is freed
    when all work with it has ended.
    """

    def setUp(self) -> None:
        super().setUp()
        del self.predictor
        gc.collect()
        self.path = os.path.join(os.path.dirname(self.path), "legacy")
        one = paddle.nn.initializer.Constant(1.0)

        def build(x: paddle.static.Variable) -> paddle.static.Variable:
            weight = paddle.static.create_parameter(
                [WIDTH, WIDTH], "float32", default_initializer=one
            )
            return relu(x @ weight)

        save_legacy(build, self.path, [None, WIDTH])
        paddle.set_device(name_of(0))
        self.ones = paddle.ones([2, WIDTH])
        self.expected = np.full([2, WIDTH], 5 * WIDTH, "float32")

    def make_legacy(self) -> Predictor:
        config = Config(self.path + ".pdmodel", self.path + ".pdiparams")
        config.disable_glog_info()
        config.disable_mkldnn()
        config.enable_custom_device("custom_cpu", 0)
        return create_predictor(config)

    def part_of_a_chunk(self) -> paddle.Tensor:
        """
        Returns a tensor from whose chunk the stream's next allocations come.

        Destroying a predictor frees its empty chunks, which waits for the
        device. The tensor keeps this chunk from being empty.
        """
        whole = paddle.empty([2 * AMPLE])
        del whole
        return paddle.empty([AMPLE])

    def take_memory(self) -> None:
        sevens = np.full([WIDTH, WIDTH], 7, "float32")
        taken = [paddle.to_tensor(sevens) for _ in range(5)]
        current_stream().synchronize()
        del taken

    def check_work_outlives_the_predictors(
        self, made_on: Stream | None, cloned_on: Stream | None
    ) -> None:
        """Args: the streams; None for the main thread's stream."""

        def on(stream: Stream | None, run: Callable[[], object]) -> object:
            return run() if stream is None else self.on_stream(stream, run)

        parts = [
            on(stream, self.part_of_a_chunk)
            for stream in {made_on, cloned_on, None}
        ]
        original = on(made_on, self.make_legacy)
        clone = on(cloned_on, original.clone)
        # The first run loads kernels, which is slow.
        self.check(clone)
        output = paddle.zeros([2, WIDTH])
        (name,) = clone.get_output_names()
        clone.get_output_handle(name).share_external_data(output)
        self.finish()
        with slow(cloned_on or self.default):
            on(cloned_on, partial(self.run_predictor, clone))
        del original, clone
        gc.collect()
        on(made_on, self.take_memory)
        self.finish()
        np.testing.assert_array_equal(output.numpy(), self.expected)
        del parts

    def test_work_on_separate_streams_outlives_the_predictors(self):
        self.check_work_outlives_the_predictors(Stream(), Stream())

    def test_work_of_a_clone_outlives_the_main_threads_predictor(self):
        self.check_work_outlives_the_predictors(None, Stream())

    def test_work_of_a_clone_created_by_the_main_thread_outlives_it(self):
        self.check_work_outlives_the_predictors(Stream(), None)


class TestForks(PredictorsOfThreadsTest):
    def test_child_drops_a_predictor_of_a_thread(self):
        predictors = [self.made_on(Stream(), create_predictor)]
        self.check(predictors[0])

        def drop() -> None:
            predictors.clear()
            gc.collect()

        in_fork(drop)
        self.check(predictors[0])

    def test_child_moves_a_predictor_from_a_stream_that_only_it_keeps(self):
        with stream_guard(Stream()):
            self.check(self.predictor)
        gc.collect()
        in_fork(self.check, self.predictor)


ON_ANOTHER_SYSTEM = """
import paddle
from concurrent_base import in_thread
from inference_threads_base import wrap_on_another_system
from paddle.base.threads import streams
from paddle.device import Stream, stream_guard

def own_places(*_):
    return streams.native.places_on_other_streams()

methods = wrap_on_another_system(own_places)
paddle.set_device("custom_cpu:0")

def check():
    with stream_guard(Stream()):
        assert own_places()
        for method in methods:
            assert method(None) == [], method

in_thread(check)
"""


class TestOnAnotherSystem(unittest.TestCase):
    def test_predictors_use_the_streams_of_the_process(self):
        run_command(
            self, script_command(ON_ANOTHER_SYSTEM), pristine_environment()
        )


if __name__ == "__main__":
    unittest.main()
