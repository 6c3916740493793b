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
"""Asynchronous (Hogwild) training: processes update one set of parameters.

    python hogwild.py [--processes 2] [--steps 300]

One copy of the parameters is in shared memory. Each process draws its own
batches and updates the parameters in place, without a lock. Sometimes two
processes overwrite a part of each other's update, which SGD tolerates. The
parent does not train. It prints the loss and accuracy of its model on held-back
data, before and after training, and the number of steps of each process.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import paddle
import paddle.multiprocessing as mp
from paddle.nn import functional

SAMPLES, HELD_BACK, BATCH = 5000, 1000, 64


def make_data() -> tuple[paddle.Tensor, paddle.Tensor]:
    """Returns points and labels: which of four random sums is the largest."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((SAMPLES, 16), "float32")
    labels = (points @ rng.standard_normal((16, 4), "float32")).argmax(1)
    return paddle.to_tensor(points), paddle.to_tensor(labels)


def evaluate(model, points: paddle.Tensor, labels: paddle.Tensor) -> str:
    with paddle.no_grad():
        logits = model(points)
    loss = functional.cross_entropy(logits, labels).item()
    accuracy = (logits.argmax(1) == labels).astype("float32").mean().item()
    return f"loss {loss:.3f}, accuracy {accuracy:.1%}"


def train(rank: int, model, points, labels, done, steps: int) -> None:
    """Trains the shared parameters; each process runs this."""
    rng = np.random.default_rng(rank)
    # Optimizers update in place. Their state, such as the moments of Adam, is
    # private to each process.
    sgd = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    for _ in range(steps):
        rows = paddle.to_tensor(rng.integers(0, len(points), BATCH))
        loss = functional.cross_entropy(model(points[rows]), labels[rows])
        loss.backward()
        sgd.step()
        sgd.clear_grad()
        done[rank] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    paddle.set_device("cpu")
    paddle.seed(0)
    model = paddle.nn.Sequential(
        paddle.nn.Linear(16, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 4)
    )
    points, labels = make_data()
    test = points[:HELD_BACK], labels[:HELD_BACK]
    train_data = points[HELD_BACK:], labels[HELD_BACK:]
    done = paddle.zeros([args.processes], "int64")
    print(f"before: {evaluate(model, *test)}")
    mp.spawn(
        train,
        (model.share_memory(), *train_data, done, args.steps),
        nprocs=args.processes,
        devices="cpu",
    )
    print(f"after: {evaluate(model, *test)}")
    print(f"steps: {done.tolist()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
