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
"""Loads with worker threads or processes, for data_loader_threads.py.

    python data_loader_threads_worker.py LIBRARY

Reads JSON lines `[QUESTION, ...]`, and answers each with a number:

- `["seconds", DATA, WORKERS, WORKER_TYPE, BATCHES]`: the seconds that BATCHES
  batches take;
- `["first_batch", DATA, WORKERS, WORKER_TYPE, START_METHOD]`: the seconds until
  the first batch;
- `["memory", DATA, WORKERS, WORKER_TYPE, BATCHES]`: the bytes of memory (PSS)
  of this process and its workers, in the middle of the loop;
- `["added_memory", DATA, WORKERS, WORKER_TYPE, BATCHES]`: the same, less the
  memory before the loop, with the dataset in memory.

LIBRARY is `paddlepaddle` or `torch`, which has only worker processes. The first
line of the output is the library's version.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import sys
import time
import zlib
from importlib import metadata
from pathlib import Path

import numpy as np
from PIL import Image

BATCH_SIZE = 8
# Batches before the timed ones, in which workers start and memory gets warm.
WARM_UP = 8
SAMPLES = 256
SHAPE = (3, 224, 224)


class Decoded:
    """Samples in memory that zlib and NumPy decode without the GIL."""

    def __init__(self, batches):
        noise = np.random.default_rng(0).integers(0, 16, SHAPE, "uint8")
        self.packed = [
            zlib.compress(np.roll(noise, i).tobytes(), 1)
            for i in range(SAMPLES)
        ]
        self.length = batches * BATCH_SIZE

    def __getitem__(self, i):
        pixels = np.frombuffer(
            zlib.decompress(self.packed[i % SAMPLES]), "uint8"
        )
        return (pixels.reshape(SHAPE).astype("float32") - 127) / 128

    def __len__(self):
        return self.length


class Images:
    """JPEG images in memory that Pillow decodes without the GIL."""

    def __init__(self, batches):
        # Low frequencies, as in photographs.
        coarse = np.random.default_rng(0).integers(0, 256, (32, 32, 3), "uint8")
        picture = Image.fromarray(coarse).resize(SHAPE[1:], Image.BICUBIC)
        self.files = []
        for i in range(SAMPLES):
            file = io.BytesIO()
            picture.rotate(i).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())
        self.length = batches * BATCH_SIZE

    def __getitem__(self, i):
        with Image.open(io.BytesIO(self.files[i % SAMPLES])) as image:
            pixels = np.asarray(image)
        return (pixels.transpose(2, 0, 1).astype("float32") - 127) / 128

    def __len__(self):
        return self.length


class InPython:
    """Samples that Python code computes, which holds the GIL."""

    def __init__(self, batches):
        self.length = batches * BATCH_SIZE

    def __getitem__(self, i):
        values = [i % 251] * 64
        for _ in range(100):
            values = [(31 * value + 7) % 251 for value in values]
        return np.array(values, "float32")

    def __len__(self):
        return self.length


class Annotations:
    """Samples with annotations in memory, as of a data set of objects.

    They are Python objects, about 2 KB for each sample: reading an object
    changes its reference count, so a forked worker copies the pages that it
    reads.
    """

    def __init__(self, batches):
        self.samples = [
            {
                "file": f"images/{i:012}.jpg",
                "boxes": [
                    [float(i + 8 * j + k) for k in range(4)] for j in range(8)
                ],
            }
            for i in range(batches * BATCH_SIZE)
        ]

    def __getitem__(self, i):
        return np.array(self.samples[i]["boxes"], "float32")

    def __len__(self):
        return len(self.samples)


DATA = {
    "zlib and NumPy": Decoded,
    "Pillow and NumPy": Images,
    "pure Python": InPython,
    "annotations": Annotations,
}


def memory():
    """Returns the proportional set size of the process and its workers."""
    found = 0
    children = multiprocessing.active_children()
    for process in (os.getpid(), *(child.pid for child in children)):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        (kibibytes,) = re.findall(r"^Pss: +(\d+)", rollup, re.MULTILINE)
        found += int(kibibytes) * 1024
    return found


class Library:
    def __init__(self, name):
        if name == "torch":
            import torch
            from torch.utils.data import DataLoader

            torch.set_num_threads(1)
        else:
            import paddle
            from paddle.io import DataLoader

            paddle.set_device("cpu")
        self._name, self._loader = name, DataLoader

    def _load(self, data, workers, worker_type, batches, start_method="fork"):
        options = {}
        if worker_type == "thread":
            options["worker_type"] = "thread"
        elif self._name == "torch":
            options["multiprocessing_context"] = start_method
        else:
            # The method stays set until the next call.
            multiprocessing.set_start_method(start_method, force=True)
        return self._loader(
            DATA[data](batches),
            batch_size=BATCH_SIZE,
            num_workers=workers,
            shuffle=True,
            **options,
        )

    def seconds(self, data, workers, worker_type, batches):
        last = WARM_UP + batches
        loader = self._load(data, workers, worker_type, last)
        for number, _ in enumerate(loader, 1):
            if number == WARM_UP:
                start = time.perf_counter()
            # Excludes the end of the loop, where processes exit.
            if number == last:
                seconds = time.perf_counter() - start
        return seconds

    def first_batch(self, data, workers, worker_type, start_method):
        loader = self._load(
            data, workers, worker_type, 4 * workers, start_method
        )
        start = time.perf_counter()
        batches = iter(loader)
        next(batches)
        seconds = time.perf_counter() - start
        # Finish the loop: leaving it early would keep the processes alive.
        for _ in batches:
            pass
        return seconds

    def memory(self, data, workers, worker_type, batches):
        loader = self._load(data, workers, worker_type, batches)
        return self._memory_in_loop(loader, batches)

    def added_memory(self, data, workers, worker_type, batches):
        loader = self._load(data, workers, worker_type, batches)
        before = memory()
        return self._memory_in_loop(loader, batches) - before

    def _memory_in_loop(self, loader, batches):
        for number, _ in enumerate(loader, 1):
            if number == batches // 2:
                found = memory()
        return found


def main(name):
    library = Library(name)
    print(json.dumps(f"{name} {metadata.version(name)}"), flush=True)
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        print(json.dumps(getattr(library, question)(*arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
