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
"""Groups of the backend shm and tensors in shared memory."""

from __future__ import annotations

import unittest

import numpy as np
from shm_group_base import ON_LINUX, RanksTestCase

import paddle
import paddle.distributed as dist
import paddle.incubate.multiprocessing as sharing

COUNT = 1 << 20
_kept: list = []


def mapped_files() -> set[str]:
    with open("/proc/self/maps") as maps:
        return {
            line.split(maxsplit=5)[5].strip()
            for line in maps
            if "/dev/shm/" in line or "memfd:" in line
        }


def reduce_shared(strategy: str, shared: bool) -> int:
    """
    Returns how many more files are mapped after tensors were reduced. Each rank
    allocates as many blocks as its number first, so that the offsets in the
    segments differ.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    sharing.set_sharing_strategy(strategy)
    _kept.extend(paddle.ones([1000]).share_memory_() for _ in range(rank))
    x = paddle.full([COUNT], rank + 1.0)
    if shared:
        x.share_memory_()
    before = mapped_files()
    dist.all_reduce(x)
    np.testing.assert_array_equal(x.numpy(), size * (size + 1) / 2)
    everything = paddle.zeros([size * COUNT])
    dist.stream.all_gather(everything, x)
    np.testing.assert_array_equal(everything.numpy(), size * (size + 1) / 2)
    return len(mapped_files() - before)


def reduce_mixed() -> float:
    """Reduces a tensor that is in shared memory only on rank 0."""
    x = paddle.ones([COUNT])
    if dist.get_rank() == 0:
        x.share_memory_()
    dist.all_reduce(x)
    return float(x.sum()) / COUNT


def reduce_view() -> None:
    """Reduces rows in the middle of a tensor in shared memory."""
    whole = paddle.zeros([3, COUNT]).share_memory_()
    row = whole[1]
    row[:] = 1.0
    dist.all_reduce(row)
    np.testing.assert_array_equal(row.numpy(), dist.get_world_size())


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestShmSharedTensor(RanksTestCase):
    def test_segments_of_other_ranks_are_mapped(self):
        for strategy in ("file_system", "file_descriptor"):
            with self.subTest(strategy):
                ranks = self.start_group(3)
                found = ranks.call(reduce_shared, strategy, True)
                self.assertEqual(found, [2, 2, 2])

    def test_ordinary_tensors_are_not_mapped(self):
        ranks = self.start_group(3)
        found = ranks.call(reduce_shared, "file_system", False)
        self.assertEqual(found, [0, 0, 0])

    def test_one_rank_shares_its_tensor(self):
        ranks = self.start_group(3)
        self.assertEqual(ranks.call(reduce_mixed), [3.0] * 3)

    def test_view_of_a_shared_tensor(self):
        self.start_group(2).call(reduce_view)


if __name__ == "__main__":
    unittest.main()
