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
"""Times operations as one rank, on demand.

    python collectives_worker.py LIBRARY RANK SIZE PORT

Prints the version of the library, and then answers each input line [OPERATION,
BYTES, SHARED, ROUNDS] with the seconds of each round. All ranks of a job get
the same lines.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time


class Rank:
    """A rank of a library whose `paddle.distributed` is `self.dist`."""

    def __init__(self):
        self._tensors = {}

    def tensor(self, size, shared, name="own"):
        key = (size, shared, name)
        if key not in self._tensors:
            self._tensors[key] = self.new_tensor(size // 4, shared)
        return self._tensors[key]

    def operation(self, name, size, shared):
        """Returns a function that runs an operation."""
        return getattr(self, name)(size, shared)

    def barrier(self):
        self.dist.barrier()

    def all_reduce(self, size, shared):
        own = self.tensor(size, shared)
        return lambda: self.dist.all_reduce(own)

    def send(self, size, shared):
        """From rank 0 to rank 1; other ranks do nothing."""
        if self.rank > 1:
            return lambda: None
        own = self.tensor(size, shared)
        if self.rank == 1:
            return lambda: self.dist.recv(own, 0)
        return lambda: self.dist.send(own, 1)

    def _parts(self, size, shared):
        if self.rank != 0:
            return None
        return [self.tensor(size, shared, i) for i in range(self.size)]

    def gather(self, size, shared):
        own, parts = self.tensor(size, shared), self._parts(size, shared)
        return lambda: self.dist.gather(own, parts, 0)

    def scatter(self, size, shared):
        own, parts = self.tensor(size, shared), self._parts(size, shared)
        return lambda: self.dist.scatter(own, parts, 0)


class PaddleRank(Rank):
    """A rank of Paddle, with the backend from the environment variables."""

    def __init__(self):
        import paddle
        import paddle.distributed as dist

        super().__init__()
        paddle.set_device("cpu")
        dist.init_parallel_env()
        self._paddle, self.dist = paddle, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.version = paddle.__version__

    def new_tensor(self, count, shared):
        found = self._paddle.zeros([count])
        return found.share_memory_() if shared else found


class MachineRank(PaddleRank):
    """A rank of the backend shm that reports a machine of its own."""

    def __init__(self):
        from paddle.distributed import shared_memory_group

        os.environ["PADDLE_DISTRI_BACKEND"] = "shm"
        shared_memory_group.machine = lambda: os.environ["RANK"]
        super().__init__()


class TorchRank(Rank):
    """A rank of torch, with torch's gloo."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        super().__init__()
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._torch, self.dist = torch, dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.version = torch.__version__

    def new_tensor(self, count, shared):
        found = self._torch.zeros(count)
        return found.share_memory_() if shared else found


class Copy:
    """The lower bound: a copy of as many bytes within warm memory."""

    version = ""

    def operation(self, name, size, shared):
        import numpy

        data = numpy.ones([2, size], numpy.uint8)

        def copy():
            data[1] = data[0]

        return copy

    def barrier(self):
        pass


class IoVector(ctypes.Structure):
    """The type `struct iovec` of C."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class DirectRead:
    """Rank 1 reads the memory of rank 0, which it asks for through a socket."""

    version = ""

    def __init__(self):
        address = ("127.0.0.1", int(os.environ["MASTER_PORT"]))
        self._is_sender = os.environ["RANK"] == "0"
        if self._is_sender:
            with socket.create_server(address) as server:
                self._link, _ = server.accept()
        else:
            self._link = self._connect(address)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._link.makefile("rw")

    @staticmethod
    def _connect(address):
        while True:
            try:
                return socket.create_connection(address)
            except ConnectionRefusedError:
                time.sleep(0.01)

    def _tell(self, value):
        print(json.dumps(value), file=self._stream, flush=True)

    def _hear(self):
        return json.loads(self._stream.readline())

    def barrier(self):
        self._tell("here")
        self._hear()

    def operation(self, name, size, shared):
        import numpy

        data = numpy.ones(size, numpy.uint8)
        run = self._offer if self._is_sender else self._read
        return lambda: run(data)

    def _offer(self, data):
        self._tell([os.getpid(), data.ctypes.data])
        self._hear()

    def _read(self, data):
        process, address = self._hear()
        own = IoVector(data.ctypes.data, data.size)
        theirs = IoVector(address, data.size)
        done = ctypes.CDLL(None, use_errno=True).process_vm_readv(
            process, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0
        )
        if done != data.size:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        self._tell("done")


RANKS = {
    "shm": PaddleRank,
    "shm between machines": MachineRank,
    "gloo": PaddleRank,
    "torch": TorchRank,
    "readv": DirectRead,
    "memcpy": Copy,
}


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
    member = RANKS[library]()
    print(json.dumps(member.version), file=answers, flush=True)
    for line in sys.stdin:
        name, count, shared, rounds = json.loads(line)
        operation = member.operation(name, count, shared)
        seconds = []
        member.barrier()
        # The first round warms the caches, and is not counted.
        for _ in range(rounds + 1):
            start = time.perf_counter()
            operation()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds[1:]), file=answers, flush=True)


if __name__ == "__main__":
    main()
