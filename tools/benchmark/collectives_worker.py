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
"""Times all_reduce as one rank, on demand.

    python collectives_worker.py LIBRARY RANK SIZE PORT

Prints the version of the library, and then answers each input line [BYTES,
SHARED, ROUNDS] with the seconds of each round. All ranks of a job get the same
lines.
"""

from __future__ import annotations

import json
import os
import sys
import time


class PaddleRank:
    """A rank of Paddle, with the backend from the environment variables."""

    def __init__(self):
        import paddle
        import paddle.distributed as dist

        paddle.set_device("cpu")
        dist.init_parallel_env()
        self._paddle, self._dist = paddle, dist
        self.version = paddle.__version__

    def tensor(self, size, shared):
        found = self._paddle.zeros([size // 4])
        return found.share_memory_() if shared else found

    def all_reduce(self, tensor):
        self._dist.all_reduce(tensor)

    def barrier(self):
        self._dist.barrier()


class TorchRank:
    """A rank of torch, with torch's gloo."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._torch, self._dist = torch, dist
        self.version = torch.__version__

    def tensor(self, size, shared):
        found = self._torch.zeros(size // 4)
        return found.share_memory_() if shared else found

    def all_reduce(self, tensor):
        self._dist.all_reduce(tensor)

    def barrier(self):
        self._dist.barrier()


class Copy:
    """The lower bound: a copy of as many bytes within warm memory."""

    version = ""

    def tensor(self, size, shared):
        import numpy

        return numpy.zeros([2, size], numpy.uint8)

    def all_reduce(self, tensor):
        tensor[1] = tensor[0]

    def barrier(self):
        pass


RANKS = {"shm": PaddleRank, "gloo": PaddleRank, "torch": TorchRank}


def environment(library, rank, size, port):
    """Returns the environment variables that describe a rank and its group."""
    return {
        "PADDLE_TRAINER_ID": rank,
        "PADDLE_TRAINERS_NUM": size,
        "PADDLE_CURRENT_ENDPOINT": f"127.0.0.1:{int(port) + int(rank)}",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(
            f"127.0.0.1:{int(port) + r}" for r in range(int(size))
        ),
        "PADDLE_DISTRI_BACKEND": library,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "RANK": rank,
        "WORLD_SIZE": size,
    }


def main():
    library, rank, size, port = sys.argv[1:]
    os.environ.update(environment(library, rank, size, port))
    # Only answers may go to standard output; libraries print to it as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    member = RANKS.get(library, Copy)()
    print(json.dumps(member.version), file=answers, flush=True)
    tensors = {}
    for line in sys.stdin:
        count, shared, rounds = json.loads(line)
        if (count, shared) not in tensors:
            tensors[count, shared] = member.tensor(count, shared)
        tensor = tensors[count, shared]
        seconds = []
        member.barrier()
        # The first round warms the caches, and is not counted.
        for _ in range(rounds + 1):
            start = time.perf_counter()
            member.all_reduce(tensor)
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds[1:]), file=answers, flush=True)


if __name__ == "__main__":
    main()
