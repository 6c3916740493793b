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
"""Allocation of tensors in shared memory."""

from __future__ import annotations

import gc
import threading
import unittest

import numpy as np
from concurrent_base import WAIT_S
from shared_tensor_leaks import no_leak

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base.device_counts import device_names
from paddle.incubate.multiprocessing.device_names import (
    name_of,
    parse,
    place_of,
)
from paddle.incubate.multiprocessing.shared_allocator import (
    empty_shared,
    shared_allocation,
    shared_copy,
)


def image() -> paddle.Tensor:
    return paddle.arange(6, dtype="float32").reshape([2, 3])


class AllocationTestCase(unittest.TestCase):
    strategy = "file_system"

    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")
        before = sharing.get_sharing_strategy()
        self.addCleanup(sharing.set_sharing_strategy, before)
        sharing.set_sharing_strategy(self.strategy)

    def used(self) -> int:
        """Returns the bytes of blocks in use, after a collection."""
        gc.collect()
        sharing.collect_shared_memory()
        return sharing.shared_memory_stats()["used"]


class TestEmpty(AllocationTestCase):
    def test_tensor_has_the_shape_and_dtype_that_were_asked_for(self):
        for shape in ([2, 3], (4,), [], [0, 3]):
            for dtype in ("bool", "bfloat16", paddle.int64, np.dtype("uint8")):
                with self.subTest(shape=shape, dtype=dtype):
                    tensor = empty_shared(shape, dtype)
                    expected = paddle.empty(shape, dtype)
                    self.assertEqual(tensor.shape, expected.shape)
                    self.assertEqual(tensor.dtype, expected.dtype)
                    self.assertTrue(tensor.place.is_cpu_place())
                    self.assertTrue(tensor.is_shared())

    def test_default_dtype_is_paddles(self):
        self.addCleanup(paddle.set_default_dtype, paddle.get_default_dtype())
        for dtype in ("float32", "float64"):
            paddle.set_default_dtype(dtype)
            tensor = empty_shared([2])
            self.assertEqual(tensor.dtype, getattr(paddle, dtype))

    def test_invalid_shape_is_refused(self):
        for shape, error in (
            ([2, -1], ValueError),
            ([2.0], TypeError),
            ([True], TypeError),
            (["3"], TypeError),
            (3, TypeError),
        ):
            with self.subTest(shape=shape), self.assertRaises(error) as caught:
                empty_shared(shape)
            self.assertIn(str(shape), str(caught.exception))

    def test_invalid_dtype_is_refused(self):
        with self.assertRaises(TypeError):
            empty_shared([2], "float33")

    def test_lack_of_room_is_a_memory_error(self):
        with self.assertRaises(MemoryError):
            empty_shared([1 << 50])

    def test_memory_is_given_back(self):
        used = self.used()
        tensor = empty_shared([1 << 16])
        self.assertGreater(self.used(), used)
        del tensor
        self.assertEqual(self.used(), used)


class TestAllocation(AllocationTestCase):
    def test_results_of_operators_are_shared(self):
        layer = paddle.nn.Linear(3, 2)
        with shared_allocation():
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

    def test_values_do_not_change(self):
        paddle.seed(7)
        expected = [paddle.rand([5]).numpy(), (image() @ image().T).numpy()]
        paddle.seed(7)
        with shared_allocation():
            made = [paddle.rand([5]), image() @ image().T]
        for tensor, value in zip(made, expected):
            np.testing.assert_array_equal(tensor.numpy(), value)

    def test_context_ends_with_its_block(self):
        with shared_allocation():
            inside = image() + 1
        self.assertTrue(inside.is_shared())
        self.assertFalse((image() + 1).is_shared())

    def test_context_ends_with_an_exception(self):
        with self.assertRaises(KeyError), shared_allocation():
            raise KeyError
        self.assertFalse((image() + 1).is_shared())

    def test_contexts_are_nested(self):
        with shared_allocation():
            with shared_allocation():
                inner = image() + 1
            self.assertTrue((image() + 1).is_shared())
        self.assertTrue(inner.is_shared())
        self.assertFalse((image() + 1).is_shared())

    def test_other_threads_are_not_affected(self):
        found = []
        with shared_allocation():
            thread = threading.Thread(
                target=lambda: found.append((image() + 1).is_shared())
            )
            thread.start()
            thread.join(WAIT_S)
            self.assertTrue((image() + 1).is_shared())
        self.assertEqual(found, [False])

    def test_tensor_made_before_stays_where_it_is(self):
        tensor = image()
        with shared_allocation():
            tensor.add_(tensor)
        self.assertFalse(tensor.is_shared())

    def test_lack_of_room_is_an_error_and_the_context_stays_usable(self):
        self.addCleanup(
            sharing.set_shared_memory_limit, sharing.get_shared_memory_limit()
        )
        with shared_allocation():
            sharing.set_shared_memory_limit(1 << 20)
            with self.assertRaises(MemoryError):
                paddle.zeros([1 << 20])
            sharing.set_shared_memory_limit(1 << 30)
            self.assertTrue(paddle.zeros([1 << 20]).is_shared())

    def test_memory_is_given_back(self):
        with no_leak():
            with shared_allocation():
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
        with shared_allocation():
            self.assertEqual(losses(), expected)


class TestCopy(AllocationTestCase):
    def test_copy_has_the_values_and_its_own_memory(self):
        tensors = {
            "whole": image(),
            "transposed": image().T,
            "row": image()[1],
            "without elements": paddle.zeros([0, 3]),
            "without dimensions": paddle.to_tensor(5.0),
        }
        for name, tensor in tensors.items():
            with self.subTest(name):
                expected = tensor.numpy()
                copied = shared_copy(tensor)
                self.assertTrue(copied.is_shared())
                np.testing.assert_array_equal(copied.numpy(), expected)
                copied.fill_(7)
                np.testing.assert_array_equal(tensor.numpy(), expected)


class TestDeviceNames(unittest.TestCase):
    def test_a_device_name_converts_to_its_place_and_back(self):
        for name in device_names():
            self.assertEqual(name_of(place_of(name)), name)

    def test_a_name_has_a_type_and_may_have_a_number(self):
        self.assertEqual(parse("gpu"), ("gpu", None))
        self.assertEqual(parse("gpu:12"), ("gpu", 12))

    def test_case_and_spaces_around_a_name_do_not_matter(self):
        for name in device_names():
            for spelling in (name.upper(), f" {name} "):
                place = place_of(name_of(spelling))
                self.assertEqual(name_of(place), name)
        self.assertEqual(parse(" CUDA: 1 "), ("gpu", 1))

    def test_invalid_device_name_is_refused(self):
        for wrong in ("", "gpu:", "gpu:x", "7", ":0"):
            with self.assertRaisesRegex(ValueError, f"received {wrong!r}"):
                name_of(wrong)

    def test_a_missing_device_is_an_error_that_lists_the_others(self):
        for name in ("gpu:99", "cpu:1", "carrier_pigeon"):
            with self.assertRaisesRegex(RuntimeError, f"{name}.*'cpu'"):
                place_of(name)


class TestEmptyByDescriptors(TestEmpty):
    strategy = "file_descriptor"


class TestAllocationByDescriptors(TestAllocation):
    strategy = "file_descriptor"


if __name__ == "__main__":
    unittest.main()
