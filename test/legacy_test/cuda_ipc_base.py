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
"""Helpers for the tests of GPU tensors between processes: the GPUs.

They are Paddle's real GPUs. A Paddle without GPU support needs the module
stand_in_gpu, which allocates tensors in a driver's memory. The environment
variable PADDLE_STAND_IN_GPU names its folder, and on a machine without a GPU
also the folder of a stand-in for the driver (libcuda.so.1).
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import unittest
from multiprocessing.reduction import ForkingPickler
from typing import Any

from shared_tensor_base import (
    Description,
    Peer,
    SharingTestCase,
    description,
    forget,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core


class _RealGpus:
    """The functions of the module stand_in_gpu, on Paddle's real GPUs."""

    @staticmethod
    def device_count() -> int:
        return paddle.device.cuda.device_count()

    @staticmethod
    def to_gpu(tensor: paddle.Tensor, device: int) -> paddle.Tensor:
        return tensor.to(f"gpu:{device}")

    @staticmethod
    def to_cpu(tensor: paddle.Tensor) -> paddle.Tensor:
        return tensor.cpu()

    @staticmethod
    def view(base: paddle.Tensor, like: paddle.Tensor) -> paddle.Tensor:
        return paddle.as_strided(base, like.shape, like.strides, like.offset)

    @staticmethod
    def put_in(tensor: paddle.Tensor, content: paddle.Tensor) -> None:
        tensor.get_tensor()._share_data_with(content.get_tensor())

    @staticmethod
    def address(tensor: paddle.Tensor) -> int:
        return tensor.data_ptr()

    @staticmethod
    def write(to: paddle.Tensor, what: paddle.Tensor) -> None:
        paddle.assign(what, to)

    @staticmethod
    def used(device: int) -> int:
        return paddle.device.cuda.memory_allocated(device)


def _stand_in() -> Any:
    folders = os.environ.get("PADDLE_STAND_IN_GPU", "").split(os.pathsep)
    if folders == [""]:
        return None
    libraries = [os.path.join(folder, "libcuda.so.1") for folder in folders]
    found = [library for library in libraries if os.path.exists(library)]
    try:
        # From here on, loading a library of that name gives this one.
        ctypes.CDLL(found[0] if found else "libcuda.so.1")
    except OSError as error:
        raise FileNotFoundError(
            f"PADDLE_STAND_IN_GPU names {folders}, without a libcuda.so.1, and "
            f"this machine has no driver: {error}."
        ) from None
    sys.path += folders
    return importlib.import_module("stand_in_gpu")


stand_in = _stand_in()
gpu = stand_in or _RealGpus
devices = gpu.device_count()

SET_STAND_IN = "set PADDLE_STAND_IN_GPU to its folders"
needs_gpu = unittest.skipUnless(
    devices, f"needs a GPU, or the stand-in: {SET_STAND_IN}"
)
needs_two_gpus = unittest.skipUnless(
    devices >= 2, f"needs two GPUs, or the stand-in: {SET_STAND_IN}"
)
needs_stand_in_module = unittest.skipUnless(
    stand_in, f"needs the module stand_in_gpu: {SET_STAND_IN}"
)
needs_stand_in_driver = unittest.skipUnless(
    stand_in and stand_in.has_stand_in_driver(),
    f"needs the stand-in for the driver: {SET_STAND_IN}",
)


def call_driver(name: str, *args: Any) -> None:
    """Calls a function of the driver, with the context of GPU 0."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    calls = [
        (driver.cuInit, 0),
        (driver.cuDevicePrimaryCtxRetain, ctypes.byref(context), 0),
        (driver.cuCtxPushCurrent_v2, context),
        (getattr(driver, name), *args),
        (driver.cuCtxPopCurrent_v2, ctypes.byref(context)),
    ]
    for function, *arguments in calls:
        code = function(*arguments)
        if code != 0:
            raise RuntimeError(f"{function.__name__} returned {code}.")


def fill_late(
    address: int, word: int, stream: int | None, delay_us: int
) -> None:
    """Makes a stream of GPU 0 set a word of device memory after a delay."""
    sleep = ctypes.CDLL(None).usleep
    address, stream = ctypes.c_void_p(address), ctypes.c_void_p(stream)
    call_driver("cuLaunchHostFunc", stream, sleep, ctypes.c_void_p(delay_us))
    call_driver("cuMemsetD32Async", address, word, ctypes.c_size_t(1), stream)


def sending_stream() -> int | None:
    """Returns the stream of GPU 0 on which this process sends tensors."""
    return None if stand_in else core._get_current_stream(0).cuda_stream


def vector(value: float = 3.0, device: int = 0) -> paddle.Tensor:
    """Returns a tensor of 4000 bytes on a GPU."""
    return gpu.to_gpu(paddle.full([1000], value), device)


def on_gpu(tensor: paddle.Tensor) -> tuple[str, Description]:
    """Returns the place of a tensor and its description."""
    copy = description(gpu.to_cpu(tensor))
    return str(tensor.place), copy._replace(
        kind=type(tensor).__name__,
        strides=list(tensor.strides),
        stop_gradient=tensor.stop_gradient,
    )


def ipc_stats() -> dict[str, int]:
    """Returns statistics of GPU memory that other processes share."""
    gc.collect()
    sharing.collect_shared_memory()
    stats = sharing.ipc_memory_stats()
    # Events are kept for the next messages.
    del stats["events"]
    return stats


# Functions for `Peer.call`. As they are in this module, the peer loads the
# stand-in before it receives tensors.


def describe_on_gpu(kept, tensor):
    return on_gpu(tensor)


def describe_kept_on_gpu(kept, name):
    return on_gpu(kept[name])


def load_and_describe_on_gpu(kept, message):
    return on_gpu(ForkingPickler.loads(message))


def keep_on_gpu(kept, name, tensor):
    kept[name] = tensor


def kept_address(kept, name):
    return gpu.address(kept[name])


def write_kept(kept, name, value):
    gpu.write(kept[name], paddle.full(kept[name].shape, value))


def new_vector(kept, value=3.0):
    return vector(value)


def ipc_stats_of_peer(kept):
    return ipc_stats()


@needs_gpu
class GpuTestCase(SharingTestCase):
    """Checks that each test leaves as much shared memory as it found."""

    method = "spawn"

    def setUp(self):
        super().setUp()
        self.bytes_before = gpu.used(0)
        common = [ipc_stats(), self.peer.call(ipc_stats_of_peer)]
        self.addCleanup(self.assert_nothing_more, common)

    def new_peer(self, **kept: Any) -> Peer:
        # Arguments arrive in this order: the function brings its module first.
        return super().new_peer(_first=describe_on_gpu, **kept)

    def gpu_bytes(self) -> int:
        """Returns the bytes allocated on GPU 0 since the test began."""
        return gpu.used(0) - self.bytes_before

    def assert_nothing_more(self, common: list[dict[str, int]]) -> None:
        if self.peer.alive:
            self.peer.call(forget)
            # The peer first: it holds memory of this process.
            peers = self.peer.call(ipc_stats_of_peer)
            self.assertEqual([ipc_stats(), peers], common)
        self.assertEqual(self.gpu_bytes(), 0)
