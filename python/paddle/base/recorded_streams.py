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
"""Tensor.record_stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import libpaddle
from .tensor_sharing import dense_parts

if TYPE_CHECKING:
    from paddle import Tensor
    from paddle.device import Stream

__all__ = []


def record_stream(self: Tensor, stream: Stream) -> None:
    """
    Tells the allocator that a stream uses this tensor. After the memory of the
    tensor and its views is freed, it is reused only when the stream has
    completed all work enqueued on it until then.

    Freed memory goes back to the stream that it was allocated on, which does
    not wait for the work of other streams. Call this function for a tensor that
    another stream uses and that may be dropped before that stream has completed
    its work. Call it before or after the work starts.

    This function is thread-safe.

    Args:
        stream (paddle.device.Stream): a stream of the tensor's device.

    Raises:
        TypeError: `stream` is not a Stream.
        ValueError: the stream is not on the tensor's device, or Paddle did not
            allocate the memory.
        RuntimeError: the allocators of this process do not wait for streams, or
            Paddle is built for CUDA and FLAGS_alloc_fill_value or
            FLAGS_sync_after_alloc is set.

    Examples:
        .. code-block:: python

            >>> # doctest: +REQUIRES(env:CUSTOM_DEVICE)
            >>> import paddle

            >>> paddle.set_device('custom_cpu')
            >>> x = paddle.ones([2])
            >>> s = paddle.device.Stream()
            >>> s.wait_stream(paddle.device.current_stream())
            >>> with paddle.device.stream_guard(s):
            ...     y = x * 2
            >>> x.record_stream(s)
            >>> del x
    """
    from paddle.device import Stream

    if not isinstance(stream, Stream):
        raise TypeError(
            "record_stream takes a paddle.device.Stream, but received "
            f"{stream!r} of type {type(stream).__name__}. Please pass the "
            "stream that uses the tensor."
        )
    place = stream.stream_base.place
    if not self.place._equals(place):
        raise ValueError(
            f"The stream is on {place}, but the tensor is on {self.place}. "
            "Please pass a stream of the tensor's device."
        )
    native = getattr(libpaddle, "_shared_storage", None)
    if not hasattr(native, "record_stream"):
        raise NotImplementedError(
            f"This Paddle cannot record streams of {place}. Keep the tensor "
            "until stream.synchronize() returns."
        )
    for part in dense_parts(self):
        if part._is_initialized():
            native.record_stream(part, stream.stream_base)
