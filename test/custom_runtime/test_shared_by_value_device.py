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
"""Tensors on devices whose memory cannot be shared are copied.

CUSTOM_DEVICE_ROOT must name the folder of the plugin in host_device/.
"""

from __future__ import annotations

import sys
import threading
import unittest
from pathlib import Path

import numpy as np
import test_host_device
from host_device_control import delay
from test_host_device import DEVICE_TYPE, place_of

sys.path.append(str(Path(__file__).parents[1] / "legacy_test"))

import shared_tensor_base
from concurrent_base import WAIT_S
from shared_tensor_base import (
    PeerError,
    SharingTestCase,
    echo,
    over_every_way_to_send,
    tearDownModule,  # noqa: F401
)
from test_shared_by_value import describe, fill_and_return, matrix, name_of

import paddle
from paddle import nn
from paddle.incubate.multiprocessing.tensor_reductions import by_value


def setUpModule() -> None:
    test_host_device.setUpModule()
    shared_tensor_base.setUpModule()


def on_device(tensor: paddle.Tensor, index: int = 1) -> paddle.Tensor:
    return tensor._copy_to(place_of(index), True)


class OnDevice(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.second = self.first
        self.register_buffer("mean", paddle.ones([2]))

    def forward(self, x):
        return self.second(x) - self.mean


# Functions for `Peer.call`.


def outputs_in_peer(kept, layer, x):
    return layer(x).tolist(), layer.first is layer.second


def state_of_scaler(kept, scaler):
    return scaler.state_dict()


# The test device's streams are threads, which a forked process does not have.
@over_every_way_to_send(methods=("spawn", "forkserver"))
class TestDevices(SharingTestCase):
    def assert_arrives(self, tensor: paddle.Tensor) -> None:
        expected = describe(None, tensor)
        arrived = self.peer.call(describe, tensor)
        # A view arrives contiguous.
        self.assertEqual(arrived[:5] + arrived[6:], expected[:5] + expected[6:])

    def test_tensor_of_a_device_arrives_on_its_device(self):
        for index in range(4):
            self.assert_arrives(on_device(matrix(), index))

    def test_every_dtype_arrives(self):
        for dtype in ("bool", "int64", "bfloat16", "float64", "complex64"):
            with self.subTest(dtype=dtype):
                self.assert_arrives(on_device(matrix(dtype)))

    def test_views_arrive(self):
        tensor = on_device(matrix())
        for name, view in {
            "transposed": tensor.T,
            "row": tensor[1],
            "column": tensor[:, 1],
            "reversed": tensor[:, ::-1],
            "reversed row": tensor[1, ::-2],
            "scalar": tensor[1, 2],
            "nothing": tensor[:, :0],
        }.items():
            with self.subTest(name):
                self.assertEqual(
                    self.peer.call(describe, view)[2:4],
                    (f"{DEVICE_TYPE}:1", view.numpy().tolist()),
                )

    def test_it_is_a_copy(self):
        tensor = on_device(matrix())
        self.peer.call(fill_and_return, tensor, 5)
        self.assertEqual(tensor.tolist(), matrix().tolist())
        received = self.peer.call(echo, tensor)
        tensor.fill_(5)
        self.assertEqual(received.tolist(), matrix().tolist())

    def test_tensor_is_sent_to_another_device(self):
        for tensor, device in (
            (matrix(), f"{DEVICE_TYPE}:3"),
            (on_device(matrix()), f"{DEVICE_TYPE}:2"),
            (on_device(matrix()), f" {DEVICE_TYPE.upper()}:2 "),
            (on_device(matrix()), "cpu"),
            (matrix(), paddle.CustomPlace(DEVICE_TYPE, 2)),
        ):
            arrived = self.peer.call(describe, by_value(tensor, device))
            self.assertIn(arrived[2], str(device).lower())
            self.assertEqual(arrived[3], matrix().tolist())

    def test_device_that_the_receiver_lacks_is_named(self):
        message = by_value(matrix(), f"{DEVICE_TYPE}:99")
        with self.assertRaisesRegex(PeerError, f"'{DEVICE_TYPE}:99'.*only"):
            self.peer.call(describe, message)

    def test_layer_on_a_device_arrives(self):
        layer = OnDevice()
        layer.to(f"{DEVICE_TYPE}:1")
        x = on_device(paddle.rand([4, 3]))
        outputs, is_tied = self.peer.call(outputs_in_peer, layer, x)
        np.testing.assert_allclose(outputs, layer(x).numpy(), rtol=1e-5)
        self.assertTrue(is_tied)

    def test_grad_scaler_arrives_with_its_state(self):
        # On the CPU it does nothing.
        with paddle.device.device(f"{DEVICE_TYPE}:1"):
            scaler = paddle.amp.GradScaler(init_loss_scaling=64.0)
        state = scaler.state_dict()
        self.assertEqual(state["scale"], [64.0])
        self.assertEqual(self.peer.call(echo, state), state)
        self.assertEqual(self.peer.call(state_of_scaler, scaler), state)

    def test_sparse_tensor_on_a_device_arrives(self):
        parts = [paddle.to_tensor([[1, 0], [2, 1]]), paddle.to_tensor([1.0, 2])]
        tensor = paddle.base.core.eager.sparse_coo_tensor(
            *map(on_device, parts), [2, 3], True
        )
        arrived = self.peer.call(echo, tensor)
        self.assertEqual(name_of(arrived), f"{DEVICE_TYPE}:1")
        self.assertEqual(arrived.values().tolist(), [1, 2])
        self.assertEqual(arrived.indices().tolist(), parts[0].tolist())

    def test_sending_waits_for_work_on_the_threads_stream(self):
        # A queue pickles on its own thread, which uses another stream.
        def compute() -> None:
            stream = paddle.device.Stream(f"{DEVICE_TYPE}:1")
            with paddle.device.stream_guard(stream), delay(1, 200_000):
                results.append(paddle.scale(base, 5.0))
                queue.put(results[0])

        base, results = on_device(paddle.ones([4])), []
        queue = self.context.Queue()
        self.addCleanup(queue.join_thread)
        self.addCleanup(queue.close)
        thread = threading.Thread(target=compute)
        thread.start()
        thread.join(WAIT_S)
        self.assertFalse(thread.is_alive())
        self.assertEqual(queue.get(timeout=WAIT_S).tolist(), [5.0] * 4)

    def test_places_arrive(self):
        place = paddle.CustomPlace(DEVICE_TYPE, 2)
        self.assertEqual(self.peer.call(echo, place), place)

    def test_memory_of_a_device_cannot_be_shared(self):
        tensor = on_device(matrix())
        self.assertFalse(tensor.is_shared())
        layer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        layer[1].to(f"{DEVICE_TYPE}:1")
        for share in (tensor.share_memory_, layer.share_memory):
            with self.assertRaisesRegex(
                NotImplementedError, rf"{DEVICE_TYPE}:1\).*by_value"
            ):
                share()
        self.assertFalse(layer[0].weight.is_shared())


if __name__ == "__main__":
    unittest.main()
