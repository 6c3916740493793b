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
"""Groups of the backend shm whose ranks are on several machines. In place of
machines, the tests use processes of one machine that report different machine
names or have their own /dev/shm.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import functools
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from typing import Callable
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, in_threads, wait_for_child, wait_until
from process_group_methods import (
    call_missing_methods,
    check_refusals,
    check_task,
)
from shared_tensor_leaks import shared_files
from shm_group_base import (
    ON_LINUX,
    Error,
    Ranks,
    RanksTestCase,
    join_default_group,
    wait_with_wrong_timeout,
)

import paddle
import paddle.distributed as dist
from paddle.distributed import (
    hierarchical_group,
    leader_links,
    machine_connections,
    python_process_group,
    shared_memory_group,
)
from paddle.distributed.communication.batch_isend_irecv import (
    _coalescing_manager,
)

# The ranks of a machine need not be consecutive, and machines may have
# different numbers of ranks.
MACHINES = ["a", "b", "a", "b", "a"]
CLONE_NEWNS = 0x20000
CLONE_NEWNET = 0x40000000
# The network interface of a rank with its own network.
INTERFACE = "machine"
REDUCED_TYPES = [
    *("float16", "bfloat16", "float32", "float64"),
    *("int32", "int64", "uint8"),
]
MOVED_TYPES = [*REDUCED_TYPES, "bool", "int16", "complex64"]

_exchanged: list[str] = []

# The operation that the last call of `begin` started, and its tensor.
_begun: list = []


def join_on(machines: list[str]) -> None:
    """Joins the default group as if on machines of these names."""
    name = machines[int(os.environ["PADDLE_TRAINER_ID"])]
    with mock.patch.object(shared_memory_group, "machine", lambda: name):
        join_default_group()


def raise_error(*args) -> None:
    raise OSError("no memory is left.")


def kill_this_process(*args) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def join_while_one_fails(
    machines: list[str], failing: int, failure: Callable
) -> None:
    """Joins as if on machines of these names; the failing rank calls `failure`
    when it joins its machine's group."""
    join = shared_memory_group._join_machine
    if int(os.environ["PADDLE_TRAINER_ID"]) == failing:
        join = failure
    with (
        mock.patch.object(shared_memory_group, "_join_machine", join),
        mock.patch.object(
            shared_memory_group, "_SHORTEST_JOIN", datetime.timedelta(seconds=5)
        ),
    ):
        join_on(machines)


def join_and_die_after_publishing(machines: list[str]) -> None:
    with mock.patch.object(shared_memory_group, "_collect", kill_this_process):
        join_on(machines)


def join_where_one_has_no_memory(machines: list[str], failing: int) -> None:
    """Joins as if on machines of these names; the failing rank cannot create
    the memory of its machine's group."""
    if int(os.environ["PADDLE_TRAINER_ID"]) == failing:
        # Limits the size of created files, which includes the group's memory.
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, -1))
    join_on(machines)


def join_where_one_cannot_listen(machines: list[str], failing: int) -> None:
    listener = machine_connections.Listener
    if int(os.environ["PADDLE_TRAINER_ID"]) == failing:
        listener = raise_error
    with mock.patch.object(machine_connections, "Listener", listener):
        join_on(machines)


def numbers_of(rank: int, shape: list[int]) -> np.ndarray:
    """Returns small integers, whose sums are exact in every type."""
    return np.asarray(np.random.RandomState(rank).randint(1, 4, shape))


def mine(dtype: str, shape: list[int]) -> paddle.Tensor:
    return paddle.to_tensor(numbers_of(dist.get_rank(), shape)).astype(dtype)


def as_list(x: paddle.Tensor) -> list:
    return (x.real() if x.is_complex() else x).astype("float64").tolist()


def all_reduce(op: str, dtype: str, shape: list[int]) -> list:
    x = mine(dtype, shape)
    dist.all_reduce(x, getattr(dist.ReduceOp, op))
    return as_list(x)


def all_reduce_bits(size: int) -> bytes:
    x = paddle.to_tensor(
        np.random.RandomState(dist.get_rank()).rand(size).astype("float32")
    )
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x.numpy().tobytes()


def random_values(dtype: str, shape: list[int]) -> paddle.Tensor:
    """Returns any values of the type, different on each rank."""
    random = np.random.RandomState(dist.get_rank())
    data = random.standard_normal([*shape, 2]).astype("float64")
    if dtype.startswith("complex"):
        return paddle.as_complex(paddle.to_tensor(data)).astype(dtype)
    if dtype == "bool":
        return paddle.to_tensor(data[..., 0]) > 0
    limits = np.iinfo(dtype)
    return paddle.to_tensor(
        random.randint(limits.min, limits.max + 1, shape).astype(dtype)
    )


@functools.cache
def group_of_one_machine() -> dist.communication.group.Group:
    with mock.patch.object(shared_memory_group, "machine", lambda: "one"):
        return dist.new_group(backend="shm")


def outcome_of(function: Callable, *args) -> bytes | str:
    """Returns the bytes of a tensor, or the type of the error."""
    try:
        return function(*args).numpy().tobytes()
    except (ValueError, NotImplementedError) as error:
        return type(error).__name__


