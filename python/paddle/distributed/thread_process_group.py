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
"""The operations of groups whose ranks are threads of one process."""

from __future__ import annotations

import math
import operator
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

import paddle
from paddle.base import core

from .exact_operators import exact_operators
from .python_process_group import (
    PythonProcessGroup,
    enforce_dense,
    enforce_not_forked,
    longest_wait,
)

if TYPE_CHECKING:
    import datetime

    from paddle import Tensor
    from paddle.base.core import Place

__all__ = []

# How often a waiting rank checks whether the missing threads are alive.
_POLL_S = 0.02
_FUNCTIONS = {
    core.ReduceOp.SUM: "add",
    core.ReduceOp.MAX: "maximum",
    core.ReduceOp.MIN: "minimum",
}

# Data types with MAX and MIN kernels, and float16, which is cast to float32.
_COMPARED_TYPES = (
    paddle.float16,
    paddle.bfloat16,
    paddle.float32,
    paddle.float64,
    paddle.int32,
    paddle.int64,
)


def new_process_groups(nranks: int, timeout: float) -> list[ThreadProcessGroup]:
    """Creates a thread group, one object per rank.

    Args:
        nranks: the number of threads.
        timeout: the number of seconds that an operation waits for other ranks.
    """
    exchange = _Exchange(nranks, timeout)
    return [ThreadProcessGroup(rank, exchange) for rank in range(nranks)]


class _Operation:
    """An operation that all ranks call.

    Attributes:
        call (str): the call of the first rank to arrive, which all other ranks
            must match.
        first_rank (int): the first rank to arrive.
        arrived (set): the ranks that have arrived.
        waiting (dict): parts that wait for their neighbour in the tree. A key
            is the first rank of the left part and the number of its ranks.
        result: the result for all ranks, once `is_done`.
    """

    def __init__(self, call: str, first_rank: int):
        self.call = call
        self.first_rank = first_rank
        self.arrived: set[int] = set()
        self.waiting: dict[tuple[int, int], Any] = {}
        self.result: Any = None
        self.is_done = False


