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
"""Threads that execute and destroy primitives of oneDNN that other threads have
created. A GRU is one of the primitives whose scratchpad belongs to the thread
by default."""

from __future__ import annotations

import os
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from concurrent_base import WAIT_S, in_thread
from inference_threads_base import PredictorTestCase, output, save_legacy

import paddle

if TYPE_CHECKING:
    from paddle.inference import Predictor

GRU = "gru.legacy"
INPUT = np.ones([5, 3], "float32")
SEQUENCES = [[0, 2, 5]]


def _gated_recurrent_unit(x: Any) -> Any:
    """Returns the output of a GRU, with parameters of fixed values."""
    rng = np.random.default_rng(0)
    block = paddle.static.default_main_program().global_block()
    inputs = {"X": [x]}
    for name, shape in (
        ("WeightX", [3, 12]),
        ("WeightH", [4, 12]),
        ("Bias", [1, 12]),
    ):
        values = rng.random(shape, "float32")
        assign = paddle.nn.initializer.Assign(values)
        inputs[name] = [
            paddle.create_parameter(
                shape, "float32", default_initializer=assign
            )
        ]
    outputs = {
        name: [block.create_var(name=name, dtype="float32", shape=[-1, 4])]
        for name in (
            "ReorderedH0",
            "XX",
            "BatchedInput",
            "BatchedOut",
            "Hidden",
        )
    }
    block.append_op(
        type="fusion_gru",
        inputs=inputs,
        outputs=outputs,
        attrs={"use_seq": True},
    )
    return outputs["Hidden"][0]


def _run(predictor: Predictor) -> np.ndarray:
    handle = predictor.get_input_handle("x")
    handle.copy_from_cpu(INPUT)
    handle.set_lod(SEQUENCES)
    predictor.run()
    return output(predictor)


class TestScratchpads(PredictorTestCase):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        path = os.path.join(cls.folder, GRU)
        save_legacy(_gated_recurrent_unit, path, [None, 3])

    def setUp(self) -> None:
        self.expected = _run(self.predictor(GRU, onednn=False))

    def check(self, result: np.ndarray) -> None:
        np.testing.assert_allclose(result, self.expected, rtol=1e-5)

    def test_threads_execute_primitives_in_turn(self):
        predictor = self.predictor(GRU, onednn=True)
        for _ in range(3):
            self.check(in_thread(_run, predictor))
        self.check(_run(predictor))

    def test_thread_destroys_primitives_that_another_thread_has_executed(self):
        own, other = (self.predictor(GRU, onednn=True) for _ in range(2))
        self.check(_run(own))
        with ThreadPoolExecutor(1) as threads:
            self.check(threads.submit(_run, other).result(WAIT_S))
            del other
            self.check(_run(own))

    def test_larger_primitive_does_not_move_the_memory_of_a_smaller_one(self):
        predictor = self.predictor(GRU, onednn=True)
        self.check(_run(predictor))
        handle = predictor.get_input_handle("x")
        handle.copy_from_cpu(np.ones([50_000, 3], "float32"))
        handle.set_lod([[0, 50_000]])
        predictor.run()
        self.check(_run(predictor))


if __name__ == "__main__":
    unittest.main()
