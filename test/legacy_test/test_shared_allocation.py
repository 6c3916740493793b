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
"""Tensors that are made in shared memory."""

from __future__ import annotations

import threading
import unittest

import numpy as np
from concurrent_base import WAIT_S
from shared_tensor_base import (  # noqa: F401
    SharingTestCase,
    keep,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)
from shared_tensor_leaks import no_leak

import paddle
import paddle.incubate.multiprocessing as sharing


def image() -> paddle.Tensor:
    return paddle.arange(6, dtype="float32").reshape([2, 3])


# Functions for `Peer.call`.


def filled_by_hand(kept, shape, value):
    batch = sharing.empty_shared(shape)
    batch[:] = value
    return batch, batch.data_ptr()


def stacked(kept, count):
    with sharing.shared_allocation():
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

    def test_sending_does_not_move_what_was_made_there(self):
        with sharing.shared_allocation():
            stack = paddle.stack([image(), image()])
        for batch in (sharing.empty_shared([2, 3]), stack):
            place = batch.data_ptr()
            self.assertTrue(self.peer.call(fill_and_look, batch))
            self.assertEqual(batch.data_ptr(), place)
            self.assertTrue((batch == 7).all().item())

    def test_receiver_keeps_what_the_sender_drops(self):
        batch = sharing.empty_shared([2, 3])
        batch[:] = 5
        self.peer.call(keep, "batch", batch)
        used = self.used()
        self.assertGreater(used, 0)
        del batch
        # It is the peer's now.
        self.assertEqual(self.used(), used)


class TestEmpty(SharingTestCase):
    def test_tensor_has_the_shape_and_dtype_that_were_asked_for(self):
        for shape in ([2, 3], (4,), [], [0, 3]):
            for dtype in ("bool", "bfloat16", paddle.int64, np.dtype("uint8")):
                with self.subTest(shape=shape, dtype=dtype):
                    tensor = sharing.empty_shared(shape, dtype)
                    expected = paddle.empty(shape, dtype)
                    self.assertEqual(tensor.shape, expected.shape)
                    self.assertEqual(tensor.dtype, expected.dtype)
                    self.assertTrue(tensor.place.is_cpu_place())
                    self.assertTrue(tensor.is_shared())

    def test_default_dtype_is_paddles(self):
        self.addCleanup(paddle.set_default_dtype, paddle.get_default_dtype())
        for dtype in ("float32", "float64"):
            paddle.set_default_dtype(dtype)
            tensor = sharing.empty_shared([2])
            self.assertEqual(tensor.dtype, getattr(paddle, dtype))

    def test_shape_that_cannot_be_is_refused(self):
        for shape, error in (
            ([2, -1], ValueError),
            ([2.0], TypeError),
            ([True], TypeError),
            (["3"], TypeError),
            (3, TypeError),
        ):
            with self.subTest(shape=shape), self.assertRaises(error) as caught:
                sharing.empty_shared(shape)
            self.assertIn(str(shape), str(caught.exception))

    def test_dtype_that_cannot_be_is_refused(self):
        with self.assertRaises(TypeError):
            sharing.empty_shared([2], "float33")

    def test_lack_of_room_is_a_memory_error(self):
        with self.assertRaises(MemoryError):
            sharing.empty_shared([1 << 50])

    def test_memory_is_given_back(self):
        used = self.used()
        tensor = sharing.empty_shared([1 << 16])
        self.assertGreater(self.used(), used)
        del tensor
        self.assertEqual(self.used(), used)


class TestAllocation(SharingTestCase):
    def test_results_of_operators_are_shared(self):
        layer = paddle.nn.Linear(3, 2)
        with sharing.shared_allocation():
            made = {
                "zeros": paddle.zeros([2, 3]),
                "to_tensor": paddle.to_tensor([[1, 2], [3, 4]]),
                "from NumPy": paddle.to_tensor(np.ones([2, 3])),
                "random": paddle.rand([2, 3]),
                "stack": paddle.stack([image(), image()]),
                "matmul": paddle.matmul(image(), image().T),
                "layer": layer(image()),
            }
        for name, tensor in made.items():
            with self.subTest(name):
                self.assertTrue(tensor.is_shared())
        self.assertFalse(layer.weight.is_shared())

    def test_values_are_those_that_they_would_be_without(self):
        paddle.seed(7)
        expected = [paddle.rand([5]).numpy(), (image() @ image().T).numpy()]
        paddle.seed(7)
        with sharing.shared_allocation():
            made = [paddle.rand([5]), image() @ image().T]
        for tensor, value in zip(made, expected):
            np.testing.assert_array_equal(tensor.numpy(), value)

    def test_context_ends_with_its_block(self):
        with sharing.shared_allocation():
            inside = image() + 1
        self.assertTrue(inside.is_shared())
        self.assertFalse((image() + 1).is_shared())

    def test_context_ends_with_an_exception(self):
        with self.assertRaises(KeyError), sharing.shared_allocation():
            raise KeyError
        self.assertFalse((image() + 1).is_shared())

    def test_contexts_are_nested(self):
        with sharing.shared_allocation():
            with sharing.shared_allocation():
                inner = image() + 1
            self.assertTrue((image() + 1).is_shared())
        self.assertTrue(inner.is_shared())
        self.assertFalse((image() + 1).is_shared())

    def test_other_threads_do_not_notice(self):
        found = []
        with sharing.shared_allocation():
            thread = threading.Thread(
                target=lambda: found.append((image() + 1).is_shared())
            )
            thread.start()
            thread.join(WAIT_S)
            self.assertTrue((image() + 1).is_shared())
        self.assertEqual(found, [False])

    def test_tensor_made_before_stays_where_it_is(self):
        tensor = image()
        with sharing.shared_allocation():
            tensor.add_(tensor)
        self.assertFalse(tensor.is_shared())

    def test_lack_of_room_is_an_error_and_the_context_goes_on(self):
        self.addCleanup(
            sharing.set_shared_memory_limit, sharing.get_shared_memory_limit()
        )
        with sharing.shared_allocation():
            sharing.set_shared_memory_limit(1 << 20)
            with self.assertRaises(MemoryError):
                paddle.zeros([1 << 20])
            sharing.set_shared_memory_limit(1 << 30)
            self.assertTrue(paddle.zeros([1 << 20]).is_shared())

    def test_memory_is_given_back(self):
        with no_leak():
            with sharing.shared_allocation():
                tensors = [image() + n for n in range(50)]
            del tensors

    def test_training_works_within(self):
        def losses() -> list[float]:
            paddle.seed(3)
            layer = paddle.nn.Linear(3, 2)
            optimizer = paddle.optimizer.Adam(
                0.1, parameters=layer.parameters()
            )
            values = []
            for _ in range(3):
                loss = (layer(image()) ** 2).mean()
                loss.backward()
                optimizer.step()
                optimizer.clear_grad()
                values.append(loss.item())
            return values

        expected = losses()
        with sharing.shared_allocation():
            self.assertEqual(losses(), expected)


class TestEmptyByDescriptors(TestEmpty):
    strategy = "file_descriptor"


class TestAllocationByDescriptors(TestAllocation):
    strategy = "file_descriptor"


if __name__ == "__main__":
    unittest.main()
