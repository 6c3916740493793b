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
"""A rank whose layers wait instead of computing, for data_parallel_overlap.py.

    python data_parallel_overlap_worker.py RANK HOST:PORT,... LAYER_MS

Reads JSON lines `[VARIANT, USES_VIEWS, STEPS]`, and answers each with the
seconds that STEPS steps took, and the hidden share of the communication by the
reducer's statistics. The first line of the output is the version of Paddle.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import time
from importlib import metadata

# Untimed steps first, in which buckets are rebuilt and memory gets warm.
WARM_UP = 3
LAYERS = 8
WIDTH = 1024

WITHOUT, NOTHING_SENT, OVERLAPPED, AFTERWARDS = VARIANTS = (
    "no communication",
    "nothing sent",
    "overlapped",
    "after backward",
)


def model_of(paddle, layer_ms):
    """Returns a model with 32 MiB of parameters that needs little CPU time."""

    class Wait(paddle.autograd.PyLayer):
        """Simulates an accelerator: its backward leaves the cores free."""

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(layer_ms / 1000)
            return gradient

    class Model(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.linears = paddle.nn.LayerList(
                paddle.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)
            )

        def forward(self, x):
            for linear in self.linears:
                x = Wait.apply(linear(x))
            return x

    return Model()


@functools.cache
def trainer(paddle, variant, uses_views, layer_ms):
    """Returns a function that runs one step, and the DataParallel."""
    model = model_of(paddle, layer_ms)
    parallel = paddle.DataParallel(
        model,
        gradient_as_bucket_view=uses_views,
        delay_all_reduce_named_params=(
            list(model.named_parameters()) if variant == AFTERWARDS else None
        ),
    )
    if variant == NOTHING_SENT:
        parallel.register_comm_hook(None, lambda _, bucket: bucket.buffer())
    inputs = paddle.randn([1, WIDTH])

    def forward_and_backward():
        (parallel(inputs) ** 2).mean().backward()

    def step():
        if variant == WITHOUT:
            with parallel.no_sync():
                forward_and_backward()
        else:
            forward_and_backward()
        parallel.clear_gradients()

    return step, parallel


def timed(paddle, variant, uses_views, steps, layer_ms):
    """Returns the answer to an input line."""
    step, parallel = trainer(paddle, variant, uses_views, layer_ms)
    for _ in range(WARM_UP):
        step()
    times = parallel._reducer.times
    before = dataclasses.replace(times)
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = time.perf_counter() - begin
    communication = times.communication - before.communication
    waiting = times.waiting - before.waiting
    return [seconds, 1 - waiting / communication if communication else None]


def main(rank, addresses, layer_ms):
    import paddle

    endpoints = addresses.split(",")
    os.environ.update(
        PADDLE_TRAINER_ID=rank,
        PADDLE_TRAINERS_NUM=str(len(endpoints)),
        PADDLE_CURRENT_ENDPOINT=endpoints[int(rank)],
        PADDLE_TRAINER_ENDPOINTS=addresses,
        PADDLE_MASTER=endpoints[0],
        PADDLE_DISTRI_BACKEND="shm",
    )
    paddle.set_device("cpu")
    paddle.distributed.init_parallel_env()
    version = metadata.version("paddlepaddle")
    print(json.dumps(f"paddlepaddle {version}"), flush=True)
    for line in sys.stdin:
        answer = timed(paddle, *json.loads(line), float(layer_ms))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
