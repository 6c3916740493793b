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
"""Groups of the backend shm whose ranks die, leave, stop or disagree."""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import unittest
from typing import TYPE_CHECKING, Any, Callable
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, descriptors, in_threads, wait_until
from shared_tensor_leaks import shared_files
from shm_group_base import (
    ON_LINUX,
    Error,
    Ranks,
    RanksTestCase,
    free_port,
    join_default_group,
    wait_with_wrong_timeout,
)
from test_shared_memory_unavailable import HAS_FILTER, run_without_locks

import paddle
import paddle.distributed as dist
from paddle.distributed import shared_memory_group

if TYPE_CHECKING:
    from collections.abc import Iterator

# The timeout of operations in tests of timeouts.
SHORT = {"PADDLE_PG_TIMEOUT": "1000"}
JOIN_WITHOUT_LOCKS = """
import os
os.environ["PADDLE_TRAINER_ID"] = "0"
import datetime
from paddle.base import core
from paddle.distributed import shared_memory_group

store = core.TCPStore("127.0.0.1", {port}, True, 1, 60)
try:
    shared_memory_group.join(store, 0, 1, 7, datetime.timedelta(minutes=1))
except RuntimeError as error:
    assert "open file description locks" in str(error), error
    assert "gloo" in str(error), error
else:
    raise AssertionError("joined without locks")
"""
_kept: dict = {}


def all_reduce(count: int = 10, dtype: str = "float32") -> float:
    x = paddle.ones([count], dtype)
    dist.all_reduce(x)
    return float(x[0])


def all_reduce_forever() -> None:
    # The same seed in all ranks.
    sizes = random.Random(1)
    while True:
        all_reduce(sizes.choice([10, 10000, 1000000]))


def all_reduce_asynchronously() -> str:
    """Returns the error of the wait for an operation."""
    task = dist.all_reduce(paddle.ones([10]), sync_op=False)
    try:
        task.wait()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def broadcast(root: int = 0) -> None:
    dist.broadcast(paddle.ones([10]), root)


# Operations of rank 0 and 1 on tensors of four elements, by the name in errors.
_CALLS: dict[str, Callable[[paddle.Tensor, paddle.Tensor, Any], Any]] = {
    "all_reduce": lambda x, out, group: dist.all_reduce(x, group=group),
    "reduce": lambda x, out, group: dist.reduce(x, 0, group=group),
    "reduce_scatter": lambda x, out, group: dist.reduce_scatter(
        out, [x, x], group=group
    ),
    "broadcast": lambda x, out, group: dist.broadcast(x, 0, group),
    "all_gather": lambda x, out, group: dist.all_gather([], x, group),
    "gather": lambda x, out, group: dist.gather(
        x, [] if dist.get_rank() == 0 else None, 0, group
    ),
    "scatter": lambda x, out, group: dist.scatter(
        out, [x, x] if dist.get_rank() == 0 else None, 0, group
    ),
    "alltoall": lambda x, out, group: dist.alltoall(
        [out, paddle.zeros_like(out)], [x, x], group
    ),
    "alltoall_single": lambda x, out, group: dist.alltoall_single(
        out, x, group=group
    ),
    "send": lambda x, out, group: (
        dist.send(x, 1, group)
        if dist.get_rank() == 0
        else dist.recv(out, 0, group)
    ),
}
# Those that work on float8: the others compute with it.
_CALLS_WITH_FLOAT8 = ("broadcast", "alltoall_single", "send")


def call_with_type(name: str, dtype: str) -> None:
    """Calls an operation of a new group."""
    x = paddle.ones([4]).astype(dtype)
    out = paddle.zeros([4]).astype(dtype)
    _CALLS[name](x, out, dist.new_group())


def receive_from_rank_0(rows: int) -> None:
    out = paddle.zeros([rows + 2])
    dist.alltoall_single(out, paddle.ones([4]), [2, 2], [rows, 2])


def exit_now() -> None:
    os._exit(3)


def raise_and_exit() -> None:
    # Like a script that ends with an exception.
    sys.exit(1)


def destroy() -> None:
    dist.destroy_process_group()


def process_group():
    return dist.communication.group._get_global_group().process_group


def leave_while_waiting() -> str:
    """Leaves on another thread while an operation waits for rank 1."""
    group = process_group()
    leaver = threading.Timer(0.2, group.leave)
    leaver.start()
    try:
        group.barrier().wait()
    except RuntimeError as error:
        return str(error)
    finally:
        leaver.join()
    return "nothing"


def barrier_after_leaving() -> None:
    process_group().leave()
    process_group().barrier()


def wait_with_timeout(
    timeout: datetime.timedelta | float,
) -> tuple[bool, bool]:
    """Returns the results of a wait that ends before rank 1 arrives."""
    x = paddle.ones([10])
    task = dist.all_reduce(x, sync_op=False)
    _kept["task"] = task, x
    return task.wait(timeout), task.is_completed()


