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
"""Trains one model on several machines.

Run on each machine, where 10.0.0.1 is one of them:

    PADDLE_DISTRI_BACKEND=shm python -m paddle.distributed.launch \\
        --master 10.0.0.1:6170 --nnodes 2 --nproc_per_node 2 \\
        several_machines.py [--save FILE]

The processes of a machine communicate through shared memory. One process per
machine communicates with those of the other machines over TCP, at the address
of its host name. If the other machines cannot reach that address, set
GLOO_SOCKET_IFNAME to the network interface.
"""

from __future__ import annotations

import argparse
import socket

import numpy as np

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.io import DataLoader, Dataset, DistributedBatchSampler

EPOCHS = 4


class Sums(Dataset):
    """Vectors and the sums of their elements."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        vector = np.random.default_rng(index).standard_normal(16)
        return vector.astype("float32"), vector.sum(keepdims=True, dtype="f4")

    def __len__(self) -> int:
        return 256


def train(parallel: paddle.DataParallel) -> list[float]:
    """Returns the mean loss of all ranks in each epoch."""
    optimizer = paddle.optimizer.SGD(0.02, parallel.parameters())
    # The ranks share each batch of 64 samples.
    sampler = DistributedBatchSampler(
        Sums(), batch_size=64 // dist.get_world_size(), shuffle=True
    )
    loader = DataLoader(Sums(), batch_sampler=sampler)
    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = paddle.zeros([])
        for vectors, sums in loader:
            loss = nn.functional.mse_loss(parallel(vectors), sums)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            total += loss.detach() / len(loader)
        dist.all_reduce(total, dist.ReduceOp.AVG)
        losses.append(total.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", help="file for the trained parameters")
    arguments = parser.parse_args()
    paddle.set_device("cpu")
    paddle.seed(0)
    dist.init_parallel_env()
    hosts: list[str] = []
    dist.all_gather_object(hosts, socket.gethostname())
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    losses = train(paddle.DataParallel(model))
    if dist.get_rank() == 0:
        print(f"{len(hosts)} ranks on {len(set(hosts))} machines")
        for epoch, loss in enumerate(losses):
            print(f"epoch {epoch}: loss {loss:.3f}")
        if arguments.save:
            paddle.save(model.state_dict(), arguments.save)


if __name__ == "__main__":
    main()
