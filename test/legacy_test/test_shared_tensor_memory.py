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
"""The memory that shared tensors use and release."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import subprocess
import unittest
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

from shared_tensor_base import (  # noqa: F401
    LONG,
    SharingTestCase,
    describe,
    description,
    echo,
    fill,
    keep,
    over_every_way_to_send,
    run_new_sharing_script,
    setUpModule,
    tearDownModule,
)
from shared_tensor_leaks import (
    SHM,
    is_shared_memory,
    mapped_bytes,
    no_leak,
    resources,
    tree_of,
)
from test_shared_memory_settings import FIGURES

import paddle
import paddle.incubate.multiprocessing as sharing

MIB = 1 << 20


class Footprint(NamedTuple):
    """The limited resources that a process uses."""

    resident: int
    maps: int
    descriptors: int
    shared: int


# The tolerance of the footprint: Python and malloc keep memory for later, and
# the ledger of a segment grows by a page at a time. Sizes that are used for the
# first time may need one more segment in each process.
ALLOWANCE = Footprint(32 * MIB, 16, 2, MIB)


def footprint(kept=None) -> Footprint:
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * mmap.PAGESIZE
    with open("/proc/self/maps") as maps:
        mapped = len(maps.readlines())
    return Footprint(
        resident, mapped, len(os.listdir("/proc/self/fd")), backed_bytes()
    )


def backed_bytes(kept=None) -> int:
    """Returns the memory that backs this process's shared objects."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{number}"
        with contextlib.suppress(FileNotFoundError):
            if is_shared_memory(os.readlink(path)):
                status = os.stat(path)
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def bytes_of(size: int) -> paddle.Tensor:
    return paddle.full([size], 3, "uint8")


def new_bytes(kept, size):
    return bytes_of(size)


def private_memory() -> int:
    """Returns the private memory of this process in bytes."""
    with open("/proc/self/smaps_rollup") as figures:
        for line in figures:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/smaps_rollup has no line Anonymous")


