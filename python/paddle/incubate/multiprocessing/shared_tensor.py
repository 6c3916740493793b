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
"""How tensors go through queues and pipes, without a copy.

The storage of a tensor in host memory is moved into shared memory when the
tensor is sent for the first time; that of one on a GPU stays where it is. What
is pickled is a handle of a hundred bytes or two. RFC.md, parts B and C, has the
model.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.base import core, thread_stream
from paddle.base.framework import EagerParamBase
from paddle.base.shared_storage import is_available, native


def _current_stream(device: int) -> int:
    """Returns the stream that this thread's work on a GPU goes to."""
    if not paddle.is_compiled_with_cuda():
        return 0
    return core._get_current_stream(device).cuda_stream


def _sending_stream(device: int) -> int | None:
    """
    Returns the stream that has the work on a tensor that is sent now, None if
    it may be any: a `Queue` pickles on a thread of its own.
    """
    if paddle.is_compiled_with_cuda() and thread_stream.others_have_streams(
        core.CUDAPlace(device)
    ):
        return None
    return _current_stream(device)


def _rebuild_tensor(handle: bytes, stop_gradient: bool) -> paddle.Tensor:
    tensor = native.rebuild_tensor(handle, _current_stream)
    if not stop_gradient:
        tensor.stop_gradient = False
    return tensor


def _rebuild_parameter(
    handle: bytes, stop_gradient: bool, attributes: dict[str, Any]
) -> EagerParamBase:
    # Shape and type only satisfy the constructor; the handle has the true ones.
    parameter = EagerParamBase([1], paddle.float32, **attributes)
    native.rebuild_in(parameter, handle, _current_stream)
    parameter.__dict__.update(attributes)
    parameter.stop_gradient = stop_gradient
    return parameter


def _rebuild_dense_tensor(handle: bytes) -> core.DenseTensor:
    return native.rebuild_dense_tensor(handle, _current_stream)


def reduce_tensor(tensor: paddle.Tensor) -> tuple | None:
    """Returns what pickle needs to make a tensor over the same memory.

    None if the tensor is of a kind that does not go by shared memory.

    Raises:
        MemoryError: there is no room for it in shared memory.
        ValueError, NotImplementedError, RuntimeError: it cannot arrive right,
            see `paddle.incubate.multiprocessing`.
    """
    if not is_available:
        return None
    is_parameter = type(tensor) is EagerParamBase
    handle = native.share_tensor(tensor, is_parameter, _sending_stream)
    if handle is None:
        return None
    if is_parameter:
        attributes = dict(tensor.__dict__)
        return _rebuild_parameter, (handle, tensor.stop_gradient, attributes)
    return _rebuild_tensor, (handle, tensor.stop_gradient)


def reduce_dense_tensor(tensor: core.DenseTensor) -> tuple | None:
    """Does what `reduce_tensor` does for what is inside a tensor."""
    if not is_available:
        return None
    if native.is_in_own_file(tensor):
        return tensor.__reduce_ex__(2)
    handle = native.share_dense_tensor(tensor, _sending_stream)
    return None if handle is None else (_rebuild_dense_tensor, (handle,))
