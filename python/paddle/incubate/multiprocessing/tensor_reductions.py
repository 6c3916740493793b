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
tensor is sent for the first time; the storage of a GPU tensor stays where it
is. What is pickled is a handle of about 170 bytes.

A tensor passes through these files: reductions.py (Paddle's), this one,
tensor_by_value.py if it is copied, tensor_parts.py if it is not a plain dense
tensor, base/tensor_sharing.py, base/shared_storage.py, and then C++. Each of
these files uses only those after it. Pickle sends the parts of a sparse tensor,
and the copy of a tensor that is sent by value, from the first file on.
"""

from __future__ import annotations

from typing import Any

import paddle
from paddle.base import core, unique_name
from paddle.base.framework import EagerParamBase, convert_to_proto_type
from paddle.base.shared_storage import is_available, native
from paddle.base.tensor_sharing import check_initialized
from paddle.base.threads import streams

from .tensor_by_value import by_value
from .tensor_parts import (
    in_dynamic_mode,
    parameter_over,
    rebuild_from_parts,
    split_into_parts,
    subclass_over,
)

_IS_AVAILABLE = is_available()


def _current_stream(device: int) -> int:
    """Returns the current stream of this thread on a GPU."""
    if not paddle.is_compiled_with_cuda():
        return 0
    return core._get_current_stream(device).cuda_stream


def _sending_stream(device: int) -> int | None:
    """
    Returns the stream on which a tensor that is sent now was computed, or None
    if it may be any stream: a `Queue` pickles on another thread.
    """
    if paddle.is_compiled_with_cuda() and streams.others_have_streams(
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
    data = native.rebuild_tensor(handle, _current_stream)
    parameter = parameter_over(data, attributes)
    parameter.stop_gradient = stop_gradient
    return parameter


def _rebuild_subclass(
    handle: bytes,
    stop_gradient: bool,
    kind: type[paddle.Tensor],
    state: dict[str, Any],
) -> paddle.Tensor:
    data = native.rebuild_tensor(handle, _current_stream)
    tensor = subclass_over(kind, data, state)
    tensor.stop_gradient = stop_gradient
    return tensor


def _rebuild_dense_tensor(handle: bytes) -> core.DenseTensor:
    return native.rebuild_dense_tensor(handle, _current_stream)


@in_dynamic_mode
def _rebuild_uninitialized(
    dtype: paddle.dtype, shape: list[int], stop_gradient: bool
) -> paddle.Tensor:
    tensor = core.eager.Tensor(
        convert_to_proto_type(dtype),
        shape,
        unique_name.generate("received_uninitialized"),
        core.VarDesc.VarType.DENSE_TENSOR,
        False,
    )
    tensor.stop_gradient = stop_gradient
    return tensor


def _reduce_dense(tensor: paddle.Tensor) -> tuple | None:
    kind = type(tensor)
    is_long_lived = isinstance(tensor, EagerParamBase)
    handle = native.share_tensor(tensor, is_long_lived, _sending_stream)
    if handle is None:
        check_initialized(tensor)
        if tensor._is_initialized():
            return None
        # It has a shape and a data type, like a buffer of paddle.nn.LSTM.
        meta = (tensor.dtype, list(tensor.shape), tensor.stop_gradient)
        return _rebuild_uninitialized, meta
    args = (handle, tensor.stop_gradient)
    if kind is core.eager.Tensor:
        return _rebuild_tensor, args
    state = dict(tensor.__dict__)
    if kind is EagerParamBase:
        return _rebuild_parameter, (*args, state)
    return _rebuild_subclass, (*args, kind, state)


def _reduce_tensor(tensor: paddle.Tensor) -> tuple | None:
    if not tensor.stop_gradient and not tensor.is_leaf:
        raise RuntimeError(
            "A tensor that is sent to another process must be a leaf, but "
            f"{tensor.name!r} is the result of operators and requires grad. "
            "Send tensor.detach() instead."
        )
    if tensor.is_dense():
        reduced = _reduce_dense(tensor)
    else:
        # Pickle then reduces each part, which is a dense tensor.
        reduced = rebuild_from_parts, split_into_parts(tensor)
    if reduced is None and tensor.place.is_custom_place():
        return by_value(tensor).__reduce__()
    return reduced


def reduce_tensor(tensor: paddle.Tensor) -> tuple | None:
    """Returns the reduction, for pickle, to a tensor over the same memory.

    A tensor on a custom device is copied. Returns None for a tensor that
    Paddle's own reduction has to handle. The gradient is not sent: trainers
    that share a parameter have separate gradients.

    Raises:
        MemoryError: there is not enough shared memory.
        ValueError, NotImplementedError, RuntimeError: the tensor cannot be
            sent; the error says why and what to send instead. On a thread that
            would drop the error, the receiver raises it instead.
    """
    if not _IS_AVAILABLE:
        return None
    try:
        return _reduce_tensor(tensor)
    except Exception as error:
        from .feeder_errors import send_in_place_of_object

        return send_in_place_of_object(error)


def reduce_dense_tensor(tensor: core.DenseTensor) -> tuple | None:
    """Returns the reduction, like `reduce_tensor`, of a DenseTensor."""
    if not _IS_AVAILABLE:
        return None
    if native.is_in_own_file(tensor):
        return tensor.__reduce_ex__(2)
    handle = native.share_dense_tensor(tensor, _sending_stream)
    return None if handle is None else (_rebuild_dense_tensor, (handle,))
