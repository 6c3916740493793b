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
"""Trains one model in several processes, which average their gradients.

    python data_parallel.py [--processes 2]

Each process holds the whole model and trains on a part of every batch. The
processes communicate through shared memory.
"""

from __future__ import annotations

import argparse
import functools
import operator
import sys

import paddle
import paddle.distributed as dist
import paddle.multiprocessing as mp
from paddle import nn
from paddle.distributed import comm_hooks


def new_layer() -> nn.Layer:
    paddle.seed(0)
    hidden = [nn.Linear(512, 512) for _ in range(3)]
    return nn.Sequential(
        nn.Linear(16, 512), nn.ReLU(), *hidden, nn.Linear(512, 1)
    )


def train(parallel: paddle.DataParallel, batches: list) -> paddle.Tensor:
    """Trains on this rank's part of each batch; returns the parameters."""
    rank, size = dist.get_rank(), dist.get_world_size()
    optimizer = paddle.optimizer.SGD(0.01, parallel.parameters())
    for batch in batches:
        inputs, targets = (each.chunk(size)[rank] for each in batch)
        nn.functional.mse_loss(parallel(inputs), targets).backward()
        optimizer.step()
        optimizer.clear_grad()
    return nn.utils.parameters_to_vector(parallel.parameters()).detach()


def train_alone(batches: list, parts: int) -> paddle.Tensor:
    """Trains in one process, serially on the `parts` parts of each batch."""
    layer = new_layer()
    parameters = layer.parameters()
    optimizer = paddle.optimizer.SGD(0.01, parameters)
    for batch in batches:
        gradients = []
        for inputs, targets in zip(*(each.chunk(parts) for each in batch)):
            nn.functional.mse_loss(layer(inputs), targets).backward()
            gradients.append([each.grad.clone() for each in parameters])
            optimizer.clear_grad(set_to_zero=False)
        for parameter, part_gradients in zip(parameters, zip(*gradients)):
            total = functools.reduce(operator.add, part_gradients)
            parameter.grad = paddle.divide(
                total, paddle.to_tensor(float(parts))
            )
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
    return nn.utils.parameters_to_vector(parameters).detach()


def run(batches: list, results) -> None:
    """Runs in each process; the first one reports."""
    dist.init_parallel_env()
    exact = paddle.DataParallel(new_layer())
    compressed = paddle.DataParallel(new_layer())
    compressed.register_comm_hook(None, comm_hooks.fp16_compress_hook)
    trained = train(exact, batches)
    with_float16 = train(compressed, batches)
    if dist.get_rank() == 0:
        results.put((trained, with_float16, exact.statistics_table()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    processes = parser.parse_args().processes
    paddle.set_device("cpu")
    paddle.seed(0)
    size = 64 * processes
    batches = [(paddle.randn([size, 16]), paddle.randn([size, 1]))] * 5
    results = mp.get_context("spawn").SimpleQueue()
    context = dist.spawn(
        run, (batches, results), nprocs=processes, join=False, backend="shm"
    )
    context.join()
    trained, with_float16, statistics = results.get()
    in_parts = train_alone(batches, processes)
    in_whole = train_alone(batches, 1)
    is_equal = bool(trained.equal_all(in_parts))
    rounding = float((trained - in_whole).abs().max())
    difference = float((with_float16 - in_parts).abs().max())
    print(f"{processes} processes")
    print(f"bitwise equal to one process, part by part: {is_equal}")
    print(f"difference from one process, whole batches: {rounding:.0e}")
    print(f"difference with gradients sent as float16: {difference:.0e}")
    print(statistics)
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