def reduce_everywhere(
    name: str, dtype: str, op: str, shape: list[int]
) -> list[bytes | str]:
    """Runs one reduction over the machines, and one within a machine."""
    used = getattr(dist.ReduceOp, op)

    def run(group, x: paddle.Tensor) -> paddle.Tensor:
        if name == "all_reduce":
            dist.all_reduce(x, used, group)
        elif name == "reduce":
            dist.reduce(x, 1, used, group)
        else:
            out = paddle.empty([shape[0] // dist.get_world_size(), *shape[1:]])
            out = out.astype(dtype)
            dist.stream.reduce_scatter(out, x, used, group)
            return out
        return x

    return [
        outcome_of(run, group, random_values(dtype, shape))
        for group in (None, group_of_one_machine())
    ]


def all_reduce_float8() -> None:
    dist.all_reduce(paddle.ones([2]).astype("float8_e4m3fn"))


def move_rows() -> list:
    """Broadcasts and gathers the second row of a tensor."""
    x = paddle.to_tensor([[-1.0], [float(dist.get_rank())]])
    received, gathered = x.clone(), []
    dist.broadcast(received[1:], 1)
    dist.all_gather(gathered, x[1:])
    return [received.tolist(), [row.item() for row in gathered]]


def look_after_barrier(folder: str) -> bool:
    """Returns whether the last rank has arrived when the barrier ends."""
    pathlib.Path(folder, f"begun{dist.get_rank()}").touch()
    dist.barrier()
    return pathlib.Path(folder, "last").exists()


def come_last_to_barrier(folder: str) -> None:
    others = dist.get_world_size() - 1
    wait_until(lambda: len(os.listdir(folder)) == others, "the other ranks")
    pathlib.Path(folder, "last").touch()
    dist.barrier()


def reduce(dst: int, sizes: list[int]) -> list:
    x = mine("float32", sizes)
    dist.reduce(x, dst)
    return as_list(x)


def reduce_scatter() -> list:
    x = mine("float32", [2 * dist.get_world_size()])
    out = paddle.zeros([2])
    dist.reduce_scatter(out, list(x.split(dist.get_world_size())))
    again = paddle.zeros([2])
    dist.stream.reduce_scatter(again, x)
    assert again.tolist() == out.tolist()
    return as_list(out)


def broadcast(src: int, dtype: str, shape: list[int]) -> list:
    x = mine(dtype, shape)
    dist.broadcast(x, src)
    return as_list(x)


def all_gather(dtype: str, shape: list[int]) -> list:
    parts = []
    dist.all_gather(parts, mine(dtype, shape))
    return [as_list(part) for part in parts]


def gather(dst: int, dtype: str, shape: list[int]) -> list:
    """Returns the gathered parts; none on ranks other than `dst`."""
    parts = [] if dist.get_rank() == dst else None
    dist.gather(mine(dtype, shape), parts, dst)
    return [as_list(part) for part in parts or []]


def scatter(src: int, dtype: str, shape: list[int]) -> list:
    parts, out = None, paddle.zeros(shape).astype(dtype)
    if dist.get_rank() == src:
        parts = [
            paddle.to_tensor(numbers_of(r, shape)).astype(dtype)
            for r in range(dist.get_world_size())
        ]
    dist.scatter(out, parts, src)
    return as_list(out)


def scatter_rows(src: int) -> list:
    """Scatters the rows of one tensor, without waiting for the others."""
    whole = paddle.arange(2.0 * dist.get_world_size()).reshape([-1, 2])
    out = paddle.zeros([1, 2])
    dist.stream.scatter(out, whole, src, sync_op=False).wait()
    return as_list(out)


def gather_into_a_list_that_changes() -> list:
    is_root = dist.get_rank() == 0
    size = dist.get_world_size() if is_root else 0
    parts = [paddle.zeros([2]) for _ in range(size)]
    task = dist.stream.gather(mine("float32", [2]), parts, 0, sync_op=False)
    kept = list(parts)
    parts.clear()
    task.wait()
    return [as_list(part) for part in kept]


def scatter_objects() -> list:
    found = []
    parts = [{"to": r} for r in range(dist.get_world_size())]
    dist.scatter_object_list(found, parts if dist.get_rank() == 1 else None, 1)
    return found


def elements_sent(sender: int, receiver: int) -> int:
    """Returns how many elements `all_to_all` sends; none between some ranks."""
    return 3 * (sender + 2 * receiver) % 4


def all_to_all(dtype: str) -> list[list]:
    """Sends different numbers of elements to each rank, in lists."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    parts = [
        paddle.to_tensor(numbers_of(10 * rank + r, [elements_sent(rank, r)]))
        for r in ranks
    ]
    out = [paddle.zeros([elements_sent(r, rank)], dtype) for r in ranks]
    dist.alltoall(out, [part.astype(dtype) for part in parts])
    return [as_list(part) for part in out]


def all_to_all_of_rows(dtype: str, columns: int, sync_op: bool) -> list:
    """Like `all_to_all`, with rows of one tensor; their number is given."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    rows = [elements_sent(rank, r) for r in ranks]
    out_rows = [elements_sent(r, rank) for r in ranks]
    x = paddle.concat(
        [
            paddle.to_tensor(numbers_of(10 * rank + r, [n, columns]))
            for r, n in zip(ranks, rows)
        ]
    ).astype(dtype)
    out = paddle.zeros([sum(out_rows), columns]).astype(dtype)
    dist.alltoall_single(out, x, rows, out_rows, sync_op=sync_op).wait()
    return as_list(out)


def all_to_all_equally(shape: list[int]) -> list:
    """Returns what the tensor form, the single form and older code receive."""
    x = paddle.full(shape, 1.0 * dist.get_rank())
    outs = [paddle.zeros(shape) for _ in range(4)]
    dist.stream.alltoall(outs[0], x)
    dist.alltoall_single(outs[1], x)
    own_group().alltoall(x, outs[2]).wait()
    own_group().alltoall_single(x, outs[3], [], []).wait()
    return [as_list(out) for out in outs]


def all_to_all_into_lists_that_change() -> list:
    """Returns the received scalars; the lists are cleared before the wait."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [paddle.to_tensor(10.0 * rank + r) for r in range(size)]
    out: list = []
    task = dist.alltoall(out, parts, sync_op=False)
    kept = list(out)
    parts.clear()
    out.clear()
    task.wait()
    return [part.item() for part in kept]


def all_to_all_of_sizes(sizes: list[list[int]]) -> None:
    """Calls alltoall_single with four rows sent and received; `sizes` has each
    rank's sizes of the output."""
    out_rows = sizes[dist.get_rank()]
    size = dist.get_world_size()
    dist.alltoall_single(
        paddle.zeros([sum(out_rows), 2]),
        paddle.ones([2 * size, 2]),
        [2] * size,
        out_rows,
    )


def all_to_all_of_types(dtypes: list[str]) -> None:
    x = paddle.ones([dist.get_world_size()], dtypes[dist.get_rank()])
    dist.alltoall_single(paddle.zeros_like(x), x)


def all_to_all_of_ones() -> None:
    all_to_all_of_types(["float32"] * dist.get_world_size())


def value_errors_of(*calls: Callable[[], object]) -> list[str]:
    """Returns the text of each call's ValueError, or "nothing"."""
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except ValueError as error:
            found.append(str(error))
    return found


def refuse_to_send_to_all() -> list[str]:
    """Returns the errors of wrong arguments in a group of three ranks."""
    six = paddle.ones([6])
    found = value_errors_of(
        lambda: dist.alltoall_single(six, paddle.ones([7])),
        lambda: dist.alltoall_single(six, six, [1, 2], [2, 2, 2]),
        lambda: dist.alltoall_single(six, six, [2, 2, 2], [7, 0, -1]),
        lambda: dist.alltoall_single(six, six, [2, 2, 2], [2, 2, 1]),
        lambda: dist.alltoall_single(six, paddle.ones([6], "int32")),
        lambda: dist.alltoall([], [six, six]),
        lambda: dist.alltoall([six.clone()], [six] * 3),
        lambda: dist.alltoall([], [paddle.ones([2, 3]).transpose([1, 0])] * 3),
    )
    # No rank waits for a refused operation.
    dist.barrier()
    return found


def gather_to(roots: list[int]) -> None:
    gather(roots[dist.get_rank()], "float32", [4])


def gather_on_calculation_stream() -> None:
    parts = [] if dist.get_rank() == 0 else None
    dist.stream.gather(paddle.ones([1]), parts, 0, use_calc_stream=True)


def all_reduce_by(ops: list[str]) -> None:
    all_reduce(ops[dist.get_rank()], "float32", [4])


def all_reduce_of(dtypes: list[str]) -> None:
    all_reduce("SUM", dtypes[dist.get_rank()], [4])


def reduce_to(roots: list[int]) -> None:
    reduce(roots[dist.get_rank()], [4])


def broadcast_from(roots: list[int]) -> None:
    broadcast(roots[dist.get_rank()], "float32", [4])


def call_one(names: list[str]) -> None:
    globals()[names[dist.get_rank()]]()


def all_reduce_six() -> None:
    all_reduce("SUM", "float32", [6])


def exchange_objects() -> list:
    gathered, sent = [], [{"rank": dist.get_rank()}]
    dist.all_gather_object(gathered, sent[0])
    dist.broadcast_object_list(sent, 1)
    return [gathered, sent]


def reduce_in_order(count: int) -> list[float]:
    """Begins operations without waiting; each uses the previous result."""
    x = paddle.ones([1000])
    tasks = [dist.all_reduce(x, sync_op=False) for _ in range(count)]
    for task in tasks:
        task.wait()
    assert tasks[-1].is_completed()
    return [float(x.min()), float(x.max())]


def begin() -> None:
    x = paddle.ones([10])
    _begun[:] = [dist.all_reduce(x, sync_op=False), x]


def wait_briefly() -> list:
    """Waits for an operation that other ranks do not call."""
    begin()
    task, x = _begun
    waited = [
        task.wait(timeout)
        for timeout in (datetime.timedelta(milliseconds=10), 0.01, -1, np.nan)
    ]
    return [*waited, task.is_completed(), x.tolist()]


def wait_again() -> list:
    task, x = _begun
    return [task.wait(), task.is_completed(), x.tolist()]


def all_reduce_ones() -> float:
    x = paddle.ones([10])
    dist.all_reduce(x)
    return x[0].item()


_kept: list[paddle.Tensor] = []


def all_reduce_and_restore() -> None:
    """Keeps a tensor whose all_reduce has failed, with a value of its own."""
    x = paddle.ones([4])
    try:
        dist.all_reduce(x)
    except RuntimeError:
        _kept.append(x.fill_(-7.0))


def join_leaders_late(seconds: float) -> None:
    """Takes part in the leaders' all_reduce after their timeout."""
    group = dist.communication.group._get_global_group().process_group
    all_reduce = group._leaders.all_reduce

    def late(*args: object) -> object:
        time.sleep(seconds)
        return all_reduce(*args)

    leaders = mock.Mock(wraps=group._leaders, all_reduce=late)
    with mock.patch.object(group, "_leaders", leaders):
        try:
            dist.all_reduce(paddle.full([4], 100.0))
        except RuntimeError:
            # The call goes on.
            time.sleep(seconds + 1)


def kept_value() -> list[float]:
    return _kept[0].tolist()


def call_as_older_code() -> list:
    """Calls methods with argument forms that only some Paddle code uses."""
    group = dist.communication.group._get_global_group().process_group
    rank, size = dist.get_rank(), dist.get_world_size()
    x = paddle.full([2], rank + 1.0)
    gathered = paddle.zeros([2 * size])
    group.all_gather(x, gathered).wait()
    total, sent, to_one = x.clone(), x.clone(), x.clone()
    tasks = []
    with _coalescing_manager(None, tasks):
        tasks += [
            group.allreduce(total),
            group.broadcast(sent, 1),
            group.reduce(to_one, 0),
        ]
    for task in tasks:
        assert not task.is_sync()
        assert task.wait(datetime.timedelta(0))
        assert task.is_completed()
    return [as_list(each) for each in (gathered, total, sent, to_one)]


def call_what_is_missing() -> dict[str, str]:
    return call_missing_methods(
        dist.communication.group._get_global_group().process_group
    )


def send_to(dst: int, value: float = 1.0, size: int = 4) -> None:
    dist.send(paddle.full([size], value), dst)


def receive_from(src: int, size: int = 4) -> list[float]:
    x = paddle.zeros([size])
    dist.recv(x, src)
    return x.tolist()


def receive_without_waiting(src: int) -> None:
    x = paddle.zeros([4])
    _begun[:] = [dist.irecv(x, src), x]


def wait_for_received(
    timeout: datetime.timedelta | None = None,
) -> tuple[bool, list[float]]:
    task, x = _begun
    return task.wait(timeout), x.tolist()


def exchange_with(peer: int, batch: bool) -> list[float]:
    """Sends to a rank before it receives from it."""
    mine = paddle.full([400001], float(dist.get_rank()))
    theirs = paddle.zeros_like(mine)
    if batch:
        tasks = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine, peer),
                dist.P2POp(dist.irecv, theirs, peer),
            ]
        )
    else:
        tasks = [dist.isend(mine, peer), dist.irecv(theirs, peer)]
    for task in tasks:
        task.wait()
        assert task.is_completed()
        assert not task.is_sync()
    return [float(theirs.min()), float(theirs.max())]


