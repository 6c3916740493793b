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
"""The base of process groups that are written in Python."""

from __future__ import annotations

from typing import Any, Callable

from paddle.base import core

__all__ = []

# Those of a ProcessGroup, and those that Paddle calls on groups of one kind of
# device.
_METHODS = frozenset(dir(core.ProcessGroup)) | {
    "get_stream",
    "restart",
    "set_outer_wait",
    "shutdown",
}
_ON_STREAM = "_on_calc_stream"


class PythonProcessGroup:
    """A group with the methods of a ProcessGroup.

    Those that a subclass does not define raise NotImplementedError when they
    are called.
    """

    # What the group is, and what to use for an operation that it lacks.
    _kind: str
    _cure: str

    def __getattr__(self, name: str) -> Callable:
        if name not in _METHODS:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )

        def refuse(*args: Any, **kwargs: Any) -> None:
            if name.endswith(_ON_STREAM):
                raise NotImplementedError(
                    f"{self._kind} has no {name[: -len(_ON_STREAM)]} with "
                    "use_calc_stream=True. Leave that argument out, as with "
                    "gloo."
                )
            raise NotImplementedError(
                f"{self._kind} has no {name}. {self._cure}"
            )

        return refuse

    def all_gather(self, *args: Any) -> Any:
        """Gathers tensors.

        Args:
            args: a list for the results, a tensor and `sync_op`; or a tensor
                and one for the results, which makes it asynchronous.
        """
        if len(args) == 2:
            tensor, out = args
            return self.all_gather_into_tensor(out, tensor, False)
        return self._all_gather_into_list(*args)

    def _start_coalescing(self) -> None:
        """Has no effect: each operation begins when it is called."""

    def _end_coalescing(self, tasks: Any = None) -> None:
        """Has no effect: tasks are waited for one by one."""
