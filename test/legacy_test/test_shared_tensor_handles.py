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
"""Handles whose tensors would lie outside of their storage or block."""

from __future__ import annotations

import unittest

from shared_tensor_base import (  # noqa: F401
    setUpModule,
    tearDownModule,
)
from shared_tensor_damage import (
    View,
    rebuilt_dense_tensor,
    rebuilt_tensor,
    rebuilt_views,
    with_offset,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core
from paddle.base.shared_storage import native

UINT8 = core.DataType.UINT8
FLOAT32 = core.DataType.FLOAT32
STORAGE = 100  # size of the tensor in bytes
BLOCK = 128  # size of the tensor's block in bytes
LAST = 2**64 - 1


class TestHandles(unittest.TestCase):
    def setUp(self):
        self.tensor = paddle.arange(STORAGE // 4, dtype="float32")
        self.handle = native.share_while_alive(self.tensor)
        self.begin = self.tensor.data_ptr()
        self.addCleanup(sharing.collect_shared_memory, message_timeout=0)

    def views(self, start: int, *views: View) -> list[tuple[int, int]]:
        """Returns the extents of views, relative to byte `start`."""
        extents = rebuilt_views(with_offset(self.handle, start), list(views))
        return [(b - self.begin, e - self.begin) for b, e in extents]

    def assert_no_view(self, start: int, dims: list[int], offset: int) -> None:
        with self.assertRaisesRegex(
            (ValueError, RuntimeError),
            "Cannot read the handle|not a valid position",
        ):
            self.views(start, View(FLOAT32, dims, offset))

    def test_the_block_is_larger_than_the_storage(self):
        before = sharing.shared_memory_stats()["used"]
        other = paddle.zeros_like(self.tensor)
        native.share_while_alive(other)
        used = sharing.shared_memory_stats()["used"] - before
        self.assertEqual(used, BLOCK)

    def test_view_of_all_of_a_storage(self):
        self.assertEqual(self.views(0, View(FLOAT32, [25], 0)), [(0, STORAGE)])

    def test_view_up_to_the_end_of_a_storage(self):
        self.assertEqual(self.views(40, View(UINT8, [10], 50)), [(90, 100)])

    def test_view_beyond_the_end_of_a_storage_is_refused(self):
        self.assert_no_view(0, [26], 0)
        self.assert_no_view(40, [1], 57)

    def test_view_from_the_end_of_a_storage_has_no_elements(self):
        self.assertEqual(self.views(STORAGE, View(UINT8, [0], 0)), [(100, 100)])
        self.assert_no_view(STORAGE, [1], 0)

    def test_start_behind_a_storage_in_its_block_is_refused(self):
        for start in (STORAGE + 1, STORAGE + 4, BLOCK - 4, BLOCK - 1):
            for dims in ([0], [1], [1 << 20]):
                self.assert_no_view(start, dims, 0)

    def test_start_at_or_behind_the_end_of_a_block_is_refused(self):
        for start in (BLOCK, BLOCK + 1, 1 << 40, 1 << 63, LAST):
            for dims in ([0], [1]):
                self.assert_no_view(start, dims, 0)

    def test_offset_that_leads_back_to_a_storage_by_overflow_is_refused(self):
        for start, offset in ((40, LAST - 39), (100, LAST - 99), (1, LAST)):
            self.assert_no_view(start, [1], offset)

    def test_dims_whose_product_overflows_are_refused(self):
        for dims in (
            [1 << 62, 4],
            [1 << 31, 1 << 31, 1 << 31],
            [(1 << 62) + 1],
        ):
            self.assert_no_view(0, dims, 0)

    def test_dims_that_overflow_are_refused_though_one_is_zero(self):
        self.assert_no_view(0, [0, 1 << 62, 1 << 62], 0)

    def test_negative_dims_are_refused(self):
        for dims in ([-1], [-(1 << 63)], [-5, -5]):
            self.assert_no_view(0, dims, 0)

    def test_more_dims_than_a_tensor_can_have_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "dimension"):
            self.views(0, View(FLOAT32, [1] * 10, 0))

    def test_data_type_without_a_size_is_refused(self):
        with self.assertRaisesRegex(ValueError, "unknown data type"):
            native.rebuild_views(
                self.handle, [View(core.DataType.UNDEFINED, [1], 0)]
            )

    def test_tensor_that_begins_behind_its_storage_is_refused(self):
        for rebuild in (rebuilt_tensor, rebuilt_dense_tensor):
            for start in (4, STORAGE, STORAGE + 4, BLOCK - 4, BLOCK, LAST):
                with self.assertRaises(ValueError):
                    rebuild(with_offset(self.handle, start))

    def test_views_of_a_tensor_without_memory_are_refused(self):
        handle = native.share_while_alive(paddle.zeros([0]))
        with self.assertRaisesRegex(ValueError, "only be rebuilt in shared"):
            native.rebuild_views(handle, [View(FLOAT32, [0], 0)])

    def test_one_view_that_is_refused_refuses_all(self):
        with self.assertRaises(ValueError):
            self.views(0, View(FLOAT32, [25], 0), View(FLOAT32, [26], 0))


if __name__ == "__main__":
    unittest.main()
