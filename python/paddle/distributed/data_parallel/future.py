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

    Args:
        wait (Callable[[], Tensor]): A function that waits for the tensor and
            returns it. It is called by the first call of ``wait``, and again
            only if it raised.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.distributed as dist
            >>> import paddle.multiprocessing as mp
            >>> from paddle.distributed import comm_hooks
            >>> groups = dist.new_thread_groups(2)
            >>> found = {}
            >>> def add(rank):
            ...     x = paddle.full([1], rank + 1.0)
            ...     task = dist.all_reduce(
            ...         x, group=groups[rank], sync_op=False
            ...     )
            ...     def wait():
            ...         task.wait()
            ...         return x
            ...     mean = comm_hooks.Future(wait).then(lambda sum: sum / 2)
            ...     found[rank] = mean.wait().item()
            >>> mp.start_threads(add, nthreads=2, devices="cpu")
            >>> print(sorted(found.items()))
            [(0, 1.5), (1, 1.5)]
    """

    def __init__(self, wait: Callable[[], Tensor]):
        self._wait = wait
        self._value: Tensor | None = None

    def wait(self) -> Tensor:
        """Waits until the tensor is complete, and returns it.

        Returns:
            Tensor: The complete tensor, the same for each call.
        """
        if self._wait is not None:
            self._value = self._wait()
            self._wait = None
        return self._value

    def then(self, function: Callable[[Tensor], Tensor]) -> Future:
        """Returns a future of the result of `function` for this tensor.

        Args:
            function (Callable[[Tensor], Tensor]): It runs in ``wait`` of the
                returned future.

        Returns:
            Future: A future of the function's result.
        """
        return Future(lambda: function(self.wait()))
