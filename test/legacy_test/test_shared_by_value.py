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
"""Tensors that are sent by value, and arrive as copies.

test/custom_runtime/test_shared_by_value_device.py tests device tensors.
"""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np
from shared_tensor_base import (  # noqa: F401
    PeerError,
    SharingTestCase,
    echo,
    keep,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle import nn
from paddle.incubate.multiprocessing.tensor_reductions import by_value


def matrix(dtype: str = "float32") -> paddle.Tensor:
    return paddle.arange(6).reshape([2, 3]).cast(dtype)


def name_of(tensor: paddle.Tensor) -> str:
    return str(tensor.place)[len("Place(") : -1]


class UsersTensor(paddle.Tensor):
    pass


# Functions for `Peer.call`.


def describe(kept, tensor):
    """Returns the kind, the contents and the place of a tensor."""
    return (
        type(tensor).__name__,
        str(tensor.dtype),
        name_of(tensor),
        tensor.tolist(),
        tensor.stop_gradient,
        tensor.is_contiguous(),
        tensor.grad is None,
    )


def fill_and_return(kept, tensor, value):
    tensor.detach().fill_(value)
    return tensor.tolist()


def describe_sparse(kept, tensor):
    return (
        tensor.is_sparse_coo(),
        name_of(tensor),
        tensor.is_sparse_coo() and tensor.is_coalesced(),
        tensor.to_dense().tolist(),
    )


def describe_rows(kept, tensor):
    rows = tensor.get_selected_rows()
    return rows.rows(), rows.height(), tensor.tolist()


def attributes_in_peer(kept, parameter):
    return parameter.optimize_attr, parameter.need_clip, parameter.group


def get_from(kept, name):
    return kept[name].get().tolist()


@over_every_way_to_send()
class TestByValue(SharingTestCase):
    def new_peer(self, **kept: Any):
        queue = self.context.Queue()
        type(self).queue = queue
        self.addClassCleanup(queue.join_thread)
        self.addClassCleanup(queue.close)
        return super().new_peer(_queue=queue, **kept)

    def test_every_dtype_arrives(self):
        for dtype in ("bool", "int64", "bfloat16", "float64", "complex64"):
            with self.subTest(dtype=dtype):
                tensor = matrix(dtype)
                self.assertEqual(
                    self.peer.call(describe, by_value(tensor)),
                    describe(None, tensor),
                )

    def test_view_arrives_contiguous(self):
        for view in (matrix().T, matrix()[:, 1], matrix()[:, ::-1]):
            kind, dtype, place, values, _, contiguous, _ = self.peer.call(
                describe, by_value(view)
            )
            self.assertEqual((place, values), ("cpu", view.tolist()))
            self.assertTrue(contiguous)

    def test_tensors_without_dimensions_or_elements_arrive(self):
        for tensor in (paddle.to_tensor(3.5), paddle.zeros([0, 3], "int16")):
            arrived = self.peer.call(echo, by_value(tensor))
            self.assertEqual(arrived.shape, tensor.shape)
            self.assertEqual(arrived.dtype, tensor.dtype)
            self.assertEqual(arrived.tolist(), tensor.tolist())

    def test_the_sender_does_not_see_writes_of_the_receiver(self):
        tensor = matrix()
        before = tensor.tolist()
        message = by_value(tensor)
        filled = [[5.0] * 3] * 2
        for _ in range(2):
            self.assertEqual(
                self.peer.call(fill_and_return, message, 5), filled
            )
        self.assertEqual(tensor.tolist(), before)
        self.assertEqual(self.peer.call(describe, message)[3], before)

    def test_by_value_copies_immediately(self):
        tensor = matrix()
        before = tensor.tolist()
        message = by_value(tensor)
        tensor.fill_(9)
        self.queue.put(message)
        self.assertEqual(self.peer.call(get_from, "_queue"), before)

    def test_sending_does_not_move_the_tensor(self):
        tensor = matrix()
        self.peer.call(echo, by_value(tensor))
        self.assertFalse(tensor.is_shared())

    def test_memory_of_the_message_is_released_on_arrival(self):
        used = self.used()
        message = by_value(paddle.zeros([1 << 16]))
        self.peer.call(keep, "tensor", message)
        self.assertGreater(self.used(), used)
        del message
        self.assertEqual(self.used(), used)

    def test_parameter_arrives_with_its_attributes(self):
        parameter = paddle.create_parameter([2, 3], "float32")
        parameter.need_clip = False
        parameter.group = [1]
        message = by_value(parameter)
        expected = describe(None, parameter)
        parameter.group.append(2)
        self.assertEqual(self.peer.call(describe, message), expected)
        self.assertEqual(
            self.peer.call(attributes_in_peer, message),
            ({"learning_rate": 1.0}, False, [1]),
        )

    def test_gradient_is_not_sent_with_its_parameter(self):
        parameter = paddle.create_parameter([2, 3], "float32")
        message = by_value(parameter)
        expected = self.peer.call(describe, message)
        (parameter * 2).sum().backward()
        message = by_value(parameter)
        self.assertEqual(self.peer.call(describe, message), expected)

    def test_selected_rows_arrive(self):
        layer = nn.Embedding(5, 2, sparse=True)
        layer(paddle.to_tensor([3])).sum().backward()
        message = by_value(layer.weight.grad)
        self.assertEqual(
            self.peer.call(describe_rows, message), ([3], 5, [[1.0, 1.0]])
        )

    def test_tensor_of_a_users_class_arrives_as_one(self):
        tensor = UsersTensor(matrix())
        tensor.group = [1]
        message = by_value(tensor)
        tensor.group.append(2)
        back = self.peer.call(echo, message)
        self.assertIs(type(back), UsersTensor)
        self.assertEqual((back.group, back.tolist()), ([1], matrix().tolist()))

    def test_sparse_tensor_arrives(self):
        places, values = [[1, 0, 1], [2, 1, 2]], [1.0, 2.0, 3.0]
        coo = paddle.sparse.sparse_coo_tensor(places, values, [2, 3])
        csr = paddle.sparse.sparse_csr_tensor([0, 1, 2], [2, 0], [1, 2], [2, 3])
        for tensor in (coo, coo.coalesce(), csr):
            self.assertEqual(
                self.peer.call(describe_sparse, by_value(tensor)),
                describe_sparse(None, tensor),
            )

    def test_device_that_the_receiver_lacks_is_named(self):
        for device in ("gpu:77", "xpu:77", "no_such_device", "cpu:1"):
            with self.subTest(device):
                message = by_value(matrix(), device)
                with self.assertRaisesRegex(
                    PeerError, f"'{device}'.*only.*'cpu'.*by_value"
                ):
                    self.peer.call(describe, message)


class TestByValueInOneProcess(SharingTestCase):
    def test_invalid_device_name_is_refused(self):
        for device in ("", "gpu:", "gpu:-1", ":0", "a b", 3):
            with (
                self.subTest(device),
                self.assertRaisesRegex(ValueError, "device must be"),
            ):
                by_value(matrix(), device)

    def test_other_types_than_tensors_are_refused(self):
        for value in (3, np.ones(2), matrix().get_tensor()):
            with self.assertRaisesRegex(TypeError, type(value).__name__):
                by_value(value)

    def test_result_that_requires_grad_is_refused(self):
        leaf = matrix()
        leaf.stop_gradient = False
        with self.assertRaisesRegex(RuntimeError, r"detach\(\)"):
            by_value(leaf * 2)

    def test_tensor_without_values_is_refused_by_its_name(self):
        with paddle.LazyGuard():
            weight = nn.Linear(2, 2).weight
        with self.assertRaisesRegex(RuntimeError, f"{weight.name}.*none yet"):
            by_value(weight)

    def test_lack_of_room_is_a_memory_error(self):
        self.addCleanup(
            sharing.set_shared_memory_limit, sharing.get_shared_memory_limit()
        )
        sharing.set_shared_memory_limit(1 << 20)
        with self.assertRaises(MemoryError):
            by_value(paddle.zeros([1 << 20]))


if __name__ == "__main__":
    unittest.main()
