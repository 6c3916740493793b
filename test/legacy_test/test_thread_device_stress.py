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
"""Per-thread devices: stress tests with frequent thread switches."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import unittest

import numpy as np
from concurrent_base import (
    Worker,
    rounds_until,
    run_together,
    switch_threads_often,
)
from thread_device_base import (
    needs_another_device,
    on_every_device_list,
    place_name,
)

import paddle

SEED = int(os.environ.get("THREAD_DEVICE_SEED", random.randrange(2**32)))
ROUNDS = int(os.environ.get("THREAD_DEVICE_ROUNDS", 400))


@on_every_device_list
class TestStress(unittest.TestCase):
    def setUp(self):
        super().setUp()
        print(f"THREAD_DEVICE_SEED={SEED}", file=sys.stderr)

    def set_and_get(self, i):
        chooser = random.Random(SEED + i)
        for _ in range(ROUNDS):
            device = chooser.choice(self.devices)
            paddle.set_device(device)
            self.assertEqual(paddle.get_device(), device)

    def switch_create_and_differentiate(self, i):
        chooser = random.Random(SEED + i)
        creators = (
            lambda: paddle.to_tensor([[1.0, 2.0]], stop_gradient=False),
            lambda: paddle.zeros([1, 2]),
            lambda: paddle.rand([1, 2]),
            lambda: paddle.full([1, 2], 0.5),
        )
        for _ in range(ROUNDS // 2):
            device = chooser.choice(self.devices)
            if chooser.random() < 0.5:
                paddle.set_device(device)
                self.compute_on(device, chooser.choice(creators))
            else:
                outside = paddle.get_device()
                with paddle.device.device(device):
                    self.compute_on(device, chooser.choice(creators))
                self.assertEqual(paddle.get_device(), outside)

    def compute_on(self, device, create):
        x = create()
        x.stop_gradient = False
        y = (x * 2 + paddle.ones([1, 2])).sum()
        y.backward()
        self.assertEqual(
            {place_name(x), place_name(y), place_name(x.grad)}, {device}
        )
        self.assertEqual(x.grad.tolist(), [[2.0, 2.0]])

    def test_ten_threads_set_and_get(self):
        run_together(10, self.set_and_get)
        self.assertEqual(paddle.get_device(), self.devices[0])

    def test_ten_threads_set_and_get_when_switched_often(self):
        switch_threads_often(self)
        run_together(10, self.set_and_get)
        self.assertEqual(paddle.get_device(), self.devices[0])

    def test_no_tensor_lands_on_another_threads_device(self):
        run_together(8, self.switch_create_and_differentiate)
        self.assertEqual(paddle.get_device(), self.devices[0])

    def test_no_tensor_lands_elsewhere_when_switched_often(self):
        switch_threads_often(self)
        run_together(8, self.switch_create_and_differentiate)
        self.assertEqual(paddle.get_device(), self.devices[0])

    @needs_another_device
    def test_threads_without_a_device_only_use_those_of_the_main_thread(self):
        switch_threads_often(self)
        is_over = threading.Event()

        def place():
            # C++ reads the place that the main thread writes to its tracer.
            return place_name(paddle.Tensor(np.ones(1)))

        all_seen = [set() for _ in range(4)]

        def follow(seen):
            # Until a thread calls Paddle's Python code, its tracer is one that
            # C++ created.
            seen.add(paddle.in_dynamic_mode() and place())
            while not is_over.is_set():
                seen.add(place())
            return seen, place()

        workers = [Worker(follow, seen) for seen in all_seen]
        for i in rounds_until(
            lambda: all(len(seen) > 1 for seen in all_seen), ROUNDS
        ):
            paddle.set_device(self.devices[i % len(self.devices)])
            if i % 7 == 0:
                time.sleep(0.001)
        paddle.set_device(self.devices[1])
        is_over.set()
        for worker in workers:
            seen, last = worker.result()
            self.assertLessEqual(seen, set(self.devices))
            self.assertGreater(len(seen), 1)
            self.assertEqual(last, self.devices[1])


@on_every_device_list
class TestInference(unittest.TestCase):
    def test_model_served_by_threads_gives_the_same_bits_as_one_thread(self):
        paddle.seed(2026)

        def build():
            return paddle.nn.Sequential(
                paddle.nn.Conv2D(1, 4, 3),
                paddle.nn.ReLU(),
                paddle.nn.Flatten(),
                paddle.nn.Linear(4 * 6 * 6, 10),
                paddle.nn.Softmax(),
            )

        model = build()
        weights = {k: v.numpy() for k, v in model.state_dict().items()}
        requests = [paddle.rand([2, 1, 8, 8]).numpy() for _ in range(16)]

        def serve(device):
            paddle.set_device(device)
            replica = build()
            replica.set_state_dict(weights)
            replica.eval()
            answers = []
            with paddle.no_grad():
                for request in requests:
                    out = replica(paddle.to_tensor(request))
                    self.assertEqual(place_name(out), device)
                    answers.append(out.numpy().tobytes())
            return answers

        for device in self.devices:
            alone = Worker(serve, device).result()
            together = run_together(3, lambda _, d=device: serve(d))
            self.assertEqual(together, [alone] * 3)
        # All devices concurrently, in one process.
        answers = run_together(
            len(self.devices), lambda i: serve(self.devices[i])
        )
        for device, answer in zip(self.devices, answers):
            self.assertEqual(answer, Worker(serve, device).result())


if __name__ == "__main__":
    unittest.main()