def all_reduce_with_timeout(timeout: datetime.timedelta) -> tuple[bool, float]:
    x = paddle.ones([10])
    return dist.all_reduce(x, sync_op=False).wait(timeout), float(x[0])


def finish_waiting() -> tuple[bool, float]:
    task, x = _kept.pop("task")
    return task.wait(), float(x[0])


def new_impatient_group() -> None:
    _kept["new"] = dist.new_group(timeout=datetime.timedelta(milliseconds=500))


def barrier_of_new_group() -> None:
    dist.barrier(_kept["new"])


def new_group_that_rank_1_misses() -> str:
    brief = datetime.timedelta(milliseconds=300)
    with mock.patch.object(shared_memory_group, "_SHORTEST_JOIN", brief):
        try:
            dist.new_group(timeout=brief)
        except RuntimeError as error:
            return str(error)
    return "nothing"


def refuse_timeout(timeout: object) -> str:
    try:
        dist.new_group(timeout=timeout)
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def all_reduce_in_group_with_timeouts(timeouts: list) -> list:
    """Returns the timeouts of new groups, and the sums that they compute."""
    found = []
    for timeout in timeouts:
        group = dist.new_group(timeout=timeout)
        x = paddle.ones([1])
        dist.all_reduce(x, group=group)
        used = shared_memory_group.timeout_of(group.process_group)
        found.append((used.total_seconds(), x.item()))
    return found


def refuse_ranks(ranks: list[int]) -> str:
    try:
        dist.new_group(ranks)
    except ValueError as error:
        return str(error)
    return "nothing"


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """Prevents this process from opening more descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.dup(0)]
    # Above all open descriptors: polling higher ones would be an error.
    last = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, before[1]))
    with contextlib.suppress(OSError):
        while True:
            opened.append(os.dup(0))
    try:
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def within(limit: int, size: int) -> Iterator[None]:
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def without_large_files() -> contextlib.AbstractContextManager:
    return within(resource.RLIMIT_FSIZE, 1 << 16)


def without_memory() -> contextlib.AbstractContextManager:
    """Limits the address space of this process to little more than it uses."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    return within(
        resource.RLIMIT_AS, pages * resource.getpagesize() + (1 << 20)
    )


def new_group_in(
    scarcity: Callable[[], contextlib.AbstractContextManager],
) -> str:
    """Returns the error of creating a group while a resource is exhausted."""
    with scarcity():
        try:
            dist.new_group()
        except Exception as error:
            return str(error)
    return "nothing"


def end_without_new_group() -> None:
    """Ends this rank as soon as it has failed to create a group."""
    with mock.patch.object(shared_memory_group, "_TIME_TO_FAIL_S", WAIT_S):
        new_group_in(without_descriptors)
    os._exit(1)


