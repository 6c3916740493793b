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
"""Buckets: gradients that are averaged together, in one buffer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import paddle
from paddle.base import core

from .communication import move_to_shared_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paddle import Tensor
    from paddle.distributed.communication.group import Group

    from .future import Future


# The default of `DataParallel`'s argument comm_buffer_size, in bytes.
DEFAULT_LIMIT = 25 << 20

# By default, a bucket has at most total / _PARTS bytes, because the last bucket
# is averaged after backward, but may always have _SMALLEST_PART bytes. Smaller
# buckets cost more in calls than they hide.
_PARTS = 8
_SMALLEST_PART = 1 << 20

# A bucket with at most this share of its room left is closed. Otherwise it
# could wait for a small gradient, such as the bias of a layer whose backward
# has not started.
_NEARLY_FULL = 1 / 8


@dataclass(frozen=True)
class ReducedParameter:
    """A parameter whose gradient is averaged."""

    name: str
    tensor: Tensor
    layer_type: str
    has_sparse_gradient: bool = False
    is_delayed: bool = False

    def __str__(self) -> str:
        return f"'{self.name}' (of a {self.layer_type})"

    @property
    def nbytes(self) -> int:
        return self.tensor.size * self.tensor.element_size()


def assign_buckets(
    parameters: Sequence[ReducedParameter],
    order: Sequence[int],
    limit: int,
    last_limit: int,
) -> list[list[int]]:
    """Divides parameters into buckets, in `order`, the order of gradients.

    A bucket has one data type. It has at most `limit` bytes, and, if that is
    the default, at most an eighth of all gradients, or 1 MiB if that is more. A
    single parameter may exceed these limits. The first and the last bucket are
    small, so that communication begins early and little of it is left when the
    backward pass ends. A parameter with sparse gradients has its own bucket.
    Delayed parameters come last.
    """
    delayed = [index for index in order if parameters[index].is_delayed]
    usual = [index for index in order if not parameters[index].is_delayed]
    if limit == DEFAULT_LIMIT:
        total = sum(parameters[index].nbytes for index in order)
        limit = min(limit, max(total // _PARTS, _SMALLEST_PART))
    small = min(limit, last_limit)
    last = _take_last(parameters, usual, small)
    buckets = _fill_buckets(
        parameters, usual[: len(usual) - len(last)], limit, small
    )
    if last:
        buckets.append(last)
    return buckets + _fill_buckets(parameters, delayed, limit, limit)


def _take_last(
    parameters: Sequence[ReducedParameter], order: list[int], limit: int
) -> list[int]:
    """Returns the end of `order` that fills the last bucket."""
    last: list[int] = []
    room = limit
    for index in reversed(order):
        room -= parameters[index].nbytes
        if last and (
            room < 0
            or not _may_share_bucket(parameters[index], parameters[last[0]])
        ):
            break
        last.insert(0, index)
    return last


def _fill_buckets(
    parameters: Sequence[ReducedParameter],
    order: list[int],
    limit: int,
    first_limit: int,
) -> list[list[int]]:
    full: list[list[int]] = []
    open_buckets: dict[object, list[int]] = {}
    room: dict[object, int] = {}
    limits: dict[object, int] = {}
    for index in order:
        parameter = parameters[index]
        if parameter.has_sparse_gradient:
            full.append([index])
            continue
        dtype = parameter.tensor.dtype
        # The first bucket of a data type is smaller.
        type_limit = limits.setdefault(dtype, first_limit)
        room.setdefault(dtype, type_limit)
        bucket = open_buckets.setdefault(dtype, [])
        if bucket and (
            parameter.nbytes > room[dtype]
            or room[dtype] <= _NEARLY_FULL * type_limit
        ):
            full.append(bucket)
            bucket = open_buckets[dtype] = []
            room[dtype] = limits[dtype] = limit
        bucket.append(index)
        room[dtype] -= parameter.nbytes
    return full + list(open_buckets.values())


def _may_share_bucket(one: ReducedParameter, other: ReducedParameter) -> bool:
    sparse = one.has_sparse_gradient or other.has_sparse_gradient
    return not sparse and one.tensor.dtype == other.tensor.dtype


class Bucket:
    """Gradients that are averaged together, in one buffer.

    Communication hooks receive buckets. One thread at a time may use a bucket.
    It changes the buffer and its views only with `copy_`: on a device that
    lacks the kernel, another in-place operation gives a tensor new memory, and
    its views keep the old memory.
    """

    def __init__(
        self,
        number: int,
        members: dict[int, ReducedParameter],
        is_last: bool,
        group: Group,
    ):
        self._number = number
        self._is_last = is_last
        self._group = group
        self.members = members
        self.missing = set(members)
        # What the communication hook returned, until `finish` waits for it.
        self.result: Future | Tensor | None = None
        parameters = [member.tensor for member in members.values()]
        # Copied from the parameters, for their device and data type.
        self._buffer = paddle.concat(
            [parameter.detach().flatten() for parameter in parameters]
        )
        move_to_shared_memory(self._buffer, group)
        self._place = self._buffer.place
        self._begins: dict[int, int] = {}
        begin = 0
        for index, member in members.items():
            self._begins[index] = begin
            begin += member.tensor.size
        self._views = {index: self._new_view(index) for index in members}
        for index in members:
            self._enforce_is_view(index)

    @property
    def group(self) -> Group:
        """The group whose ranks average the gradients."""
        return self._group

    def index(self) -> int:
        """Returns the bucket's number, in the order of communication.

        The buckets are rebuilt after the first step, also of a process that
        resumes training. So a hook must not keep its state by this number.
        """
        return self._number

    def is_last(self) -> bool:
        """Returns whether this is the last bucket of a step for the hook."""
        return self._is_last

    def buffer(self) -> Tensor:
        """Returns this rank's gradients, concatenated in one flat tensor."""
        return self._buffer

    def parameters(self) -> list[Tensor]:
        """Returns the parameters, in the order of their gradients."""
        return [member.tensor for member in self.members.values()]

    def gradients(self) -> list[Tensor]:
        """Returns the gradients, which are views of the buffer."""
        return list(self._views.values())

    @property
    def nbytes(self) -> int:
        return sum(member.nbytes for member in self.members.values())

    def copy_gradient_in(self, index: int, as_view: bool) -> None:
        """Copies the gradient of a parameter into the buffer.

        A parameter without a gradient contributes zeros. With `as_view` the
        gradient becomes a view of the buffer, and its old memory is freed.
        An empty gradient becomes no view: Paddle cannot add to a view without
        memory.
        """
        parameter, view = self.members[index].tensor, self._views[index]
        gradient = parameter.grad
        self.missing.discard(index)
        if gradient is None:
            view.copy_(paddle.zeros_like(view), False)
            return
        if not gradient.is_dense():
            raise TypeError(
                f"The gradient of {self.members[index]} is sparse, but only an "
                "Embedding built with sparse=True may have sparse gradients. "
                "Use a dense gradient here."
            )
        if gradient.data_ptr() == view.data_ptr():
            if not as_view:
                # The gradient must keep its values; the buffer changes.
                parameter.grad_ = gradient.clone()
            return
        if gradient.dtype != view.dtype:
            gradient = gradient.astype(view.dtype)
        view.copy_(gradient, False)
        # The parameter may have been cast since the bucket was built.
        if as_view and view.size > 0 and parameter.dtype == view.dtype:
            parameter._copy_gradient_from(self._new_view(index))

    def start(self, hook: Callable[[Bucket], Future | Tensor]) -> None:
        """Starts to average the buffer with a communication hook."""
        self.result = hook(self)

    def take_zeros(self) -> None:
        """Contributes zeros.

        Used by a rank that has finished its inputs in a Join.
        """
        self.missing.clear()
        self._buffer.copy_(paddle.zeros_like(self._buffer), False)

    def finish(self, factor: float) -> None:
        """Waits until the buffer has the averages, times `factor`."""
        result, self.result = self.result, None
        if not isinstance(result, paddle.Tensor):
            result = _wait(result)
        self._accept(result)
        if factor != 1:
            self._buffer.copy_(self._buffer.scale(factor), False)

    def _accept(self, result: Tensor) -> None:
        """Copies the result of a communication hook into the buffer."""
        found = (result.dtype, math.prod(result.shape))
        expected = (self._buffer.dtype, self._buffer.size)
        if found != expected:
            raise ValueError(
                "A communication hook must return a tensor with the size and "
                f"data type of bucket.buffer(), {expected[1]} elements of "
                f"{expected[0]}, but returned {found[1]} elements of "
                f"{found[0]}. Return the averaged buffer, cast back to its own "
                "type."
            )
        if result.data_ptr() != self._buffer.data_ptr():
            self._buffer.copy_(result.flatten(), False)

    def copy_gradient_out(self, index: int, as_view: bool) -> None:
        """Sets the gradient of a parameter to its average."""
        parameter, view = self.members[index].tensor, self._views[index]
        gradient = parameter.grad
        if gradient is not None and gradient.data_ptr() == view.data_ptr():
            return
        dtype = parameter.dtype if gradient is None else gradient.dtype
        if dtype != view.dtype:
            # Master gradients, which are created from local gradients after
            # backward, or a parameter that was cast since the bucket was built.
            parameter.grad_ = view.astype(dtype)
        elif as_view and view.size > 0:
            parameter._copy_gradient_from(self._new_view(index))
        elif gradient is None or not gradient.is_contiguous():
            parameter.grad_ = view.clone()
        else:
            gradient.copy_(view, False)

    def _new_view(self, index: int) -> Tensor:
        """Returns a new view of the buffer for a gradient.

        Releasing the gradient also releases this view.
        """
        tensor = self.members[index].tensor
        begin = self._begins[index]
        dense = self._buffer.get_tensor()._slice(begin, begin + tensor.size)
        # Without a place, the view would be a copy on the current device, if
        # that is another one.
        view = core.eager.Tensor(dense, place=self._place)
        view.get_tensor()._set_dims(tensor.shape)
        return view

    def _enforce_is_view(self, index: int) -> None:
        """Raises if a view has other memory than its part of the buffer."""
        if self._views[index].size == 0:
            # It has no address.
            return
        offset = self._begins[index] * self._buffer.element_size()
        if self._views[index].data_ptr() != self._buffer.data_ptr() + offset:
            raise RuntimeError(
                f"The gradient of {self.members[index]}, on "
                f"{self._views[index].place}, is a copy instead of a view of "
                f"its bucket on {self._place}, so it would not be averaged. "
                "This is an error of DataParallel. Please report it."
            )


def _wait(result: object) -> Tensor:
    """Returns the tensor of a `Future` or of a concurrent.futures.Future."""
    kind = type(result).__name__
    for method in ("wait", "result"):
        if hasattr(result, method):
            found = getattr(result, method)()
            if isinstance(found, paddle.Tensor):
                return found
            kind += f", whose {method}() returned {found!r}"
            break
    raise TypeError(
        "A communication hook must return a tensor or a future of a tensor, "
        f"but returned an object of type {kind}. Return bucket.buffer() or the "
        "future of its average. To return the task of an operation, return "
        "paddle.distributed.comm_hooks.Future(function) instead, with a "
        "function that calls task.wait() and returns the averaged tensor."
    )
