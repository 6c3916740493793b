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
"""A group whose ranks are on several machines. The ranks of a machine
communicate through shared memory. One rank per machine, its leader,
communicates with the other leaders through gloo. A send between machines uses
a connection of the two ranks.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import os
import queue
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import numpy as np

import paddle
from paddle.base.core import ReduceOp

from .leader_links import LONGEST_CALL_S, LinkError
from .python_process_group import (
    PythonProcessGroup,
    Task,
    enforce_dense,
    enforce_not_forked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paddle import Tensor
    from paddle.base.core import ProcessGroup

    from .leader_links import LeaderLinks
    from .machine_transfers import MachineTransfers

# Types that gloo reduces, and types that are reduced as float32 because gloo's
# sums of float16 are infinite.
_REDUCED_TYPES = (
    paddle.float32,
    paddle.float64,
    paddle.int32,
    paddle.int64,
    paddle.uint8,
)
_HALF_TYPES = (paddle.float16, paddle.bfloat16)
# Types that gloo does not reduce. Leaders exchange their machines' results.
_COMPLEX_TYPES = (paddle.complex64, paddle.complex128)
_EXCHANGED_TYPES = (paddle.bool, paddle.int8, paddle.int16, *_COMPLEX_TYPES)
# The size of the texts about operations that ranks exchange. A text that begins
# with the failure mark says why the operation fails on all ranks.
_TEXT_BYTES = 1024
_FAILURE = "!"
# A leader sends this text once per interval until all ranks of its machine have
# arrived at an operation: gloo waits 30 seconds at most, and a leader that
# waits for its own ranks does not watch the other leaders meanwhile.
_NOT_YET = "?"
_LONGEST_INTERVAL = datetime.timedelta(seconds=0.5)

# In an error text of a machine's group: why one of its ranks has failed, with
# rank numbers of the whole group. The group keeps the first 1015 bytes.
_REASON = re.compile("\x02(.*)\x03", re.DOTALL)
_REASON_BYTES = 1000
# A rank in the error texts of a machine's group.
_RANK = re.compile(r"\b([Rr]ank |root )(\d+)\b")


class Topology(NamedTuple):
    """The ranks of each machine. The first one of a machine is its leader."""

    machines: list[list[int]]
    machine: int  # of this rank

    @classmethod
    def of(cls, names: list[str], rank: int) -> Topology:
        """Returns the topology of ranks, given the machine name of each."""
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
            f"Rank {rank} is not in this group of "
            f"{sum(map(len, self.machines))} ranks. Pass one of its ranks."
        )


class TransferTask:
    """A send or a receive between two ranks of a machine."""

    def __init__(
        self,
        task: Any,
        naming_ranks: Callable[[], contextlib.AbstractContextManager],
    ):
        self._task = task
        self._naming_ranks = naming_ranks

    def is_completed(self) -> bool:
        return self._task.is_completed()

    def is_sync(self) -> bool:
        return self._task.is_sync()

    def wait(self, timeout: datetime.timedelta | float | None = None) -> bool:
        """Like `Task.wait`."""
        with self._naming_ranks():
            return self._task.wait(timeout or datetime.timedelta(0))

    def synchronize(self) -> None:
        self.wait()


def _empty(size: int) -> Tensor:
    return paddle.empty([size], "uint8", device="cpu")


def _bytes_of(tensor: Tensor) -> Tensor:
    """Returns a copy of a tensor, as bytes."""
    # Copy first: view ignores the offset of a tensor in its storage.
    return tensor.clone().reshape([-1]).view("uint8")


def _joined_bytes_of(tensors: list[Tensor]) -> Tensor:
    return paddle.concat([_bytes_of(tensor) for tensor in tensors])


def _assign(tensor: Tensor, data: Tensor) -> None:
    """Overwrites a tensor with the result of `_bytes_of` for another tensor."""
    tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape), False)


def _as_bytes(text: str) -> Tensor:
    data = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES)
    return paddle.to_tensor(
        np.frombuffer(data, "uint8"), place=paddle.CPUPlace()
    )


def _as_text(data: Tensor) -> str:
    return data.numpy().tobytes().decode(errors="replace").strip()


def _as_reason(text: str) -> str:
    """Returns a text that `_REASON` finds in an error."""
    kept = text.encode()[:_REASON_BYTES].decode(errors="ignore")
    return f"\x02{kept}\x03"


def _begin_to_gather(
    group: ProcessGroup, text: str, size: int, sync_op: bool
) -> tuple[Tensor, Any]:
    """Begins to gather one text from each rank of a group."""
    gathered = _empty(_TEXT_BYTES * size)
    task = group.all_gather_into_tensor(gathered, _as_bytes(text), sync_op)
    return gathered, task


def _texts_of(gathered: Tensor) -> list[str]:
    return [_as_text(data) for data in gathered.reshape([-1, _TEXT_BYTES])]


def _combined(ranks: list[int], texts: list[str]) -> str:
    """
    Returns a failure text if there is one, else _NOT_YET if a rank sent it,
    else the common text of all ranks, or a failure text if they differ.
    """
    for text in texts:
        if text.startswith(_FAILURE):
            return text
    if _NOT_YET in texts:
        return _NOT_YET
    for rank, text in zip(ranks, texts):
        if text != texts[0]:
            return (
                f"{_FAILURE}Ranks called different operations: rank {ranks[0]} "
                f"called {texts[0]}, but rank {rank} called {text}. All ranks "
                "must call the same operations in the same order, with the "
                "same sizes and types."
            )
    return texts[0]


class _GroupError(RuntimeError):
    """An error whose text uses rank numbers of the whole group."""


class _SharedError(_GroupError):
    """An error that all leaders get without being notified by this one."""


def _raise_failure(text: str) -> None:
    if text.startswith(_FAILURE):
        raise _SharedError(text[len(_FAILURE) :])


def _enforce_usable(name: str, *tensors: Tensor) -> None:
    enforce_dense("The backend shm", *tensors)
    for tensor in tensors:
        if not tensor.place.is_cpu_place():
            raise ValueError(
                f"The backend shm cannot {name} a tensor on {tensor.place}: it "
                "works on tensors in host memory. Pass tensor.cpu(), or use a "
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
                f"{tensor.dtype}. Pass tensors of the same type."
            )


def _enforce_elements(
    name: str, larger: Tensor, part: Tensor, parts: int
) -> None:
    if larger.size != part.size * parts:
        raise ValueError(
            f"{name} got a tensor of {larger.size} elements and a tensor of "
            f"{part.size} elements. The first must have {part.size * parts} "
            "elements."
        )


def _enforce_one_per_rank(name: str, tensors: list[Tensor], ranks: int) -> None:
    if len(tensors) != ranks:
        raise ValueError(
            f"{name} got a list of {len(tensors)} tensors, but the group has "
            f"{ranks} ranks. Pass one tensor per rank."
        )


def _enforce_list(
    name: str, tensors: list[Tensor], like: Tensor, ranks: int
) -> None:
    """Raises unless there is one tensor per rank like this rank's."""
    _enforce_one_per_rank(name, tensors, ranks)
    _enforce_usable(name, like, *tensors)
    for tensor in tensors:
        _enforce_elements(name, tensor, like, 1)


