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
"""Report of the benchmark of tensors sent between processes."""

from __future__ import annotations

import math
import os
import platform
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tools.benchmark.report import write_report
from tools.benchmark.shared_tensors_worker import MESSAGES

OURS = ("ours, file_system", "ours, file_descriptor")
OTHERS = ("stock", "torch, file_system", "torch, file_descriptor")
NAMES = (*OURS, *OTHERS, "memcpy")

# Messages that are compared with a memcpy of the same bytes.
COPIED = ("16 MiB", "128 MiB")

AT_MOST, AT_LEAST = "≤", "≥"
OVER_AN_INT = (AT_MOST, 1.5)
OVER_A_COPY = (AT_MOST, 1.25)
# Goals for the time of another contestant divided by ours.
OVER_OURS = {
    ("stock", "64 x 4 KiB"): (AT_LEAST, 5),
    ("torch, file_system", "1 KiB"): (AT_LEAST, 2.5),
    ("torch, file_system", "64 x 4 KiB"): (AT_LEAST, 5),
    ("torch, file_system", "16 MiB"): (AT_LEAST, 3.5),
    ("torch, file_system", "128 MiB"): (AT_LEAST, 3.5),
    ("torch, file_descriptor", "1 KiB"): (AT_LEAST, 4),
    ("torch, file_descriptor", "64 x 4 KiB"): (AT_LEAST, 25),
    ("torch, file_descriptor", "16 MiB"): (AT_LEAST, 3.5),
    ("torch, file_descriptor", "128 MiB"): (AT_LEAST, 3.5),
}


@dataclass
class Results:
    """The measured times; a key is a contestant's and a message's name."""

    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    left_behind: list[str] = field(default_factory=list)

    def median(self, name: str, message: str) -> float:
        """Returns the median in seconds, or NaN without a result."""
        if (name, message) in self.failures:
            return math.nan
        return statistics.median(self.seconds.get((name, message), [math.nan]))

    def p99(self, name: str, message: str) -> float:
        """Returns the 99th percentile in seconds."""
        ordered = sorted(self.seconds[name, message])
        return ordered[math.ceil(0.99 * len(ordered)) - 1]

    def problems(self) -> list[str]:
        """Returns one line per failure."""
        lines = [
            f"{name} failed on {message}: {reason}"
            for (name, message), reason in self.failures.items()
        ]
        if self.left_behind:
            files = ", ".join(self.left_behind)
            lines.append(f"files left in shared memory, removed: {files}")
        return lines


def _times(results: Results) -> list[list[str]]:
    rows = [["median, ms", *MESSAGES]]
    most = dict.fromkeys(MESSAGES, 0)
    for name in NAMES:
        medians, tails = [name], ["  p99"]
        for m in MESSAGES:
            seconds = results.seconds.get((name, m), [])
            most[m] = max(most[m], len(seconds))
            if (name, m) in results.failures:
                both = "failed", ""
            elif seconds:
                both = _ms(results.median(name, m)), _ms(results.p99(name, m))
            else:
                both = "", ""
            medians.append(both[0])
            tails.append(both[1])
        rows += [medians, tails]
    return [*rows, ["rounds", *map(str, most.values())]]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:#.3g}".rstrip(".")


def _ratios(results: Results) -> list[list[str]]:
    # Label, goal, and the medians of numerator and denominator, which are
    # summed. The name "" stands for each of OURS.
    compared = [
        ("1 KiB: ours / an int", OVER_AN_INT, [("", "1 KiB")], [("", "an int")])
    ]
    for m in COPIED:
        label = f"{m}: ours / (memcpy + ours 1 KiB)"
        floors = [("memcpy", m), ("", "1 KiB")]
        compared.append((label, OVER_A_COPY, [("", m)], floors))
    for m in [name for name, message in MESSAGES.items() if message.tensors]:
        for other in OTHERS:
            goal = OVER_OURS.get((other, m))
            compared.append(
                (f"{m}: {other} / ours", goal, [(other, m)], [("", m)])
            )
    rows = [["ratio of the medians", "goal", *OURS]]
    for label, goal, over, under in compared:
        row = [label, f"{goal[0]} {goal[1]}" if goal else ""]
        for ours in OURS:
            above, below = (
                sum(results.median(name or ours, m) for name, m in side)
                for side in (over, under)
            )
            text = f"{above / below:.2f}"
            if math.isnan(above / below):
                text = "failed"
            elif goal and not _meets(above / below, *goal):
                text += " missed"
            row.append(text)
        rows.append(row)
    return rows


def _meets(ratio: float, word: str, bound: float) -> bool:
    return ratio <= bound if word == AT_MOST else ratio >= bound


def show(results: Results) -> None:
    """Prints the tables and the problems."""
    console = Console()
    for rows in (_times(results), _ratios(results)):
        table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
        for title in rows[0]:
            table.add_column(title, min_width=max(map(len, title.split())))
        table.columns[0].no_wrap = True
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    for problem in results.problems():
        console.print(problem, markup=False)


def _machine() -> str:
    facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [f.partition(": ")[2] for f in facts if f.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        f"{next(iter(models), 'unnamed processor')}, {platform.machine()}, "
        f"{os.cpu_count()} cores, {memory / 2**30:.0f} GiB of memory, "
        f"Linux {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}"
    )


def write(results: Results, file: Path, plot: str) -> None:
    """Writes the Markdown report; `plot` is the plot's path relative to it."""
    lines = [
        "# Tensors sent between processes",
        "",
        "Written by `nox -s bench`. One process puts a message on a queue.",
        "A second, spawned process gets it, reads an element of each tensor,",
        "drops the message and answers with an int on a second queue. Times",
        "are from sending to the answer: the median of all rounds, and the",
        "99th percentile below it. Each round sends a new message, created",
        "outside of the timed part, or the same tensor *again*. The",
        "contestants take turns on two cores. memcpy copies the bytes of a new",
        "tensor into warm shared memory and sends nothing.",
        "",
        f"Machine: {_machine()}.",
        "",
        *(f"- {name}: {v}" for name, v in results.versions.items()),
        *(f"- {problem}" for problem in results.problems()),
        "",
        f"![round trips by message, logarithmic axis]({plot})",
    ]
    for rows in (_times(results), _ratios(results)):
        rule = ["---", *["---:"] * (len(rows[0]) - 1)]
        table = [rows[0], rule, *rows[1:]]
        lines += ["", *(f"| {' | '.join(row)} |" for row in table)]
    write_report(file, lines)
