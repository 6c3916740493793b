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
"""Sending of tensors that are allocated in shared memory."""

from __future__ import annotations

import unittest

import numpy as np
from shared_tensor_base import (  # noqa: F401
    SharingTestCase,
    keep,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)
from test_shared_allocation import image

import paddle
from paddle.incubate.multiprocessing.shared_allocator import (
    empty_shared,
    shared_allocation,
)

# Functions for `Peer.call`.


def filled_by_hand(kept, shape, value):
    batch = empty_shared(shape)
    batch[:] = value
    return batch, batch.data_ptr()


def stacked(kept, count):
    with shared_allocation():
        batch = paddle.stack([image()] * count)
    return batch, batch.is_shared()


def fill_and_look(kept, batch):
    batch.fill_(7)
    return batch.is_shared()


@over_every_way_to_send()
class TestProduction(SharingTestCase):
    def test_batch_of_a_worker_arrives(self):
        batch, _ = self.peer.call(filled_by_hand, [2, 3], 5)
        self.assertEqual(batch.tolist(), [[5.0] * 3] * 2)
        batch, was_shared = self.peer.call(stacked, 4)
        self.assertTrue(was_shared)
        np.testing.assert_array_equal(
            batch.numpy(), np.stack([image().numpy()] * 4)
        )

    def test_sending_does_not_move_tensors_allocated_there(self):
        with shared_allocation():
            stack = paddle.stack([image(), image()])
        for batch in (empty_shared([2, 3]), stack):
            place = batch.data_ptr()
            self.assertTrue(self.peer.call(fill_and_look, batch))
            self.assertEqual(batch.data_ptr(), place)
            self.assertTrue((batch == 7).all().item())

    def test_receiver_keeps_a_tensor_that_the_sender_drops(self):
        batch = empty_shared([2, 3])
        batch[:] = 5
        self.peer.call(keep, "batch", batch)
        used = self.used()
        self.assertGreater(used, 0)
        del batch
        # Only the peer holds it now.
        self.assertEqual(self.used(), used)


if __name__ == "__main__":
    unittest.main()
