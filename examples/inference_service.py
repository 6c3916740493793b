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
"""Serves one model on several devices, with one thread and copy per device.

    python inference_service.py [--devices gpu:0 gpu:1 cpu]

Each thread of a pool sets its own device when it starts. Requests go through
the pool's queue to the first idle thread. Without --devices it uses all GPUs,
otherwise all custom devices, otherwise two threads on the CPU. It prints the
number of requests that each thread has served, and the number of results that
differ from those of one thread on the CPU.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import paddle

REQUESTS = 400

own = threading.local()  # each thread's model


def all_devices() -> list[str]:
    gpus = [f"gpu:{i}" for i in range(paddle.device.cuda.device_count())]
    devices = gpus or paddle.device.get_available_custom_device()
    if not devices:
        print("no GPU and no custom device: two threads on the CPU")
    return devices or ["cpu", "cpu"]


def make_model() -> paddle.nn.Layer:
    model = paddle.nn.Sequential(
        paddle.nn.Linear(64, 512), paddle.nn.ReLU(), paddle.nn.Linear(512, 10)
    )
    model.eval()
    return model


def start(devices: queue.SimpleQueue, weights: dict) -> None:
    """Sets the calling thread's device, and creates its model."""
    # From here on, this thread creates tensors on its device. The devices of
    # other threads do not change.
    paddle.set_device(devices.get())
    own.model = make_model()
    own.model.set_state_dict(weights)


def answer(request: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the thread and device that computed a result, and the result."""
    with paddle.no_grad():
        output = own.model(paddle.to_tensor(request))
    return f"{threading.current_thread().name}, {output.place}", output.numpy()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", nargs="+")
    args = parser.parse_args()
    devices = args.devices or all_devices()
    paddle.set_device("cpu")
    model = make_model()
    requests = np.random.default_rng(0).random((REQUESTS, 8, 64), "float32")

    not_taken = queue.SimpleQueue()
    for device in devices:
        not_taken.put(device)
    with ThreadPoolExecutor(
        len(devices), "thread", start, (not_taken, model.state_dict())
    ) as pool:
        places, answers = zip(*pool.map(answer, requests))
    for place, count in sorted(Counter(places).items()):
        print(f"{place}: {count} requests")

    with paddle.no_grad():
        expected = model(paddle.to_tensor(requests)).numpy()
    # GPUs may multiply with lower precision.
    right = np.isclose(answers, expected, atol=1e-2).all(axis=(1, 2))
    print(f"{len(answers)} answers, {np.sum(~right)} wrong")
    return 0 if right.all() else 1


if __name__ == "__main__":
    sys.exit(main())
