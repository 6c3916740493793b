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
"""Helpers that all benchmark reports share."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def processor() -> str:
    """Returns the processor's name, from which libraries choose kernels."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [
        line.partition(":")[2].strip()
        for line in lines
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or "unknown"


def machine() -> str:
    """Returns the description of this machine in a report."""
    return (
        f"Machine: {processor()} ({platform.machine()}), {os.cpu_count()} "
        f"cores, Python {platform.python_version()}"
    )


def write_report(file: Path, lines: Iterable[str]) -> None:
    """Writes a report, and creates its folder if necessary."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
