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
"""Pickles tensors for queues and pipes.

The first send of a host tensor moves its storage into shared memory; the
storage of a GPU tensor stays where it is. The pickle contains only a handle of
about 170 bytes.

Paddle's reductions.py registers the reducers and calls this file. A tensor
passes through it once, from top to bottom:

1. `reduce_tensor` refuses tensors that cannot be sent.
2. A tensor whose memory cannot be shared is copied and sent by value.
3. A tensor that is not dense is split into dense parts.
4. Each dense tensor is moved into shared memory, and gets a handle.
5. The receiver rebuilds the tensor from the handles.

All of this is in one file because a copy that is sent by value goes through the
same steps. The layers below are base/tensor_sharing.py, which lists the parts
of a tensor, base/shared_storage.py, which loads the binding, and C++.
"""

from __future__ import annotations

import copy
import functools
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

import paddle
from paddle.base import core, unique_name
from paddle.base.framework import (
    EagerParamBase,
    _dygraph_guard,
    convert_to_proto_type,
    in_dygraph_mode,
)
from paddle.base.shared_storage import is_available, native
from paddle.base.tensor_sharing import (
    check_initialized,
    dense_parts,
    is_uninitialized,
)
from paddle.base.threads import streams

from .device_names import name_of, place_of

# Not later: an import may fail for the same reason as sending.
from .feeder_errors import reduce_error
from .shared_allocator import shared_copy

if TYPE_CHECKING:
    from paddle._typing import PlaceLike


def _in_dynamic_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates a function that creates tensors with operators, so that threads in
    static graph mode may call it.
    """

    @functools.wraps(function)
    def function_in_dynamic_mode(*args: Any) -> Any:
        if in_dygraph_mode():
            return function(*args)
        with _dygraph_guard(core.Tracer()):
            return function(*args)

    return function_in_dynamic_mode


def _reduction(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Decorates a reduction: it returns None if this Paddle cannot share memory,
    and the receiver raises an error that the calling thread would drop.
    """

    @functools.wraps(reduce)
    def reduction(value: Any) -> tuple | None:
        try:
            return reduce(value) if is_available() else None
        except Exception as error:
            return reduce_error(error)

    return reduction


# 1. A tensor of any kind.


@_reduction
def reduce_tensor(tensor: paddle.Tensor) -> tuple | None:
    """Returns the pickle reduction that rebuilds a tensor over the same memory.

    A tensor on a custom device is copied. Returns None for a tensor that
    Paddle's own reduction must handle. The gradient is not sent: trainers that
    share a parameter have separate gradients.

    Raises:
        MemoryError: there is not enough shared memory.
        ValueError, NotImplementedError, RuntimeError: the tensor cannot be
            sent; the error says why and what to send instead. If the calling
            thread would drop the error, the receiver raises it instead.
    """
    if not tensor.stop_gradient and not tensor.is_leaf:
        raise RuntimeError(
            "A tensor that is sent to another process must be a leaf, but "
            f"{tensor.name!r} is the result of operators and requires grad. "
            "Send tensor.detach() instead."
        )
    if tensor.is_dense():
        reduced = _reduce_dense(tensor)
    else:
        reduced = _reduce_parts(tensor)
    if reduced is None and tensor.place.is_custom_place():
        return _reduce_by_value(by_value(tensor))
    return reduced


# 2. A tensor by value.


