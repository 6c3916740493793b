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
"""Warns if ranks skipped backward() for different numbers of forward passes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import paddle
import paddle.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddle.base.core import Place
    from paddle.distributed.communication.group import Group


# How many steps apart the counts are exchanged. An exchange in each step would
# cost a small model a tenth of its time or more, and on a GPU it would make the
# CPU wait for the kernels of each step.
_INTERVAL = 16


class SkippedPasses:
    """Counts this rank's forward passes without backward(), and compares them.

    If only some ranks skip backward() in a step, all later averages mix
    gradients of different steps. A rank by itself sees only a forward pass
    without backward(), which may also be an evaluation. So a difference between
    ranks causes a warning, not an error.
    """

    def __init__(self, group: Group, place: Place):
        self._group = group
        self._place = place
        # Forward passes whose outputs have not received a gradient.
        self._waiting = 0
        # The same at the end of the last step, when no backward is running.
        self._skipped = 0
        self._in_flight: tuple[paddle.Tensor, object] | None = None
        self.has_warned = False

    def expect_backward(self) -> None:
        """Counts a forward pass."""
        self._waiting += 1

    def begin_backward(self) -> None:
        """Takes back a forward pass, whose outputs received a gradient."""
        # The pass may be older than the last call of `forget`.
        self._waiting = max(self._waiting - 1, 0)

    def end_step(self) -> None:
        """Ends a step: forward passes that still wait were skipped."""
        self._skipped = self._waiting

    def forget(self) -> None:
        """Drops the counts after an error, and an exchange in flight."""
        self._waiting = self._skipped = 0
        self._in_flight = None

    def by_rank(self) -> list[int]:
        """Returns this rank's count at its place, and zeros for other ranks.

        The maximum over the ranks has the counts of all ranks.
        """
        counts = [0] * self._group.nranks
        counts[self._group.rank] = self._skipped
        return counts

    def start_exchange(self, steps: int) -> None:
        """Starts to exchange the counts, in some of the steps.

        Args:
            steps: the number of completed steps, the same on all ranks.
        """
        if steps == 0 or steps % _INTERVAL != 0:
            return
        counts = paddle.to_tensor(self.by_rank(), "int32", self._place)
        task = dist.all_reduce(
            counts, dist.ReduceOp.MAX, group=self._group, sync_op=False
        )
        self._in_flight = counts, task

    def finish_exchange(self) -> None:
        """Waits for an exchange, if one was started, and warns."""
        if self._in_flight is None:
            return
        counts, task = self._in_flight
        self._in_flight = None
        task.wait()
        self.compare(counts.tolist())

    def compare(self, counts: Sequence[int]) -> None:
        """Warns, once, if the counts of the ranks differ."""
        if self.has_warned or len(set(counts)) == 1:
            return
        self.has_warned = True
        by_rank = ", ".join(
            f"{count} on rank {rank}" for rank, count in enumerate(counts)
        )
        warnings.warn(
            "Ranks ran different numbers of forward passes without backward(): "
            f"{by_rank}. If a rank skipped a step, its gradients are now "
            "averaged with those of other steps of the other ranks. Let all "
            "ranks skip the same steps, or call backward() on loss * 0 if the "
            "loss is finite. If the passes were evaluations, run them in eval "
            "mode or under paddle.no_grad().",
            stacklevel=2,
        )
