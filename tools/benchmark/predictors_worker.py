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
"""Runs predictors, for predictors.py.

Reads JSON lines [FUNCTION, ARGUMENT, ...], and answers each with the function's
result.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time

import numpy as np
from devices_worker import answer_questions

import paddle
from paddle.inference import Config, create_predictor

# The width and number of layers, and the rows of a batch.
MODELS = {
    "small model": (512, 4, 32),
    "large model": (1024, 8, 512),
    "large model with oneDNN": (1024, 8, 512),
}
# A predictor of each model and its clones, and a batch.
predictors = {}


def make(folder: str, name: str) -> None:
    """Creates two predictors of a model; the second is a clone."""
    width, layers, rows = MODELS[name]
    net = paddle.nn.Sequential(
        *[paddle.nn.Linear(width, width) for _ in range(layers)]
    )
    net.eval()
    spec = paddle.static.InputSpec([None, width], "float32", "x")
    path = os.path.join(folder, name)
    paddle.jit.save(
        paddle.jit.to_static(net, full_graph=True, input_spec=[spec]), path
    )
    config = Config(path + ".json", path + ".pdiparams")
    config.disable_glog_info()
    if "oneDNN" in name:
        config.enable_mkldnn()
    else:
        config.disable_mkldnn()
    first = create_predictor(config)
    batch = np.ones([rows, width], "float32")
    predictors[name] = [first, first.clone()], batch
    for predictor in predictors[name][0]:
        call(predictor, batch)


def call(predictor, batch: np.ndarray) -> np.ndarray:
    """Runs a predictor through handles, as most programs do."""
    handle = predictor.get_input_handle(predictor.get_input_names()[0])
    handle.copy_from_cpu(batch)
    predictor.run()
    name = predictor.get_output_names()[0]
    return predictor.get_output_handle(name).copy_to_cpu()


def seconds(name: str, calls: int) -> float:
    """Returns the CPU time of `calls` calls on one thread."""
    (predictor, *_), batch = predictors[name]
    begin = time.thread_time()
    for _ in range(calls):
        call(predictor, batch)
    return time.thread_time() - begin


def seconds_of_threads(name: str, threads: int, calls: int) -> float:
    """Returns the time of `threads` threads, each with its own predictor."""
    clones, batch = predictors[name]
    while len(clones) < threads:
        clones.append(clones[0].clone())
        call(clones[-1], batch)
    start = threading.Barrier(threads + 1)

    def run(predictor) -> None:
        start.wait()
        for _ in range(calls):
            call(predictor, batch)

    workers = [threading.Thread(target=run, args=[p]) for p in clones[:threads]]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin


def longest_pause(name: str, calls: int) -> float:
    """
    Returns the longest time between two steps of a thread that runs only Python
    code, while another thread runs a predictor.
    """
    (predictor, *_), batch = predictors[name]
    thread = threading.Thread(
        target=lambda: [call(predictor, batch) for _ in range(calls)]
    )
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest = max(longest, now - last)
        last = now
    return longest


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            make(folder, model)
        answer_questions(globals())