def exchange_objects_with(peer: int) -> list:
    mine, theirs = [{"from": dist.get_rank()}], [None]
    if dist.get_rank() < peer:
        dist.send_object_list(mine, peer)
        dist.recv_object_list(theirs, peer)
    else:
        dist.recv_object_list(theirs, peer)
        dist.send_object_list(mine, peer)
    return theirs


def leave_group() -> None:
    own_group().leave()


def leave_while_receiving(src: int) -> str:
    """Returns the error of a receive when another thread leaves."""
    task = dist.irecv(paddle.zeros([4]), src)
    leaver = threading.Timer(0.2, own_group().leave)
    leaver.start()
    try:
        task.wait()
    except RuntimeError as error:
        return str(error)
    finally:
        leaver.join()
    return "nothing"


def send_where_it_is_refused(
    calls: list[tuple[str, tuple]],
) -> list[str]:
    """Returns the ValueErrors of sends and receives of one rank alone."""
    return value_errors_of(
        *(
            functools.partial(getattr(dist, name), paddle.ones([2, 3]), *args)
            for name, args in calls
        ),
        lambda: dist.send(paddle.ones([2, 3]).transpose([1, 0]), 2),
        lambda: dist.send(paddle.ones([2, 3]).to_sparse_coo(2), 2),
    )


def wait_for_received_in_forked_child() -> str:
    return in_forked_child(_begun[0].wait)


def send_in_forked_child(dst: int) -> str:
    return in_forked_child(lambda: send_to(dst))


def exchange_often() -> None:
    """Makes this leader exchange texts often, and records its own texts."""
    group = dist.communication.group._get_global_group().process_group
    exchange = group._exchange

    def recorded(text: str, *args: float) -> list[str]:
        _exchanged.append(text)
        return exchange(text, *args)

    group._interval = datetime.timedelta(milliseconds=20)
    group._exchange = recorded


def own_group():
    return dist.communication.group._get_global_group().process_group


def fork_a_child() -> int:
    """Returns the ID of a child that waits until it is killed."""
    child = os.fork()
    if child == 0:
        signal.pause()
    return child


def exit_in_forked_child() -> int:
    """Returns the exit status of a child that ends like a script."""
    # A child that is forked while a thread ends may wait at its exit for a lock
    # of Paddle's, which that thread held.
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        sys.exit(3)
    return os.waitstatus_to_exitcode(wait_for_child(child))


def run_forked_process() -> int:
    """Returns the exit status of a process that multiprocessing forks."""
    # Daemons may have no children.
    with mock.patch.dict(
        multiprocessing.current_process()._config, daemon=False
    ):
        process = multiprocessing.get_context("fork").Process(target=os.getpid)
        process.start()
    process.join(WAIT_S)
    return process.exitcode


def write_in_forked_child(path: str) -> str:
    """Returns what a child writes to a C file, whose buffer it does not
    flush."""
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        libc.fopen.restype = ctypes.c_void_p
        file = libc.fopen(path.encode(), b"w")
        libc.fputs(b"written at exit", ctypes.c_void_p(file))
        sys.exit(0)
    wait_for_child(child)
    return pathlib.Path(path).read_text()


def die_after_agreement() -> None:
    """Makes this rank die once all ranks have agreed on the next reduction."""
    own_group()._reduce_in_place = kill_this_process


def fail_to_reduce() -> None:
    own_group()._reduce_in_place = raise_error


def fail_to_gather() -> None:
    """Makes this rank fail to gather the texts of its machine's ranks."""
    gather, local = hierarchical_group._begin_to_gather, own_group()._local

    def gather_or_fail(group, *args):
        if group is local:
            raise_error()
        return gather(group, *args)

    hierarchical_group._begin_to_gather = gather_or_fail


def wait_for_exchanges(count: int) -> None:
    expected = len(_exchanged) + count
    wait_until(lambda: len(_exchanged) >= expected, "exchanges of leaders")


def reduce_on_calculation_stream() -> None:
    dist.stream.all_reduce(paddle.ones([1]), use_calc_stream=True)


def broadcast_on_calculation_stream() -> None:
    dist.stream.broadcast(paddle.ones([1]), 0, use_calc_stream=True)


def barrier_after_leaving() -> None:
    group = dist.communication.group._get_global_group().process_group
    dist.destroy_process_group()
    group.barrier()


def leave_within_an_operation() -> str:
    """Returns the error of an operation in which this rank leaves, as in a
    signal handler."""
    group = own_group()
    calls = group._calls

    def leave_and_put(call: object) -> None:
        group._calls = calls
        group.leave()
        calls.put(call)

    group._calls = mock.Mock(wraps=calls, put=leave_and_put)
    try:
        dist.all_reduce(paddle.ones([1]))
    except RuntimeError as error:
        return str(error)
    return "nothing"


def reduce_in_forked_child() -> str:
    return in_forked_child(lambda: dist.all_reduce(paddle.ones([1])))


def wait_in_forked_child() -> str:
    """Waits in a forked child for an operation that other ranks do not call."""
    task = dist.all_reduce(paddle.ones([1]), sync_op=False)
    return in_forked_child(task.wait)


def in_forked_child(function: Callable) -> str:
    """Returns the error of a function in a forked child."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            function()
            text = "nothing"
        except RuntimeError as error:
            text = str(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        found = result.read()
    os.wait()
    return found


def refuse_bad_tensors() -> list[str]:
    found = value_errors_of(
        lambda: dist.all_reduce(paddle.ones([2, 3]).transpose([1, 0])),
        lambda: dist.all_reduce(
            paddle.ones([2], "complex64"), dist.ReduceOp.MAX
        ),
        lambda: dist.all_reduce(paddle.ones([2], "int32"), dist.ReduceOp.AVG),
        lambda: dist.stream.all_gather(paddle.ones([7]), paddle.ones([2])),
        lambda: dist.stream.reduce_scatter(
            paddle.ones([1], "int32"), paddle.ones([dist.get_world_size()])
        ),
        # The total number of elements is right.
        lambda: dist.reduce_scatter(
            paddle.ones([2]), [paddle.ones([n]) for n in (1, 3, 2)]
        ),
        lambda: dist.all_reduce(paddle.ones([2, 2]).to_sparse_coo(2)),
        lambda: dist.broadcast(paddle.ones([2, 2]).to_sparse_csr(), 0),
    )
    # No rank waits for a refused operation.
    dist.barrier()
    return found


def reduce_in_new_groups(groups: list[list[int]]) -> list[float]:
    """Returns this rank's sums in its groups, with one rank per machine."""
    rank = dist.get_rank()
    found = []
    with mock.patch.object(shared_memory_group, "machine", lambda: str(rank)):
        for ranks in groups:
            group = dist.new_group(ranks, backend="shm")
            if rank in ranks:
                x = paddle.full([1], 2.0**rank)
                dist.all_reduce(x, group=group)
                found.append(x.item())
    return found


def reduce_with_longest_timeout(machines: list[str]) -> float:
    """Returns the sum that two sums of two ranks give."""
    rank, longest = dist.get_rank(), datetime.timedelta.max
    with mock.patch.object(
        shared_memory_group, "machine", lambda: machines[rank]
    ):
        group = dist.new_group([0, 1], backend="shm", timeout=longest)
    x = paddle.ones([1])
    dist.all_reduce(x, group=group)
    task = dist.all_reduce(x, group=group, sync_op=False)
    assert task.wait(longest)
    return x.item()


def reduce_in_group_of_number(number: int) -> float:
    name = "ab"[dist.get_rank()]
    with (
        mock.patch.object(dist.collective, "_custom_gid", number),
        mock.patch.object(shared_memory_group, "machine", lambda: name),
    ):
        group = dist.new_group([0, 1], backend="shm")
    x = paddle.ones([1])
    dist.all_reduce(x, group=group)
    return x.item()


def leave_namespace(kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kind) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def enter_namespace(process: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY)
    if libc.setns(file, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    os.close(file)


def enter_own_memory(first: int | None) -> None:
    """Mounts a private /dev/shm, or enters the mount namespace of `first`."""
    if first is not None:
        enter_namespace(first, "mnt")
        return
    leave_namespace(CLONE_NEWNS)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", "/dev/shm"], check=True)


def run_in_network(process: int, *command: str) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{process}/ns/net", *command], check=True
    )


def connect_networks(processes: list[int]) -> None:
    """Connects the networks of two processes with a veth pair."""
    first, second = map(str, processes)
    subprocess.run(
        [
            *("ip", "link", "add", INTERFACE, "netns", first, "type", "veth"),
            *("peer", "name", INTERFACE, "netns", second),
        ],
        check=True,
    )
    for number, process in enumerate(processes):
        for command in (
            ("addr", "add", f"10.77.0.{number + 1}/24", "dev", INTERFACE),
            ("link", "set", "lo", "up"),
            ("link", "set", INTERFACE, "up"),
        ):
            run_in_network(process, "ip", *command)


def probing_often() -> contextlib.AbstractContextManager:
    """Ranks that connect in this context detect after two seconds that they
    cannot reach each other."""
    return mock.patch.multiple(
        machine_connections, _IDLE_S=1, _PROBE_INTERVAL_S=1, _PROBES=1
    )


def join_and_probe_often(machines: list[str]) -> None:
    with probing_often():
        join_on(machines)