def kill_this_process(*args: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def before_joining(action: Callable[[Any], None]) -> Iterator[None]:
    """Calls `action(store)` when this rank has found all of a new group."""
    join = shared_memory_group._join_machine

    def act_and_join(store: Any, *args: Any) -> Any:
        action(store)
        return join(store, *args)

    with mock.patch.object(shared_memory_group, "_join_machine", act_and_join):
        yield


def tell_that_all_are_found(store: Any) -> None:
    store.set(f"all found by {dist.get_rank()}", "")


def wait_until_found_by(ranks: list[int], store: Any) -> None:
    """Waits until these ranks have called `tell_that_all_are_found`.

    Rank 0 has the store, in which the others find it.
    """
    has_key = shared_memory_group._find_binding().has_key
    wait_until(
        lambda: all(has_key(store, f"all found by {rank}") for rank in ranks),
        f"ranks {ranks} have found all",
    )


def new_group_and_tell() -> None:
    with before_joining(tell_that_all_are_found):
        dist.new_group()


def new_group_and_die_in(function: str) -> None:
    """Dies when it calls a function of shared_memory_group."""
    with mock.patch.object(shared_memory_group, function, kill_this_process):
        dist.new_group()


def new_group_and_die(found_by: list[int]) -> None:
    """Dies when these ranks and this one have found all."""

    def die(store: Any) -> None:
        wait_until_found_by(found_by, store)
        kill_this_process()

    with before_joining(die):
        dist.new_group()


def new_sub_group_and_die(members: list[int]) -> None:
    """Dies when it has found all members."""
    with before_joining(kill_this_process):
        dist.new_group(members)


def new_group_and_die_while_collecting(seconds: float) -> None:
    """Dies this long after it has published its process."""
    collect = shared_memory_group._collect

    def collect_and_die(*args: Any) -> Any:
        threading.Timer(seconds, kill_this_process).start()
        return collect(*args)

    with mock.patch.object(shared_memory_group, "_collect", collect_and_die):
        dist.all_reduce(paddle.ones([10]), group=dist.new_group())
    time.sleep(WAIT_S)


def new_group_of_stopped_rank(found_by: list[int]) -> None:
    """Stops when these ranks and this one have found all."""

    def stop(store: Any) -> None:
        wait_until_found_by(found_by, store)
        os.kill(os.getpid(), signal.SIGSTOP)

    with before_joining(stop):
        dist.new_group()


def new_group_until_interrupted() -> bool:
    """
    Returns whether Ctrl-C ended the creation of a group, after this rank has
    found all.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def tell_and_be_interrupted(store: Any) -> None:
        tell_that_all_are_found(store)
        interrupt_soon(signal.SIGINT)

    with before_joining(tell_and_be_interrupted):
        try:
            dist.new_group()
        except KeyboardInterrupt:
            return True
    return False


def new_group_of_unknown_process() -> None:
    """Like a rank whose /proc belongs to another PID namespace."""
    binding = shared_memory_group._find_binding()
    with mock.patch.object(binding, "this_process", lambda: (0, 0)):
        new_group_and_die_in("_join_machine")


def new_group_with_another_clock() -> float:
    """Like a rank in another time namespace, which sees other start times."""
    binding = shared_memory_group._find_binding()
    process, start = binding.this_process()
    with (
        mock.patch.object(shared_memory_group, "_clock", lambda: "time:[1]"),
        mock.patch.object(
            binding, "this_process", lambda: (process, start + 1000)
        ),
    ):
        return all_reduce_in_slow_new_group()


def all_reduce_in_slow_new_group() -> float:
    """Gives other ranks time to look at this one before it attaches."""
    with before_joining(lambda store: time.sleep(0.3 * dist.get_rank())):
        return all_reduce_in_new_group()


def new_group_with_a_second_to_join() -> None:
    second = datetime.timedelta(seconds=1)
    with mock.patch.object(shared_memory_group, "_SHORTEST_JOIN", second):
        dist.new_group()


def all_reduce_in_brief_new_group() -> float:
    """Joins later than the timeout of the group on rank 1."""
    timeout = datetime.timedelta(milliseconds=300)
    with before_joining(lambda store: time.sleep(1.0 * dist.get_rank())):
        group = dist.new_group(timeout=timeout)
    dist.barrier()
    x = paddle.ones([10])
    dist.all_reduce(x, group=group)
    return float(x[0])


def interrupt_soon(number: int) -> None:
    os_kill = functools.partial(os.kill, os.getpid(), number)
    threading.Timer(0.2, os_kill).start()


def send_until_interrupted() -> bool:
    """Returns whether Ctrl-C ended a send that the other rank does not match.

    Both ranks send first.
    """
    # A shell lets programs that it runs in the background ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt_soon(signal.SIGINT)
        send_to_the_other()
    except KeyboardInterrupt:
        return True
    return False


def send_behind_another_until_interrupted() -> list[str]:
    """Returns how a send and an earlier asynchronous one ended by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = paddle.ones([1 << 20])
    task = dist.isend(x, 1 - dist.get_rank())
    found = []
    try:
        interrupt_soon(signal.SIGINT)
        send_to_the_other()
    except KeyboardInterrupt:
        found.append("KeyboardInterrupt")
    try:
        task.wait()
    except RuntimeError as error:
        found.append(str(error))
    return found


def send_to_the_other() -> None:
    dist.send(paddle.ones([10]), 1 - dist.get_rank())


def wait_until_interrupted() -> bool:
    """Returns whether Ctrl-C ended the wait for an operation."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    x = paddle.ones([10])
    task = dist.all_reduce(x, sync_op=False)
    _kept["task"] = task, x
    try:
        interrupt_soon(signal.SIGINT)
        task.wait()
    except KeyboardInterrupt:
        return True
    return False


def all_reduce_and_handle_signal() -> list[float]:
    """Returns the results of an operation, and of one of a signal handler."""
    found = []

    def handle(*args: Any) -> None:
        found.append(all_reduce())

    signal.signal(signal.SIGUSR1, handle)
    interrupt_soon(signal.SIGUSR1)
    result = all_reduce()
    wait_until(lambda: found, "the handler runs")
    return [result, *found]


def new_group_without_storage() -> str:
    """Returns the error of creating a group without a library."""

    def raise_error() -> None:
        raise OSError("cannot open shared object file")

    storage = mock.Mock(locator=raise_error)
    libpaddle = paddle.base.core.libpaddle
    with mock.patch.object(libpaddle, "_shared_storage", storage, create=True):
        return new_group_in(contextlib.nullcontext)


def publish_failure_and_die() -> None:
    """Dies when it has published that it cannot attach."""

    def fail(store: Any, rank: int, size: int, group: int, *args: Any) -> None:
        store.set(f"{group}/{rank}", "!no memory is left")
        kill_this_process()

    with mock.patch.object(shared_memory_group, "_join_machine", fail):
        dist.new_group()


def new_group_of_late_rank() -> str:
    """Returns the error of a rank that attaches after the others."""
    with before_joining(lambda store: time.sleep(0.5)):
        return new_group_in(contextlib.nullcontext)


def new_group_and_use_it() -> None:
    group = dist.new_group()
    while True:
        dist.all_reduce(paddle.ones([10]), group=group)


def ended(process: int, start: int) -> tuple[bool, str]:
    """
    Returns whether a process has ended, and the error of a store that watches
    it as rank 5.
    """
    binding = shared_memory_group._find_binding()
    store = binding.GroupStore(
        paddle.base.core.create_or_get_global_tcp_store(), "ended/", 1000
    )
    store.watch([(5, process, start)])
    try:
        store.raise_if_died()
    except RuntimeError as error:
        return binding.has_ended(process, start), str(error)
    return binding.has_ended(process, start), ""


def this_process() -> tuple[int, int]:
    return shared_memory_group._find_binding().this_process()


def all_reduce_in_new_group() -> float:
    x = paddle.ones([10])
    dist.all_reduce(x, group=dist.new_group())
    return float(x[0])


def in_forked_child(make_task: bool) -> str:
    """Returns the error of an operation in a forked child."""
    task = None
    if make_task:
        task = dist.recv(paddle.ones([1]), 1 - dist.get_rank(), sync_op=False)
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            if task is None:
                all_reduce()
            else:
                task.wait()
            text = "nothing"
        except RuntimeError as error:
            text = str(error)
        os.write(writer, text.encode())
        gc.collect()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as result:
        found = result.read()
    os.wait()
    return found


def exchange_once() -> float:
    """Sends the tensor that the other rank receives in `in_forked_child`."""
    dist.send(paddle.full([1], 2.0), 1 - dist.get_rank())
    return all_reduce()


def memfds() -> list[str]:
    return [target for target in descriptors().values() if "memfd:" in target]


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def new_groups_and_destroy(count: int) -> tuple[int, int, int]:
    """Returns how many descriptors, threads and mappings groups have leaked."""

    def resources() -> tuple[int, int, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            mapped = sum("memfd:" in line for line in maps)
        return len(memfds()), threads(), mapped

    def use_one() -> None:
        used = dist.new_group(backend="shm")
        x = paddle.ones([10])
        dist.all_reduce(x, group=used, sync_op=False).wait()
        dist.destroy_process_group(used)

    use_one()
    before = resources()
    for _ in range(count):
        use_one()
    return tuple(a - b for a, b in zip(resources(), before))


def same_from_threads(rounds: int) -> None:
    """Each thread reduces in its own group."""
    groups = _kept.setdefault(
        "groups", [dist.new_group(backend="shm") for _ in range(4)]
    )

    def run(number: int) -> None:
        for i in range(rounds):
            x = paddle.full([100 * (number + 1)], float(i + number))
            dist.all_reduce(x, group=groups[number])
            np.testing.assert_array_equal(
                x.numpy(), dist.get_world_size() * (i + number)
            )

    in_threads(*[functools.partial(run, number) for number in range(4)])


def gather_from_threads(rounds: int) -> None:
    """Several threads gather in one group, in any order."""
    rank = dist.get_rank()

    def run(number: int) -> None:
        for i in range(rounds):
            value = float(i * 10 + number)
            parts = []
            dist.all_gather(
                parts, paddle.full([20000], value), sync_op=False
            ).wait()
            np.testing.assert_array_equal(parts[rank].numpy(), value)
            other = parts[1 - rank].numpy()
            np.testing.assert_array_equal(other, other[0])

    in_threads(*[functools.partial(run, number) for number in range(3)])


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestShmFailure(RanksTestCase):
    def setUp(self):
        self.addCleanup(self.assertEqual, shared_files(), shared_files())

    def assert_all_name(self, outcomes, *parts):
        for outcome in outcomes:
            self.assertIsInstance(outcome, Error)
            self.assertEqual(outcome.kind, "RuntimeError", outcome.trace)
            for part in parts:
                # "Rank" may be the first word of a sentence.
                self.assertIn(part, outcome.text.replace("Rank", "rank"))

    def test_killed_rank_fails_the_operation_that_all_others_wait_in(self):
        ranks = self.start_group(4)
        survivors = [0, 1, 3]
        ranks.begin(all_reduce, ranks=survivors)
        ranks.signal(2, signal.SIGKILL)
        self.assert_all_name(
            ranks.outcomes(survivors), "rank 2", str(ranks.pids[2])
        )
        # All later operations fail, on the calling thread or another one.
        ranks.begin(all_reduce, ranks=survivors)
        self.assert_all_name(ranks.outcomes(survivors), "rank 2")
        for text in ranks.call(all_reduce_asynchronously, ranks=survivors):
            self.assertIn("Rank 2", text)

    def test_ranks_killed_at_any_time_fail_the_others(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        chosen = random.Random(seed)
        for _ in range(10):
            size = chosen.choice([2, 3, 4])
            victim = chosen.randrange(size)
            ranks = Ranks(size)
            try:
                ranks.call(join_default_group)
                ranks.call(all_reduce)
                survivors = [r for r in range(size) if r != victim]
                ranks.begin(all_reduce_forever)
                time.sleep(chosen.uniform(0, 0.05))
                ranks.signal(victim, signal.SIGKILL)
                self.assert_all_name(
                    ranks.outcomes(survivors), f"rank {victim}"
                )
            finally:
                ranks.end()

    def test_rank_that_ends_without_leaving_counts_as_dead(self):
        ranks = self.start_group(2)
        ranks.begin(all_reduce, ranks=[0])
        ranks.begin(exit_now, ranks=[1])
        self.assert_all_name(ranks.outcomes([0]), "rank 1")

    def test_rank_that_an_exception_ends_has_left(self):
        ranks = self.start_group(2)
        ranks.begin(all_reduce, ranks=[0])
        ranks.begin(raise_and_exit, ranks=[1])
        self.assert_all_name(ranks.outcomes([0]), "rank 1", "left")

    def test_destroyed_group_has_been_left(self):
        ranks = self.start_group(2)
        ranks.call(destroy, ranks=[1])
        ranks.begin(all_reduce, ranks=[0])
        self.assert_all_name(ranks.outcomes([0]), "rank 1", "left")

    def test_operation_in_flight_fails_when_its_rank_leaves(self):
        ranks = self.start_group(2)
        (text,) = ranks.call(leave_while_waiting, ranks=[0])
        self.assertIn("left", text)

    def test_operation_after_leaving(self):
        ranks = self.start_group(2)
        ranks.begin(barrier_after_leaving)
        self.assert_all_name(ranks.outcomes(), "has left", "new_group")

    def test_stopped_rank_fails_the_others_at_the_timeout(self):
        ranks = self.start_group(3, **SHORT)
        ranks.signal(1, signal.SIGSTOP)
        ranks.begin(all_reduce, ranks=[0, 2])
        self.assert_all_name(ranks.outcomes([0, 2]), "rank 1")
        ranks.signal(1, signal.SIGCONT)
        ranks.begin(all_reduce, ranks=[1])
        self.assert_all_name(ranks.outcomes([1]), "rank")

    def test_timeout_of_a_new_group(self):
        # The timeout of the default group is longer than a test waits.
        ranks = self.start_group(2)
        ranks.call(new_impatient_group)
        ranks.begin(barrier_of_new_group, ranks=[0])
        self.assert_all_name(ranks.outcomes([0]), "rank 1", "500 ms")

    def test_rank_that_does_not_make_the_group(self):
        ranks = self.start_group(3)
        for text in ranks.call(new_group_that_rank_1_misses, ranks=[0, 2]):
            self.assertIn("for rank 1 ", text)

    def test_rank_without_resources_to_join_fails_all_ranks_with_the_reason(
        self,
    ):
        ranks = self.start_group(3)
        for failing, scarcity, reason in (
            (0, without_descriptors, "Too many open files"),
            (1, without_descriptors, "Too many open files"),
            (0, without_large_files, "File too large"),
            (0, without_memory, "Cannot allocate memory"),
            (2, without_memory, "Cannot allocate memory"),
        ):
            with self.subTest(failing=failing, scarcity=scarcity.__name__):
                others = [r for r in range(3) if r != failing]
                ranks.begin(new_group_in, scarcity, ranks=[failing])
                ranks.begin(new_group_in, contextlib.nullcontext, ranks=others)
                (text,) = ranks.outcomes([failing])
                self.assertIn(reason, text)
                for text in ranks.outcomes(others):
                    self.assertIn(f"Rank {failing} ", text)
                    self.assertIn(reason, text)
                self.assertEqual(ranks.call(all_reduce_in_new_group), [3.0] * 3)

    def test_rank_that_ends_because_it_cannot_join_gives_others_the_reason(
        self,
    ):
        # Rank 0 has the store, which the others read later.
        ranks = self.start_group(3)
        ranks.begin(end_without_new_group, ranks=[0])
        time.sleep(0.2)
        for text in ranks.call(
            new_group_in, contextlib.nullcontext, ranks=[1, 2]
        ):
            self.assertIn("Rank 0 ", text)
            self.assertIn("Too many open files", text)
        self.assertEqual(ranks.outcomes([0]), [None])

    def assert_all_name_dead(self, ranks, victim, survivors):
        self.assert_all_name(
            ranks.outcomes(survivors),
            f"rank {victim} (process {ranks.pids[victim]}) has died",
        )

    def assert_name_dead_or_its_store(self, ranks, outcomes):
        """Asserts that survivors which read the process of rank 0 name it."""
        for outcome in outcomes:
            if "Cannot use the store" not in outcome.text:
                self.assertIn(
                    f"ank 0 (process {ranks.pids[0]}) has died", outcome.text
                )

    def test_rank_killed_before_others_create_the_group_fails_them(self):
        # The timeout of the group is longer than a test waits.
        ranks = self.start_group(3)
        ranks.begin(new_group_and_die_in, "_collect", ranks=[1])
        ranks.begin(dist.new_group, ranks=[0])
        # Rank 2 has not begun.
        self.assert_all_name_dead(ranks, 1, [0])
        ranks.begin(dist.new_group, ranks=[2])
        self.assert_all_name_dead(ranks, 1, [2])

    def test_killed_rank_with_the_store_fails_the_others(self):
        ranks = self.start_group(3)
        ranks.begin(dist.new_group, ranks=[1])
        # Rank 1 reads the process of rank 0 meanwhile.
        ranks.begin(new_group_and_die_while_collecting, 2.0, ranks=[0])
        self.assert_all_name_dead(ranks, 0, [1])
        # Rank 2 can no longer read it.
        ranks.begin(dist.new_group, ranks=[2])
        self.assert_all_name(ranks.outcomes([2]), "Cannot use the store")

    def test_rank_killed_before_it_attaches_fails_the_others(self):
        for victim in (0, 1, 2):
            with self.subTest(victim=victim):
                ranks = self.start_group(3)
                survivors = [r for r in range(3) if r != victim]
                before = ranks.call(memfds, ranks=survivors)
                ranks.begin(new_group_and_die, survivors, ranks=[victim])
                ranks.begin(new_group_and_tell, ranks=survivors)
                self.assert_all_name_dead(ranks, victim, survivors)
                self.assertEqual(ranks.call(memfds, ranks=survivors), before)

    def test_attached_rank_killed_before_others_attach_fails_them(self):
        for victim in (0, 1):
            with self.subTest(victim=victim):
                ranks = self.start_group(3)
                before = len(self.groups_of(ranks, 1))
                ranks.begin(dist.new_group, ranks=[0, 1])
                ranks.begin(new_group_of_stopped_rank, [], ranks=[2])
                wait_until(
                    lambda ranks=ranks, before=before: (
                        len(self.groups_of(ranks, 1)) > before
                    ),
                    "rank 1 attaches",
                )
                ranks.signal(victim, signal.SIGKILL)
                self.assert_all_name_dead(ranks, victim, [1 - victim])
                ranks.signal(2, signal.SIGCONT)
                self.assert_all_name_dead(ranks, victim, [2])

    def groups_of(self, ranks, rank):
        with open(f"/proc/{ranks.pids[rank]}/maps") as maps:
            return [line for line in maps if "memfd:paddle-group" in line]

    def test_first_rank_killed_without_the_store_fails_the_others(self):
        ranks = self.start_group(4)
        ranks.begin(dist.new_group, [1, 2, 3], ranks=[2, 3])
        ranks.begin(new_sub_group_and_die, [1, 2, 3], ranks=[1])
        self.assert_all_name(
            ranks.outcomes([2, 3]),
            f"rank 0 (process {ranks.pids[1]}) has died",
        )

    def test_ranks_killed_at_any_time_of_the_creation_fail_the_others(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}")
        chosen = random.Random(seed)
        for _ in range(6):
            size = chosen.choice([2, 3, 4])
            victim = chosen.randrange(size)
            ranks = Ranks(size)
            try:
                ranks.call(join_default_group)
                survivors = [r for r in range(size) if r != victim]
                ranks.begin(
                    new_group_and_die_while_collecting,
                    chosen.uniform(0, 0.03),
                    ranks=[victim],
                )
                ranks.begin(new_group_and_use_it, ranks=survivors)
                outcomes = ranks.outcomes(survivors)
                self.assert_all_name(outcomes, f"rank {victim}")
                if victim == 0:
                    self.assert_name_dead_or_its_store(ranks, outcomes)
            finally:
                ranks.end()

    def test_rank_of_unknown_process_is_named_after_the_timeout(self):
        ranks = self.start_group(2, **SHORT)
        ranks.begin(new_group_of_unknown_process, ranks=[1])
        ranks.begin(new_group_with_a_second_to_join, ranks=[0])
        self.assert_all_name(
            ranks.outcomes([0]), "rank 1 did not attach", "1000 ms"
        )

    def test_process_with_the_id_of_an_earlier_one_is_not_the_rank(self):
        ranks = self.start_group(2)
        process, start = ranks.call(this_process)[1]
        self.assertEqual(process, ranks.pids[1])
        self.assertEqual(
            ranks.call(ended, process, start, ranks=[0]), [(False, "")]
        )
        self.assertEqual(ranks.call(ended, 0, 0, ranks=[0]), [(False, "")])
        ((has_ended, text),) = ranks.call(ended, process, start + 1, ranks=[0])
        self.assertTrue(has_ended)
        self.assertIn(f"Rank 5 (process {process}) has died", text)

    def test_process_with_another_clock_is_not_watched(self):
        ranks = self.start_group(2)
        ranks.begin(new_group_with_another_clock, ranks=[1])
        ranks.begin(all_reduce_in_slow_new_group, ranks=[0])
        self.assertEqual(ranks.outcomes(), [2.0, 2.0])

    def test_rank_that_cannot_load_a_binding_gives_others_the_reason(self):
        ranks = self.start_group(3)
        ranks.begin(new_group_without_storage, ranks=[1])
        ranks.begin(new_group_in, contextlib.nullcontext, ranks=[0, 2])
        for text in ranks.outcomes([0, 2]):
            self.assertIn("Rank 1 ", text)
            self.assertIn("cannot open shared object file", text)
        self.assertIn("cannot open shared object file", ranks.outcomes([1])[0])
        self.assertEqual(ranks.call(all_reduce_in_new_group), [3.0] * 3)

    @unittest.skipUnless(HAS_FILTER, "no filter of system calls here")
    def test_joining_without_locks_says_what_is_missing(self):
        run_without_locks(self, JOIN_WITHOUT_LOCKS.format(port=free_port()))

    def test_reason_of_a_rank_that_died_afterwards_is_kept(self):
        ranks = self.start_group(3)
        ranks.begin(publish_failure_and_die, ranks=[1])
        ranks.begin(new_group_of_late_rank, ranks=[2])
        ranks.begin(new_group_in, contextlib.nullcontext, ranks=[0])
        self.assertIn("no memory is left", ranks.outcomes([0])[0])
        # The death made rank 0 give up before rank 2 looked for its memory.
        (text,) = ranks.outcomes([2])
        self.assertIn(f"Rank 1 (process {ranks.pids[1]}) has died", text)
        self.assertIn("cannot attach to the shared memory of rank 0", text)

    def test_joining_may_take_longer_than_the_timeout_of_the_group(self):
        ranks = self.start_group(2)
        self.assertEqual(ranks.call(all_reduce_in_brief_new_group), [2.0, 2.0])

    def test_ctrl_c_ends_an_operation_and_fails_the_others(self):
        # The timeout of the default group is longer than a test waits.
        ranks = self.start_group(2)
        ranks.begin(send_to_the_other, ranks=[1])
        self.assertEqual(ranks.call(send_until_interrupted, ranks=[0]), [True])
        self.assert_all_name(ranks.outcomes([1]), "rank 0", "aborted send")

    def test_ctrl_c_ends_the_creation_of_a_group(self):
        for stopped in (0, 1):
            with self.subTest(stopped=stopped):
                ranks = self.start_group(2)
                other = [1 - stopped]
                ranks.begin(new_group_of_stopped_rank, other, ranks=[stopped])
                ranks.begin(new_group_until_interrupted, ranks=other)
                self.assertEqual(ranks.outcomes(other), [True])

    def test_ctrl_c_ends_an_operation_that_waits_for_an_earlier_one(self):
        ranks = self.start_group(2)
        ranks.begin(all_reduce, ranks=[1])
        name, text = ranks.call(
            send_behind_another_until_interrupted, ranks=[0]
        )[0]
        self.assertEqual(name, "KeyboardInterrupt")
        parts = "aborted send, which waited", f"process {ranks.pids[0]}"
        for part in parts:
            self.assertIn(part, text)
        self.assert_all_name(ranks.outcomes([1]), "rank 0", *parts)

    def test_ctrl_c_ends_a_wait_and_leaves_the_operation_in_flight(self):
        ranks = self.start_group(2)
        self.assertEqual(ranks.call(wait_until_interrupted, ranks=[0]), [True])
        self.assertEqual(ranks.call(all_reduce, ranks=[1]), [2.0])
        self.assertEqual(ranks.call(finish_waiting, ranks=[0]), [(True, 2.0)])

    def test_handler_of_another_signal_runs_after_the_operation(self):
        ranks = self.start_group(2)
        ranks.begin(all_reduce_and_handle_signal, ranks=[0])
        time.sleep(0.5)
        for _ in range(2):
            self.assertEqual(ranks.call(all_reduce, ranks=[1]), [2.0])
        self.assertEqual(ranks.outcomes([0]), [[2.0, 2.0]])

    def test_timeout_that_is_too_short(self):
        ranks = self.start_group(2)
        for timeout, text in (
            (datetime.timedelta(days=-1), "-1 day"),
            (0, "is 0, but"),
            (float("nan"), "is nan, but"),
        ):
            for found in ranks.call(refuse_timeout, timeout):
                self.assertRegex(found, f"ValueError: .* {text}")

    def test_timeout_that_is_no_time(self):
        ranks = self.start_group(2)
        for found in ranks.call(refuse_timeout, "x"):
            self.assertRegex(found, "TypeError: .*timedelta or a number .*'x'")

    def test_timeout_may_be_a_number_of_seconds(self):
        ranks = self.start_group(2)
        self.assertEqual(
            ranks.call(all_reduce_in_group_with_timeouts, [60, 60.5]),
            [[(60.0, 2.0), (60.5, 2.0)]] * 2,
        )

    def test_ranks_that_no_group_can_have_are_refused_on_all_ranks(self):
        ranks = self.start_group(3)
        for wrong in ([0, 0], [0, 3], [-1, 0], [0, 1, 1]):
            with self.subTest(ranks=wrong):
                for text in ranks.call(refuse_ranks, wrong):
                    self.assertIn(f"the ranks {wrong}. Pass each", text)
                    self.assertIn("from 0 to 2", text)

    def test_wait_with_a_timeout_leaves_the_operation_in_flight(self):
        ranks = self.start_group(2)
        microseconds = (10000, 900, 1, -1)
        timeouts = [datetime.timedelta(microseconds=m) for m in microseconds]
        for timeout in (*timeouts, float("nan")):
            with self.subTest(timeout=timeout):
                self.assertEqual(
                    ranks.call(wait_with_timeout, timeout, ranks=[0]),
                    [(False, False)],
                )
                self.assertEqual(ranks.call(all_reduce, ranks=[1]), [2.0])
                self.assertEqual(
                    ranks.call(finish_waiting, ranks=[0]), [(True, 2.0)]
                )

    def test_wait_with_a_wrong_timeout_names_it_and_none_means_no_timeout(self):
        ranks = self.start_group(2)
        for text, has_ended in ranks.call(wait_with_wrong_timeout):
            self.assertIn("number of seconds, but is 'x'", text)
            self.assertTrue(has_ended)

    def test_wait_with_a_timeout_of_zero_or_of_ages_ends_with_the_operation(
        self,
    ):
        ranks = self.start_group(2)
        for timeout in (datetime.timedelta(), datetime.timedelta(days=365000)):
            with self.subTest(timeout=timeout):
                ranks.begin(all_reduce_with_timeout, timeout, ranks=[0])
                time.sleep(0.05)
                self.assertEqual(ranks.call(all_reduce, ranks=[1]), [2.0])
                self.assertEqual(ranks.outcomes([0]), [(True, 2.0)])

    def assert_mismatch(self, calls, *parts, ranks=None):
        ranks = ranks or self.start_group(2)
        for rank, call in enumerate(calls):
            ranks.begin(*call, ranks=[rank])
        self.assert_all_name(ranks.outcomes(), "rank 0", "rank 1", *parts)

    def test_different_operations(self):
        self.assert_mismatch(
            [(all_reduce,), (broadcast,)], "all_reduce", "broadcast"
        )

    def test_different_sizes(self):
        self.assert_mismatch([(all_reduce, 10), (all_reduce, 20)], "40", "80")

    def test_different_types(self):
        self.assert_mismatch(
            [(all_reduce, 10), (all_reduce, 5, "float64")],
            "float32",
            "float64",
        )

    def test_different_types_of_the_same_size(self):
        # Without an error, the ranks would reinterpret each other's bytes.
        ranks = self.start_group(2)
        for name in _CALLS:
            with self.subTest(name):
                self.assert_mismatch(
                    [
                        (call_with_type, name, "float32"),
                        (call_with_type, name, "int32"),
                    ],
                    name.partition("_single")[0],
                    "float32",
                    "int32",
                    ranks=ranks,
                )

    def test_different_types_that_cannot_be_reduced(self):
        ranks = self.start_group(2)
        for name in _CALLS_WITH_FLOAT8:
            with self.subTest(name):
                self.assert_mismatch(
                    [
                        (call_with_type, name, "float8_e4m3fn"),
                        (call_with_type, name, "float8_e5m2"),
                    ],
                    "float8_e4m3fn",
                    "float8_e5m2",
                    ranks=ranks,
                )

    def test_different_roots(self):
        self.assert_mismatch(
            [(broadcast, 0), (broadcast, 1)], "root 0", "root 1"
        )

    def test_different_sizes_of_alltoall(self):
        self.assert_mismatch(
            [(receive_from_rank_0, 2), (receive_from_rank_0, 3)],
            "rank 0 sends 8 bytes to rank 1, which expects 12",
        )

    def test_forked_child_is_no_rank(self):
        ranks = self.start_group(2)
        for text in ranks.call(in_forked_child, False):
            self.assertIn("forked", text)
        # The group still works in the parents.
        self.assertEqual(ranks.call(all_reduce), [2.0, 2.0])

    def test_forked_child_cannot_wait_for_its_parents_task(self):
        ranks = self.start_group(2)
        for text in ranks.call(in_forked_child, True):
            self.assertIn("forked", text)
        self.assertEqual(ranks.call(exchange_once), [2.0, 2.0])

    def test_destroyed_groups_leak_no_resources(self):
        ranks = self.start_group(2)
        self.assertEqual(
            ranks.call(new_groups_and_destroy, 20), [(0, 0, 0)] * 2
        )

    def test_threads_with_a_group_each(self):
        ranks = self.start_group(2)
        ranks.call(same_from_threads, 200)

    def test_threads_that_gather_in_one_group(self):
        ranks = self.start_group(2)
        ranks.call(gather_from_threads, 300)

    def test_ranks_end_when_the_script_does(self):
        ranks = self.start_group(2)
        pids = ranks.pids
        ranks.end()
        for pid in pids:
            wait_until(
                lambda pid=pid: not os.path.exists(f"/proc/{pid}"),
                f"process {pid} ends",
            )


if __name__ == "__main__":
    unittest.main()
