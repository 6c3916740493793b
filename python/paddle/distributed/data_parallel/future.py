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
"""Futures of tensors whose communication is in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from paddle import Tensor


class Future:
    """A tensor whose communication may be in flight; `wait` returns it.

    Functions passed to `then` run in `wait`, on the waiting thread. All ranks
    wait for the buckets in the same order, so such a function may communicate.
    """

    def __init__(self, wait: Callable[[], Tensor]):
        self._wait = wait
        self._value: Tensor | None = None

    def wait(self) -> Tensor:
        """Waits until the tensor is complete, and returns it."""
        if self._wait is not None:
            self._value = self._wait()
            self._wait = None
        return self._value

    def then(self, function: Callable[[Tensor], Tensor]) -> Future:
        """Returns a future of the result of `function` for this tensor."""
        return Future(lambda: function(self.wait()))
