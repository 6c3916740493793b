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
"""Stress tests of predictors that many threads use: results and memory.

PADDLE_INFERENCE_THREADS_LONG=1 makes a million calls instead of some hundreds.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import random
import threading
import unittest
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
from concurrent_base import Worker, in_threads
from inference_threads_base import (
    IMAGE,
    IMAGE_LEGACY,
    PredictorTestCase,
    call,
    switch_interval,
)

import paddle
from paddle.inference import PredictorPool

if TYPE_CHECKING:
    from paddle.inference import Predictor

LONG = bool(os.environ.get("PADDLE_INFERENCE_THREADS_LONG"))
SEED = int(
    os.environ.get(
        "PADDLE_INFERENCE_THREADS_SEED", random.SystemRandom().getrandbits(32)
    )
)
THREADS = 4
CASES = [(m, o) for m in (IMAGE, IMAGE_LEGACY) for o in (False, True)]
# The number of calls per thread, case and test.
CALLS = math.ceil((1_000_000 if LONG else 4_000) / (len(CASES) * 6 * THREADS))
SHAPES = 20
# The number of calls before memory is measured, without and with oneDNN, whose
# cache keeps 1,024 primitives, a few per shape.
WARM = 50, 700
# The number of calls while memory is measured, over shapes and over threads.
MORE = (100_000, 10_000) if LONG else (200, 200)
# Maximum growth per call. The inputs alone of a call have more bytes.
FLAT_BYTES = 2048
LIBC = ctypes.CDLL(None)

Call = Callable[[np.ndarray], np.ndarray]


def new_image(rng: random.Random) -> np.ndarray:
    shape = rng.randrange(1, 4), 3, rng.randrange(2, 40), rng.randrange(2, 40)
    return np.random.default_rng(rng.getrandbits(32)).random(shape, "float32")


class Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks "
            "fordblks keepcost"
        ).split()
    ]


def allocated_bytes() -> int:
    """
    Returns the number of bytes allocated with malloc. Unlike resident memory,
    it includes no fragmentation and does not depend on the machine.
    """
    gc.collect()
    LIBC.mallinfo2.restype = Mallinfo2
    info = LIBC.mallinfo2()
    return info.uordblks + info.hblkhd


def behind_lock(function: Call) -> Call:
    lock = threading.Lock()

    def call_alone(x: np.ndarray) -> np.ndarray:
        with lock:
            return function(x)

    return call_alone


def or_refused(function: Call) -> Call:
    """Returns a call that returns None if it is refused."""

    def call_once(x: np.ndarray) -> np.ndarray | None:
        try:
            return function(x)
        except RuntimeError as error:
            if "clone()" not in str(error):
                raise
            return None

    return call_once


def cloning(shared: Predictor) -> Call:
    """Returns a call that creates a new clone every 50th time."""
    turns = itertools.count()
    clone = shared

    def call_clone(x: np.ndarray) -> np.ndarray:
        nonlocal clone
        if next(turns) % 50 == 0:
            clone = shared.clone()
        return call(clone, x)

    return call_clone


def run_on(predictor: Predictor, x: np.ndarray) -> np.ndarray:
    return predictor.run([paddle.to_tensor(x)])[0].numpy()


class TestAnswers(PredictorTestCase):
    """Results of threads that call a model with varying shapes."""

    def check(self, way: Callable[[str, bool], list[Call]]) -> None:
        """Checks the results of calls that `way` returns, one per thread."""
        print(f"PADDLE_INFERENCE_THREADS_SEED={SEED}")
        for model, onednn in CASES:
            with self.subTest(model=model, onednn=onednn):
                self.check_model(way(model, onednn), model, onednn)

    def check_model(self, calls: list[Call], model: str, onednn: bool) -> None:
        rng = random.Random(SEED)
        images = [new_image(rng) for _ in range(SHAPES)]
        alone = self.predictor(model, onednn)
        expected = [call(alone, image) for image in images]

        def run(call_model: Call, seed: int) -> int:
            own = random.Random(seed)
            answered = 0
            for _ in range(CALLS):
                i = own.randrange(SHAPES)
                answer = call_model(images[i])
                if answer is not None:
                    answered += 1
                    np.testing.assert_allclose(
                        answer, expected[i], rtol=1e-4, atol=1e-5
                    )
            return answered

        seeds = [rng.getrandbits(32) for _ in calls]
        with switch_interval(1e-6):
            answered = in_threads(
                *[
                    lambda f=f, seed=seed: run(f, seed)
                    for f, seed in zip(calls, seeds)
                ]
            )
        self.assertGreater(sum(answered), 0)

    def test_predictor_behind_a_lock(self):
        def way(*model: Any) -> list[Call]:
            shared = self.predictor(*model)
            return [behind_lock(lambda x: call(shared, x))] * THREADS

        self.check(way)

    def test_predictor_behind_a_lock_run_on_tensors(self):
        def way(*model: Any) -> list[Call]:
            shared = self.predictor(*model)
            return [behind_lock(lambda x: run_on(shared, x))] * THREADS

        self.check(way)

    def test_calls_without_a_lock_are_correct_or_refused(self):
        def way(*model: Any) -> list[Call]:
            shared = self.predictor(*model)
            by_handles = or_refused(lambda x: call(shared, x))
            on_tensors = or_refused(lambda x: run_on(shared, x))
            return [by_handles, on_tensors] * (THREADS // 2)

        self.check(way)

    def test_clone_per_thread(self):
        def way(*model: Any) -> list[Call]:
            first = self.predictor(*model)
            clones = [first.clone() for _ in range(THREADS - 1)]
            return [lambda x, p=p: call(p, x) for p in (first, *clones)]

        self.check(way)

    def test_new_clones_of_a_running_predictor(self):
        def way(*model: Any) -> list[Call]:
            shared = self.predictor(*model)
            return [
                lambda x: call(shared, x),
                *(cloning(shared) for _ in range(THREADS - 1)),
            ]

        self.check(way)

    def test_pool_with_fewer_predictors_than_threads(self):
        def way(*model: Any) -> list[Call]:
            pool = PredictorPool(self.config(*model), THREADS - 1)
            return [lambda x: pool.predict([x])[0]] * THREADS

        self.check(way)


@unittest.skipUnless(hasattr(LIBC, "mallinfo2"), "needs glibc 2.33")
class TestMemory(PredictorTestCase):
    def check_flat(self, function: Callable[[], None], calls: int) -> None:
        """Checks that calls keep almost no memory."""
        before = allocated_bytes()
        for _ in range(calls):
            function()
        kept = (allocated_bytes() - before) / calls
        print(f"{kept:.0f} bytes per call")
        self.assertLess(kept, FLAT_BYTES)

    def check_pool(self, model: str, onednn: bool) -> None:
        rng = random.Random(SEED)
        pool = PredictorPool(self.config(model, onednn), 2)

        def predict() -> None:
            pool.predict([new_image(rng)])

        for _ in range(WARM[onednn]):
            predict()
        shapes, threads = MORE
        with self.subTest(model=model, onednn=onednn, over="shapes"):
            self.check_flat(predict, shapes)
        with self.subTest(model=model, onednn=onednn, over="threads"):
            self.check_flat(lambda: Worker(predict).result(), threads)

    def test_memory_of_a_pool_is_flat_over_shapes_and_threads(self):
        print(f"PADDLE_INFERENCE_THREADS_SEED={SEED}")
        for model, onednn in CASES:
            self.check_pool(model, onednn)


if __name__ == "__main__":
    unittest.main()
