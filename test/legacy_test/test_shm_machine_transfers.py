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
"""Sends and receives between ranks of the backend shm that report different
machine names.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import os
import signal
import socket
import time
import unittest
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, descriptors, in_threads
from shm_group_base import ON_LINUX
from test_shm_machines import (
    MOVED_TYPES,
    MachinesTestCase,
    OneGroupOfMachines,
    all_reduce_ones,
    as_list,
    begin,
    exchange_objects_with,
    exchange_with,
    exit_in_forked_child,
    fail_to_reduce,
    fork_a_child,
    kill_this_process,
    leave_group,
    leave_while_receiving,
    numbers_of,
    own_group,
    receive_from,
    receive_without_waiting,
    send_in_forked_child,
    send_to,
    send_where_it_is_refused,
    wait_again,
    wait_for_received,
    wait_for_received_in_forked_child,
)

import paddle
import paddle.distributed as dist
from paddle.base import core
from paddle.distributed import (
    machine_connections,
    machine_transfers,
    shared_memory_group,
)
from paddle.distributed.machine_connections import Listener

# float8 and int8 are moved, but not by every collective operation.
TYPES = [*MOVED_TYPES, "int8", "complex128", "float8_e4m3fn"]
# The data of a larger message follow its header only when it is accepted.
LARGE = 1 << 20


def send_numbers(dst: int, seed: int, dtype: str, shape: list[int]) -> None:
    x = paddle.to_tensor(numbers_of(seed, shape)).astype(dtype)
    dist.send(x, dst)


def receive_numbers(src: int, dtype: str, shape: list[int]) -> list:
    x = paddle.zeros(shape).astype(dtype)
    dist.recv(x, src)
    return as_list(x)


def send_middle_row(dst: int) -> None:
    dist.send(paddle.to_tensor([[1.0], [2.0], [3.0]])[1:2], dst)


def receive_middle_row(src: int) -> list:
    x = paddle.zeros([3, 1])
    dist.recv(x[1:2], src)
    return x.tolist()


def pass_around(size: int) -> list[float]:
    """Sends to the next rank and receives from the previous one at once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = paddle.zeros([size])
    tasks = [
        dist.isend(paddle.full([size], float(rank)), (rank + 1) % ranks),
        dist.irecv(received, (rank - 1) % ranks),
    ]
    for task in tasks:
        task.wait()
    return [float(received.min()), float(received.max())]


def sizes_of_many() -> list[int]:
    """Returns sizes of messages below and above the immediate ones."""
    return [1, LARGE, 3, 1 << 14, (1 << 14) + 1, 2] * 3


def send_many(dst: int) -> None:
    """Sends without waiting, and then the last one synchronously."""
    sizes = sizes_of_many()
    for number, size in enumerate(sizes[:-1]):
        dist.isend(paddle.full([size], float(number)), dst)
    dist.send(paddle.full([sizes[-1]], float(len(sizes) - 1)), dst)


def receive_many(src: int) -> list[list[float]]:
    received = [paddle.zeros([size]) for size in sizes_of_many()]
    tasks = [dist.irecv(x, src) for x in received]
    for task in tasks:
        task.wait()
    return [[float(x.min()), float(x.max())] for x in received]


def exchange_on_threads(peers: list[int]) -> list[list[float]]:
    """Exchanges tensors with several ranks, each on its own thread."""
    return in_threads(
        *(functools.partial(exchange_with, peer, False) for peer in peers)
    )


def receive_in_subgroup(
    timeout: datetime.timedelta = datetime.timedelta(minutes=30),
) -> list[float]:
    """Sends from rank 2 to rank 1 in a group of these ranks."""
    with mock.patch.object(
        shared_memory_group, "machine", lambda: str(dist.get_rank())
    ):
        group = dist.new_group([1, 2], backend="shm", timeout=timeout)
    x = paddle.full([4], float(dist.get_rank()))
    if dist.get_rank() == 2:
        dist.send(x, 1, group)
    elif dist.get_rank() == 1:
        dist.recv(x, 2, group)
    return x.tolist()


