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
"""A group whose ranks are on several machines: they communicate through shared
memory inside a machine, and one rank per machine, its leader, by gloo.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Callable, NamedTuple

import numpy as np

import paddle
from paddle.base.core import ReduceOp

from .python_process_group import PythonProcessGroup

if TYPE_CHECKING:
    import datetime

    from paddle import Tensor
    from paddle.base.core import ProcessGroup

# Types that gloo reduces, and those that it does not, which are reduced as
# float32: its sums of float16 are infinite.
_REDUCED_TYPES = (
    paddle.float32,
    paddle.float64,
    paddle.int32,
    paddle.int64,
    paddle.uint8,
)
_HALF_TYPES = (paddle.float16, paddle.bfloat16)
# What ranks tell each other about an operation, or of two that differ.
_TEXT_BYTES = 512
_DIFFERENCE = "Ranks called different operations: "


class Topology(NamedTuple):
    """Which ranks are on which machine; leaders are the first of each."""

    machines: list[list[int]]
    machine: int  # of this rank

    @classmethod
    def of(cls, names: list[str], rank: int) -> Topology:
        """Returns that of ranks whose machines have the names."""
        machines: dict[str, list[int]] = {}
        for other, name in enumerate(names):
            machines.setdefault(name, []).append(other)
        return cls(list(machines.values()), list(machines).index(names[rank]))

    def ranks_here(self) -> list[int]:
        return self.machines[self.machine]

    def leaders(self) -> list[int]:
        return [ranks[0] for ranks in self.machines]

    def locate(self, rank: int) -> tuple[int, int]:
        """Returns a rank's machine and its index on it."""
        for machine, ranks in enumerate(self.machines):
            if rank in ranks:
                return machine, ranks.index(rank)
        raise ValueError(
            f"There is no rank {rank} in a group of "
            f"{sum(map(len, self.machines))} ranks. Pass one of its ranks."
        )


def _enforce_not_forked(process: int) -> None:
    if os.getpid() != process:
        raise RuntimeError(
            f"This process was forked from process {process}, which has joined "
            "the group; a forked process is no rank of it. Communicate in the "
            "parent, or start ranks by paddle.distributed.spawn."
        )


class Task:
    """An operation under way, or one that has ended."""

    def __init__(self, sync_op: bool):
        self._process = os.getpid()
        self._sync_op = sync_op
        self._ended = threading.Event()
        self._failure: str | None = None

    def end(self, failure: str | None) -> None:
        self._failure = failure
        self._ended.set()

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_sync(self) -> bool:
        return self._sync_op

    def wait(self, timeout: datetime.timedelta | None = None) -> bool:
        """
        Returns whether the operation has ended, and raises its error. After the
        timeout it goes on; one of zero is none, as with other groups.
        """
        _enforce_not_forked(self._process)
        seconds = timeout.total_seconds() if timeout else None
        if not self._ended.wait(seconds):
            return False
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return True

    def synchronize(self) -> None:
        self.wait()


def _empty(size: int) -> Tensor:
    return paddle.empty([size], "uint8", device="cpu")


def _bytes_of(tensor: Tensor) -> Tensor:
    """Returns a copy of a tensor, as bytes."""
    # A copy begins at its storage: view forgets where a part of one begins.
    return tensor.clone().reshape([-1]).view("uint8")


def _assign(tensor: Tensor, data: Tensor) -> None:
    """Replaces a tensor by what `_bytes_of` has returned of another one."""
    tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape), False)


def _as_bytes(text: str) -> Tensor:
    data = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
    return paddle.to_tensor(
        np.frombuffer(data, "uint8"), place=paddle.CPUPlace()
    )


def _as_text(data: Tensor) -> str:
    return data.numpy().tobytes().decode(errors="replace").strip()


def _gather_texts(group: ProcessGroup, text: str, size: int) -> list[str]:
    """Returns the text of each of a group's ranks."""
    gathered = _empty(_TEXT_BYTES * size)
    group.all_gather_into_tensor(gathered, _as_bytes(text), True).wait()
    return [_as_text(data) for data in gathered.reshape([size, _TEXT_BYTES])]


def _first_difference(ranks: list[int], texts: list[str]) -> str:
    """Returns a text that says which ranks differ, or the text of all."""
    for rank, text in zip(ranks, texts):
        if text.startswith(_DIFFERENCE):
            return text
        if text != texts[0]:
            return (
                f"{_DIFFERENCE}rank {ranks[0]} called {texts[0]}, but rank "
                f"{rank} called {text}. Let all ranks call the same operations "
                "in the same order, with the same sizes and types."
            )
    return texts[0]


def _enforce_usable(name: str, *tensors: Tensor) -> None:
    for tensor in tensors:
        if not tensor.place.is_cpu_place():
            raise ValueError(
                f"The backend shm cannot {name} a tensor on {tensor.place}: it "
                "works on tensors in host memory. Pass tensor.cpu(), or make a "
                "group with another backend."
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"The backend shm cannot {name} a tensor of shape "
                f"{tensor.shape} that is not contiguous. Pass "
                "tensor.contiguous()."
            )
        if tensor.dtype != tensors[0].dtype:
            raise ValueError(
                f"{name} got tensors of the types {tensors[0].dtype} and "
                f"{tensor.dtype}. Pass tensors of one type."
            )