class _Exchange:
    """The shared state of a group's threads. Thread-safe.

    The first failure fails the whole group, because ranks may then be at
    different operations.
    """

    def __init__(self, size: int, timeout: float):
        self.size = size
        self.timeout = timeout
        # A child of a fork has none of the other threads, and the lock below
        # may be locked in it.
        self.process = os.getpid()
        # Guards the members below and all operations.
        self._changed = threading.Condition()
        # The key counts the operations of a rank.
        self._operations: dict[int, _Operation] = {}
        self._threads: list[threading.Thread | None] = [None] * size
        self._error: str | None = None

    def begin(self, rank: int, number: int, call: str) -> _Operation:
        """Returns operation `number`, after adding `rank` to its ranks."""
        with self._changed:
            self._raise_error()
            thread = threading.current_thread()
            # The first caller is the rank. Later ones may be threads of its
            # communication hook, which may end before the rank.
            first = self._threads[rank] = self._threads[rank] or thread
            if first is not thread and not first.is_alive():
                self._fail(
                    f"Thread {thread.name!r} called {call} as rank {rank}, but "
                    f"that rank was thread {first.name!r}, which has ended. "
                    "Create new groups for new threads."
                )
            found = self._operations.setdefault(number, _Operation(call, rank))
            if found.call != call:
                self._fail(
                    f"Rank {found.first_rank} called {found.call}, but rank "
                    f"{rank} called {call}. All ranks must call the same "
                    "operations in the same order."
                )
            found.arrived.add(rank)
            if len(found.arrived) == self.size:
                del self._operations[number]
            return found

    def combine(
        self,
        found: _Operation,
        rank: int,
        part: Any,
        function: Callable[[Any, Any], Any],
    ) -> None:
        """Combines this rank's part with its neighbours in the tree.

        Of two neighbours, the thread that arrives later combines their parts.
        The last thread stores the result.
        """
        begin, width = rank, 1
        while width < self.size:
            left = begin - begin % (2 * width)
            if left + width < self.size:
                key = left, width
                with self._changed:
                    if key not in found.waiting:
                        found.waiting[key] = part
                        return
                    other = found.waiting.pop(key)
                # Without the lock: both parts now belong to this thread alone,
                # and a rank does not change its tensor before the operation is
                # complete.
                is_left = begin == left
                part = (
                    function(part, other) if is_left else function(other, part)
                )
            begin, width = left, 2 * width
        with self._changed:
            found.result, found.is_done = part, True
            self._changed.notify_all()

    def wait(self, found: _Operation, seconds: float) -> bool:
        """Returns whether the operation completes within `seconds`."""
        # Imported here, because importing Paddle must not load this module.
        from paddle.incubate.multiprocessing.worker_thread import (
            Waiters,
            wait_for,
        )

        start = time.monotonic()
        with self._changed:
            while not self.is_done(found, start + self.timeout):
                # Raises in a worker thread that is asked to stop.
                wait_for(Waiters(), lambda: True)
                remaining = start + seconds - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(min(_POLL_S, remaining))
            return True

    def is_done(self, found: _Operation, deadline: float = math.inf) -> bool:
        """Returns whether the operation is complete; raises if it failed."""
        with self._changed:
            if found.is_done:
                return True
            self._raise_error()
            self._check_missing(found, deadline)
            return False

    def fail(self, error: str) -> None:
        """Fails the group: all ranks' operations raise its first error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _fail(self, error: str) -> None:
        self.fail(error)
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)

    def _check_missing(self, found: _Operation, deadline: float) -> None:
        missing = sorted(set(range(self.size)) - found.arrived)
        for rank in missing:
            thread = self._threads[rank]
            if thread is not None and not thread.is_alive():
                self._fail(
                    f"Rank {rank} (thread {thread.name!r}) has ended, but "
                    f"other ranks wait for it in {found.call}. Find out why "
                    "it ended, and restart all threads with new groups."
                )
        if missing and time.monotonic() > deadline:
            self._fail(
                f"Ranks {missing} did not call {found.call} within "
                f"{self.timeout} s. Give all ranks the same number of steps, "
                "or create the groups with a longer timeout."
            )


class ThreadProcessGroup(PythonProcessGroup):
    """The operations of one rank. One thread at a time may call them.

    An operation may read its tensor until its task's `wait` returns; `wait`
    writes the result into it.
    """

    _kind = "A thread group"
    _how_to_fix = (
        "Use all_reduce, broadcast, all_gather, gather, scatter or barrier, or "
        "start processes with paddle.distributed.spawn."
    )

    def __init__(self, rank: int, exchange: _Exchange):
        self._rank = rank
        self._exchange = exchange
        self._number = 0

    def name(self) -> str:
        return "THREAD"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._exchange.size

    def timeout(self) -> float:
        return self._exchange.timeout

    def all_reduce(
        self,
        tensor: Tensor,
        op: Any = core.ReduceOp.SUM,
        sync_op: bool = False,
    ) -> _Task:
        """Reduces tensors; 16-bit types are reduced as float32."""
        if op not in _FUNCTIONS:
            raise ValueError(
                f"{self._kind} cannot reduce with {op}. Use SUM, MAX or MIN."
            )
        enforce_dense(self._kind, tensor)
        if op != core.ReduceOp.SUM and tensor.dtype not in _COMPARED_TYPES:
            raise ValueError(
                f"{self._kind} cannot reduce {tensor.dtype} with {op.name}. "
                "Cast the tensor to int32, for example."
            )
        function = getattr(paddle, _FUNCTIONS[op])
        place, part = tensor.place, tensor
        if tensor.dtype in (paddle.float16, paddle.bfloat16):
            with exact_operators():
                part = tensor.astype("float32")

        def combine(one: Tensor, other: Tensor) -> Tensor:
            return _completed(
                function(_moved(one, place), _moved(other, place))
            )

        def take(total: Tensor) -> None:
            if part is not tensor:
                total = _moved(total, place).astype(tensor.dtype)
            tensor.copy_(total, True)

        return self._start(
            f"all_reduce ({op.name}) of {_description(tensor)}",
            _completed(part),
            combine,
            take,
            sync_op,
        )

    allreduce = all_reduce

    def broadcast(
        self, tensor: Tensor, source: int, sync_op: bool = False
    ) -> _Task:
        enforce_dense(self._kind, tensor)
        return self._start(
            f"broadcast from rank {source} of {_description(tensor)}",
            _copied(tensor) if self._rank == source else None,
            _part_of_source,
            lambda value: tensor.copy_(value, True),
            sync_op,
        )

    def scatter(
        self, output: Tensor, tensors: list[Tensor], source: int, sync_op: bool
    ) -> _Task:
        call = f"scatter from rank {source} of {_description(output)}"
        parts = None
        enforce_dense(self._kind, output)
        if self._rank == source:
            self._enforce_one_per_rank(call, tensors, output)
            parts = [_copied(tensor) for tensor in tensors]
        return self._start(
            call,
            parts,
            _part_of_source,
            lambda parts: output.copy_(parts[self._rank], True),
            sync_op,
        )

    def gather(
        self,
        tensor: Tensor,
        outputs: list[Tensor],
        destination: int,
        sync_op: bool,
        use_calc_stream: bool = False,
    ) -> _Task:
        if use_calc_stream:
            self._refuse_stream("gather")
        call = f"gather to rank {destination} of {_description(tensor)}"
        enforce_dense(self._kind, tensor)
        if self._rank == destination:
            self._enforce_one_per_rank(call, outputs, tensor)
        else:
            # Paddle passes the rank's own tensor as each output.
            outputs = []
        return self._gather(call, tensor, _into(outputs), sync_op)

    def _all_gather_into_list(
        self, outputs: list[Tensor], tensor: Tensor, sync_op: bool
    ) -> _Task:
        call = f"all_gather of {_description(tensor)}"
        enforce_dense(self._kind, tensor)
        self._enforce_one_per_rank(call, outputs, tensor)
        return self._gather(call, tensor, _into(outputs), sync_op)

    def all_gather_into_tensor(
        self, output: Tensor, tensor: Tensor, sync_op: bool
    ) -> _Task:
        def take(values: list[Tensor]) -> None:
            joined = paddle.stack([_moved(v, output.place) for v in values])
            output.copy_(joined.reshape(output.shape), True)

        call = f"all_gather of {_description(tensor)}"
        enforce_dense(self._kind, tensor, output)
        expected = tensor.dtype, tensor.size * self.size()
        if (output.dtype, output.size) != expected:
            raise ValueError(
                f"{call} got an output of {_description(output)}. Pass an "
                f"output of that type with {expected[1]} elements."
            )
        return self._gather(call, tensor, take, sync_op)

    def barrier(self, device_id: int = -1) -> _Task:
        return self._start(
            "barrier", None, lambda *parts: None, lambda result: None, True
        )

    def _enforce_one_per_rank(
        self, call: str, tensors: list[Tensor], like: Tensor
    ) -> None:
        enforce_dense(self._kind, *tensors)
        found = [_description(tensor) for tensor in tensors]
        if found != [_description(like)] * self.size():
            raise ValueError(
                f"{call} got the tensors {found}. Pass one tensor of that "
                f"type and shape for each of the {self.size()} ranks."
            )

    def _gather(
        self,
        call: str,
        tensor: Tensor,
        take: Callable[[list[Tensor]], None],
        sync_op: bool,
    ) -> _Task:
        return self._start(
            call,
            [_copied(tensor)],
            operator.add,
            take,
            sync_op,
        )

    def _start(
        self,
        call: str,
        part: Any,
        combine: Callable[[Any, Any], Any],
        take: Callable[[Any], None],
        sync_op: bool,
    ) -> _Task:
        enforce_not_forked(self._exchange.process)
        try:
            # In `try`: the other ranks wait forever for a rank that has begun.
            found = self._exchange.begin(self._rank, self._number, call)
            self._number += 1
            with exact_operators():
                self._exchange.combine(found, self._rank, part, combine)
        except BaseException as error:
            self._exchange.fail(
                f"Rank {self._rank} failed in {call}: {error!r}"
            )
            raise
        return _Task(self._exchange, found, take, sync_op)


class _Task:
    """A rank's operation, which completes when it is waited for."""

    def __init__(
        self,
        exchange: _Exchange,
        operation: _Operation,
        take: Callable[[Any], None],
        sync_op: bool,
    ):
        self._exchange = exchange
        self._operation = operation
        self._take: Callable[[Any], None] | None = take
        self._sync_op = sync_op

    def wait(self, timeout: datetime.timedelta | float | None = None) -> bool:
        """Returns whether the operation is complete; raises if it failed.

        After a timeout the operation continues. A timeout of zero means no
        timeout, as with processes.
        """
        enforce_not_forked(self._exchange.process)
        seconds = longest_wait(timeout)
        if self._take is not None:
            if not self._exchange.wait(self._operation, seconds):
                return False
            self._end()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        enforce_not_forked(self._exchange.process)
        if self._take is not None and self._exchange.is_done(self._operation):
            self._end()
        return self._take is None

    def is_sync(self) -> bool:
        return self._sync_op

    def _end(self) -> None:
        with exact_operators():
            self._take(self._operation.result)
        self._take = None


def _part_of_source(one: Any, other: Any) -> Any:
    """Returns the source's part; the parts of other ranks are None."""
    return other if one is None else one


def _into(outputs: list[Tensor]) -> Callable[[list[Tensor]], None]:
    """Returns a function that copies gathered values into `outputs`."""

    def take(values: list[Tensor]) -> None:
        for output, value in zip(outputs, values):
            output.copy_(value, True)

    return take


def _description(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {list(tensor.shape)}"


def _moved(tensor: Tensor, place: Place) -> Tensor:
    return tensor if tensor.place == place else tensor._copy_to(place, True)


def _copied(tensor: Tensor) -> Tensor:
    """Returns a complete copy, which other threads may read on any stream."""
    return tensor._copy_to(tensor.place, True)


def _completed(tensor: Tensor) -> Tensor:
    """Returns a complete tensor, which other threads may read on any stream.

    On a device it is a copy, which waits for the work that computes the tensor.
    """
    if tensor.place.is_cpu_place():
        return tensor
    return _copied(tensor)