def allocated() -> int:
    gc.collect()
    return core.host_memory_stat_current_value("Allocated", 0)


def free_while_sending(dst: int) -> tuple[int, int]:
    """Returns how much memory a tensor has during a send, and after it."""
    before = allocated()
    x = paddle.ones([LARGE])
    task = dist.isend(x, dst)
    x._clear_data()
    during = allocated() - before
    dist.recv(paddle.zeros([1]), dst)  # until here, nobody receives
    task.wait()
    return during, allocated() - before


def receive_late(src: int) -> set[float]:
    dist.send(paddle.zeros([1]), src)
    return set(receive_from(src, LARGE))


def die_before_answer() -> None:
    """Makes this rank die when it reads the answer to its next message."""
    machine_transfers.receive = kill_this_process


def die_before_data() -> None:
    """Makes this rank die when it reads the data of the next message."""
    machine_transfers._receive_into = kill_this_process


def shorten_timeout() -> None:
    own_group()._transfers._timeout = datetime.timedelta(seconds=1)


def send_and_leave(dst: int, size: int) -> None:
    send_to(dst, 1.0, size)
    leave_group()


def receive_slowly(src: int, size: int) -> list[float]:
    """Receives a tensor, but waits before it reads the data."""
    receive_into = machine_transfers._receive_into

    def late(*args: object) -> None:
        time.sleep(1)
        receive_into(*args)

    with mock.patch.object(machine_transfers, "_receive_into", late):
        return receive_from(src, size)


def sockets() -> int:
    """Returns how many sockets this process has."""
    return sum(name.startswith("socket:") for name in descriptors().values())


