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
"""The base class and the task of process groups that are written in Python."""

from __future__ import annotations

import numbers
import os
import threading
from typing import TYPE_CHECKING, Any, Callable, NoReturn

from paddle.base import core

if TYPE_CHECKING:
    import datetime

    from paddle import Tensor

__all__ = []

# The methods of ProcessGroup, and methods that Paddle calls on the groups of
# particular devices.
_METHODS = frozenset(dir(core.ProcessGroup)) | {
    "get_stream",
    "restart",
    "set_outer_wait",
    "shutdown",
}
_ON_STREAM = "_on_calc_stream"


class PythonProcessGroup:
    """A group with the methods of ProcessGroup.

    Methods that a subclass does not define raise NotImplementedError.
    """

    # For the error message: a description of the group, and an alternative for
    # a missing operation.
    _kind: str
    _how_to_fix: str

    def __getattr__(self, name: str) -> Callable:
        if name not in _METHODS:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )

        def refuse(*args: Any, **kwargs: Any) -> None:
            if name.endswith(_ON_STREAM):
                self._refuse_stream(name[: -len(_ON_STREAM)])
            raise NotImplementedError(
                f"{self._kind} has no {name}. {self._how_to_fix}"
            )

        return refuse

    def _refuse_stream(self, operation: str) -> NoReturn:
        raise NotImplementedError(
            f"{self._kind} has no {operation} with use_calc_stream=True. Leave "
            "that argument out, as with gloo."
        )

    def all_gather(self, *args: Any) -> Any:
        """Gathers tensors.

        Args:
            args: a list for the results, the input tensor and `sync_op`; or the
                input tensor and the output tensor, which is asynchronous.
        """
        if len(args) == 2:
            tensor, out = args
            return self.all_gather_into_tensor(out, tensor, False)
        return self._all_gather_into_list(*args)

    def _start_coalescing(self) -> None:
        """Has no effect, since each operation begins when it is called."""

    def _end_coalescing(self, tasks: Any = None) -> None:
        """Has no effect, since callers wait for each task."""


def enforce_not_forked(process: int) -> None:
    if os.getpid() != process:
        raise RuntimeError(
            f"This process was forked from process {process}, which has joined "
            "the group; a forked process is not a rank of the group. "
            "Communicate in the parent, or start ranks with "
            "paddle.distributed.spawn."
        )


def enforce_dense(kind: str, *tensors: Tensor) -> None:
    """Raises unless all tensors are dense. `kind` describes the group."""
    for tensor in tensors:
        if tensor.is_dense():
            continue
        if tensor.is_selected_rows():
            found = "the gradient of an embedding with sparse=True,"
            cure = "Build the embedding with sparse=False."
        elif tensor.is_dist():
            found = "a distributed tensor"
            cure = "Pass paddle.distributed.unshard_dtensor(tensor)."
        else:
            found = "a sparse tensor"
            cure = "Pass tensor.to_dense()."
        raise ValueError(
            f"{kind} got {found} of shape {list(tensor.shape)}, but works on "
            f"dense tensors only. {cure}"
        )


def longest_wait(timeout: datetime.timedelta | float | None) -> float:
    """Returns how many seconds a task's `wait` with this timeout waits at most.

    As in groups within one machine, zero and None mean no timeout, and a wait
    with a negative number or NaN returns immediately.
    """
    seconds = 0 if timeout is None else timeout
    if hasattr(timeout, "total_seconds"):
        seconds = timeout.total_seconds()
    if not isinstance(seconds, numbers.Real):
        raise TypeError(
            "The timeout of wait must be a datetime.timedelta or a number of "
            f"seconds, but is {timeout!r}."
        )
    if seconds == 0:
        return threading.TIMEOUT_MAX
    # Not max(0, seconds), which could return NaN.
    return min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else 0


class Task:
    """An operation that is in flight or complete."""

    def __init__(self, sync_op: bool):
        self._process = os.getpid()
        self._sync_op = sync_op
        self._ended = threading.Event()
        self._failure: str | None = None

    def end(self, failure: str | None) -> None:
        self._failure = failure
        self._ended.set()

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def is_sync(self) -> bool:
        return self._sync_op

    def wait(self, timeout: datetime.timedelta | float | None = None) -> bool:
        """
        Waits until the operation completes, and raises its error. Returns False
        after the timeout; the operation then continues. A timeout of zero means
        no timeout, as with other groups.
        """
        enforce_not_forked(self._process)
        if not self._ended.wait(longest_wait(timeout)):
            return False
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return True

    def synchronize(self) -> None:
        self.wait()
