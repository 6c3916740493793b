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

"""Tensor.record_stream: memory is reused only after a stream's work.

The tests delay the work of a stream. They drop a tensor that it still has to
read, and immediately fill a new tensor of the same size on the default stream:
the new tensor must not get the memory of the dropped one.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import gc
import sys
import unittest
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from host_device_control import check_pending, delay, with_ample_delay
from test_host_device import name_of, run_python, setUpModule

sys.path.append(str(Path(__file__).parents[1] / "legacy_test"))

from concurrent_base import in_thread
from thread_device_base import handle

import paddle
from paddle.device import Stream, current_stream, stream_guard

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["setUpModule"]

# In microseconds: ample time for an operation that does not wait.
DELAY = 300_000
# Large enough for the allocator to give a tensor its own chunk.
SIZE = 1 << 16


# Prints the error that record_stream raises.
RECORD_CURRENT_STREAM = """
import paddle
paddle.set_device("custom_cpu:0")
x = paddle.ones([1024])
try:
    x.record_stream(paddle.device.current_stream())
except RuntimeError as error:
    print(error)
"""


def filled(value: float) -> paddle.Tensor:
    """Return a tensor on device 0, once its values are written."""
    tensor = paddle.full([SIZE], value)
    current_stream().synchronize()
    return tensor


class RecordTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(name_of(0))
        self.addCleanup(paddle.device.synchronize)
        self.stream = Stream()

    def read_slowly(
        self, tensor: paddle.Tensor, stream: Stream
    ) -> paddle.Tensor:
        """Start a delayed copy of a tensor on a stream."""
        with stream_guard(stream), delay(0, DELAY, handle(stream)):
            copy = tensor * 1
        self.copied = stream.record_event()
        return copy

    def value_read(
        self, use: Callable[[paddle.Tensor], paddle.Tensor]
    ) -> list[float]:
        """
        Return the values that a stream reads from a tensor of ones. The tensor
        is dropped when `use` has returned the stream's output.
        """
        x = filled(1.0)
        read = use(x)
        del x
        filled(2.0)
        check_pending(self.copied)
        paddle.device.synchronize()
        return sorted(set(read.numpy().tolist()))


class TestMemory(RecordTestCase):
    @with_ample_delay
    def test_without_record_stream_memory_is_overwritten_too_early(self):
        read = self.value_read(lambda x: self.read_slowly(x, self.stream))
        self.assertEqual(read, [2.0])

    @with_ample_delay
    def test_memory_is_kept_if_recorded_after_the_work_starts(self):
        def use(x: paddle.Tensor) -> paddle.Tensor:
            read = self.read_slowly(x, self.stream)
            x.record_stream(self.stream)
            return read

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_memory_is_kept_if_recorded_before_the_work_starts(self):
        def use(x: paddle.Tensor) -> paddle.Tensor:
            x.record_stream(self.stream)
            self.stream.synchronize()
            return self.read_slowly(x, self.stream)

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_memory_is_kept_if_recorded_through_a_view(self):
        def use(x: paddle.Tensor) -> paddle.Tensor:
            x[1:].record_stream(self.stream)
            return self.read_slowly(x, self.stream)

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_memory_is_kept_if_an_older_view_is_used_last(self):
        def use(x: paddle.Tensor) -> paddle.Tensor:
            view = x.reshape([2, -1])
            x.record_stream(self.stream)
            return self.read_slowly(view, self.stream).reshape([-1])

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_memory_is_kept_for_each_recorded_stream(self):
        quick = Stream()

        def use(x: paddle.Tensor) -> paddle.Tensor:
            for stream in (quick, self.stream, quick):
                x.record_stream(stream)
            with stream_guard(quick):
                x * 2
            return self.read_slowly(x, self.stream)

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_memory_is_kept_if_another_thread_uses_and_drops_the_tensor(self):
        def use(x: paddle.Tensor) -> paddle.Tensor:
            x.record_stream(self.stream)
            return in_thread(self.read_slowly, x, self.stream)

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_is_kept_although_the_stream_is_dropped_first(self):
        def use(x: paddle.Tensor) -> paddle.Tensor:
            stream = Stream()
            x.record_stream(stream)
            return self.read_slowly(x, stream)

        self.assertEqual(self.value_read(use), [1.0])

    @with_ample_delay
    def test_of_a_sparse_tensor_is_kept(self):
        def use(values: paddle.Tensor) -> paddle.Tensor:
            indices = paddle.arange(SIZE).reshape([1, -1])
            # The memory of its values is that of `values`.
            sparse = paddle.sparse.sparse_coo_tensor(indices, values, [SIZE])
            sparse.record_stream(self.stream)
            return self.read_slowly(values, self.stream)

        self.assertEqual(self.value_read(use), [1.0])

    def test_memory_is_reused_after_the_streams_work(self):
        x = filled(1.0)
        address = x.data_ptr()
        x.record_stream(self.stream)
        self.read_slowly(x, self.stream)
        del x
        paddle.device.synchronize()
        addresses = {
            each.data_ptr() for each in [filled(2.0) for _ in range(3)]
        }
        self.assertIn(address, addresses)

    def test_memory_of_many_tensors_is_reused(self):
        addresses = set()
        for _ in range(200):
            x = filled(1.0)
            addresses.add(x.data_ptr())
            x.record_stream(self.stream)
            del x
            self.stream.synchronize()
        self.assertLess(len(addresses), 5)


class TestStream(RecordTestCase):
    def test_stream_is_dropped_after_the_tensor(self):
        x = filled(1.0)
        stream = Stream()
        dropped = weakref.ref(stream.stream_base)
        x.record_stream(stream)
        del stream
        gc.collect()
        self.assertIsNotNone(dropped())
        del x
        # A later call drops stream objects whose tensors were freed on any
        # thread.
        filled(1.0).record_stream(self.stream)
        gc.collect()
        self.assertIsNone(dropped())

    def test_stream_may_be_the_tensors_own(self):
        x = filled(1.0)
        address = x.data_ptr()
        x.record_stream(current_stream())
        del x
        self.assertEqual(filled(2.0).data_ptr(), address)


class TestErrors(RecordTestCase):
    def test_value_that_is_not_a_stream_is_refused(self):
        for wrong in (None, "gpu", self.stream.stream_base):
            with self.assertRaisesRegex(TypeError, type(wrong).__name__):
                filled(1.0).record_stream(wrong)

    def test_stream_of_another_device_is_refused(self):
        for device in ("cpu", name_of(1)):
            x = paddle.ones([2], device=device)
            with self.assertRaisesRegex(ValueError, "tensor is on") as caught:
                x.record_stream(self.stream)
            self.assertIn(device, str(caught.exception))

    def test_allocators_that_do_not_wait_for_streams_are_refused(self):
        for flag, value in (
            ("FLAGS_allocator_strategy", "naive_best_fit"),
            ("FLAGS_use_system_allocator", "1"),
            ("FLAGS_use_stream_safe_cuda_allocator", "0"),
        ):
            refused = run_python(RECORD_CURRENT_STREAM, **{flag: value})
            self.assertEqual(refused.returncode, 0, refused.stderr)
            for part in (name_of(0), flag):
                self.assertIn(part, refused.stdout)

    def test_tensor_without_memory_is_not_recorded(self):
        paddle.empty([0]).record_stream(self.stream)


if __name__ == "__main__":
    unittest.main()