def by_value(
    tensor: paddle.Tensor, device: PlaceLike | None = None
) -> TensorByValue:
    """Copies a tensor, to send it to a process that cannot share its memory.

    The receiver gets a tensor on ``device`` with its own memory: neither side
    sees the other's writes. This call copies the tensor into shared host
    memory, and each receiver copies it once more. The tensor may be dense (a
    view arrives contiguous), sparse, or a parameter, which keeps its
    attributes. Its gradient is not sent. Tensors that share memory no longer do
    on arrival.

    Tensors on custom devices are always sent like this, to the device of the
    same name, without a call of this function. Tensors on a CPU or a GPU are
    shared unless this function wraps them, which helps a receiver whose GPU
    cannot access the sender's. Copies from and to a GPU have not been tested on
    a GPU.

    Args:
        tensor (Tensor): the tensor to copy; a leaf if it requires grad.
        device (str|Place|None, optional): the receiver's device for the tensor,
            which this process need not have: ``'cpu'``, ``'gpu:0'``,
            ``'xpu:0'``, or the name of a custom device. Without an index, the
            receiver uses the same device as its ``paddle.set_device`` does.
            Default: None, the device of the tensor.

    Returns:
        TensorByValue: an object to send in place of the tensor, any number of
        times: through a queue, in a container or as an argument of a process. A
        receiver without the device gets a ``RuntimeError``; the memory of the
        message is freed.

    Raises:
        MemoryError: there is not enough shared memory for the copy.
        NotImplementedError: this Paddle was built without shared memory.
        RuntimeError: the tensor requires grad and is not a leaf, or it has no
            values.
        TypeError: the argument is not a tensor.
        ValueError: the device is not a valid device name.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.incubate.multiprocessing as mp
            >>> queue = mp.get_context('spawn').SimpleQueue()
            >>> x = paddle.ones([2])
            >>> queue.put(mp.by_value(x, 'cpu'))
            >>> y = queue.get()
            >>> x[:] = 5
            >>> print(y.tolist())
            [1.0, 1.0]
    """
    if not isinstance(tensor, core.eager.Tensor):
        raise TypeError(
            "The argument of by_value must be a Tensor, but received "
            f"{type(tensor).__name__}."
        )
    if not tensor.stop_gradient and not tensor.is_leaf:
        raise RuntimeError(
            f"The tensor {tensor.name!r} that is sent by value must be a leaf, "
            "but is the result of operators and requires grad. Send "
            "tensor.detach() instead."
        )
    if is_uninitialized(tensor):
        raise RuntimeError(
            f"The tensor {tensor.name!r} that is sent by value must have "
            "values, but has none yet. Initialize it first."
        )
    if device is None:
        # Pinned memory is host memory, and the receiver may have no GPU.
        pinned = tensor.place.is_cuda_pinned_place()
        device = "cpu" if pinned else tensor.place
    return TensorByValue(tensor, name_of(device))


class TensorByValue:
    """The copy of a tensor that :func:`by_value` returns, ready to be sent."""

    def __init__(self, tensor: paddle.Tensor, device: str):
        self._tensor = _copied(tensor, shared_copy)
        self._device = device

    def __reduce__(self) -> tuple:
        # For picklers that send no handles, such as `pickle`'s own.
        return _copied_to, (self._tensor, self._device)


def _reduce_by_value(message: TensorByValue) -> tuple:
    reduced = reduce_tensor(message._tensor)
    return _rebuild_by_value, (*reduced, message._device)


ForkingPickler.register(TensorByValue, _reduce_by_value)


@_in_dynamic_mode
def _copied(
    tensor: paddle.Tensor, copy_of: Callable[[paddle.Tensor], paddle.Tensor]
) -> paddle.Tensor:
    """Returns a copy of the same kind; `copy_of` copies each dense part."""
    if tensor.is_dense():
        copied = copy_of(tensor.detach())
        kind = type(tensor)
        if kind is EagerParamBase:
            copied = _parameter_over(copied, copy.deepcopy(tensor.__dict__))
        elif kind is not core.eager.Tensor:
            state = copy.deepcopy(_state_of(tensor))
            copied = _subclass_over(kind, copied, state)
        copied.stop_gradient = tensor.stop_gradient
    else:
        parts, *rest = _split_into_parts(tensor)
        copied = _joined([copy_of(part) for part in parts], *rest)
    return copied


# 3. A tensor that is not dense.


