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
"""Prints the values that test_data_parallel_torch_values.py compares with.

It needs torch instead of Paddle, and runs DistributedDataParallel over gloo, on
two processes. The functions do the same steps as those of the test.
"""

from __future__ import annotations

import contextlib
import os
import pprint
import tempfile
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE = 2


def new_linear() -> nn.Module:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, -0.25]]))
        layer.bias.copy_(torch.tensor([0.125]))
    return layer


def inputs_of(rank: int, step: int) -> torch.Tensor:
    return torch.tensor([[rank + 1.0, step + 2.0], [0.5 * step, -1.0 * rank]])


def loss_of(layer: nn.Module, rank: int, step: int) -> torch.Tensor:
    return (layer(inputs_of(rank, step)) ** 2).mean()


def flat(tensors: Iterable[torch.Tensor | None]) -> list:
    """Returns values in the order of Paddle, which transposes weights."""
    return [
        None if each is None else each.t().flatten().tolist()
        for each in tensors
    ]


def gradients(layer: nn.Module) -> list:
    return flat(each.grad for each in layer.parameters())


def join(rank: int, divides_by_all: bool) -> list:
    layer = new_linear()
    wrapped = DistributedDataParallel(layer)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    steps = []
    with Join([wrapped], divide_by_initial_world_size=divides_by_all):
        for step in range(1 + 2 * rank):
            optimizer.zero_grad()
            loss_of(wrapped, rank, step).backward()
            steps.append(gradients(layer))
            optimizer.step()
    return [steps, flat(layer.parameters())]


def accumulate(rank: int) -> list:
    layer = new_linear()
    wrapped = DistributedDataParallel(layer)
    steps = []
    for step in range(4):
        with wrapped.no_sync() if step < 2 else contextlib.nullcontext():
            loss_of(wrapped, rank, step).backward()
        steps.append(gradients(layer))
    return steps


def separate_forward_from_backward(rank: int) -> list:
    """Runs only forward under no_sync(), and then only backward."""
    found = []
    for of_forward in (True, False):
        layer = new_linear()
        wrapped = DistributedDataParallel(layer)
        unsynchronized = wrapped.no_sync
        with unsynchronized() if of_forward else contextlib.nullcontext():
            loss = loss_of(wrapped, rank, 0)
        with contextlib.nullcontext() if of_forward else unsynchronized():
            loss.backward()
        found.append(gradients(layer))
    return found


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: torch.Tensor, uses_right: bool) -> torch.Tensor:
        return self.left(x) + (self.right(x) if uses_right else 0)


def leave_out_parameters(rank: int, has_gradients: bool) -> list:
    layer = Branches()
    wrapped = DistributedDataParallel(layer, find_unused_parameters=True)
    if has_gradients:
        layer.never.bias.grad = torch.full([2], 3.0 + rank)
        layer.right.bias.grad = torch.ones([2])
    steps = []
    for step in range(2):
        inputs = torch.tensor([[1.0 + rank, 2.0]])
        wrapped(inputs, rank == 1 and step == 0).sum().backward()
        steps.append(gradients(layer))
    return steps


class UsedTwice(nn.Module):
    """Uses a layer twice, and never uses another."""

    def __init__(self):
        super().__init__()
        self.twice, self.never = new_square(), new_square()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.twice(self.twice(x))


def new_square() -> nn.Module:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.5, 0.75], [-0.25, 1.0]]))
        layer.bias.copy_(torch.tensor([0.125, -0.5]))
    return layer


def train_static_graph(rank: int) -> list:
    layer = UsedTwice()
    wrapped = DistributedDataParallel(layer, static_graph=True)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    steps = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(wrapped, rank, step).backward()
        steps.append(gradients(layer))
        optimizer.step()
    return steps


def train_with_hook(rank: int) -> list:
    layer = new_linear()
    wrapped = DistributedDataParallel(layer)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    steps = []
    for step in range(3):
        optimizer.zero_grad()
        (loss_of(wrapped, rank, step) * 0.7).backward()
        steps.append(gradients(layer))
        optimizer.step()
    return steps


class Adding(nn.Module):
    """Adds up its first inputs in a buffer, which scales its outputs."""

    def __init__(self):
        super().__init__()
        self.linear = new_linear()
        self.register_buffer("total", torch.zeros([1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x.detach()[0].sum()
        return self.linear(x) * self.total


def broadcast_buffers(rank: int) -> list:
    """Returns the buffer and the gradients after each step."""
    layer = Adding()
    wrapped = DistributedDataParallel(layer, broadcast_buffers=True)
    steps = []
    for step in range(3):
        wrapped.zero_grad()
        loss_of(wrapped, rank, step).backward()
        steps.append([layer.total.tolist(), *gradients(layer)])
    return steps


def run(rank: int, address: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{address}", rank=rank, world_size=SIZE
    )
    found = {
        "join, divided by all": join(rank, True),
        "join, divided by the active": join(rank, False),
        "NO_SYNC": accumulate(rank),
        "LOCAL and AVERAGED": separate_forward_from_backward(rank),
        "UNUSED": leave_out_parameters(rank, False),
        "UNUSED_WITH_GRADIENTS": leave_out_parameters(rank, True),
        "STATIC_GRAPH": train_static_graph(rank),
        "FLOAT16_HOOK": train_with_hook(rank),
        "BUFFERS": broadcast_buffers(rank),
    }
    for each in range(SIZE):
        dist.barrier()
        if each == rank:
            print(f"rank {rank} of torch {torch.__version__}")
            pprint.pprint(found, sort_dicts=False, width=80)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            run, (os.path.join(folder, "store"),), nprocs=SIZE
        )