def sockets_left_by_a_group(transfers: bool) -> int:
    """Returns how many sockets remain after a group of two machines."""
    rank, before = dist.get_rank(), sockets()
    with mock.patch.object(shared_memory_group, "machine", lambda: str(rank)):
        group = dist.new_group([0, 1], backend="shm")
    x = paddle.ones([4])
    if transfers:
        for src in (0, 1):
            if src == rank:
                dist.send(x, 1 - rank, group)
            else:
                dist.recv(x, src, group)
    dist.destroy_process_group(group)
    return sockets() - before


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestTransfersInOneProcess(unittest.TestCase):
    def start(self, *timeouts):
        """Starts two ranks, whose transfers have these timeouts in seconds. The
        address of the second one is `self.address`."""
        listeners = [Listener() for _ in range(2)]
        addresses = [listener.address for listener in listeners]
        host, port, _ = addresses[1].split()
        self.address = host, int(port)
        for rank, seconds in enumerate(timeouts or (WAIT_S, WAIT_S)):
            transfers = machine_transfers.MachineTransfers(
                rank,
                listeners[rank],
                {1 - rank: addresses[1 - rank]},
                datetime.timedelta(seconds=seconds),
            )
            self.addCleanup(transfers.close, "the test has ended")
            yield transfers

    def check_send(self, sender, receiver, src=0, dst=1):
        x = paddle.zeros([4])
        task = receiver.run("recv", x, src, False)
        sender.run("send", paddle.ones([4]), dst, True)
        self.assertTrue(task.wait(datetime.timedelta(seconds=WAIT_S)))
        self.assertEqual(x.tolist(), [1.0] * 4)

    def test_connection_without_the_key_is_ignored(self):
        first, second = self.start()
        second.run("recv", paddle.zeros([4]), 0, False)
        with socket.create_connection(self.address, WAIT_S) as stranger:
            stranger.sendall(bytes(20))
            with contextlib.suppress(ConnectionResetError):
                self.assertEqual(stranger.recv(1), b"")
        first.run("send", paddle.zeros([4]), 1, True)
        self.check_send(first, second)

    def test_transfers_do_not_wait_for_a_silent_stranger(self):
        first, second = self.start()
        with (
            mock.patch.object(
                machine_connections, "REPLY_TIMEOUT_S", 2 * WAIT_S
            ),
            socket.create_connection(self.address, WAIT_S),
        ):
            self.check_send(first, second)

    def test_refused_connection_names_the_address_and_the_cure(self):
        first, second = self.start()
        second.close("the test has ended")
        with self.assertRaisesRegex(
            RuntimeError,
            f"connect to {self.address[0]} port {self.address[1]} .*_IFNAME",
        ):
            first.run("send", paddle.ones([4]), 1, True)

    def test_transfer_in_a_signal_handler_within_one_is_refused(self):
        first, second = self.start()
        x, errors = paddle.zeros([4]), []
        before = signal.getsignal(signal.SIGUSR1)
        self.addCleanup(signal.signal, signal.SIGUSR1, before)
        receive = machine_transfers._receive_into

        def interrupted(*args):
            signal.raise_signal(signal.SIGUSR1)
            receive(*args)

        def transfer(*args):
            for name in ("send", "recv"):
                try:
                    second.run(name, paddle.zeros([4]), 0, True)
                except RuntimeError as error:
                    errors.append(str(error))

        signal.signal(signal.SIGUSR1, transfer)
        first.run("send", paddle.ones([4]), 1, False)
        with mock.patch.object(machine_transfers, "_receive_into", interrupted):
            second.run("recv", x, 0, True)
        self.assertEqual(x.tolist(), [1.0] * 4)
        self.assertEqual(len(errors), 2)
        for text in errors:
            self.assertIn("signal handler that interrupted", text)
        self.check_send(first, second)

    def test_send_does_not_continue_after_its_timeout(self):
        first, second = self.start(1, WAIT_S)
        read_answer = machine_transfers._read_answer

        def late(*args):
            read_answer(*args)
            time.sleep(1)

        second.run("recv", paddle.zeros([LARGE]), 0, False)
        with (
            mock.patch.object(machine_transfers, "_read_answer", late),
            self.assertRaisesRegex(RuntimeError, "It waited 0:00:01"),
        ):
            first.run("send", paddle.ones([LARGE]), 1, True)

    def test_a_rank_that_receives_nothing_can_still_send(self):
        first, second = self.start(1, WAIT_S)
        with self.assertRaisesRegex(RuntimeError, "It waited 0:00:01"):
            first.run("send", paddle.ones([LARGE]), 1, True)
        self.check_send(second, first, 1, 0)


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestTransfersOfOneGroup(OneGroupOfMachines):
    def transfer(self, src, dst, send, receive):
        """Returns what `receive` returns on rank `dst`, while `send` runs on
        rank `src`; each is a function and its arguments."""
        self.ranks.begin(*send, ranks=[src])
        self.ranks.begin(*receive, ranks=[dst])
        received, sent = self.ranks.outcomes([dst, src])
        self.assertIsNone(sent)
        return received

    def test_values_of_each_type_arrive(self):
        for dtype in TYPES:
            for shape in ([3, 5], [], [0, 2], [LARGE // 4 + 1]):
                for src, dst in ((0, 1), (1, 2)):
                    with self.subTest(dtype=dtype, shape=shape, src=src):
                        expected = np.asarray(numbers_of(src, shape))
                        if dtype == "bool":
                            expected = expected != 0
                        self.assertEqual(
                            self.transfer(
                                src,
                                dst,
                                (send_numbers, dst, src, dtype, shape),
                                (receive_numbers, src, dtype, shape),
                            ),
                            expected.tolist(),
                        )

    def test_parts_of_larger_tensors_are_sent_and_received(self):
        self.assertEqual(
            self.transfer(0, 1, (send_middle_row, 1), (receive_middle_row, 0)),
            [[0.0], [2.0], [0.0]],
        )

    def test_ranks_may_send_before_they_receive(self):
        for batch in (False, True):
            with self.subTest(batch=batch):
                self.ranks.begin(exchange_with, 1, batch, ranks=[0])
                self.ranks.begin(exchange_with, 0, batch, ranks=[1])
                self.assertEqual(
                    self.ranks.outcomes([0, 1]), [[1.0, 1.0], [0.0, 0.0]]
                )

    def test_ranks_of_a_ring_send_at_once(self):
        for size in (4, LARGE):
            with self.subTest(size=size):
                self.assertEqual(
                    self.ranks.call(pass_around, size),
                    [[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]],
                )

    def test_objects_are_sent_between_machines(self):
        self.ranks.begin(exchange_objects_with, 1, ranks=[0])
        self.ranks.begin(exchange_objects_with, 0, ranks=[1])
        self.assertEqual(
            self.ranks.outcomes([0, 1]), [[{"from": 1}], [{"from": 0}]]
        )

    def test_messages_arrive_in_the_order_of_the_calls(self):
        self.assertEqual(
            self.transfer(0, 1, (send_many, 1), (receive_many, 0)),
            [[float(i)] * 2 for i in range(len(sizes_of_many()))],
        )

    def test_threads_exchange_with_several_ranks_at_once(self):
        self.ranks.begin(exchange_on_threads, [0, 2], ranks=[1])
        self.ranks.begin(exchange_on_threads, [1, 2], ranks=[0])
        self.ranks.begin(exchange_on_threads, [0, 1], ranks=[2])
        self.assertEqual(
            self.ranks.outcomes(),
            [
                [[float(peer)] * 2 for peer in peers]
                for peers in ([1, 2], [0, 2], [0, 1])
            ],
        )

    def test_wait_with_a_timeout_leaves_a_transfer_in_flight(self):
        self.ranks.call(receive_without_waiting, 0, ranks=[1])
        brief = datetime.timedelta(milliseconds=10)
        self.assertEqual(
            self.ranks.call(wait_for_received, brief, ranks=[1]),
            [(False, [0.0] * 4)],
        )
        self.assertEqual(
            self.transfer(0, 1, (send_to, 1, 5.0), (wait_for_received,)),
            (True, [5.0] * 4),
        )

    def test_transfers_do_not_wait_for_pending_collective_operations(self):
        # The timeout is longer than the test waits for a transfer.
        self.ranks.call(begin, ranks=[0, 1])
        self.assertEqual(
            self.transfer(0, 1, (send_to, 1, 5.0), (receive_from, 0)),
            [5.0] * 4,
        )
        self.assertEqual(self.ranks.call(all_reduce_ones, ranks=[2]), [3.0])
        self.ranks.call(wait_again, ranks=[0, 1])

    def test_collective_operations_do_not_wait_for_pending_transfers(self):
        self.ranks.call(receive_without_waiting, 0, ranks=[1])
        self.assertEqual(self.ranks.call(all_reduce_ones), [3.0] * 3)
        self.assertEqual(
            self.transfer(0, 1, (send_to, 1, 5.0), (wait_for_received,)),
            (True, [5.0] * 4),
        )

    def test_different_sizes_are_an_error_of_both_ranks_and_of_this_transfer(
        self,
    ):
        for sent, received in (
            (4, 3),
            (3, LARGE),
            (LARGE, 3),
            (LARGE, LARGE + 1),
        ):
            with self.subTest(sent=sent, received=received):
                self.ranks.begin(send_to, 1, 1.0, sent, ranks=[0])
                self.ranks.begin(receive_from, 0, received, ranks=[1])
                self.assert_all_raise(
                    self.ranks.outcomes([0, 1]),
                    f"Rank 0 sends {4 * sent} bytes of float32 to rank 1",
                    f"receives {4 * received} bytes",
                )
                # The next message is not taken for the rest of this one.
                self.assertEqual(
                    self.transfer(0, 1, (send_to, 1, 5.0), (receive_from, 0)),
                    [5.0] * 4,
                )

    def test_different_types_are_an_error_of_both_ranks(self):
        self.ranks.begin(send_numbers, 1, 0, "int32", [4], ranks=[0])
        self.ranks.begin(receive_numbers, 0, "float32", [4], ranks=[1])
        self.assert_all_raise(
            self.ranks.outcomes([0, 1]), "16 bytes of int32", "of float32"
        )

    def test_wrong_arguments_are_refused_on_that_rank_alone(self):
        ((sent, received, strided, sparse),) = self.ranks.call(
            send_where_it_is_refused,
            [("send", (1,)), ("irecv", (1,))],
            ranks=[1],
        )
        self.assertIn("send got rank 1, which is the caller", sent)
        self.assertIn("recv got rank 1, which is the caller", received)
        self.assertIn("contiguous()", strided)
        self.assertIn("to_dense()", sparse)
        self.assertEqual(self.ranks.call(all_reduce_ones), [3.0] * 3)

    def test_forked_child_is_refused_and_does_not_disturb_by_its_exit(self):
        self.ranks.call(receive_without_waiting, 0, ranks=[1])
        (text,) = self.ranks.call(send_in_forked_child, 1, ranks=[0])
        self.assertIn("forked", text)
        (text,) = self.ranks.call(wait_for_received_in_forked_child, ranks=[1])
        self.assertIn("forked", text)
        self.assertEqual(
            self.ranks.call(exit_in_forked_child, ranks=[0, 1]), [3, 3]
        )
        self.assertEqual(
            self.transfer(0, 1, (send_to, 1, 5.0), (wait_for_received,)),
            (True, [5.0] * 4),
        )

    def test_ranks_of_a_subgroup_send_to_each_other(self):
        self.assertEqual(
            self.ranks.call(receive_in_subgroup),
            [[0.0] * 4, [2.0] * 4, [2.0] * 4],
        )

    def test_longest_timeout_does_not_overflow(self):
        self.assertEqual(
            self.ranks.call(receive_in_subgroup, datetime.timedelta.max)[1],
            [2.0] * 4,
        )

    def test_memory_of_a_tensor_lives_as_long_as_its_transfer(self):
        self.ranks.begin(free_while_sending, 1, ranks=[0])
        self.ranks.begin(receive_late, 0, ranks=[1])
        (during, after), received = self.ranks.outcomes([0, 1])
        self.assertEqual(received, {1.0})
        self.assertGreaterEqual(during, 4 * LARGE)
        self.assertLess(after, 4 * LARGE)


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestFailingTransfers(MachinesTestCase):
    def exchange(self, ranks, first, second):
        """Transfers a tensor in each direction between two ranks."""
        for src, dst in ((first, second), (second, first)):
            ranks.begin(send_to, dst, ranks=[src])
            ranks.call(receive_from, src, ranks=[dst])
            ranks.outcomes([src])

    def test_killed_rank_is_named_by_a_waiting_rank(self):
        # The timeout is longer than the test waits.
        for function in (receive_from, send_to):
            for connected in (True, False):
                with self.subTest(function=function, connected=connected):
                    ranks = self.start_on("aabb")
                    if connected:
                        self.exchange(ranks, 1, 3)
                    ranks.begin(function, 3, ranks=[1])
                    ranks.signal(3, signal.SIGKILL)
                    self.assert_all_raise(
                        ranks.outcomes([1]), "failed on rank 1. Rank 3 has died"
                    )

    def test_rank_that_was_killed_before_is_named(self):
        ranks = self.start_on("aabb")
        ranks.signal(3, signal.SIGKILL)
        ranks.outcomes([3])
        for function in (receive_from, send_to):
            ranks.begin(function, 3, ranks=[1])
            self.assert_all_raise(
                ranks.outcomes([1]), "failed on rank 1. Rank 3 has died"
            )

    def test_death_is_detected_though_a_child_of_the_rank_lives(self):
        ranks = self.start_on("aabb")
        self.exchange(ranks, 1, 3)
        (child,) = ranks.call(fork_a_child, ranks=[3])
        self.addCleanup(os.kill, child, signal.SIGKILL)
        ranks.begin(receive_from, 3, ranks=[1])
        ranks.signal(3, signal.SIGKILL)
        self.assert_all_raise(ranks.outcomes([1]), "Rank 3 has died")

    def test_rank_that_dies_within_a_message_is_named(self):
        for victim, function in ((0, die_before_answer), (1, die_before_data)):
            with self.subTest(victim=victim):
                ranks = self.start_on("ab")
                ranks.call(function, ranks=[victim])
                ranks.begin(send_to, 1, 1.0, 8 * LARGE, ranks=[0])
                ranks.begin(receive_from, 0, 8 * LARGE, ranks=[1])
                self.assertEqual(ranks.outcomes([victim]), [None])
                self.assert_all_raise(
                    ranks.outcomes([1 - victim]), f"Rank {victim} has died"
                )

    def test_rank_that_does_not_come_is_named_after_the_timeout(self):
        for function, name in (
            (send_to, "send to"),
            (receive_from, "recv from"),
        ):
            with self.subTest(function=function):
                ranks = self.start_on("ab", PADDLE_PG_TIMEOUT="1000")
                for _ in range(2):  # the second one would arrive too early
                    ranks.begin(function, 1, ranks=[0])
                    self.assert_all_raise(
                        ranks.outcomes([0]),
                        f"{name} rank 1 failed on rank 0. It waited 0:00:01",
                    )

    def test_rank_that_comes_after_the_timeout_gets_an_error_immediately(self):
        for function, *late in (
            (receive_from, send_to, 0),
            # The data of a small message have arrived already.
            (functools.partial(send_to, size=LARGE), receive_from, 0, LARGE),
        ):
            with self.subTest(late=late):
                # The timeout of the late rank is longer than the test waits.
                ranks = self.start_on("ab")
                ranks.call(shorten_timeout, ranks=[0])
                ranks.begin(function, 1, ranks=[0])
                self.assert_all_raise(ranks.outcomes([0]), "It waited")
                ranks.begin(*late, ranks=[1])
                self.assert_all_raise(ranks.outcomes([1]), "has failed or has")

    def test_synchronous_sends_to_each_other_end_at_the_timeout(self):
        for size in (1, LARGE):
            with self.subTest(size=size):
                ranks = self.start_on("ab", PADDLE_PG_TIMEOUT="1000")
                ranks.begin(send_to, 1, 1.0, size, ranks=[0])
                ranks.begin(send_to, 0, 1.0, size, ranks=[1])
                self.assert_all_raise(ranks.outcomes(), "failed on rank")

    def test_transfer_fails_when_the_group_fails(self):
        ranks = self.start_on("aab")
        ranks.call(receive_without_waiting, 2, ranks=[0])
        ranks.call(fail_to_reduce, ranks=[0])
        ranks.begin(all_reduce_ones)
        self.assert_all_raise(ranks.outcomes([0, 2]), "no memory is left")
        ranks.outcomes([1])
        ranks.begin(wait_for_received, ranks=[0])
        # The other rank may close the connection before this one does.
        self.assert_all_raise(ranks.outcomes([0]))
        ranks.begin(send_to, 0, ranks=[2])
        self.assert_all_raise(ranks.outcomes([2]), "no memory is left")

    def test_rank_that_leaves_fails_the_transfers_on_both_ranks(self):
        ranks = self.start_on("aabb")
        ranks.call(receive_without_waiting, 1, ranks=[3])
        (text,) = ranks.call(leave_while_receiving, 3, ranks=[1])
        self.assertIn("Rank 1 has left the group, through", text)
        ranks.begin(wait_for_received, ranks=[3])
        self.assert_all_raise(
            ranks.outcomes([3]), "Rank 1 has died", "has left"
        )
        ranks.begin(send_to, 3, ranks=[1])
        self.assert_all_raise(ranks.outcomes([1]), "Rank 1 has left the group")

    def test_rank_that_leaves_after_its_sends_does_not_disturb_them(self):
        ranks = self.start_on("ab")
        ranks.begin(send_and_leave, 1, LARGE // 4, ranks=[0])
        (found,) = ranks.call(receive_slowly, 0, LARGE // 4, ranks=[1])
        self.assertEqual(set(found), {1.0})
        ranks.outcomes([0])

    def test_leaving_closes_the_connections(self):
        ranks = self.start_on("ab")
        # Gloo keeps its own connections.
        left = ranks.call(sockets_left_by_a_group, False)
        self.assertEqual(ranks.call(sockets_left_by_a_group, True), left)


if __name__ == "__main__":
    unittest.main()