def _reduce_parts(tensor: paddle.Tensor) -> tuple | None:
    parts, *rest = _split_into_parts(tensor)
    if parts[0].place.is_custom_place():
        return None
    handles = [native.share_tensor(x, _sending_stream) for x in parts]
    # Pickle uses Paddle's own reduction for a part without a handle.
    sent = [
        part if handle is None else handle
        for part, handle in zip(parts, handles)
    ]
    return _rebuild_from_parts, (sent, *rest)


@_in_dynamic_mode
def _split_into_parts(
    tensor: paddle.Tensor,
) -> tuple[list[paddle.Tensor], str, tuple, bool]:
    """Returns the parts, and the other arguments of `_joined`."""
    if tensor.is_sparse_coo():
        kind, rest = "coo", (list(tensor.shape), tensor.is_coalesced())
    elif tensor.is_sparse_csr():
        kind, rest = "csr", (list(tensor.shape),)
    elif tensor.is_selected_rows():
        rows = tensor.get_selected_rows()
        kind, rest = "rows", (rows.rows(), rows.height())
    else:
        raise NotImplementedError(
            "A tensor that is sent to another process must be dense, sparse or "
            f"selected rows, but {tensor.name!r} is of another kind. Send the "
            "dense tensors that it consists of."
        )
    return dense_parts(tensor), kind, rest, tensor.stop_gradient


# 4. A dense tensor.


def _reduce_dense(tensor: paddle.Tensor) -> tuple | None:
    kind = type(tensor)
    handle = native.share_tensor(tensor, _sending_stream)
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
    if kind is EagerParamBase:
        return _rebuild_parameter, (*args, dict(tensor.__dict__))
    return _rebuild_subclass, (*args, kind, _state_of(tensor))


def _state_of(tensor: paddle.Tensor) -> Any:
    """Returns the state of a tensor of a user's class, as pickle does."""
    getstate = getattr(type(tensor), "__getstate__", None)
    # Python 3.11 and later have a default.
    if getstate in (None, getattr(object, "__getstate__", None)):
        return dict(tensor.__dict__)
    return getstate(tensor)


@_reduction
def reduce_dense_tensor(tensor: core.DenseTensor) -> tuple | None:
    """Returns the reduction, like `reduce_tensor`, of a DenseTensor."""
    if native.is_in_own_file(tensor):
        return tensor.__reduce_ex__(2)
    handle = native.share_dense_tensor(tensor, _sending_stream)
    return None if handle is None else (_rebuild_dense_tensor, (handle,))


def _sending_stream(device: int) -> int | None:
    """
    Returns the stream that computed the tensor being sent, or None if it may be
    any stream, because a `Queue` pickles on another thread.
    """
    if paddle.is_compiled_with_cuda() and streams.others_have_streams(
        core.CUDAPlace(device)
    ):
        return None
    return _current_stream(device)


def _current_stream(device: int) -> int:
    """Returns the current stream of this thread on a GPU."""
    if not paddle.is_compiled_with_cuda():
        return 0
    return core._get_current_stream(device).cuda_stream


# 5. The receiver, in the same order.


def _rebuild_by_value(
    rebuild: Callable[..., paddle.Tensor], args: tuple, device: str
) -> paddle.Tensor:
    return _copied_to(rebuild(*args), device)


def _copied_to(tensor: paddle.Tensor, device: str) -> paddle.Tensor:
    place = place_of(device)
    return _copied(tensor, lambda part: part._copy_to(place, True))


def _rebuild_from_parts(
    parts: list[bytes | paddle.Tensor], *rest: Any
) -> paddle.Tensor:
    return _joined(
        [
            native.rebuild_tensor(part, _current_stream)
            if isinstance(part, bytes)
            else part
            for part in parts
        ],
        *rest,
    )


