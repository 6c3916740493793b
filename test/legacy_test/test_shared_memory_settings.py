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
"""Sharing strategies, the limit, statistics and collection."""

from __future__ import annotations

import math
import mmap
import os
import unittest

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base.shared_storage import FILE_DESCRIPTOR_FLAG, native

MIB = 1 << 20
FIGURES = {
    *("reserved", "used", "cached", "blocks", "messages"),
    *("segments", "attached", "detached", "limit"),
}


def moved(size: int = MIB) -> paddle.Tensor:
    """Returns a tensor in shared memory with the given number of bytes."""
    tensor = paddle.zeros([size], "uint8").cpu()
    native.move(tensor, False)
    return tensor


def mapped_file(tensor: paddle.Tensor) -> str:
    """Returns the path of the file that is mapped at a tensor's address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, _, _, _, _, *path = line.strip().split(maxsplit=5)
            begin, end = (int(address, 16) for address in span.split("-"))
            if begin <= tensor.data_ptr() < end:
                return path[0]
    raise AssertionError("nothing is mapped there")


class TestStrategy(unittest.TestCase):
    def setUp(self):
        before = sharing.get_sharing_strategy()
        self.addCleanup(sharing.set_sharing_strategy, before)

    def test_setting_the_strategy_sets_the_flag(self):
        self.assertEqual(
            sharing.get_all_sharing_strategies(),
            {"file_system", "file_descriptor"},
        )
        for strategy in sharing.get_all_sharing_strategies():
            sharing.set_sharing_strategy(strategy)
            self.assertEqual(sharing.get_sharing_strategy(), strategy)
            flag = paddle.get_flags(FILE_DESCRIPTOR_FLAG)[FILE_DESCRIPTOR_FLAG]
            self.assertEqual(flag, strategy == "file_descriptor")

    def test_setting_the_flag_sets_the_strategy(self):
        for value, strategy in (
            (True, "file_descriptor"),
            (False, "file_system"),
        ):
            paddle.set_flags({FILE_DESCRIPTOR_FLAG: value})
            self.assertEqual(sharing.get_sharing_strategy(), strategy)

    def test_strategy_decides_where_a_tensor_moves(self):
        sharing.set_sharing_strategy("file_system")
        self.assertRegex(mapped_file(moved()), "^/dev/shm/")
        sharing.set_sharing_strategy("file_descriptor")
        self.assertRegex(mapped_file(moved()), "^/memfd:paddle-")

    def test_tensor_stays_where_it_is_when_the_strategy_changes(self):
        sharing.set_sharing_strategy("file_system")
        tensor = moved()
        sharing.set_sharing_strategy("file_descriptor")
        native.move(tensor, False)
        self.assertRegex(mapped_file(tensor), "^/dev/shm/")

    def test_strategy_that_does_not_exist_is_refused_and_nothing_changed(self):
        before = sharing.get_sharing_strategy()
        with self.assertRaisesRegex(ValueError, "received 'carrier_pigeon'"):
            sharing.set_sharing_strategy("carrier_pigeon")
        self.assertEqual(sharing.get_sharing_strategy(), before)


class TestLimit(unittest.TestCase):
    def setUp(self):
        self.addCleanup(
            sharing.set_shared_memory_limit, sharing.get_shared_memory_limit()
        )

    def test_default_limit_is_at_most_the_memory_of_the_machine(self):
        pages = os.sysconf("SC_PHYS_PAGES")
        self.assertGreater(sharing.get_shared_memory_limit(), 0)
        self.assertLessEqual(
            sharing.get_shared_memory_limit(), pages * mmap.PAGESIZE
        )

    def test_limit_can_be_set(self):
        sharing.set_shared_memory_limit(123 * MIB)
        self.assertEqual(sharing.get_shared_memory_limit(), 123 * MIB)
        self.assertEqual(sharing.shared_memory_stats()["limit"], 123 * MIB)

    def test_limit_that_is_not_a_size_is_refused(self):
        before = sharing.get_shared_memory_limit()
        for value, error in (
            (-1, ValueError),
            ("1 GiB", TypeError),
            (True, TypeError),
        ):
            with self.assertRaises(error):
                sharing.set_shared_memory_limit(value)
        self.assertEqual(sharing.get_shared_memory_limit(), before)

    def test_tensor_beyond_the_limit_is_not_moved(self):
        sharing.collect_shared_memory()
        reserved = sharing.shared_memory_stats()["reserved"]
        sharing.set_shared_memory_limit(reserved + 8 * MIB)
        tensor = paddle.full([32 * MIB], 3, "uint8").cpu()
        with self.assertRaisesRegex(MemoryError, "set_shared_memory_limit"):
            native.move(tensor, False)
        self.assertFalse(native.is_shared(tensor))
        self.assertTrue((tensor == 3).all().item())


class TestFigures(unittest.TestCase):
    def test_stats_count_a_tensor(self):
        before = sharing.shared_memory_stats()
        self.assertEqual(set(before), FIGURES)
        tensor = moved()
        there = sharing.shared_memory_stats()
        self.assertEqual(there["blocks"], before["blocks"] + 1)
        self.assertGreaterEqual(there["used"], before["used"] + MIB)
        self.assertEqual(there["reserved"], there["used"] + there["cached"])
        del tensor
        after = sharing.shared_memory_stats()
        self.assertEqual(after["used"], before["used"])

    def test_summary_has_every_figure(self):
        summary = sharing.shared_memory_summary().lower()
        for figure in FIGURES:
            self.assertIn(figure, summary)

    def test_summary_names_the_strategy(self):
        before = sharing.get_sharing_strategy()
        self.addCleanup(sharing.set_sharing_strategy, before)
        for strategy in sharing.get_all_sharing_strategies():
            sharing.set_sharing_strategy(strategy)
            self.assertIn(strategy, sharing.shared_memory_summary())

    def test_summary_of_gpu_memory_has_every_figure(self):
        summary = sharing.ipc_memory_summary()
        for figure in sharing.ipc_memory_stats():
            self.assertIn(figure, summary)


class TestCollection(unittest.TestCase):
    def test_memory_that_is_kept_for_reuse_goes_back_to_the_system(self):
        # Less than a page, beside a block of an earlier test.
        sharing.collect_shared_memory()
        before = sharing.shared_memory_stats()["cached"]
        moved(8 * MIB)
        self.assertGreater(sharing.shared_memory_stats()["cached"], before)
        sharing.collect_shared_memory()
        self.assertEqual(sharing.shared_memory_stats()["cached"], before)

    def test_tensors_stay(self):
        tensor = moved().fill_(5)
        sharing.collect_shared_memory()
        self.assertTrue((tensor == 5).all().item())

    def test_invalid_timeout_is_refused(self):
        for timeout in (-1, math.nan):
            with self.assertRaisesRegex(ValueError, f"received {timeout}"):
                sharing.collect_shared_memory(timeout)


if __name__ == "__main__":
    unittest.main()
