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
"""One model, several evaluation processes, one copy of the weights in memory.

    python shared_weights.py [--processes 3] [--layers 8]

Processes that each load the model evaluate some data, and then processes that
share the parent's model evaluate the same data. A layer has 16 MiB of weights.
The example prints the memory of each process in MiB, the parent first: private
pages, shared pages and Pss, as counted by Linux. Pss counts a page that n
processes share as one n-th, so the sum of Pss is the memory of all processes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import paddle
import paddle.multiprocessing as mp

WIDTH = 2048


def make_model(layers: int) -> paddle.nn.Layer:
    return paddle.nn.Sequential(
        *(paddle.nn.Linear(WIDTH, WIDTH) for _ in range(layers))
    )


def load_model(path: Path) -> paddle.nn.Layer:
    state = paddle.load(str(path))
    model = make_model(len(state) // 2)  # a weight and a bias per layer
    model.set_state_dict(state)
    return model


def evaluate(rank: int, model, inputs, losses, leave) -> None:
    """Evaluates the model; each process runs this."""
    if isinstance(model, Path):
        model = load_model(model)
    with paddle.no_grad():
        losses[rank] = model(inputs).square().mean()
    leave.wait()


def memory(pid: int) -> tuple[int, int, int]:
    """Returns the private pages, the shared pages and the Pss of a process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {key: int(n) for key, n in re.findall(r"(\w+): +(\d+) kB", rollup)}
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    shared = kib["Shared_Clean"] + kib["Shared_Dirty"]
    return private // 1024, shared // 1024, kib["Pss"] // 1024


def run(model, inputs, processes: int) -> paddle.Tensor:
    """Evaluates in several processes, and prints the memory of each."""
    losses = paddle.full([processes], float("nan"))
    leave = mp.get_context("forkserver").Event()
    context = mp.start_processes(
        evaluate,
        (model, inputs, losses, leave),
        nprocs=processes,
        join=False,
        start_method="forkserver",
        devices="cpu",
    )
    while losses.isnan().any():
        context.join(timeout=0.1)  # raises if one has failed
    sizes = [memory(pid) for pid in (os.getpid(), *context.pids())]
    leave.set()
    context.join()
    print("private  shared     Pss")
    for size in sizes:
        print("{:7} {:7} {:7}".format(*size))
    print(f"sum of Pss {sum(pss for _, _, pss in sizes):12}")
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    paddle.set_device("cpu")
    # A process that imports Paddle once, and then forks the others.
    mp.set_forkserver_preload(["paddle"])
    model, inputs = make_model(args.layers), paddle.rand([4, WIDTH])
    size = sum(p.numel().item() * p.element_size() for p in model.parameters())
    print(f"{size // 2**20} MiB of weights")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pdparams")
        paddle.save(model.state_dict(), str(path))
        print("\neach process loads a copy:")
        expected = run(path, inputs, args.processes)
    print("\nall have one copy:")
    losses = run(model.share_memory(), inputs, args.processes)
    same = losses.equal_all(expected).item()
    print(f"\nthe losses are {'the same' if same else 'different'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