@_in_dynamic_mode
def _joined(
    parts: list[paddle.Tensor], kind: str, rest: tuple, stop_gradient: bool
) -> paddle.Tensor:
    """Returns the tensor that was split into parts, over their memory.

    Raises:
        ValueError: the shapes of the parts do not fit together.
    """
    if not _fit([list(part.shape) for part in parts], kind, rest):
        raise ValueError(
            "The parts of a received tensor must fit each other, but received "
            f"{kind!r}, {rest} and parts of the shapes "
            f"{[list(part.shape) for part in parts]}. The message was damaged, "
            "or created by another version of Paddle."
        )
    if kind == "coo":
        shape, coalesced = rest
        tensor = core.eager.sparse_coo_tensor(*parts, shape, True)
        native.set_coalesced(tensor, coalesced)
    elif kind == "csr":
        tensor = core.eager.sparse_csr_tensor(*parts, *rest, True)
    else:
        tensor = _selected_rows(*rest, *parts)
    tensor.stop_gradient = stop_gradient
    return tensor


def _fit(shapes: list[list[int]], kind: str, rest: tuple) -> bool:
    if kind == "coo":
        indices, values = shapes
        return (
            len(indices) == 2
            and len(values) > 0
            and indices[1] == values[0]
            and len(rest[0]) == indices[0] + len(values) - 1
            and rest[0][indices[0] :] == values[1:]
        )
    if kind == "csr":
        crows, cols, values = shapes
        return len(crows) == len(cols) == 1 and cols == values
    (values,) = shapes
    return len(values) > 0 and len(rest[0]) == values[0]


def _selected_rows(
    rows: list[int], height: int, values: paddle.Tensor
) -> paddle.Tensor:
    types = core.VarDesc.VarType
    name = paddle.utils.unique_name.generate("received_rows")
    tensor = core.eager.Tensor(types.FP32, [], name, types.SELECTED_ROWS, False)
    inside = tensor.get_selected_rows()
    inside.set_rows(rows)
    inside.set_height(height)
    # This replaces the data type too.
    inside.get_tensor()._share_data_with(values.get_tensor())
    return tensor


@_in_dynamic_mode
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


def _rebuild_tensor(handle: bytes, stop_gradient: bool) -> paddle.Tensor:
    tensor = native.rebuild_tensor(handle, _current_stream)
    if not stop_gradient:
        tensor.stop_gradient = False
    return tensor


def _rebuild_parameter(
    handle: bytes, stop_gradient: bool, attributes: dict[str, Any]
) -> EagerParamBase:
    data = native.rebuild_tensor(handle, _current_stream)
    parameter = _parameter_over(data, attributes)
    parameter.stop_gradient = stop_gradient
    return parameter


@_in_dynamic_mode
def _parameter_over(
    data: paddle.Tensor, attributes: dict[str, Any]
) -> EagerParamBase:
    """Returns a parameter over the memory of a dense tensor."""
    # The constructor requires a shape and a type, which the data replaces.
    parameter = EagerParamBase([1], paddle.float32, **attributes)
    parameter._set_impl(data)
    parameter.__dict__.update(attributes)
    return parameter


def _rebuild_subclass(
    handle: bytes,
    stop_gradient: bool,
    kind: type[paddle.Tensor],
    state: Any,
) -> paddle.Tensor:
    data = native.rebuild_tensor(handle, _current_stream)
    tensor = _subclass_over(kind, data, state)
    tensor.stop_gradient = stop_gradient
    return tensor


def _subclass_over(
    kind: type[paddle.Tensor], data: paddle.Tensor, state: Any
) -> paddle.Tensor:
    """
    Returns a tensor of a user's class over the memory of a dense tensor. Like
    pickle, it does not call `__init__`, and calls `__setstate__` if the class
    defines it.
    """
    tensor = kind.__new__(kind)
    tensor._set_impl(data)
    if hasattr(kind, "__setstate__"):
        tensor.__setstate__(state)
    else:
        tensor.__dict__.update(state or {})
    tensor.persistable = issubclass(kind, EagerParamBase)
    return tensor


def _rebuild_dense_tensor(handle: bytes) -> core.DenseTensor:
    return native.rebuild_dense_tensor(handle, _current_stream)