def _counts_per_rank(tensor: Tensor, rows: list[int], ranks: int) -> list[int]:
    """Returns how many elements the rows of each rank have.

    Args:
        tensor: the rows of all ranks.
        rows: how many of the rows belong to each rank; equally many if empty.
        ranks: the number of ranks.
    """
    total = tensor.shape[0] if tensor.shape else 1
    if not rows:
        if total % ranks != 0:
            raise ValueError(
                f"alltoall got a tensor of {total} rows, which cannot be "
                f"divided equally among {ranks} ranks. Pass the number of rows "
                "of each rank."
            )
        rows = [total // ranks] * ranks
    if len(rows) != ranks or sum(rows) != total or min(rows) < 0:
        raise ValueError(
            f"alltoall got a tensor of {total} rows and the sizes {rows}. Pass "
            f"one size, not negative, for each of the {ranks} ranks; their sum "
            "must be the number of rows."
        )
    return [count * tensor.size // max(total, 1) for count in rows]


def _enforce_matching_counts(
    sent: list[list[int]], received: list[list[int]]
) -> None:
    """Raises the same error on all ranks if one of them sends another number of
    elements than the receiver expects."""
    for sender, counts in enumerate(sent):
        for receiver, count in enumerate(counts):
            expected = received[receiver][sender]
            if count != expected:
                raise _SharedError(
                    f"In alltoall, rank {sender} sends {count} elements to rank"
                    f" {receiver}, which expects {expected}. Pass an output on "
                    f"rank {receiver} with the size of what rank {sender} "
                    "sends."
                )


def _enforce_reducible(name: str, tensor: Tensor, op: ReduceOp) -> None:
    if tensor.dtype not in _REDUCED_TYPES + _HALF_TYPES + _EXCHANGED_TYPES:
        raise NotImplementedError(
            f"The backend shm cannot {name} elements of type {tensor.dtype}. "
            "Cast the tensor to float32, for example."
        )
    is_complex = tensor.dtype in _COMPLEX_TYPES
    if op == ReduceOp.AVG and not (tensor.is_floating_point() or is_complex):
        raise ValueError(
            f"The backend shm cannot average elements of type {tensor.dtype}. "
            "Cast the tensor to float32, or choose ReduceOp.SUM."
        )
    if op in (ReduceOp.MAX, ReduceOp.MIN) and is_complex:
        raise ValueError(
            f"The backend shm cannot compute the {op.name} of elements of type "
            f"{tensor.dtype}, which have no order. Pass tensor.abs(), for "
            "example, or choose ReduceOp.SUM."
        )


def _divide(total: Tensor, divisor: int) -> None:
    """Divides a tensor in place, rounded like a division."""
    if total.dtype in _COMPLEX_TYPES:
        # A division by a complex number would round several times.
        parts = paddle.as_real(total)
        _divide(parts, divisor)
        total.copy_(paddle.as_complex(parts), False)
    elif divisor & (divisor - 1) == 0:
        # The inverse of a power of two is exact, and scale_ is much faster.
        total.scale_(1 / divisor)
    else:
        # On the CPU, like the tensor: the current device may be another one.
        total.divide_(paddle.full([], divisor, total.dtype, device="cpu"))


def _multiply_complex(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiplies complex numbers as the group of one machine does.

    np.multiply may round differently on other processors.
    """
    product = np.empty_like(a)
    product.real = a.real * b.real - a.imag * b.imag
    product.imag = a.real * b.imag + a.imag * b.real
    return product


def _combine(parts: list[np.ndarray], op: ReduceOp) -> np.ndarray:
    """Returns the reduction of arrays of one of the exchanged types. Integers
    wrap around; the sum of booleans is or, and their product is and."""
    if op == ReduceOp.PRODUCT and np.iscomplexobj(parts[0]):
        return functools.reduce(_multiply_complex, parts)
    functions = {
        ReduceOp.SUM: np.add,
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MAX: np.maximum,
        ReduceOp.MIN: np.minimum,
    }
    return functools.reduce(functions[op], parts)


def _no_operation() -> None:
    """Does nothing: agreeing on an operation has already synchronized ranks."""


class HierarchicalGroup(PythonProcessGroup):
    """One rank of a group whose ranks are on several machines.

    A send or a receive is one of this machine's group, or uses a connection to
    the other machine's rank, so it does not wait for other operations. These
    run one at a time, in call order, on a group thread.
    The first error fails the group: later operations raise it too. The other
    ranks of this machine get it immediately, because this rank aborts the local
    group. Operations on other machines fail when this machine's leader
    reports the failure, reports that it leaves, or dies.

    Leaders exchange texts repeatedly, also between operations, until the texts
    of all leaders say that their machines' ranks have arrived at an operation.
    So a gloo call waits only for leaders that are stopped, not for late ranks.

    Args:
        rank: this process's rank.
        topology: which ranks are on which machine.
        local: the group of this machine's ranks.
        leaders: the group of the leaders; None if this rank is not a leader.
        links: this leader's connections to the others; None like `leaders`.
        transfers: the sends and receives between this rank and other machines.
        timeout: how long an operation waits for other ranks.
    """

    def __init__(
        self,
        rank: int,
        topology: Topology,
        local: ProcessGroup,
        leaders: ProcessGroup | None,
        links: LeaderLinks | None,
        transfers: MachineTransfers,
        timeout: datetime.timedelta,
    ):
        self.topology = topology
        self._kind = (
            "A group of the backend shm whose ranks are on several machines, "
            f"here {topology.machines},"
        )
        self._how_to_fix = (
            "Create a group within one machine, or use the backend gloo."
        )
        self._rank = rank
        self._size = sum(map(len, topology.machines))
        self._local = local
        self._leaders = leaders
        self._links = links
        self._transfers = transfers
        self._timeout = timeout
        self._longest_call = min(timeout.total_seconds(), LONGEST_CALL_S)
        self._interval = min(timeout / 4, _LONGEST_INTERVAL)
        self._process = os.getpid()
        self._failure: str | None = None
        # No lock guards it: a signal handler may call `leave` in `_enqueue`.
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
        """Leaves the group; operations in flight fail.

        A leader waits for the next exchange of texts, in which it reports this.
        """
        if os.getpid() != self._process:
            return
        self._left = True
        # Now the errors of operations in flight can say that this rank left.
        self._local.leave()
        self._transfers.close(self._text_of_leaving())
        self._calls.put(None)
        self._thread.join()

    def send(
        self, tensor: Tensor, dst: int, sync_op: bool = False
    ) -> Task | TransferTask:
        return self._transfer("send", "to", tensor, dst, sync_op)

    def recv(
        self, tensor: Tensor, src: int, sync_op: bool = False
    ) -> Task | TransferTask:
        return self._transfer("recv", "from", tensor, src, sync_op)

    def _transfer(
        self, name: str, way: str, tensor: Tensor, peer: int, sync_op: bool
    ) -> Task | TransferTask:
        """Begins a transfer within this machine or between machines."""
        enforce_not_forked(self._process)
        machine, index = self.topology.locate(peer)
        if peer == self._rank:
            raise ValueError(
                f"{name} got rank {peer}, which is the caller. Pass the rank "
                "of another process."
            )
        if self._failure is not None:
            raise RuntimeError(self._failure)
        if machine != self.topology.machine:
            _enforce_usable(name, tensor)
            return self._transfers.run(name, tensor, peer, sync_op)
        naming_ranks = functools.partial(
            self._naming_ranks, f"{name} {way} rank {peer}"
        )
        with naming_ranks():
            task = getattr(self._local, name)(tensor, index, sync_op)
        return TransferTask(task, naming_ranks)

    @contextlib.contextmanager
    def _naming_ranks(self, call: str) -> Iterator[None]:
        """Replaces errors of this machine's group, whose ranks have other
        numbers there."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if self._failure is not None:
                # The group's thread has left this machine's group.
                text = self._failure
            elif self._left:
                text = self._text_of_leaving()
            else:
                text = (
                    f"{call} failed on rank {self._rank}. "
                    f"{self._with_group_ranks(error)}"
                )
            # An invalid argument does not fail the group.
            kind = ValueError if isinstance(error, ValueError) else RuntimeError
            raise kind(text) from error

    def _with_group_ranks(self, error: Exception) -> str:
        """Returns the text of an error of this machine's group with the ranks
        of the whole group."""
        if (reason := _REASON.search(str(error))) is not None:
            return reason[1]
        here = self.topology.ranks_here()

        def replaced(match: re.Match) -> str:
            index = int(match[2])
            return match[1] + str(here[index] if index < len(here) else index)

        return _RANK.sub(replaced, str(error))

    def all_reduce(
        self,
        tensor: Tensor,
        op: ReduceOp = ReduceOp.SUM,
        sync_op: bool = False,
    ) -> Task:
        _enforce_usable("all_reduce", tensor)
        _enforce_reducible("all_reduce", tensor, op)

        def run() -> None:
            # A leader's call that fails may still run in gloo, so it must not
            # use the tensor, which belongs to the caller again.
            if tensor.dtype in _HALF_TYPES or self._leaders is not None:
                tensor.copy_(self._reduced(tensor, op), False)
            else:
                self._reduce_in_place(tensor, op)

        return self._submit(f"all_reduce({op.name})", tensor, run, sync_op)

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
        joined = paddle.concat([part.reshape([-1]) for part in tensors])
        return self.reduce_scatter_tensor(out, joined, op, sync_op)

    def broadcast(
        self, tensor: Tensor, src: int, sync_op: bool = False
    ) -> Task:
        _enforce_usable("broadcast", tensor)
        machine, index = self.topology.locate(src)

        def run() -> None:
            data = _bytes_of(tensor)
            self._broadcast(data, machine, index)
            _assign(tensor, data)

        return self._submit(f"broadcast from rank {src}", tensor, run, sync_op)

    def scatter(
        self, out: Tensor, tensors: list[Tensor], src: int, sync_op: bool
    ) -> Task:
        """Scatters the tensors of rank `src`; the other ranks' are not used."""
        # The caller may change its list before an asynchronous task runs.
        tensors = list(tensors or ())
        _enforce_usable("scatter", out)
        if self._rank == src:
            _enforce_list("scatter", tensors, out, self._size)
        return self._scatter(
            out, lambda: _joined_bytes_of(tensors), src, sync_op
        )

    def scatter_tensor(
        self, out: Tensor, tensor: Tensor, src: int, sync_op: bool
    ) -> Task:
        """Like `scatter`, but the parts are joined in one tensor."""
        _enforce_usable("scatter", out)
        if self._rank == src:
            _enforce_usable("scatter", out, tensor)
            _enforce_elements("scatter", tensor, out, self._size)
        return self._scatter(out, lambda: _bytes_of(tensor), src, sync_op)

    def _scatter(
        self,
        out: Tensor,
        parts_of: Callable[[], Tensor],
        src: int,
        sync_op: bool,
    ) -> Task:
        """Scatters the bytes of all parts, which `parts_of` returns on rank
        `src`."""
        machine, index = self.topology.locate(src)

        def run() -> None:
            # All ranks get all parts, which is simple, but not the fastest.
            parts = (
                parts_of()
                if self._rank == src
                else _empty(self._size * _bytes_of(out).size)
            )
            self._broadcast(parts, machine, index)
            own = parts.reshape([self._size, -1])[self._rank]
            _assign(out, own.clone())

        return self._submit(f"scatter from rank {src}", out, run, sync_op)

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
        return self._gather_into(tensors, tensor, "all_gather", sync_op)

    def gather(
        self,
        tensor: Tensor,
        tensors: list[Tensor],
        dst: int,
        sync_op: bool,
        use_calc_stream: bool = False,
    ) -> Task:
        """Gathers into the tensors of rank `dst`; others are not changed."""
        if use_calc_stream:
            self._refuse_stream("gather")
        self.topology.locate(dst)
        # All ranks get all parts, as in all_gather.
        mine = tensors if self._rank == dst else None
        return self._gather_into(
            mine, tensor, "gather", sync_op, to=f" to rank {dst}"
        )

    def _gather_into(
        self,
        tensors: list[Tensor] | None,
        tensor: Tensor,
        name: str,
        sync_op: bool,
        to: str = "",
    ) -> Task:
        """Gathers each rank's tensor; into nothing if `tensors` is None."""
        # The caller may change its list before an asynchronous task runs.
        outputs = list(tensors or ())
        _enforce_usable(name, tensor)
        if tensors is not None:
            _enforce_list(name, outputs, tensor, self._size)

        def run() -> None:
            for out, data in zip(outputs, self._gathered(tensor)):
                _assign(out, data)

        return self._submit(f"{name}{to}", tensor, run, sync_op)

    def all_to_all(
        self, outputs: list[Tensor], tensors: list[Tensor], sync_op: bool
    ) -> Task:
        """Sends one tensor to each rank, and receives one from each."""
        # The caller may change its lists before an asynchronous task runs.
        sent, received = list(tensors), list(outputs)
        for parts in (sent, received):
            _enforce_one_per_rank("alltoall", parts, self._size)
        _enforce_usable("alltoall", *sent, *received)

        def store(parts: list[Tensor]) -> None:
            for out, data in zip(received, parts):
                if out.size != 0:
                    _assign(out, data)

        return self._all_to_all(
            sent,
            [part.size for part in sent],
            [part.size for part in received],
            store,
            sync_op,
        )

    def all_to_all_single(
        self,
        out: Tensor,
        tensor: Tensor,
        out_rows: list[int],
        rows: list[int],
        sync_op: bool,
    ) -> Task:
        """Like `all_to_all`, but with the rows of one tensor. Empty lists of
        row numbers mean equal parts."""
        _enforce_usable("alltoall", tensor, out)

        def store(parts: list[Tensor]) -> None:
            if out.size != 0:
                _assign(out, paddle.concat(parts))

        return self._all_to_all(
            [tensor],
            _counts_per_rank(tensor, rows, self._size),
            _counts_per_rank(out, out_rows, self._size),
            store,
            sync_op,
        )

    def all_to_all_tensor(
        self, out: Tensor, tensor: Tensor, sync_op: bool
    ) -> Task:
        return self.all_to_all_single(out, tensor, [], [], sync_op)

    def alltoall(self, tensor: Tensor, out: Tensor) -> Task:
        return self.all_to_all_tensor(out, tensor, False)

    def alltoall_single(
        self,
        tensor: Tensor,
        out: Tensor,
        rows: list[int],
        out_rows: list[int],
    ) -> Task:
        return self.all_to_all_single(out, tensor, out_rows, rows, False)

    def _all_to_all(
        self,
        tensors: list[Tensor],
        sent: list[int],
        received: list[int],
        store: Callable[[list[Tensor]], None],
        sync_op: bool,
    ) -> Task:
        """Sends the elements of the tensors, which are joined.

        Args:
            tensors: this rank's input.
            sent: how many elements to send to each rank.
            received: how many elements each rank sends to this one.
            store: gets the bytes from each rank.
            sync_op: whether to wait.
        """

        def run() -> None:
            sizes = paddle.to_tensor(
                sent + received, "int64", paddle.CPUPlace()
            )
            counts = [
                data.view("int64").tolist() for data in self._gathered(sizes)
            ]
            everyone_sends = [row[: self._size] for row in counts]
            _enforce_matching_counts(
                everyone_sends, [row[self._size :] for row in counts]
            )
            store(self._parts_for_this_rank(tensors, everyone_sends))

        # Not the number of elements, which may differ between ranks.
        return self._enqueue(
            f"alltoall of elements of {tensors[0].dtype}", run, sync_op
        )

    def _parts_for_this_rank(
        self, tensors: list[Tensor], counts: list[list[int]]
    ) -> list[Tensor]:
        """Returns the bytes that each rank sends to this one.

        Args:
            tensors: this rank's input.
            counts: how many elements each rank sends to each other one.
        """
        element = tensors[0].element_size()
        # All ranks get all parts, as in scatter.
        padded = _empty(element * max(map(sum, counts)))
        if padded.size == 0:
            return [_empty(0)] * self._size
        own = [tensor for tensor in tensors if tensor.size != 0]
        if own:
            data = _joined_bytes_of(own)
            padded[: data.size] = data
        parts = []
        for row, sizes in zip(self._gathered_rows(padded), counts):
            begin = element * sum(sizes[: self._rank])
            end = begin + element * sizes[self._rank]
            parts.append(row[begin:end].clone())
        return parts

    def barrier(self, device_id: int = -1) -> Task:
        return self._submit("barrier", _empty(0), _no_operation, True)

    def _submit(
        self, name: str, tensor: Tensor, operation: Callable, sync_op: bool
    ) -> Task:
        if tensor.size == 0:
            operation = _no_operation
        return self._enqueue(
            f"{name} of {tensor.size} elements of {tensor.dtype}",
            operation,
            sync_op,
        )

    def _enqueue(
        self, description: str, operation: Callable, sync_op: bool
    ) -> Task:
        """Runs an operation on the group thread, once all ranks have called
        operations with the same description."""
        enforce_not_forked(self._process)
        task = Task(sync_op)
        if self._left:
            raise RuntimeError(self._text_of_leaving())
        self._calls.put((task, description, operation))
        if self._left:
            # The group thread may have ended without this call.
            self._thread.join()
            if not task.is_completed():
                task.end(self._text_of_leaving())
        if sync_op:
            task.wait()
        return task

    def _text_of_leaving(self) -> str:
        return (
            f"Rank {self._rank} has left the group, through "
            "destroy_process_group or at exit. Create a new group with "
            "paddle.distributed.new_group."
        )

    @paddle.no_grad()
    def _run_calls(self) -> None:
        while (call := self._next_call()) is not None:
            task, description, operation = call
            if self._failure is None:
                try:
                    self._agree(description)
                    operation()
                except Exception as error:
                    self._fail(description, error)
            # Drop the references first, so that after a wait no reference to
            # the caller's tensors remains, unless a gloo call was abandoned.
            del call, operation
            task.end(self._failure)
        if self._links is not None:
            if self._failure is None:
                # Notify the other leaders, so that they need not wait in gloo.
                # They may have exited.
                with contextlib.suppress(_GroupError):
                    self._exchange(
                        f"{_FAILURE}Rank {self._rank} has left the group, "
                        "through destroy_process_group or at exit."
                    )
            self._links.close()

    def _next_call(self) -> tuple[Task, str, Callable] | None:
        while self._leaders is not None and self._failure is None:
            try:
                return self._calls.get(timeout=self._interval.total_seconds())
            except queue.Empty:
                pass
            try:
                texts = self._exchange(_NOT_YET)
                _raise_failure(_combined(self.topology.leaders(), texts))
            except Exception as error:
                self._fail("The group", error)
        return self._calls.get()

    def _fail(self, description: str, error: Exception) -> None:
        reason = error
        if not isinstance(error, _GroupError):
            reason = self._name_ranks(error)
        text = f"{description} failed on rank {self._rank}. {reason}"
        self._failure = (
            f"{text} Fix the cause, then create a new group or start all ranks "
            "again."
        )
        if self._links is not None and not isinstance(error, _SharedError):
            self._links.send_failure(text)
        # Makes the other ranks of this machine fail immediately.
        self._local.abort(_as_reason(text))
        self._local.leave()
        self._transfers.close(self._failure)

    def _name_ranks(self, error: Exception) -> str:
        return (
            f"On the machine of the ranks {self.topology.ranks_here()}: "
            f"{self._with_group_ranks(error)}"
        )

    def _agree(self, description: str) -> None:
        """
        Waits for all ranks. Raises an error on each of them if two ranks call
        different operations. Otherwise gloo would terminate the process if
        sizes differ, and ranks of a machine would get the result of another
        operation.
        """
        if self._leaders is not None:
            text = self._agree_as_leader(description)
        else:
            size = len(self.topology.ranks_here())
            _begin_to_gather(self._local, description, size, True)
            text = _NOT_YET
            while text == _NOT_YET:
                text = self._tell_ranks_here("")
        _raise_failure(text)

    def _agree_as_leader(self, description: str) -> str:
        """Returns the text that the leaders agree on, and sends it to the ranks
        here."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        here, leaders = self.topology.ranks_here(), self.topology.leaders()
        gathered = task = None
        text = agreed = _NOT_YET
        texts: list[str] = []
        ranks_wait = False  # all ranks here have arrived and wait for texts
        while agreed == _NOT_YET:
            try:
                if task is None:
                    # A rank that is alone need not switch threads.
                    gathered, task = _begin_to_gather(
                        self._local, description, len(here), len(here) == 1
                    )
                if ranks_wait:
                    self._tell_ranks_here(_NOT_YET)
                    if time.monotonic() > deadline:
                        text = self._failure_of_late(description, texts)
                elif task.wait(self._interval):
                    ranks_wait = True
                    text = _combined(here, _texts_of(gathered))
            except Exception as error:
                ranks_wait = False
                text = f"{_FAILURE}{self._name_ranks(error)}"
            texts = self._exchange(text, self._longest_call)
            agreed = _combined(leaders, texts)
        if ranks_wait:
            self._tell_ranks_here(agreed)
        return agreed

    def _tell_ranks_here(self, text: str) -> str:
        """Broadcasts the leader's text to its machine's ranks. Returns it."""
        data = _as_bytes(text)
        self._local.broadcast(data, 0, True).wait()
        return _as_text(data)

    def _exchange(
        self, text: str, timeout: float = LONGEST_CALL_S
    ) -> list[str]:
        """Sends this leader's text to the others; returns the text of each."""

        def call() -> Tensor:
            size = len(self.topology.machines)
            gathered, task = _begin_to_gather(self._leaders, text, size, True)
            task.wait()
            return gathered

        return _texts_of(self._run_between(call, timeout))

    def _failure_of_late(self, description: str, texts: list[str]) -> str:
        late = [
            ranks
            for ranks, text in zip(self.topology.machines, texts)
            if text == _NOT_YET
        ]
        return (
            f"{_FAILURE}Rank {self._rank} waited {self._timeout} in "
            f"{description} for the machines with the ranks {late}, which did "
            "not all arrive. Check why one is stopped, slow or in other code, "
            "or pass a longer timeout."
        )

    def _run_between(self, call: Callable[[], Any], timeout: float) -> Any:
        """Runs a call of the leaders' group and returns its result.

        Replaces errors of gloo, which name no rank.
        """
        try:
            return self._links.run(call, timeout)
        except LinkError as error:
            raise _SharedError(str(error)) from error
        except Exception as error:
            raise _GroupError(
                f"The leaders of the machines, ranks {self.topology.leaders()},"
                " have lost contact: one has died, has left the group, or was "
                f"stopped. Look for its error. {error}"
            ) from error

    def _reduced(self, tensor: Tensor, op: ReduceOp) -> Tensor:
        """Returns the reduction over all ranks, the same on each of them."""
        if tensor.dtype in _HALF_TYPES:
            total = tensor.astype("float32")
        else:
            total = tensor.clone()
        self._reduce_in_place(total, op)
        return total.astype(tensor.dtype)

    def _reduce_in_place(self, total: Tensor, op: ReduceOp) -> None:
        """
        Overwrites a tensor on each rank with the reduction over all ranks.
        Requires a type that this machine's group reduces without rounding.
        """
        inner = ReduceOp.SUM if op == ReduceOp.AVG else op
        self._local.reduce(total, 0, inner, True).wait()
        if self._leaders is not None:
            self._reduce_between(total, inner)
            if op == ReduceOp.AVG:
                _divide(total, self._size)
        self._local.broadcast(total, 0, True).wait()

    def _reduce_between(self, total: Tensor, op: ReduceOp) -> None:
        """Overwrites the tensors of the leaders with their reduction."""
        if total.dtype not in _EXCHANGED_TYPES:
            self._run_between(
                lambda: self._leaders.all_reduce(total, op, True).wait(),
                self._timeout.total_seconds(),
            )
            return
        data = _bytes_of(total)
        machines = len(self.topology.machines)
        gathered = self._gathered_between(data, machines * data.size)
        rows = [
            row.clone().view(total.dtype).numpy()
            for row in gathered.reshape([machines, -1])
        ]
        # All leaders combine the same rows in the same order.
        combined = paddle.to_tensor(_combine(rows, op), place=paddle.CPUPlace())
        total.copy_(combined.reshape(total.shape), False)

    def _gathered_between(self, data: Tensor, size: int) -> Tensor:
        """Returns the bytes of all leaders, in a tensor of this size."""
        everything = _empty(size)
        self._run_between(
            lambda: self._leaders.all_gather_into_tensor(
                everything, data, True
            ).wait(),
            self._timeout.total_seconds(),
        )
        return everything

    def _broadcast(self, data: Tensor, machine: int, index: int) -> None:
        """Overwrites bytes with those of a rank, given its machine and its
        index there."""
        if machine == self.topology.machine:
            self._local.broadcast(data, index, True).wait()
        if self._leaders is not None:
            self._run_between(
                lambda: self._leaders.broadcast(data, machine, True).wait(),
                self._timeout.total_seconds(),
            )
        if machine != self.topology.machine:
            self._local.broadcast(data, 0, True).wait()

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        """Returns the bytes of each rank's tensor."""
        rows = self._gathered_rows(_bytes_of(tensor))
        # Copy, because view ignores the offset of a row in its storage.
        return [row.clone() for row in rows]

    def _gathered_rows(self, data: Tensor) -> list[Tensor]:
        """Returns the bytes of each rank, which are parts of one tensor."""
        machines = self.topology.machines
        largest = max(map(len, machines))
        size = len(machines) * largest * data.size
        here = _empty(len(self.topology.ranks_here()) * data.size)
        self._local.all_gather_into_tensor(here, data, True).wait()
        if self._leaders is None:
            everything = _empty(size)
        else:
            # Gloo gathers the same size from each leader.
            padded = _empty(largest * data.size)
            padded[: here.size] = here
            everything = self._gathered_between(padded, size)
        self._local.broadcast(everything, 0, True).wait()
        rows = everything.reshape([len(machines), largest, data.size])
        places = map(self.topology.locate, range(self._size))
        return [rows[machine, index] for machine, index in places]