@over_every_way_to_send(methods=("fork",))
class TestBounds(SharingTestCase):
    def exchange(self, count: int, rng: random.Random) -> None:
        """Sends `count` tensors to the peer and back, and receives others."""
        for n in range(count):
            size = rng.choice((1, 100, 4096, 60_000))
            if n % 50 == 0:
                size = rng.randrange(3 * MIB)
            tensor = bytes_of(size)
            self.assertEqual(
                self.peer.call(echo, tensor).data_ptr(), tensor.data_ptr()
            )
            self.assertEqual(self.peer.call(new_bytes, size).shape, [size])

    def footprints(self) -> list[Footprint]:
        # Each process holds memory of the other's segment.
        resources()
        self.peer.call(resources)
        return [footprint(), self.peer.call(footprint)]

    def test_thousands_of_messages_leave_the_footprint_as_it_was(self):
        rng = random.Random(1)
        self.exchange(500, rng)
        before = self.footprints()
        self.exchange(50_000 if LONG else 1000, rng)
        after = self.footprints()
        for grown, small in zip(after, before):
            for what, now, then, allowed in zip(
                Footprint._fields, grown, small, ALLOWANCE
            ):
                with self.subTest(what):
                    self.assertLessEqual(now - then, allowed)

    def test_memory_of_a_dropped_tensor_goes_back_to_the_system(self):
        resources()
        before = backed_bytes()
        tensor = bytes_of(64 * MIB)
        self.peer.call(describe, tensor)
        # Less than the tensor: other memory may go back meanwhile.
        self.assertGreater(backed_bytes() - before, 63 * MIB)
        del tensor
        sharing.collect_shared_memory()
        self.assertLessEqual(backed_bytes() - before, MIB)

    def test_memory_is_used_again_for_the_next_tensor(self):
        for _ in range(20):
            self.peer.call(fill, bytes_of(8 * MIB), 5)
        self.assertLessEqual(
            sharing.shared_memory_stats()["reserved"], 4 * 8 * MIB
        )

    def test_parameter_that_was_shared_is_in_memory_once(self):
        parameter = paddle.create_parameter([64 * MIB // 4], "float32")
        before = private_memory()
        parameter.share_memory_()
        message = ForkingPickler.dumps(parameter)
        self.assertLess(private_memory(), before - 60 * MIB)
        arrived = ForkingPickler.loads(message)
        self.assertEqual(arrived.data_ptr(), parameter.data_ptr())

    def test_stats_count_a_tensor_and_its_message(self):
        self.used()
        before = sharing.shared_memory_stats()
        self.assertEqual(set(before), FIGURES)
        tensor = bytes_of(MIB)
        message = bytes(ForkingPickler.dumps(tensor))
        sent = sharing.shared_memory_stats()
        self.assertEqual(sent["messages"], before["messages"] + 1)
        self.assertEqual(sent["blocks"], before["blocks"] + 1)
        self.assertGreaterEqual(sent["used"], before["used"] + MIB)
        self.assertGreaterEqual(sent["reserved"], sent["used"])
        self.assertGreaterEqual(sent["segments"], 1)
        del tensor
        self.assertEqual(sharing.shared_memory_stats()["used"], sent["used"])
        ForkingPickler.loads(message)
        self.used()
        received = sharing.shared_memory_stats()
        for figure in ("messages", "blocks", "used"):
            self.assertEqual(received[figure], before[figure], figure)

    def test_stats_count_segments_of_other_processes(self):
        before = sharing.shared_memory_stats()["attached"]
        with self.another_peer() as other:
            tensor = other.call(new_bytes, MIB)
            figures = sharing.shared_memory_stats()
            self.assertEqual(figures["attached"], before + 1)
            del tensor
        self.used()
        self.assertEqual(sharing.shared_memory_stats()["attached"], before)


class TestLimit(SharingTestCase):
    method = "fork"

    def setUp(self):
        super().setUp()
        self.addCleanup(
            sharing.set_shared_memory_limit, sharing.get_shared_memory_limit()
        )

    def test_tensor_beyond_the_limit_is_refused_and_nothing_lost(self):
        kept, large = bytes_of(MIB), bytes_of(32 * MIB)
        self.peer.call(keep, "tensor", kept)
        self.used()
        reserved = sharing.shared_memory_stats()["reserved"]
        sharing.set_shared_memory_limit(reserved + 8 * MIB)
        with no_leak():
            with self.assertRaisesRegex(
                MemoryError, r"32(\.0)? MiB(.|\n)*set_shared_memory_limit"
            ):
                ForkingPickler.dumps(large)
        self.assertEqual(description(large), description(bytes_of(32 * MIB)))
        self.peer.call(fill, kept, 5)
        self.assertEqual(kept[0].item(), 5)
        sharing.set_shared_memory_limit(reserved + 64 * MIB)
        self.peer.call(fill, large, 5)
        self.assertEqual(large[0].item(), 5)

    def test_dropped_tensors_make_room_below_the_limit(self):
        self.used()
        reserved = sharing.shared_memory_stats()["reserved"]
        sharing.set_shared_memory_limit(reserved + 40 * MIB)
        for n in range(10):
            # The sizes differ, so that no block is reused.
            self.peer.call(fill, bytes_of((16 + n) * MIB), 5)


def private_shm(options: str) -> tuple[str, ...]:
    """Returns a wrapper that runs a command with its own /dev/shm."""
    mount = f'mount -t tmpfs -o {options} tmpfs {SHM} && exec "$0" "$@"'
    for unshare in (("unshare", "-m"), ("unshare", "-r", "-m")):
        command = (*unshare, "sh", "-c", mount)
        with contextlib.suppress(OSError):
            if (
                subprocess.run(
                    [*command, "true"], capture_output=True
                ).returncode
                == 0
            ):
                return command
    raise unittest.SkipTest("no mount of a /dev/shm of one's own allowed here")


class TestDevShm(unittest.TestCase):
    def test_full_dev_shm_is_a_clear_error_and_loses_nothing(self):
        run_new_sharing_script(
            self,
            """
            MIB = 1 << 20
            sent = []
            error = None
            while error is None:
                tensor = paddle.full([MIB // 2], len(sent), "uint8")
                try:
                    sent.append((tensor, ForkingPickler.dumps(tensor)))
                except MemoryError as refusal:
                    error = str(refusal)
                assert len(sent) < 9
            for words in ("/dev/shm", "4.0 MiB in all", "file_descriptor"):
                assert words in error, (words, error)
            assert (tensor == len(sent)).all()
            assert len(sent) > 2
            for n, (tensor, message) in enumerate(sent):
                received = ForkingPickler.loads(message)
                assert received.data_ptr() == tensor.data_ptr()
                assert (received == n).all()
            del tensor, received
            sent.clear()
            tensor = paddle.full([MIB], 7, "uint8")
            received = ForkingPickler.loads(ForkingPickler.dumps(tensor))
            assert (received == 7).all()
            """,
            private_shm("size=4m"),
        )

    def test_file_descriptor_strategy_does_not_need_dev_shm(self):
        for options in ("size=4m", "ro"):
            with self.subTest(options):
                run_new_sharing_script(
                    self,
                    """
                    sharing.set_sharing_strategy("file_descriptor")
                    context = multiprocessing.get_context("fork")
                    connection, theirs = context.Pipe()
                    process = context.Process(
                        target=lambda: theirs.recv().fill_(5)
                    )
                    process.start()
                    tensor = paddle.zeros([8 << 20], "uint8")
                    connection.send(tensor)
                    process.join()
                    assert process.exitcode == 0
                    assert (tensor == 5).all()
                    """,
                    private_shm(options),
                )

    def test_read_only_dev_shm_is_a_clear_error(self):
        run_new_sharing_script(
            self,
            """
            tensor = paddle.ones([5])
            try:
                ForkingPickler.dumps(tensor)
            except (OSError, RuntimeError, MemoryError) as error:
                assert "file_descriptor" in str(error), error
            else:
                raise AssertionError("a read-only place took a file")
            assert tensor.sum().item() == 5
            """,
            private_shm("ro"),
        )


class TestLeakChecker(SharingTestCase):
    method = "fork"

    def assert_found(self, leak, *words: str) -> None:
        with self.assertRaises(AssertionError) as caught:
            with no_leak(self.peer, settle_s=0.2):
                leak()
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_nothing_is_found_where_nothing_is_left(self):
        with no_leak(self.peer):
            self.peer.call(describe, paddle.ones([1000]))

    def test_file_left_behind_is_found(self):
        ours = next(iter(mapped_bytes(os.getpid())))
        path = f"{SHM}/{tree_of(ours)}-planted"
        self.addCleanup(os.unlink, path)
        self.assert_found(lambda: open(path, "w").close(), "file", path)

    def test_descriptor_left_open_is_found(self):
        def leak():
            self.addCleanup(os.close, os.open("/dev/null", os.O_RDONLY))

        self.assert_found(leak, "descriptors", "/dev/null")

    def test_mapping_left_is_found(self):
        def leak():
            fd = os.memfd_create("paddle-planted")
            os.ftruncate(fd, 4096)
            mapping = mmap.mmap(fd, 4096)
            os.close(fd)
            self.addCleanup(mapping.close)

        self.assert_found(leak, "mapped", "paddle-planted", "4096")

    def test_block_held_by_this_process_is_found(self):
        held = []
        self.addCleanup(held.clear)

        def leak():
            tensor = bytes_of(MIB)
            self.peer.call(describe, tensor)
            held.append(tensor)

        self.assert_found(leak, "used", "process 0")

    def test_block_held_by_another_process_is_found(self):
        self.addCleanup(lambda: self.peer.call(keep, "held", None))
        self.assert_found(
            lambda: self.peer.call(keep, "held", bytes_of(MIB)), "used"
        )

    def test_message_in_flight_is_found(self):
        self.addCleanup(sharing.collect_shared_memory, 0)
        self.assert_found(lambda: ForkingPickler.dumps(bytes_of(MIB)), "used")


if __name__ == "__main__":
    unittest.main()
