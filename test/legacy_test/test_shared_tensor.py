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
"""Tensors between processes: their contents on arrival, and sharing."""

from __future__ import annotations

import struct
import unittest
from functools import partial
from multiprocessing.reduction import ForkingPickler

import numpy as np
from concurrent_base import in_threads
from shared_tensor_base import (  # noqa: F401
    STRATEGIES,
    SharingTestCase,
    describe,
    describe_kept,
    description,
    echo,
    fill,
    fill_kept,
    keep,
    kept_value,
    load_and_describe,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.incubate.multiprocessing.tensor_reductions import reduce_tensor

DTYPES = (
    "bool",
    *("uint8", "int8", "int16", "int32", "int64"),
    *("float8_e4m3fn", "float8_e5m2"),
    *("float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128"),
)

VIEWS = {
    "transposed": lambda x: x.T,
    "row": lambda x: x[5],
    "column": lambda x: x[:, 1],
    "every second row": lambda x: x[::2],
    "inner block": lambda x: x[1:4, 1:3],
    "transposed inner block": lambda x: x[1:4, 1:3].T,
    "last element": lambda x: x[5, 3],
    "other shape": lambda x: x.reshape([4, 6]),
    "backwards": lambda x: x[::-1],
    "repeated": lambda x: paddle.as_strided(x, [3, 4], [0, 1]),
    "overlapping windows": lambda x: paddle.as_strided(x, [5, 3], [2, 1], 4),
}


def matrix() -> paddle.Tensor:
    return paddle.arange(24, dtype="float32").reshape([6, 4])


# Functions for `Peer.call`.


def parameter_state(kept, parameter):
    state = dict(vars(parameter))
    state["regularizer"] = str(state["regularizer"])
    return state, parameter.trainable, description(parameter)


def train(kept, parameter):
    sgd_step(parameter)
    return description(parameter)


def fill_second(kept, tensors, value):
    tensors[1].fill_(value)
    return description(tensors[0]), tensors[1].data_ptr() - tensors[
        0
    ].data_ptr()


def distance(kept, name, other):
    return kept[other].data_ptr() - kept[name].data_ptr()


def dump_kept(kept, name):
    return bytes(ForkingPickler.dumps(kept[name]))


def load_twice(kept, message):
    first = ForkingPickler.loads(message)
    second = ForkingPickler.loads(message)
    first.fill_(5)
    return description(second)


def load_in_threads(kept, messages):
    def load(some):
        return [int(ForkingPickler.loads(message).sum()) for message in some]

    return in_threads(*(partial(load, message) for message in messages))


def fill_first_loaded(kept, messages, value):
    tensors = [ForkingPickler.loads(message) for message in messages]
    tensors[0].fill_(value)
    return [float(tensor[-1]) for tensor in tensors]


def dense_of_dropped_tensor(kept):
    dense = matrix().get_tensor()
    # This would overwrite memory that was freed.
    kept["noise"] = [paddle.full([6, 4], 9.0) for _ in range(50)]
    return dense


def array_of(kept, dense):
    return np.array(dense)


def output(kept, layer, tensor):
    return layer(tensor).numpy()


def sgd_step(parameter: paddle.Tensor) -> None:
    optimizer = paddle.optimizer.SGD(0.5, parameters=[parameter])
    (parameter * 2).sum().backward()
    optimizer.step()
    optimizer.clear_grad()


@over_every_way_to_send()
class TestWhatArrives(SharingTestCase):
    def assert_arrives(self, tensor: paddle.Tensor) -> None:
        expected = description(tensor)
        self.assertEqual(self.peer.call(describe, tensor), expected)
        self.assertEqual(description(tensor), expected, "changed by sending")

    def test_every_dtype_arrives(self):
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                self.assert_arrives(paddle.arange(5).cast(dtype))

    def test_tensor_without_dimensions_arrives(self):
        self.assert_arrives(paddle.to_tensor(3.5))

    def test_tensor_without_elements_keeps_its_shape_and_dtype(self):
        for shape in ([0], [0, 3], [2, 0, 3]):
            for dtype in ("int64", "bool", "float16"):
                with self.subTest(shape=shape, dtype=dtype):
                    self.assert_arrives(paddle.zeros(shape, dtype))

    def test_view_arrives(self):
        for name, view in VIEWS.items():
            with self.subTest(name):
                self.assert_arrives(view(matrix()))

    def test_view_of_a_shared_tensor_arrives(self):
        base = matrix()
        self.peer.call(keep, "base", base)
        for name, view in VIEWS.items():
            with self.subTest(name):
                self.assert_arrives(view(base))

    def test_tensor_of_many_pages_arrives(self):
        self.assert_arrives(paddle.arange(3 << 18))

    def test_stop_gradient_arrives(self):
        for stop_gradient in (True, False):
            with self.subTest(stop_gradient=stop_gradient):
                tensor = matrix()
                tensor.stop_gradient = stop_gradient
                self.assert_arrives(tensor)

    def test_parameter_arrives_with_its_attributes(self):
        parameter = paddle.create_parameter(
            [2, 3],
            "float32",
            attr=paddle.ParamAttr(
                learning_rate=0.25, regularizer=paddle.regularizer.L2Decay(0.5)
            ),
        )
        parameter.need_clip = False
        parameter.custom = {"group": [1, 2]}
        expected = parameter_state(None, parameter)
        self.assertEqual(self.peer.call(parameter_state, parameter), expected)

    def test_parameter_stays_not_trainable(self):
        parameter = paddle.create_parameter([2, 3], "float32")
        parameter.trainable = False
        expected = parameter_state(None, parameter)
        self.assertFalse(expected[1])
        self.assertEqual(self.peer.call(parameter_state, parameter), expected)

    def test_result_that_requires_grad_is_refused(self):
        leaf = matrix()
        leaf.stop_gradient = False
        with self.assertRaisesRegex(
            RuntimeError, r"must be a leaf.*detach\(\)"
        ):
            ForkingPickler.dumps(leaf * 2)
        self.assert_arrives((leaf * 2).detach())

    def test_shape_with_too_many_elements_is_refused(self):
        rebuild, (handle, stop_gradient) = reduce_tensor(
            paddle.as_strided(matrix(), [2, 3], [0, 0])
        )
        rebuild(handle, stop_gradient)
        header = len(handle) - 4 * 8  # two dims, two strides
        dims = struct.pack("<2q", 1 << 40, 1 << 40)
        forged = handle[:header] + dims + handle[header + len(dims) :]
        with self.assertRaisesRegex(ValueError, "impossible"):
            rebuild(forged, stop_gradient)

    def test_dense_tensor_arrives(self):
        tensor = matrix()
        received = self.peer.call(array_of, tensor.get_tensor())
        np.testing.assert_array_equal(received, tensor.numpy())

    def test_dense_tensor_arrives_after_its_tensor_is_freed(self):
        dense = self.peer.call(dense_of_dropped_tensor)
        np.testing.assert_array_equal(np.array(dense), matrix().numpy())

    def test_layer_arrives(self):
        layer = paddle.nn.Linear(4, 2)
        tensor = matrix()
        np.testing.assert_array_equal(
            self.peer.call(output, layer, tensor), layer(tensor).numpy()
        )

    def test_threads_send_and_receive_concurrently(self):
        def send(first):
            tensors = [
                paddle.full([size * 7 + 1], first + size, "int64")
                for size in range(20)
            ]
            return [bytes(ForkingPickler.dumps(tensor)) for tensor in tensors]

        messages = in_threads(*(partial(send, i) for i in range(8)))
        expected = [
            [(size * 7 + 1) * (first + size) for size in range(20)]
            for first in range(8)
        ]
        self.assertEqual(self.peer.call(load_in_threads, messages), expected)

    def test_concurrent_first_sends_of_a_tensor_share_one_memory(self):
        def send(tensor):
            return bytes(ForkingPickler.dumps(tensor))

        for _ in range(5):
            # One thread gets reused memory, the other waits for new memory.
            ForkingPickler.loads(send(paddle.zeros([8 << 20])))
            tensor = paddle.zeros([8 << 20])
            messages = in_threads(*[partial(send, tensor)] * 2)
            self.assertEqual(
                self.peer.call(fill_first_loaded, messages, 3), [3.0, 3.0]
            )
            self.assertEqual(float(tensor[-1]), 3.0)

    @unittest.skipUnless(
        paddle.is_compiled_with_cuda()
        and paddle.device.cuda.device_count() > 0,
        "no GPU here",
    )
    def test_pinned_tensor_arrives_as_a_tensor_of_the_cpu(self):
        pinned = matrix().pin_memory()
        received = self.peer.call(echo, pinned)
        self.assertTrue(received.place.is_cpu_place())
        np.testing.assert_array_equal(received.numpy(), pinned.numpy())


@over_every_way_to_send()
class TestOneMemory(SharingTestCase):
    def assert_filled(self, tensor: paddle.Tensor, value: float) -> None:
        self.assertEqual(
            tensor.numpy().tolist(),
            np.full(tensor.shape, value, "float32").tolist(),
        )

    def test_sender_sees_what_the_receiver_writes(self):
        tensor = matrix()
        self.peer.call(fill, tensor, 5)
        self.assert_filled(tensor, 5)

    def test_receiver_sees_what_the_sender_writes(self):
        tensor = matrix()
        self.peer.call(keep, "tensor", tensor)
        tensor.fill_(5)
        self.assertEqual(
            self.peer.call(describe_kept, "tensor"), description(tensor)
        )

    def test_views_made_before_and_after_a_send_share(self):
        for name, view in VIEWS.items():
            with self.subTest(name):
                tensor = matrix()
                before = view(tensor)
                self.peer.call(fill, tensor, 5)
                self.assert_filled(before, 5)
                self.assert_filled(view(tensor), 5)

    def test_base_of_a_sent_view_shares(self):
        for name in ("transposed", "row", "column", "every second row"):
            with self.subTest(name):
                tensor, expected = matrix(), matrix().numpy()
                self.peer.call(fill, VIEWS[name](tensor), 5)
                # NumPy's views are the reference.
                VIEWS[name](expected)[...] = 5
                np.testing.assert_array_equal(tensor.numpy(), expected)

    def test_base_outlives_the_view_that_was_sent(self):
        tensor = matrix()
        row = tensor[5]
        self.peer.call(keep, "row", row)
        del row
        tensor.fill_(5)
        self.assertEqual(
            self.peer.call(describe_kept, "row"), description(tensor[5])
        )

    def test_optimizer_step_of_the_sender_is_seen(self):
        parameter = paddle.create_parameter([2, 3], "float32")
        self.peer.call(keep, "parameter", parameter)
        before = description(parameter)
        sgd_step(parameter)
        after = self.peer.call(describe_kept, "parameter")
        self.assertNotEqual(after.data, before.data)
        self.assertEqual(after, description(parameter))

    def test_optimizer_step_of_the_receiver_is_seen(self):
        parameter = paddle.create_parameter([2, 3], "float32")
        before = description(parameter)
        after = self.peer.call(train, parameter)
        self.assertNotEqual(after.data, before.data)
        self.assertEqual(after, description(parameter))

    def test_parameters_of_a_sent_layer_are_shared(self):
        layer = paddle.nn.Linear(4, 2)
        self.peer.call(keep, "layer", layer)
        layer.weight.set_value(np.full([4, 2], 5, "float32"))
        self.assert_filled(self.peer.call(_kept_weight, "layer"), 5)

    def test_tensors_of_one_storage_in_one_message_share_on_arrival(self):
        tensor = matrix()
        row = tensor[2]
        seen, apart = self.peer.call(fill_second, [tensor, row], 5)
        self.assertEqual(apart, row.data_ptr() - tensor.data_ptr())
        self.assertEqual(seen, description(tensor))
        self.assert_filled(row, 5)

    def test_tensors_of_one_storage_in_two_messages_share_on_arrival(self):
        tensor = matrix()
        row = tensor[2]
        self.peer.call(keep, "tensor", tensor)
        self.peer.call(keep, "row", row)
        self.assertEqual(
            self.peer.call(distance, "tensor", "row"),
            row.data_ptr() - tensor.data_ptr(),
        )
        self.peer.call(fill_kept, "row", 5)
        self.assertEqual(
            self.peer.call(describe_kept, "tensor"), description(tensor)
        )

    def test_tensors_of_two_storages_do_not_share(self):
        first, second = matrix(), matrix()
        seen, _ = self.peer.call(fill_second, [first, second], 5)
        self.assertEqual(seen, description(matrix()))
        self.assertEqual(description(first), seen)

    def test_tensor_sent_back_is_the_senders_own_memory(self):
        tensor = matrix()
        self.peer.call(keep, "tensor", tensor)
        back = self.peer.call(kept_value, "tensor")
        self.assertEqual(back.data_ptr(), tensor.data_ptr())

    def test_tensor_sent_on_to_a_third_process_is_the_same_memory(self):
        tensor = matrix()
        self.peer.call(keep, "tensor", tensor)
        message = self.peer.call(dump_kept, "tensor")
        with self.another_peer() as third:
            self.assertEqual(
                third.call(load_and_describe, message), description(tensor)
            )
            message = self.peer.call(dump_kept, "tensor")
            third.call(load_and_fill, message, 5)
        self.assert_filled(tensor, 5)
        self.assertEqual(
            self.peer.call(describe_kept, "tensor"), description(tensor)
        )

    def test_sender_may_drop_a_tensor_that_is_sent_on(self):
        tensor = matrix()
        expected = description(tensor)
        self.peer.call(keep, "tensor", tensor)
        del tensor
        back = self.peer.call(kept_value, "tensor")
        self.assertEqual(description(back), expected)
        back.fill_(5)
        self.assertEqual(
            self.peer.call(describe_kept, "tensor"), description(back)
        )

    def test_message_loaded_twice_is_one_memory(self):
        tensor = matrix()
        message = bytes(ForkingPickler.dumps(tensor))
        seen = self.peer.call(load_twice, message)
        self.assert_filled(tensor, 5)
        self.assertEqual(seen, description(tensor))

    def test_tensor_over_foreign_memory_is_refused_with_a_remedy(self):
        array = np.arange(4, dtype="float32")
        foreign = {
            "DLPack": paddle.utils.dlpack.from_dlpack(array),
            "NumPy": paddle.base.core.eager.Tensor(
                array, paddle.CPUPlace(), False, True, "over_numpy"
            ),
        }
        for name, tensor in foreign.items():
            with self.subTest(name):
                array[:] = [0, 1, 2, 3]
                with self.assertRaisesRegex(
                    (RuntimeError, ValueError, TypeError), r"\.clone\(\)"
                ) as refused:
                    ForkingPickler.dumps(tensor)
                self.assertIn(name, str(refused.exception))
                self.assertNotIn("Hint", str(refused.exception))
                array[0] = 7
                self.assertEqual(tensor.numpy().tolist(), array.tolist())
                copy = tensor.clone()
                self.assertEqual(
                    self.peer.call(describe, copy), description(copy)
                )

    def test_message_of_another_strategy_arrives(self):
        (other,) = set(STRATEGIES) - {self.strategy}
        self.addCleanup(sharing.set_sharing_strategy, self.strategy)
        sharing.set_sharing_strategy(other)
        tensor = matrix()
        self.peer.call(fill, tensor, 5)
        self.assert_filled(tensor, 5)


def load_and_fill(kept, message, value):
    ForkingPickler.loads(message).fill_(value)


def _kept_weight(kept, name):
    return kept[name].weight


if __name__ == "__main__":
    unittest.main()