def receive_twice_and_probe_often(src: int) -> list[list[float]]:
    with probing_often():
        return [receive_from(src), receive_from(src)]


def all_reduce_until_it_fails(folder: str) -> None:
    while True:
        x = paddle.ones([1 << 20])
        dist.all_reduce(x)
        pathlib.Path(folder, f"reduced{dist.get_rank()}").touch()


def machines_in_use() -> list[list[int]]:
    group = dist.communication.group._get_global_group()
    return group.process_group.topology.machines


def may_mount() -> bool:
    return (
        ON_LINUX
        and shutil.which("unshare") is not None
        and subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"],
            stderr=subprocess.DEVNULL,
        ).returncode
        == 0
    )


def why_no_networks() -> str:
    """Returns why processes cannot have their own connected networks, or an
    empty text if they can."""
    if not ON_LINUX:
        return "the backend shm needs Linux"
    for tool in ("ip", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"needs the program {tool}"
    command = ["unshare", "--net", "ip", "link", "add", "type", "veth"]
    tried = subprocess.run(command, capture_output=True, text=True)
    if tried.returncode != 0:
        return f"needs the right to run {' '.join(command)}: {tried.stderr}"
    return ""


_WHY_NO_NETWORKS = why_no_networks()


_start_thread = threading.Thread.start


def start_but_admit_nobody(thread: threading.Thread) -> None:
    """Starts a thread, but none for a client of a listener."""
    if thread._target.__name__ == "_admit":
        raise RuntimeError("no thread can be started")
    _start_thread(thread)


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestLeaderLinks(unittest.TestCase):
    """Two leaders in one process, connected as if between machines."""

    def connect(self, listeners=None):
        listeners = listeners or [
            machine_connections.Listener() for _ in range(2)
        ]
        addresses = [listener.address for listener in listeners]
        links = [None, None]

        def make(number):
            links[number] = leader_links.LeaderLinks(
                listeners[number], [5, 7], addresses, number, WAIT_S
            )
            self.addCleanup(links[number].close)

        in_threads(*[functools.partial(make, number) for number in range(2)])
        return links

    def run_blocked_call(self, links):
        """Runs a call that does not return before the test ends."""
        gate = threading.Event()
        self.addCleanup(gate.set)
        return links.run(gate.wait, WAIT_S)

    def test_results_and_errors_of_calls_propagate(self):
        first, _ = self.connect()
        self.assertEqual(first.run(lambda: 3), 3)
        with mock.patch.object(leader_links, "REPLY_TIMEOUT_S", 0.01):
            with self.assertRaisesRegex(OSError, "no memory"):
                first.run(raise_error)
        self.assertEqual(first.run(lambda: 4), 4)

    def test_call_that_takes_too_long(self):
        first, _ = self.connect()
        gate = threading.Event()
        self.addCleanup(gate.set)
        with self.assertRaisesRegex(TimeoutError, "0.05 s"):
            first.run(gate.wait, 0.05)

    def test_failure_of_another_leader_ends_a_call(self):
        first, second = self.connect()
        sender = threading.Timer(
            0.1, second.send_failure, ["no memory is left"]
        )
        sender.start()
        with self.assertRaisesRegex(leader_links.LinkError, "no memory"):
            self.run_blocked_call(first)
        sender.join()

    def test_leader_that_has_failed_before_a_call(self):
        first, second = self.connect()
        second.send_failure("no memory is left")
        called = []
        with self.assertRaisesRegex(leader_links.LinkError, "no memory"):
            first.run(lambda: called.append(1))
        self.assertEqual(called, [])

    def test_leader_that_leaves_does_not_fail_the_others(self):
        first, second = self.connect()
        second.close()
        self.assertEqual(first.run(lambda: 3), 3)

    def test_connection_without_the_key_is_closed(self):
        listeners = [machine_connections.Listener() for _ in range(2)]
        host, port, _ = listeners[0].address.split()
        with socket.create_connection((host, int(port)), WAIT_S) as stranger:
            stranger.sendall(bytes(20))
            first, second = self.connect(listeners)
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(stranger.recv(1), b"")
        second.send_failure("no memory is left")
        with self.assertRaisesRegex(leader_links.LinkError, "no memory"):
            self.run_blocked_call(first)

    def test_leaders_connect_beside_a_silent_stranger(self):
        listeners = [machine_connections.Listener() for _ in range(2)]
        host, port, _ = listeners[0].address.split()
        with (
            mock.patch.object(
                machine_connections, "REPLY_TIMEOUT_S", 2 * WAIT_S
            ),
            socket.create_connection((host, int(port)), WAIT_S),
        ):
            first, _ = self.connect(listeners)
        self.assertEqual(first.run(lambda: 3), 3)

    def test_leader_that_can_start_no_thread_raises_an_error(self):
        listeners = [machine_connections.Listener() for _ in range(2)]
        host, port, _ = listeners[0].address.split()
        start = mock.patch.object(
            machine_connections.threading.Thread,
            "start",
            autospec=True,
            side_effect=start_but_admit_nobody,
        )
        with (
            start,
            socket.create_connection((host, int(port)), WAIT_S),
            self.assertRaisesRegex(RuntimeError, "cannot connect.*no thread"),
        ):
            leader_links.LeaderLinks(
                listeners[0],
                [5, 7],
                [listener.address for listener in listeners],
                0,
                WAIT_S,
            )

    def test_missing_leader_is_an_error_after_the_timeout(self):
        listener = machine_connections.Listener()
        with self.assertRaisesRegex(RuntimeError, "timed out.*_IFNAME"):
            leader_links.LeaderLinks(
                listener, [5, 7], [listener.address] * 2, 0, 0.05
            )

    def test_refused_connection_names_the_address_and_the_cure(self):
        listeners = [machine_connections.Listener() for _ in range(2)]
        addresses = [listener.address for listener in listeners]
        listeners[0].close()
        host, port, _ = addresses[0].split()
        with self.assertRaisesRegex(
            RuntimeError, f"connect to {host} port {port} .*_IFNAME"
        ):
            leader_links.LeaderLinks(listeners[1], [5, 7], addresses, 1, WAIT_S)

    def test_listener_uses_the_interface_that_is_set_for_gloo(self):
        for name, found in (("lo", "127.0.0.1 "), ("none", "'none'")):
            with mock.patch.dict(os.environ, GLOO_SOCKET_IFNAME=name):
                try:
                    listener = machine_connections.Listener()
                    listener.close()
                    text = listener.address
                except RuntimeError as error:
                    text = str(error)
            self.assertIn(found, text)


class MachinesTestCase(RanksTestCase):
    """A test whose ranks report machines of given names."""

    def setUp(self):
        self.addCleanup(self.assertEqual, shared_files(), shared_files())

    def start_on(self, machines, **environment):
        ranks = self.start(len(machines), **environment)
        ranks.call(join_on, [*machines])
        return ranks


class OneGroupOfMachines(RanksTestCase):
    """The tests have a group in common, which no test may let fail. Ranks 0 and
    2 are on one machine, and rank 1 on another."""

    @classmethod
    def setUpClass(cls):
        cls.ranks = Ranks(3)
        cls.addClassCleanup(cls.ranks.end)
        cls.ranks.call(join_on, ["a", "b", "a"])


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestShmMachines(MachinesTestCase):
    def test_operations_equal_those_of_numpy(self):
        ranks = self.start_on(MACHINES)
        size = len(MACHINES)
        reductions = {
            "SUM": np.sum,
            "MAX": np.max,
            "MIN": np.min,
            "PROD": np.prod,
        }
        for dtype in REDUCED_TYPES:
            for op, function in reductions.items():
                with self.subTest(dtype=dtype, op=op):
                    parts = [numbers_of(r, [3, 5]) for r in range(size)]
                    expected = function(parts, axis=0).tolist()
                    for found in ranks.call(all_reduce, op, dtype, [3, 5]):
                        self.assertEqual(found, expected)
        for dtype in MOVED_TYPES:
            for shape in ([3, 5], [], [0, 2]):
                with self.subTest(dtype=dtype, shape=shape):
                    parts = [numbers_of(r, shape) for r in range(size)]
                    if dtype == "bool":
                        parts = [part != 0 for part in parts]
                    parts = [part.tolist() for part in parts]
                    for found in ranks.call(all_gather, dtype, shape):
                        self.assertEqual(found, parts)
                    for found in ranks.call(broadcast, 3, dtype, shape):
                        self.assertEqual(found, parts[3])
                    for root in (0, 3):
                        self.assertEqual(
                            ranks.call(scatter, root, dtype, shape), parts
                        )
                        expected = [[] for _ in range(size)]
                        expected[root] = parts
                        self.assertEqual(
                            ranks.call(gather, root, dtype, shape), expected
                        )

    def assert_reduced_as_on_one_machine(self, ranks, *call, refused=False):
        with self.subTest(call=call):
            for found, expected in ranks.call(reduce_everywhere, *call):
                self.assertEqual(found, expected)
                self.assertEqual(found == "ValueError", refused)

    def test_integers_and_booleans_are_reduced_as_on_one_machine(self):
        # Sums and products wrap around.
        for machines in (MACHINES, ["a", "b"]):
            ranks = self.start_on(machines)
            for dtype in ("bool", "int8", "int16"):
                for op in ("SUM", "PROD", "MAX", "MIN", "AVG"):
                    self.assert_reduced_as_on_one_machine(
                        *(ranks, "all_reduce", dtype, op, [3, 50]),
                        refused=op == "AVG",
                    )

    def test_complex_numbers_are_reduced_in_the_order_of_one_machine(self):
        # The order of ranks equals the order of machines.
        ranks = self.start_on(["a", "b", "c"])
        for dtype in ("complex64", "complex128"):
            for op in ("SUM", "PROD", "AVG", "MAX", "MIN"):
                for shape in ([7, 50], []):
                    self.assert_reduced_as_on_one_machine(
                        *(ranks, "all_reduce", dtype, op, shape),
                        refused=op in ("MAX", "MIN"),
                    )

    def test_all_reductions_have_the_types_of_one_machine(self):
        ranks = self.start_on(["a", "b", "b"])
        for name in ("reduce", "reduce_scatter"):
            for dtype in ("bool", "int8", "int16"):
                self.assert_reduced_as_on_one_machine(
                    ranks, name, dtype, "SUM", [6, 5]
                )
        for dtype in ("complex64", "complex128"):
            for found in ranks.call(all_reduce, "SUM", dtype, [4]):
                expected = sum(numbers_of(r, [4]) for r in range(3))
                self.assertEqual(found, expected.tolist())

    def test_types_that_cannot_be_reduced_on_one_machine_are_refused(self):
        ranks = self.start_on(["a", "b"])
        ranks.begin(all_reduce_float8)
        for outcome in ranks.outcomes():
            self.assertEqual(outcome.kind, "NotImplementedError")
            self.assertIn("float8_e4m3fn", outcome.text)
        self.assertEqual(ranks.call(all_reduce_ones), [2.0, 2.0])

    def test_average_divides_by_the_number_of_all_ranks(self):
        ranks = self.start_on(["a", "b", "b", "b"])
        expected = (sum(numbers_of(r, [6]) for r in range(4)) / 4).tolist()
        for dtype in ("float16", "bfloat16", "float32", "float64"):
            with self.subTest(dtype=dtype):
                for found in ranks.call(all_reduce, "AVG", dtype, [6]):
                    self.assertEqual(found, expected)

    def test_parts_of_larger_tensors_are_moved(self):
        ranks = self.start_on(["a", "b", "b"])
        for found in ranks.call(move_rows):
            self.assertEqual(found, [[[-1.0], [1.0]], [0.0, 1.0, 2.0]])

    def test_barrier_waits_for_the_ranks_of_all_machines(self):
        for late in (0, 1, 2):
            with self.subTest(late=late):
                ranks = self.start_on(["a", "b", "b"])
                others = [r for r in range(3) if r != late]
                with tempfile.TemporaryDirectory() as folder:
                    ranks.begin(look_after_barrier, folder, ranks=others)
                    ranks.call(come_last_to_barrier, folder, ranks=[late])
                    self.assertEqual(ranks.outcomes(others), [True, True])

    def test_reduce_changes_the_tensor_of_one_rank(self):
        ranks = self.start_on(["a", "b", "b"])
        parts = [numbers_of(r, [4]) for r in range(3)]
        for dst in range(3):
            expected = [part.tolist() for part in parts]
            expected[dst] = sum(parts).tolist()
            self.assertEqual(ranks.call(reduce, dst, [4]), expected)

    def test_reduce_scatter_gives_each_rank_its_part(self):
        total = sum(numbers_of(r, [6]) for r in range(3))
        for machines in (["a", "b", "b"], ["a", "b", "a"]):
            with self.subTest(machines=machines):
                self.assertEqual(
                    self.start_on(machines).call(reduce_scatter),
                    total.reshape([3, 2]).tolist(),
                )

    def test_objects_are_gathered_in_the_order_of_ranks_and_broadcast(self):
        ranks = self.start_on(["a", "b", "a"])
        objects = [{"rank": rank} for rank in range(3)]
        self.assertEqual(
            ranks.call(exchange_objects), [[objects, [objects[1]]]] * 3
        )

    def test_a_list_may_change_after_an_asynchronous_call(self):
        ranks = self.start_on(["a", "b", "a"])
        expected = [numbers_of(r, [2]).tolist() for r in range(3)]
        self.assertEqual(
            ranks.call(gather_into_a_list_that_changes), [expected, [], []]
        )

    def test_rows_and_objects_are_scattered(self):
        ranks = self.start_on(["a", "b", "a"])
        for src in range(3):
            self.assertEqual(
                ranks.call(scatter_rows, src),
                [[[0.0, 1.0]], [[2.0, 3.0]], [[4.0, 5.0]]],
            )
        self.assertEqual(
            ranks.call(scatter_objects), [[{"to": r}] for r in range(3)]
        )

    def test_each_rank_sends_another_number_of_elements_to_each_rank(self):
        ranks = self.start_on(MACHINES)
        size = len(MACHINES)
        for dtype in MOVED_TYPES:
            sent = [
                [
                    numbers_of(10 * r + s, [elements_sent(r, s)])
                    for s in range(size)
                ]
                for r in range(size)
            ]
            if dtype == "bool":
                sent = [[part != 0 for part in parts] for parts in sent]
            with self.subTest(dtype=dtype):
                found = ranks.call(all_to_all, dtype)
                for rank in range(size):
                    self.assertEqual(
                        found[rank],
                        [sent[r][rank].tolist() for r in range(size)],
                    )

    def test_each_rank_sends_another_number_of_rows_to_each_rank(self):
        ranks = self.start_on(MACHINES)
        size = len(MACHINES)
        for columns, sync_op in ((3, True), (1, False), (0, True)):
            with self.subTest(columns=columns):
                found = ranks.call(
                    all_to_all_of_rows, "int64", columns, sync_op
                )
                for rank in range(size):
                    expected = [
                        numbers_of(
                            10 * r + rank, [elements_sent(r, rank), columns]
                        )
                        for r in range(size)
                    ]
                    self.assertEqual(
                        found[rank], np.concatenate(expected).tolist()
                    )

    def test_sizes_of_all_to_all_that_do_not_match_are_named_on_all_ranks(self):
        for sizes, text in (
            # The rows have two elements.
            (
                [[2, 2, 2], [2, 2, 2], [2, 3, 2]],
                "rank 1 sends 4 elements to rank 2, which expects 6",
            ),
            # The sum is right.
            (
                [[2, 2, 2], [3, 1, 2], [2, 2, 2]],
                "rank 0 sends 4 elements to rank 1, which expects 6",
            ),
        ):
            with self.subTest(sizes=sizes):
                ranks = self.start_on(["a", "b", "a"])
                ranks.begin(all_to_all_of_sizes, sizes)
                self.assert_all_raise(ranks.outcomes(), text)

    def test_types_of_all_to_all_that_differ_are_an_error_on_all_ranks(self):
        ranks = self.start_on(["a", "b", "a"])
        ranks.begin(all_to_all_of_types, ["int32", "float32", "int32"])
        self.assert_all_raise(ranks.outcomes(), "alltoall", "int32", "float32")

    def test_results_are_the_same_bits_on_all_ranks_and_in_each_run(self):
        found = []
        for _ in range(2):
            ranks = self.start_on(["a", "a", "b", "c"])
            found += ranks.call(all_reduce_bits, 100003)
        self.assertEqual(len(set(found)), 1)

    def test_operations_run_in_the_order_of_the_calls(self):
        ranks = self.start_on(["a", "b", "b"])
        self.assertEqual(ranks.call(reduce_in_order, 5), [[3.0**5] * 2] * 3)

    def test_groups_that_overlap_reduce_among_their_own_ranks(self):
        groups = 3 * [[0, 1, 2], [1, 2], [0, 2], [0, 1]]
        found = self.start_on(["a", "b", "c"]).call(
            reduce_in_new_groups, groups
        )
        for rank in range(3):
            self.assertEqual(
                found[rank],
                [
                    sum(2.0**r for r in ranks)
                    for ranks in groups
                    if rank in ranks
                ],
            )

    def test_too_large_group_ids_are_refused(self):
        ranks = self.start_on(["a", "b"])
        largest = 2**19 - 1
        self.assertEqual(
            ranks.call(reduce_in_group_of_number, largest), [2.0, 2.0]
        )
        ranks.begin(reduce_in_group_of_number, largest + 1)
        for outcome in ranks.outcomes():
            self.assertEqual(outcome.kind, "ValueError")
            self.assertIn(
                f"{largest + 1}: the largest is {largest}", outcome.text
            )

    def test_wait_with_a_timeout_leaves_the_operation_in_flight(self):
        ranks = self.start_on(["a", "b"])
        self.assertEqual(
            ranks.call(wait_briefly, ranks=[0]),
            [[False] * 5 + [[1.0] * 10]],
        )
        self.assertEqual(ranks.call(all_reduce_ones, ranks=[1]), [2.0])
        self.assertEqual(
            ranks.call(wait_again, ranks=[0]), [[True, True, [2.0] * 10]]
        )

    def test_wait_with_a_wrong_timeout_names_it_and_none_means_no_timeout(self):
        ranks = self.start_on(["a", "b"])
        for text, has_ended in ranks.call(wait_with_wrong_timeout):
            self.assertIn("a number of seconds, but is 'x'", text)
            self.assertTrue(has_ended)

    def test_bad_tensors_are_refused_on_each_rank_alone(self):
        ranks = self.start_on(["a", "b", "b"])
        for found in ranks.call(refuse_bad_tensors):
            for text, part in zip(
                found,
                (
                    "contiguous()",
                    "MAX of elements of type paddle.complex64",
                    "average",
                    "7 elements",
                    "int32",
                    "parts of [1, 3, 2] elements",
                    *["to_dense()"] * 2,
                ),
            ):
                self.assertIn(part, text)

    def test_methods_accept_the_arguments_of_older_code(self):
        found = self.start_on(["a", "b", "b"]).call(call_as_older_code)
        gathered = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
        for rank in range(3):
            reduced = 6.0 if rank == 0 else rank + 1.0
            self.assertEqual(
                found[rank], [gathered, [6.0] * 2, [2.0] * 2, [reduced] * 2]
            )

    def test_missing_methods_raise_not_implemented(self):
        for found in self.start_on(["a", "b"]).call(call_what_is_missing):
            check_refusals(
                self, found, "several machines, here [[0], [1]],", "gloo"
            )

    def test_tasks_have_the_methods_of_paddles_tasks(self):
        check_task(self, python_process_group.Task)

    def test_unsupported_operations_raise_not_implemented(self):
        ranks = self.start_on(["a", "b"])
        for function in (
            reduce_on_calculation_stream,
            broadcast_on_calculation_stream,
            gather_on_calculation_stream,
        ):
            ranks.begin(function)
            for outcome in ranks.outcomes():
                self.assertEqual(outcome.kind, "NotImplementedError")
                self.assertIn("gloo", outcome.text)

    def test_send_and_receive_within_each_machine(self):
        # Rank 2 of machine a has the index 1 there, as rank 3 of machine b.
        ranks = self.start_on(["a", "b", "a", "b", "a"])
        ranks.begin(send_to, 2, 5.0, ranks=[0])
        ranks.begin(send_to, 3, 6.0, ranks=[1])
        ranks.begin(receive_from, 0, ranks=[2])
        ranks.begin(receive_from, 1, ranks=[3])
        self.assertEqual(
            ranks.outcomes([2, 3, 0, 1]), [[5.0] * 4, [6.0] * 4, None, None]
        )

    def test_death_during_a_transfer_names_the_rank_of_the_whole_group(self):
        ranks = self.start_on(["a", "b", "b", "a"])
        ranks.begin(receive_from, 2, ranks=[1])
        ranks.signal(2, signal.SIGKILL)
        self.assert_all_raise(
            ranks.outcomes([1]),
            "recv from rank 2 failed on rank 1",
            f"ank 2 (process {ranks.pids[2]}) has died",
        )
        # The group has failed, also on the other machine.
        ranks.begin(all_reduce_ones, ranks=[0, 1, 3])
        self.assert_all_raise(
            ranks.outcomes([0, 1, 3])[:2],
            f"ank 2 (process {ranks.pids[2]}) has died",
        )

    def test_transfer_that_times_out_names_the_rank_of_the_whole_group(self):
        ranks = self.start_on(["a", "b", "a"], PADDLE_PG_TIMEOUT="1000")
        ranks.begin(send_to, 2, ranks=[0])
        self.assert_all_raise(
            ranks.outcomes([0]),
            "send to rank 2 failed on rank 0",
            "waited 1000 ms in send",
            f"for rank 2 (process {ranks.pids[2]})",
        )

    def test_asynchronous_transfer_that_times_out_raises_in_its_wait(self):
        ranks = self.start_on(["b", "a", "a"], PADDLE_PG_TIMEOUT="1000")
        ranks.call(receive_without_waiting, 2, ranks=[1])
        ranks.begin(wait_for_received, ranks=[1])
        self.assert_all_raise(
            ranks.outcomes([1]),
            "recv from rank 2 failed on rank 1",
            f"for rank 2 (process {ranks.pids[2]})",
        )

    def test_transfers_of_different_sizes_are_an_error_on_both_ranks(self):
        ranks = self.start_on(["a", "b", "a"])
        ranks.begin(send_to, 2, 1.0, 4, ranks=[0])
        ranks.begin(receive_from, 0, 3, ranks=[2])
        self.assert_all_raise(
            ranks.outcomes([0, 2]), "rank 0 to rank 2", "16 bytes", "12 bytes"
        )

    def test_transfer_fails_when_the_group_fails(self):
        ranks = self.start_on(["a", "b", "a"])
        ranks.call(receive_without_waiting, 0, ranks=[2])
        ranks.call(fail_to_reduce, ranks=[1])
        ranks.begin(all_reduce_ones)
        self.assert_all_raise(ranks.outcomes([0, 1]), "no memory is left")
        ranks.outcomes([2])
        ranks.begin(wait_for_received, ranks=[2])
        ranks.begin(send_to, 2, ranks=[0])
        self.assert_all_raise(ranks.outcomes([0]), "no memory is left")
        self.assert_all_raise(ranks.outcomes([2]), "new group")

    def test_transfer_in_flight_fails_when_its_rank_leaves(self):
        ranks = self.start_on(["a", "b", "a"])
        (text,) = ranks.call(leave_while_receiving, 2, ranks=[0])
        self.assertIn("Rank 0 has left the group, through", text)

    def test_transfer_after_leaving(self):
        ranks = self.start_on(["a", "b", "a"])
        ranks.call(leave_group, ranks=[0])
        ranks.begin(send_to, 2, ranks=[0])
        self.assert_all_raise(ranks.outcomes([0]), "Rank 0 has left the group")

    def test_transfer_tasks_have_the_methods_of_paddles_tasks(self):
        check_task(self, hierarchical_group.TransferTask)

    def test_operation_after_leaving(self):
        ranks = self.start_on(["a", "b"])
        ranks.begin(barrier_after_leaving)
        self.assert_all_raise(ranks.outcomes(), "has left", "new_group")

    def test_rank_may_leave_within_an_operation(self):
        for rank, machines in ((0, "ab"), (2, "aba")):
            ranks = self.start_on(list(machines))
            (text,) = ranks.call(leave_within_an_operation, ranks=[rank])
            self.assertIn(f"Rank {rank} has left the group, through", text)

    def test_leader_that_leaves_is_named_on_other_machines(self):
        ranks = self.start_on(["a", "b", "b"])
        ranks.call(dist.destroy_process_group, ranks=[0])
        ranks.begin(all_reduce_ones, ranks=[1, 2])
        self.assert_all_raise(
            ranks.outcomes([1, 2]), "Rank 0 has left the group, through"
        )

    def test_forked_child_is_no_rank(self):
        ranks = self.start_on(["a", "b"])
        for text in ranks.call(reduce_in_forked_child):
            self.assertIn("forked", text)

    def test_forked_child_that_exits_does_not_disturb_the_group(self):
        ranks = self.start_on(["a", "b", "b"])
        ranks.call(exchange_often)
        for function, status in (
            (exit_in_forked_child, 3),
            (run_forked_process, 0),
        ):
            for forking in ([0], [2], [0, 1, 2]):
                with self.subTest(function=function.__name__, forking=forking):
                    self.assertEqual(
                        ranks.call(function, ranks=forking),
                        [status] * len(forking),
                    )
                    self.assertEqual(ranks.call(all_reduce_ones), [3.0] * 3)
                    ranks.call(wait_for_exchanges, 5, ranks=[0])
                    self.assertEqual(ranks.call(all_reduce_ones), [3.0] * 3)

    def test_forked_child_that_exits_after_the_group_was_left(self):
        # Paddle keeps gloo's connections until the process exits.
        ranks = self.start_on(["a", "b"])
        ranks.call(dist.destroy_process_group)
        self.assertEqual(ranks.call(exit_in_forked_child), [3, 3])

    def test_forked_child_writes_the_buffers_of_c_files_at_its_exit(self):
        ranks = self.start_on(["a", "b"])
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(
                ranks.call(write_in_forked_child, f"{folder}/c", ranks=[0]),
                ["written at exit"],
            )

    def test_forked_child_cannot_wait_for_an_operation(self):
        ranks = self.start_on(["a", "b"])
        for text in ranks.call(wait_in_forked_child, ranks=[0]):
            self.assertIn("forked", text)

    def test_rank_that_fails_to_join_fails_the_ranks_of_all_machines(self):
        for failing, machines in ((0, "abb"), (2, "aab")):
            with self.subTest(failing=failing):
                ranks = self.start(3)
                ranks.begin(
                    join_while_one_fails, list(machines), failing, raise_error
                )
                self.assertIn("no memory", ranks.outcomes([failing])[0].text)
                self.assert_all_raise(
                    ranks.outcomes([r for r in range(3) if r != failing]),
                    f"Rank {failing}",
                    "no memory",
                )

    def test_leader_that_fails_to_join_fails_the_ranks_of_all_machines(self):
        for function, reason in (
            (join_where_one_has_no_memory, "File too large"),
            (join_where_one_cannot_listen, "no memory is left"),
        ):
            with self.subTest(function=function.__name__):
                ranks = self.start(3)
                ranks.begin(function, ["a", "b", "b"], 1)
                self.assert_all_raise(ranks.outcomes(), "[1, 2]", reason)

    def test_rank_that_dies_while_it_joins_fails_the_ranks_of_all_machines(
        self,
    ):
        # Not rank 0, because the store would end with it.
        for victim, number in ((1, 0), (2, 1)):
            with self.subTest(victim=victim):
                # The timeout is longer than the test waits.
                ranks = self.start(3)
                ranks.begin(
                    join_while_one_fails,
                    ["a", "b", "b"],
                    victim,
                    kill_this_process,
                )
                self.assert_all_raise(
                    ranks.outcomes([0, 3 - victim]),
                    "ranks [1, 2], which are numbered from 0",
                    f"Rank {number} (process {ranks.pids[victim]}) has died",
                )

    def test_rank_that_dies_alone_on_its_machine_is_named_after_the_timeout(
        self,
    ):
        ranks = self.start(3, PADDLE_PG_TIMEOUT="1000")
        ranks.begin(join_while_one_fails, ["a", "b", "a"], 1, kill_this_process)
        self.assert_all_raise(ranks.outcomes([0, 2]), "for rank 1 ")

    def test_rank_that_dies_before_others_arrive_fails_those_of_all_machines(
        self,
    ):
        ranks = self.start(4)
        machines = ["a", "b", "b", "a"]
        ranks.begin(join_and_die_after_publishing, machines, ranks=[1])
        ranks.begin(join_on, machines, ranks=[0, 2])
        died = f"Rank 1 (process {ranks.pids[1]}) has died"
        self.assert_all_raise(ranks.outcomes([2]), died)
        ranks.begin(join_on, machines, ranks=[3])
        self.assert_all_raise(ranks.outcomes([0, 3]), "Rank 2", died)

    def test_killed_rank_fails_the_ranks_of_all_machines(self):
        for victim in (0, 3):
            with self.subTest(victim=victim):
                ranks = self.start_on(["a", "a", "b", "b"])
                survivors = [r for r in range(4) if r != victim]
                ranks.begin(all_reduce, "SUM", "float32", [9], ranks=survivors)
                ranks.signal(victim, signal.SIGKILL)
                self.assert_all_raise(ranks.outcomes(survivors))

    def test_leaders_exchange_texts_while_ranks_are_late(self):
        # Without the texts, a gloo call would fail after 30 seconds.
        for machines, late in (("ab", 1), ("abb", 2)):
            with self.subTest(machines=machines):
                ranks = self.start_on(list(machines))
                ranks.call(exchange_often)
                others = [r for r in range(len(machines)) if r != late]
                ranks.call(begin, ranks=others)
                ranks.call(wait_for_exchanges, 5, ranks=[0])
                self.assertEqual(
                    ranks.call(all_reduce_ones, ranks=[late]),
                    [float(len(machines))],
                )
                ranks.call(wait_again, ranks=others)

    def test_leaders_exchange_texts_between_operations(self):
        ranks = self.start_on(["a", "b"])
        ranks.call(exchange_often)
        self.assertEqual(ranks.call(all_reduce_ones), [2.0, 2.0])
        ranks.call(wait_for_exchanges, 5)
        self.assertEqual(ranks.call(all_reduce_ones), [2.0, 2.0])

    def test_rank_that_does_not_arrive_is_named_after_the_timeout(self):
        for machines, late, parts in (
            ("abb", 0, ["[[0]]"]),
            # Named by its machine or by rank 0, whichever times out first.
            ("abb", 2, ["[1, 2]"]),
            ("aab", 2, ["[[2]]"]),
        ):
            with self.subTest(machines=machines, late=late):
                ranks = self.start_on(list(machines), PADDLE_PG_TIMEOUT="3000")
                others = [r for r in range(3) if r != late]
                ranks.begin(all_reduce_ones, ranks=others)
                self.assert_all_raise(ranks.outcomes(others), *parts)
                ranks.begin(all_reduce_ones, ranks=[late])
                self.assert_all_raise(ranks.outcomes([late]), "new group")

    def test_tensor_of_a_failed_all_reduce_belongs_to_the_caller_again(self):
        ranks = self.start_on(["a", "b"], PADDLE_PG_TIMEOUT="1000")
        ranks.begin(all_reduce_and_restore, ranks=[0])
        ranks.begin(join_leaders_late, 2.0, ranks=[1])
        ranks.outcomes()
        self.assertEqual(ranks.call(kept_value, ranks=[0]), [[-7.0] * 4])

    def test_longest_timeout_does_not_overflow(self):
        for machines in ("a", "a"), ("a", "b"):
            ranks = self.start_on(machines)
            found = ranks.call(reduce_with_longest_timeout, machines)
            self.assertEqual(found, [4.0, 4.0])

    def test_timeout_may_be_longer_than_a_poll_can_wait(self):
        month_ms = 30 * 24 * 3600 * 1000
        ranks = self.start_on(["a", "b"], PADDLE_PG_TIMEOUT=str(month_ms))
        self.assertEqual(ranks.call(all_reduce_ones), [2.0, 2.0])

    def test_rank_that_dies_is_named_on_all_machines(self):
        ranks = self.start_on(["a", "a", "b", "b"])
        ranks.begin(all_reduce_ones, ranks=[0, 1, 2])
        ranks.signal(3, signal.SIGKILL)
        self.assert_all_raise(
            ranks.outcomes([0, 1, 2]), "has died", "create a new group"
        )

    def test_leader_that_dies_is_named_by_the_others(self):
        ranks = self.start_on(["a", "b", "b", "c"])
        ranks.begin(all_reduce_ones, ranks=[1, 2, 3])
        ranks.signal(0, signal.SIGKILL)
        self.assert_all_raise(
            ranks.outcomes([1, 2, 3]),
            "Rank 0, the leader of its machine, has died",
            "create a new group",
        )

    def test_leader_that_dies_between_operations_is_named_by_the_others(self):
        # Rank 1, the leader of rank 2, is in no operation meanwhile.
        ranks = self.start_on(["a", "b", "b"])
        ranks.signal(0, signal.SIGKILL)
        ranks.begin(all_reduce_ones, ranks=[2])
        text = "Rank 0, the leader of its machine, has died"
        self.assert_all_raise(ranks.outcomes([2]), text)
        ranks.begin(all_reduce_ones, ranks=[1])
        self.assert_all_raise(ranks.outcomes([1]), text)

    def test_death_of_a_leader_is_detected_though_its_child_lives(self):
        # The child has inherited the leader's connections.
        ranks = self.start_on(["a", "b"])
        (child,) = ranks.call(fork_a_child, ranks=[1])
        self.addCleanup(os.kill, child, signal.SIGKILL)
        ranks.begin(all_reduce_ones, ranks=[0])
        ranks.signal(1, signal.SIGKILL)
        self.assert_all_raise(ranks.outcomes([0]), "Rank 1, the leader")

    def test_rank_that_dies_while_leaders_exchange_data(self):
        # Gloo would wait for 30 seconds, and its error would name no rank.
        for victim, text in ((3, "Rank 3, the leader"), (2, "Rank 2 (process")):
            with self.subTest(victim=victim):
                ranks = self.start_on(["a", "b", "b", "c"])
                ranks.call(die_after_agreement, ranks=[victim])
                ranks.begin(all_reduce_ones)
                self.assertEqual(ranks.outcomes([victim]), [None])
                others = [r for r in range(4) if r != victim]
                self.assert_all_raise(ranks.outcomes(others), text, "has died")

    def test_error_on_a_leader_fails_the_ranks_of_all_machines(self):
        for function in (fail_to_gather, fail_to_reduce):
            with self.subTest(function=function.__name__):
                ranks = self.start_on(["a", "b", "b", "c"])
                ranks.call(function, ranks=[1])
                ranks.begin(all_reduce_ones)
                self.assert_all_raise(ranks.outcomes(), "no memory is left")

    def test_leader_that_is_stopped_is_waited_for_until_the_timeout(self):
        ranks = self.start_on(["a", "b", "b"], PADDLE_PG_TIMEOUT="2000")
        self.assertEqual(ranks.call(all_reduce_ones), [3.0] * 3)
        ranks.signal(0, signal.SIGSTOP)
        ranks.begin(all_reduce_ones, ranks=[1, 2])
        self.assert_all_raise(
            ranks.outcomes([1]), "ranks [0, 1]", "did not end in 2 s"
        )
        self.assert_all_raise(ranks.outcomes([2]))

    def test_machines_that_call_different_sizes_get_an_error(self):
        ranks = self.start_on(["a", "b", "b"])
        ranks.begin(all_reduce, "SUM", "float32", [9], ranks=[0])
        ranks.begin(all_reduce, "SUM", "float32", [8], ranks=[1, 2])
        self.assert_all_raise(
            ranks.outcomes(), "of 9 elements", "of 8 elements"
        )

    def test_ranks_of_a_machine_that_call_different_operations_get_an_error(
        self,
    ):
        for machines, function, argument, parts in (
            ("aab", all_reduce_by, ["AVG", "SUM", "AVG"], ["SUM", "AVG"]),
            (
                "aab",
                all_reduce_of,
                ["float32", "float16", "float32"],
                ["float32", "float16"],
            ),
            ("aab", reduce_to, [0, 1, 0], ["to rank 0", "to rank 1"]),
            (
                "aab",
                call_one,
                ["all_reduce_six", "reduce_scatter", "all_reduce_six"],
                ["all_reduce", "reduce_scatter"],
            ),
            ("aabb", broadcast_from, [2, 3, 2, 2], ["rank 2", "rank 3"]),
            ("aabb", gather_to, [2, 3, 2, 2], ["rank 2", "rank 3"]),
            (
                "aab",
                call_one,
                ["all_to_all_of_ones", "all_reduce_six", "all_to_all_of_ones"],
                ["alltoall", "all_reduce"],
            ),
        ):
            with self.subTest(machines=machines, argument=argument):
                ranks = self.start_on(list(machines))
                ranks.begin(function, argument)
                self.assert_all_raise(ranks.outcomes(), *parts)

    @unittest.skipUnless(may_mount(), "needs the right to mount")
    def test_processes_with_another_dev_shm_are_on_another_machine(self):
        ranks = self.start(4)
        ranks.call(enter_own_memory, None, ranks=[0, 1])
        ranks.call(enter_own_memory, ranks.pids[0], ranks=[2])
        ranks.call(enter_own_memory, ranks.pids[1], ranks=[3])
        ranks.call(join_default_group)
        self.assertEqual(ranks.call(machines_in_use), [[[0, 2], [1, 3]]] * 4)
        self.assertEqual(len(set(ranks.call(all_reduce_bits, 1000))), 1)


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestOneGroupOfMachines(OneGroupOfMachines):
    def test_all_ranks_send_equal_parts(self):
        for shape in ([6, 2], [3], [0, 2]):
            with self.subTest(shape=shape):
                rows = shape[0] // 3
                expected = np.repeat(np.arange(3.0), rows)
                expected = np.broadcast_to(
                    expected.reshape([-1] + [1] * (len(shape) - 1)), shape
                ).tolist()
                for found in self.ranks.call(all_to_all_equally, shape):
                    self.assertEqual(found, [expected] * 4)

    def test_lists_may_change_after_an_asynchronous_all_to_all(self):
        found = self.ranks.call(all_to_all_into_lists_that_change)
        for rank in range(3):
            self.assertEqual(found[rank], [10.0 * r + rank for r in range(3)])

    def test_wrong_arguments_of_all_to_all_are_refused_on_each_rank_alone(self):
        for found in self.ranks.call(refuse_to_send_to_all):
            for text, part in zip(
                found,
                (
                    "7 rows, which cannot be divided equally among 3 ranks",
                    "6 rows and the sizes [1, 2]",
                    "sizes [7, 0, -1]",
                    "sizes [2, 2, 1]",
                    "same type",
                    "list of 2 tensors, but the group has 3 ranks",
                    "list of 1 tensors, but the group has 3 ranks",
                    "contiguous()",
                ),
            ):
                self.assertIn(part, text)

    def test_ranks_of_a_machine_may_send_before_they_receive(self):
        for batch in (False, True):
            with self.subTest(batch=batch):
                self.ranks.begin(exchange_with, 2, batch, ranks=[0])
                self.ranks.begin(exchange_with, 0, batch, ranks=[2])
                self.assertEqual(
                    self.ranks.outcomes([0, 2]), [[2.0, 2.0], [0.0, 0.0]]
                )

    def test_objects_are_sent_within_a_machine(self):
        self.ranks.begin(exchange_objects_with, 2, ranks=[0])
        self.ranks.begin(exchange_objects_with, 0, ranks=[2])
        self.assertEqual(
            self.ranks.outcomes([0, 2]), [[{"from": 2}], [{"from": 0}]]
        )

    def test_transfers_do_not_wait_for_pending_collective_operations(self):
        # The timeout is longer than the test waits for a transfer.
        self.ranks.call(begin, ranks=[0, 2])
        self.ranks.begin(send_to, 2, 5.0, ranks=[0])
        self.assertEqual(
            self.ranks.call(receive_from, 0, ranks=[2]), [[5.0] * 4]
        )
        self.assertEqual(self.ranks.outcomes([0]), [None])
        self.assertEqual(self.ranks.call(all_reduce_ones, ranks=[1]), [3.0])
        for found in self.ranks.call(wait_again, ranks=[0, 2]):
            self.assertEqual(found, [True, True, [3.0] * 10])

    def test_collective_operations_do_not_wait_for_pending_transfers(self):
        self.ranks.call(receive_without_waiting, 0, ranks=[2])
        self.assertEqual(self.ranks.call(all_reduce_ones), [3.0] * 3)
        self.ranks.begin(send_to, 2, 5.0, ranks=[0])
        self.assertEqual(
            self.ranks.call(wait_for_received, ranks=[2]), [(True, [5.0] * 4)]
        )
        self.ranks.outcomes([0])

    def test_wait_with_a_timeout_leaves_a_transfer_in_flight(self):
        self.ranks.call(receive_without_waiting, 0, ranks=[2])
        brief = datetime.timedelta(milliseconds=10)
        self.assertEqual(
            self.ranks.call(wait_for_received, brief, ranks=[2]),
            [(False, [0.0] * 4)],
        )
        self.ranks.begin(send_to, 2, 5.0, ranks=[0])
        self.assertEqual(
            self.ranks.call(wait_for_received, ranks=[2]), [(True, [5.0] * 4)]
        )
        self.ranks.outcomes([0])

    def test_wrong_arguments_of_a_transfer_are_refused_on_that_rank_alone(self):
        calls = [("send", (0,)), ("irecv", (0,))]
        ((sent, received, strided, sparse),) = self.ranks.call(
            send_where_it_is_refused, calls, ranks=[0]
        )
        self.assertIn("send got rank 0, which is the caller", sent)
        self.assertIn("recv got rank 0, which is the caller", received)
        self.assertIn("contiguous()", strided)
        self.assertIn("to_dense()", sparse)
        self.assertEqual(self.ranks.call(all_reduce_ones), [3.0] * 3)

    def test_transfers_of_a_forked_child_are_refused(self):
        for text in self.ranks.call(send_in_forked_child, 2, ranks=[0]):
            self.assertIn("forked", text)
        self.ranks.call(receive_without_waiting, 0, ranks=[2])
        for text in self.ranks.call(
            wait_for_received_in_forked_child, ranks=[2]
        ):
            self.assertIn("forked", text)
        self.ranks.begin(send_to, 2, 5.0, ranks=[0])
        self.assertEqual(
            self.ranks.call(wait_for_received, ranks=[2]), [(True, [5.0] * 4)]
        )
        self.ranks.outcomes([0])


@unittest.skipIf(_WHY_NO_NETWORKS, _WHY_NO_NETWORKS)
class TestFailingNetwork(RanksTestCase):
    """Rank 0 is in a different network from ranks 1 and 2."""

    def start_on_networks(self, join, **environment):
        ranks = self.start(
            3,
            GLOO_SOCKET_IFNAME=INTERFACE,
            PADDLE_MASTER="10.77.0.1:6170",
            **environment,
        )
        for rank in range(3):
            # Kill them: a normal exit would wait for gloo for 30 seconds.
            self.addCleanup(ranks.signal, rank, signal.SIGKILL)
        ranks.call(leave_namespace, CLONE_NEWNET, ranks=[0, 1])
        ranks.call(enter_namespace, ranks.pids[1], "net", ranks=[2])
        connect_networks(ranks.pids[:2])
        ranks.call(join, ["a", "b", "b"])
        return ranks

    def disconnect(self, ranks):
        run_in_network(ranks.pids[1], "ip", "link", "set", INTERFACE, "down")

    def reduce_until_the_network_fails(self, join, **environment):
        """Returns the ranks' errors after the network of a machine fails."""
        ranks = self.start_on_networks(join, **environment)
        with tempfile.TemporaryDirectory() as folder:
            ranks.begin(all_reduce_until_it_fails, folder)
            wait_until(
                lambda: len(os.listdir(folder)) == 3, "the first operation"
            )
            self.disconnect(ranks)
            outcomes = ranks.outcomes()
        for outcome in outcomes:
            self.assertIsInstance(outcome, Error)
            self.assertEqual(outcome.kind, "RuntimeError", outcome.trace)
        return [outcome.text for outcome in outcomes]

    def test_all_ranks_raise_at_the_timeout(self):
        *leaders, other = self.reduce_until_the_network_fails(
            join_on, PADDLE_PG_TIMEOUT="2000"
        )
        for text in leaders:
            self.assertIn("ranks [0, 1]", text)
            self.assertIn("did not end in 2 s", text)
        self.assertIn("[1, 2]", other)

    def test_leaders_name_the_unreachable_one_before_the_timeout(self):
        texts = self.reduce_until_the_network_fails(join_and_probe_often)
        for rank, named in ((0, "Rank 1,"), (1, "Rank 0,"), (2, "[1, 2]")):
            self.assertIn(named, texts[rank])
        for text in texts[:2]:
            self.assertIn("cannot be reached: ", text)

    def test_receiver_names_the_unreachable_rank_before_the_timeout(self):
        # Rank 2 is no leader.
        ranks = self.start_on_networks(join_on)
        ranks.begin(receive_twice_and_probe_often, 0, ranks=[2])
        ranks.call(send_to, 2, ranks=[0])
        self.disconnect(ranks)
        self.assert_all_raise(
            ranks.outcomes([2]), "Rank 0 has died", "cannot be reached: [Errno"
        )


if __name__ == "__main__":
    unittest.main()
