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
"""Serves one model on one device to several threads, each on its own stream.

    python concurrent_inference.py [--device gpu:0] [--threads 4]

Without --device it runs on the first GPU, otherwise on the first custom device,
otherwise on the CPU, which has no streams.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time

import numpy as np

import paddle

REQUESTS = 400


def first_device() -> str:
    if paddle.device.cuda.device_count() > 0:
        return "gpu:0"
    return next(iter(paddle.device.get_available_custom_device()), "cpu")


def work(model, requests: queue.SimpleQueue, answers: dict) -> None:
    """Serves requests until none is left. Each thread runs this function."""
    stream = None if paddle.get_device() == "cpu" else paddle.device.Stream()
    with paddle.device.stream_guard(stream), paddle.no_grad():
        while True:
            try:
                number, request = requests.get_nowait()
            except queue.Empty:
                return
            # numpy() waits for this thread's stream; other threads go on.
            answers[number] = model(paddle.to_tensor(request)).numpy()


def serve(model, inputs: np.ndarray, threads: int) -> tuple[float, np.ndarray]:
    """Returns the number of requests served per second, and the results."""
    requests, answers = queue.SimpleQueue(), {}
    for request in enumerate(inputs):
        requests.put(request)
    workers = [
        threading.Thread(target=work, args=(model, requests, answers))
        for _ in range(threads)
    ]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rate = len(inputs) / (time.perf_counter() - begin)
    return rate, np.stack([answers[number] for number in range(len(inputs))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=first_device())
    parser.add_argument("--threads", type=int, default=4)
    args = parser.parse_args()
    paddle.set_device(args.device)
    model = paddle.nn.Sequential(
        paddle.nn.Linear(64, 1024), paddle.nn.ReLU(), paddle.nn.Linear(1024, 64)
    )
    model.eval()
    # The weights are created on the default stream. Wait for it before other
    # streams read them.
    if paddle.get_device() != "cpu":
        paddle.device.synchronize()
    inputs = np.random.default_rng(0).random((REQUESTS, 8, 64), "float32")
    serve(model, inputs[:20], 1)
    one, expected = serve(model, inputs, 1)
    many, answers = serve(model, inputs, args.threads)
    print(f"one {args.device}, {REQUESTS} requests")
    print(f"1 thread: {one:,.0f} requests/s")
    print(f"{args.threads} threads: {many:,.0f} requests/s")
    wrong = np.sum(~np.isclose(answers, expected, atol=1e-5).all(axis=(1, 2)))
    print(f"wrong answers: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
