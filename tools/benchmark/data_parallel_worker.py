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
"""A rank that trains with a library's DataParallel, for data_parallel.py.

    python data_parallel_worker.py LIBRARY RANK SIZE PORT BACKEND

Reads JSON lines `[MODEL, VARIANT, STEPS]`, and answers each with the seconds
that STEPS steps took. LIBRARY is `paddlepaddle` or `torch`. VARIANT is
`default`, `views` (gradients as bucket views) or `alone` (no communication).
The first line of the output is the library's version.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from importlib import metadata

# Untimed steps first, in which buckets are rebuilt and memory gets warm.
WARM_UP = 3

MODELS = ("MLP, 32 MiB", "ResNet-18, 3 x 32 x 32")
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))


class Paddle:
    """The interface of both libraries, for Paddle."""

    def __init__(self, rank, size, port, backend):
        import paddle

        paddle.set_device("cpu")
        os.environ.update(
            PADDLE_TRAINER_ID=str(rank),
            PADDLE_TRAINERS_NUM=str(size),
            PADDLE_CURRENT_ENDPOINT=f"127.0.0.1:{port + rank}",
            PADDLE_TRAINER_ENDPOINTS=",".join(
                f"127.0.0.1:{port + each}" for each in range(size)
            ),
            PADDLE_MASTER=f"127.0.0.1:{port}",
            PADDLE_DISTRI_BACKEND=backend,
        )
        paddle.distributed.init_parallel_env()
        paddle.seed(0)
        self.paddle, self.nn = paddle, paddle.nn
        self.randn = paddle.randn
        self.relu = paddle.nn.functional.relu
        self.Module = paddle.nn.Layer
        self.norm = paddle.nn.BatchNorm2D

    def conv(self, inputs, outputs, size, stride):
        return self.nn.Conv2D(
            inputs, outputs, size, stride, size // 2, bias_attr=False
        )

    def pool(self, x):
        return x.mean([2, 3])

    def parallel(self, model, variant):
        if variant == "alone":
            return model
        if variant == "views":
            return self.paddle.DataParallel(model, gradient_as_bucket_view=True)
        # Stock does not have the option.
        return self.paddle.DataParallel(model)

    def optimizer(self, model):
        return self.paddle.optimizer.SGD(0.001, parameters=model.parameters())

    def clear(self, optimizer):
        optimizer.clear_grad()


class Torch:
    """The interface of both libraries, for torch."""

    def __init__(self, rank, size, port, backend):
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            backend, f"tcp://127.0.0.1:{port}", rank=rank, world_size=size
        )
        torch.manual_seed(0)
        self.torch, self.nn = torch, torch.nn
        self.randn = torch.randn
        self.relu = torch.relu
        self.Module = torch.nn.Module
        self.norm = torch.nn.BatchNorm2d

    def conv(self, inputs, outputs, size, stride):
        return self.nn.Conv2d(
            inputs, outputs, size, stride, size // 2, bias=False
        )

    def pool(self, x):
        return x.mean([2, 3])

    def parallel(self, model, variant):
        if variant == "alone":
            return model
        return self.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=variant == "views"
        )

    def optimizer(self, model):
        return self.torch.optim.SGD(model.parameters(), 0.001)

    def clear(self, optimizer):
        optimizer.zero_grad()


def residual_block(library, inputs, outputs, stride):
    """Returns a block of two convolutions with a skip connection."""

    class Block(library.Module):
        def __init__(self):
            super().__init__()
            self.first = library.conv(inputs, outputs, 3, stride)
            self.first_norm = library.norm(outputs)
            self.second = library.conv(outputs, outputs, 3, 1)
            self.second_norm = library.norm(outputs)
            self.around = library.nn.Sequential()
            if stride != 1 or inputs != outputs:
                self.around = library.nn.Sequential(
                    library.conv(inputs, outputs, 1, stride),
                    library.norm(outputs),
                )

        def forward(self, x):
            y = library.relu(self.first_norm(self.first(x)))
            y = self.second_norm(self.second(y))
            return library.relu(y + self.around(x))

    return Block()


def resnet18(library):
    """Returns a ResNet-18 for small images, with 11.2 million parameters."""

    class ResNet18(library.Module):
        def __init__(self):
            super().__init__()
            layers = [library.conv(3, 64, 3, 1), library.norm(64)]
            inputs = 64
            for outputs, stride in STAGES:
                layers.append(residual_block(library, inputs, outputs, stride))
                layers.append(residual_block(library, outputs, outputs, 1))
                inputs = outputs
            self.layers = library.nn.Sequential(*layers)
            self.last = library.nn.Linear(512, 10)

        def forward(self, x):
            return self.last(library.pool(self.layers(x)))

    return ResNet18()


def mlp(library):
    layers = []
    for _ in range(8):
        layers += [library.nn.Linear(1024, 1024), library.nn.ReLU()]
    return library.nn.Sequential(*layers)


@functools.cache
def trainer(library, name, variant):
    """Returns a function that runs one step."""
    model = mlp(library) if name == MODELS[0] else resnet18(library)
    shape = [32, 1024] if name == MODELS[0] else [8, 3, 32, 32]
    inputs = library.randn(shape)
    wrapped = library.parallel(model, variant)
    optimizer = library.optimizer(model)

    def step():
        (wrapped(inputs) ** 2).mean().backward()
        optimizer.step()
        library.clear(optimizer)

    return step


def main(name, rank, size, port, backend):
    libraries = {"paddlepaddle": Paddle, "torch": Torch}
    library = libraries[name](int(rank), int(size), int(port), backend)
    print(json.dumps(f"{name} {metadata.version(name)}"), flush=True)
    for line in sys.stdin:
        model, variant, steps = json.loads(line)
        step = trainer(library, model, variant)
        for _ in range(WARM_UP):
            step()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