def _enforce_elements(name: str, larger: Tensor, part: Tensor, parts: int):
    if larger.size != part.size * parts:
        raise ValueError(
            f"{name} got a tensor of {larger.size} elements and one of "
            f"{part.size}. Pass one of {part.size * parts} elements for the "
            "first."
        )


def _enforce_one_per_rank(name: str, tensors: list[Tensor], ranks: int):
    if len(tensors) != ranks:
        raise ValueError(
            f"{name} got a list of {len(tensors)} tensors, but the group has "
            f"{ranks} ranks. Pass one tensor per rank."
        )


def _enforce_reducible(name: str, tensor: Tensor, op: ReduceOp) -> None:
    if tensor.dtype not in _REDUCED_TYPES + _HALF_TYPES:
        raise ValueError(
            f"The backend shm cannot {name} elements of type {tensor.dtype} on "
            "several machines. Cast the tensor to float32 or int64, for "
            "example."
        )
    if op == ReduceOp.AVG and not tensor.is_floating_point():
        raise ValueError(
            f"The backend shm cannot average elements of type {tensor.dtype}. "
            "Cast the tensor to float32, or choose ReduceOp.SUM."
        )


class HierarchicalGroup(PythonProcessGroup):
    """The group of this process.

    Operations run one after the other, in the order of the calls, on a thread
    of the group. The first error fails the group: later operations raise it
    too, and the other ranks of this machine get one at once, because this rank
    leaves. On other machines operations fail when gloo has lost this machine's
    leader, or has waited for it for 30 seconds.

    Args:
        rank: this process's rank.
        topology: where the ranks are.
        local: the group of this machine's ranks.
        leaders: that of the leaders; None unless this rank is one.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        local: ProcessGroup,
        leaders: ProcessGroup | None,
    ):
        self.topology = topology
        self._kind = (
            "A group of the backend shm whose ranks are on several machines, "
            f"here {topology.machines},"
        )
        self._cure = (
            "Make a group of ranks of one machine, or use the backend gloo."
        )
        self._rank = rank
        self._size = sum(map(len, topology.machines))
        self._local = local
        self._leaders = leaders
        self._process = os.getpid()
        self._failure: str | None = None
        self._mutex = threading.Lock()  # with it, nothing follows the last None
        self._left = False
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run_calls, daemon=True)
        self._thread.start()

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def name(self) -> str:
        return "SHM"

    def leave(self) -> None:
        """Ends this rank's part in the group; operations under way fail."""
        if os.getpid() != self._process:
            return
        self._local.leave()
        with self._mutex:
            self._left = True
            self._calls.put(None)
        self._thread.join()

    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp = ReduceOp.SUM,
        sync_op: bool = False,
    ) -> Task:
        _enforce_usable("all_reduce", tensor)
        _enforce_reducible("all_reduce", tensor, op)
        return self._submit(
            f"all_reduce({op.name})",
            tensor,
            lambda: tensor.copy_(self._reduced(tensor, op), False),
            sync_op,
        )

    allreduce = all_reduce

    def reduce(
        self,
        tensor: Tensor,
        dst: int,
        op: ReduceOp = ReduceOp.SUM,
        sync_op: bool = False,
    ) -> Task:
        _enforce_usable("reduce", tensor)
        _enforce_reducible("reduce", tensor, op)
        self.topology.locate(dst)

        def run() -> None:
            result = self._reduced(tensor, op)
            if self._rank == dst:
                tensor.copy_(result, False)

        return self._submit(
            f"reduce({op.name}) to rank {dst}", tensor, run, sync_op
        )

    def reduce_scatter_tensor(
        self, out: Tensor, tensor: Tensor, op: ReduceOp, sync_op: bool
    ) -> Task:
        _enforce_usable("reduce_scatter", out, tensor)
        _enforce_reducible("reduce_scatter", tensor, op)
        _enforce_elements("reduce_scatter", tensor, out, self._size)

        def run() -> None:
            parts = self._reduced(tensor, op).reshape([self._size, -1])
            out.copy_(parts[self._rank].reshape(out.shape), False)

        return self._submit(f"reduce_scatter({op.name})", tensor, run, sync_op)

    def reduce_scatter(
        self, out: Tensor, tensors: list[Tensor], op: ReduceOp, sync_op: bool
    ) -> Task:
        _enforce_usable("reduce_scatter", out, *tensors)
        _enforce_one_per_rank("reduce_scatter", tensors, self._size)
        for part in tensors:
            _enforce_elements("reduce_scatter", part, out, 1)
        joined = paddle.concat([part.reshape([-1]) for part in tensors])
        return self.reduce_scatter_tensor(out, joined, op, sync_op)

    def broadcast(
        self, tensor: Tensor, src: int, sync_op: bool = False
    ) -> Task:
        _enforce_usable("broadcast", tensor)
        machine, index = self.topology.locate(src)

        def run() -> None:
            data = _bytes_of(tensor)
            if machine == self.topology.machine:
                self._local.broadcast(data, index, True).wait()
            if self._leaders is not None:
                self._leaders.broadcast(data, machine, True).wait()
            if machine != self.topology.machine:
                self._local.broadcast(data, 0, True).wait()
            _assign(tensor, data)

        return self._submit(f"broadcast from rank {src}", tensor, run, sync_op)

    def all_gather_into_tensor(
        self, out: Tensor, tensor: Tensor, sync_op: bool
    ) -> Task:
        _enforce_usable("all_gather", out, tensor)
        _enforce_elements("all_gather", out, tensor, self._size)
        return self._submit(
            "all_gather",
            tensor,
            lambda: _assign(out, paddle.concat(self._gathered(tensor))),
            sync_op,
        )

    def _all_gather_into_list(
        self, tensors: list[Tensor], tensor: Tensor, sync_op: bool
    ) -> Task:
        _enforce_usable("all_gather", *tensors, tensor)
        _enforce_one_per_rank("all_gather", tensors, self._size)
        for out in tensors:
            _enforce_elements("all_gather", out, tensor, 1)

        def run() -> None:
            for out, data in zip(tensors, self._gathered(tensor)):
                _assign(out, data)

        return self._submit("all_gather", tensor, run, sync_op)

    def barrier(self, device_id: int = -1) -> Task:
        return self._submit("barrier", _empty(0), self._meet, True)

    def _submit(
        self, name: str, tensor: Tensor, operation: Callable, sync_op: bool
    ) -> Task:
        _enforce_not_forked(self._process)
        task = Task(sync_op)
        description = f"{name} of {tensor.size} elements of {tensor.dtype}"
        if tensor.size == 0:
            operation = self._meet
        with self._mutex:
            if self._left:
                raise RuntimeError(
                    f"Rank {self._rank} has left the group, by "
                    "destroy_process_group or at exit. Make a new group with "
                    "paddle.distributed.new_group."
                )
            self._calls.put((task, description, operation))
        if sync_op:
            task.wait()
        return task

    @paddle.no_grad()
    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            task, description, operation = call
            if self._failure is None:
                try:
                    self._agree(description)
                    operation()
                except Exception as error:
                    self._fail(description, error)
            # What it holds ends first: a caller who has waited finds its
            # tensors free.
            del call, operation
            task.end(self._failure)

    def _fail(self, description: str, error: Exception) -> None:
        self._failure = (
            f"{description} failed on rank {self._rank}, whose machine has the "
            f"ranks {self.topology.ranks_here()}, numbered from 0 in what "
            f"follows: {error}"
        )
        # So that the other ranks of this machine need not wait.
        self._local.leave()

    def _agree(self, description: str) -> None:
        """
        Raises an error on all ranks if two call different operations: gloo ends
        the process when sizes differ, and a machine's ranks would get results
        of another operation.
        """
        here = self.topology.ranks_here()
        text = _first_difference(
            here, _gather_texts(self._local, description, len(here))
        )
        if self._leaders is not None:
            leaders = self.topology.leaders()
            text = _first_difference(
                leaders, _gather_texts(self._leaders, text, len(leaders))
            )
        data = _as_bytes(text)
        self._local.broadcast(data, 0, True).wait()
        text = _as_text(data)
        if text.startswith(_DIFFERENCE):
            raise RuntimeError(text)

    def _reduced(self, tensor: Tensor, op: ReduceOp) -> Tensor:
        """Returns the reduction over all ranks; the same on each."""
        if tensor.dtype in _HALF_TYPES:
            total = tensor.astype("float32")
        else:
            total = tensor.clone()
        inner = ReduceOp.SUM if op == ReduceOp.AVG else op
        self._local.reduce(total, 0, inner, True).wait()
        if self._leaders is not None:
            self._leaders.all_reduce(total, inner, True).wait()
            if op == ReduceOp.AVG:
                divisor = paddle.full_like(total, self._size)
                total = total.divide(divisor)
        self._local.broadcast(total, 0, True).wait()
        return total.astype(tensor.dtype)

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        """Returns the bytes of each rank's tensor."""
        data = _bytes_of(tensor)
        machines = self.topology.machines
        largest = max(map(len, machines))
        everything = _empty(len(machines) * largest * data.size)
        # Gloo gathers the same size from each.
        here = _empty(largest * data.size)
        of_machine = _empty(len(self.topology.ranks_here()) * data.size)
        self._local.all_gather_into_tensor(of_machine, data, True).wait()
        if self._leaders is not None:
            here[: of_machine.size] = of_machine
            self._leaders.all_gather_into_tensor(everything, here, True).wait()
        self._local.broadcast(everything, 0, True).wait()
        rows = everything.reshape([len(machines), largest, data.size])
        places = map(self.topology.locate, range(self._size))
        return [rows[machine, index].clone() for machine, index in places]

    def _meet(self) -> None:
        self._local.barrier().wait()
        if self._leaders is not None:
            self._leaders.barrier().wait()
        self._local.barrier().wait()
