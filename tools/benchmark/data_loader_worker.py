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
"""Loads epochs with the DataLoader of one library, for data_loader.py.

    python data_loader_worker.py LIBRARY

Reads JSON lines `[DATA, WORKERS, BATCHES]`, and answers each with the seconds
that BATCHES batches took. LIBRARY is `paddlepaddle` or `torch`. The first line
of the output is the library's version.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from importlib import metadata

import numpy as np

# Batches before the timed ones, in which workers start and memory gets warm.
WARM_UP = 20

# The number of samples, and the shape and type of one. A sample with fields is
# the list of its rows.
SHAPES = {
    "32 fields of 64 float32": (1024, (32, 64), "float32"),
    "image 3 x 224 x 224 float32": (128, (3, 224, 224), "float32"),
    "image 3 x 224 x 224 uint8": (128, (3, 224, 224), "uint8"),
}
BATCH_SIZE = 32


class Samples:
    """A dataset that costs no time, because its samples are in memory."""

    def __init__(self, name, batches):
        count, shape, dtype = SHAPES[name]
        generator = np.random.default_rng(0)
        # Numbers with a fraction, so that their first bytes differ.
        self.data = (generator.random((count, *shape)) * 256).astype(dtype)
        self.in_fields = len(shape) == 2
        self.length = batches * BATCH_SIZE

    def __getitem__(self, i):
        sample = self.data[i % len(self.data)]
        return list(sample) if self.in_fields else sample

    def __len__(self):
        return self.length


def first_byte(tensor):
    """Reads from memory directly, at the same cost for each library."""
    return ctypes.c_ubyte.from_address(tensor.data_ptr()).value


def load(loader_class, name, workers, batches):
    """Returns the seconds that the batches after the warm-up took.

    Raises:
        RuntimeError: a batch does not have the dataset's values.
    """
    dataset = Samples(name, WARM_UP + batches)
    loader = loader_class(dataset, batch_size=BATCH_SIZE, num_workers=workers)
    expected = dataset[(WARM_UP + batches - 1) * BATCH_SIZE]
    for number, batch in enumerate(loader, 1):
        tensors = batch if isinstance(batch, (list, tuple)) else [batch]
        read = [first_byte(tensor) for tensor in tensors]
        if number == WARM_UP:
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    fields = expected if dataset.in_fields else [expected]
    if read != [field.view("uint8").flat[0] for field in fields]:
        raise RuntimeError(f"wrong batches of {name}: {read}")
    return seconds


def main(library):
    if library == "torch":
        import torch
        from torch.utils.data import DataLoader

        torch.set_num_threads(1)
    else:
        import paddle
        from paddle.io import DataLoader

        paddle.set_device("cpu")
    print(json.dumps(f"{library} {metadata.version(library)}"), flush=True)
    for line in sys.stdin:
        print(json.dumps(load(DataLoader, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
