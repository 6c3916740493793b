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
"""Step times of a reducer, and how much communication was hidden."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .buckets import Bucket
    from .sparse_bucket import SparseBucket


@dataclass
class StepTimes:
    """Seconds spent in each part of a step, summed over all steps.

    `communication` lasts from the start of a step's first bucket until all
    buckets are averaged. `waiting` is the part of it in which backward is
    blocked: the calls that start communication, and the wait at the end.
    """

    steps: int = 0
    forward: float = 0.0
    backward: float = 0.0
    communication: float = 0.0
    waiting: float = 0.0
    _marks: dict[str, float] = field(default_factory=dict)

    def mark(self, name: str) -> None:
        """Records the start of a part, unless it is already recorded."""
        self._marks.setdefault(name, time.perf_counter())

    def add(self, name: str) -> None:
        """Adds the time since `mark(name)`, if the part was started."""
        begin = self._marks.pop(name, None)
        if begin is not None:
            passed = time.perf_counter() - begin
            setattr(self, name, getattr(self, name) + passed)

    def drop(self, name: str) -> None:
        """Drops the mark of a part, if there is one."""
        self._marks.pop(name, None)

    def forget(self) -> None:
        """Drops the marks of an incomplete step."""
        self._marks.clear()


def as_dict(times: StepTimes, buckets: list[Bucket | SparseBucket]) -> dict:
    """Returns the buckets, and the mean times of a step in milliseconds."""

    def mean_ms(seconds: float) -> float:
        return seconds * 1000 / max(times.steps, 1)

    hidden = 0.0
    if times.communication > 0:
        hidden = max(0.0, 1 - times.waiting / times.communication)
    return {
        "steps": times.steps,
        "forward_ms": mean_ms(times.forward),
        "backward_ms": mean_ms(times.backward),
        "communication_ms": mean_ms(times.communication),
        "waiting_ms": mean_ms(times.waiting),
        "hidden_share": hidden,
        "buckets": [
            {
                "bytes": bucket.nbytes,
                "parameters": [each.name for each in bucket.members.values()],
            }
            for bucket in buckets
        ],
    }


def as_table(statistics: dict) -> str:
    """Returns the statistics as a text table."""
    names = {
        "forward_ms": "forward",
        "backward_ms": "backward, from its first gradient",
        "communication_ms": "communication",
        "waiting_ms": "backward waits for communication",
    }
    lines = [f"{statistics['steps']} steps, means in ms"]
    lines += [
        f"{text:<36}{statistics[name]:>10.2f}" for name, text in names.items()
    ]
    lines.append(
        f"{'hidden behind backward':<36}{statistics['hidden_share']:>10.0%}"
    )
    lines.append(f"{'bucket':<8}{'KiB':>12}  parameters")
    for number, bucket in enumerate(statistics["buckets"]):
        first, *others = bucket["parameters"]
        more = f" and {len(others)} more" if others else ""
        lines.append(
            f"{number:<8}{bucket['bytes'] / 1024:>12.1f}  {first}{more}"
        )
    return "\n".join(lines)
