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
"""Draws the plots of the benchmark reports from the tables in them.

    python -m tools.benchmark.plots

Nothing is measured: the reports in docs/benchmark are read, and the plots are
written beside them. Needs matplotlib.
"""

from __future__ import annotations

import hashlib
import re
import sys
import textwrap
from typing import TYPE_CHECKING, NamedTuple

from tools.wheel import REPO

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORTS = REPO / "docs" / "benchmark"


class Side(NamedTuple):
    """How all plots show one of the compared sides."""

    label: str
    colour: str
    filled: bool = True


_BLUE, _ORANGE, _GREEN, _GREY = "#0072b2", "#d55e00", "#009e73", "#555555"
# The keys are the names in the reports. Each library has one colour.
SIDES = {
    "ours": Side("this project", _BLUE),
    "ours, file_system": Side("this project, file_system (default)", _BLUE),
    "ours, file_descriptor": Side(
        "this project, file_descriptor", _BLUE, filled=False
    ),
    "stock": Side("official Paddle", _ORANGE),
    "torch": Side("torch", _GREEN),
    "torch, file_descriptor": Side("torch, file_descriptor (default)", _GREEN),
    "torch, file_system": Side("torch, file_system", _GREEN, filled=False),
    "memcpy": Side("memcpy into warm memory", _GREY),
}


class Point(NamedTuple):
    """A value, and the ends of the line through its dot."""

    value: float
    low: float
    high: float


# Points by side, then by category on the horizontal axis.
Points = dict[str, dict[str, Point]]


def rows(text: str) -> list[list[str]]:
    """Returns the cells of a report's first table, header included."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.split("|")[1:-1]])
    head, _rule, *body = table
    return [head, *body]


def round_trips(text: str) -> Points:
    """Returns a report's medians and 99th percentiles, in ms.

    A cell without a figure gives no point: that side took no part or failed.
    """
    (_, *messages), *body = rows(text)
    points: Points = {}
    for (side, *medians), (_, *tails) in zip(body[::2], body[1::2]):
        points[side] = {
            message: Point(float(median), float(median), float(tail))
            for message, median, tail in zip(messages, medians, tails)
            if tail
        }
    return points


def batch_rates(text: str) -> dict[str, Points]:
    """Returns a report's median rates and quartiles, by batch."""
    (_, _, *titles), *body = rows(text)
    found: dict[str, Points] = {}
    for batch, workers, *cells in body:
        for side, cell in zip(titles, cells):
            if side in SIDES:
                numbers = re.findall(r"[\d,]+", cell)
                median, low, high = (
                    float(number.replace(",", "")) for number in numbers
                )
                points = found.setdefault(batch, {}).setdefault(side, {})
                points[workers] = Point(median, low, high)
    return found


def digest(text: str) -> str:
    """Returns a digest of a report's figures, which its plot contains."""
    figures = [*rows(text), machine(text)]
    return hashlib.sha256(repr(figures).encode()).hexdigest()[:16]


def machine(text: str) -> str:
    """Returns the machine that a report names."""
    return re.search(r"^Machine: (.*)\.$", text, re.MULTILINE)[1]


def _put(axes: Axes, points: Points, categories: list[str]) -> None:
    """Draws a dot and a line for each point, with the sides side by side."""
    from matplotlib.ticker import LogLocator, NullLocator

    step = 0.8 / len(points)
    for index, (name, of_side) in enumerate(points.items()):
        side = SIDES[name]
        shift = (index - (len(points) - 1) / 2) * step
        x = [categories.index(category) + shift for category in of_side]
        axes.vlines(
            x,
            [point.low for point in of_side.values()],
            [point.high for point in of_side.values()],
            colors=side.colour,
            linewidth=1.2,
        )
        axes.plot(
            x,
            [point.value for point in of_side.values()],
            "o",
            color=side.colour,
            markerfacecolor=side.colour if side.filled else "white",
            label=side.label,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_xticks(range(len(categories)), categories)
    axes.set_xlim(-0.5, len(categories) - 0.5)
    axes.grid(axis="y", alpha=0.3)
    for border in range(1, len(categories)):
        axes.axvline(border - 0.5, color="0.85", linewidth=0.8)
    axes.set_axisbelow(True)


def _new_figure(caption: str, height: float) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    # A reproducible file, in which text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "", "svg.fonttype": "none"})
    figure = Figure(figsize=(11, height), layout="constrained")
    figure.supxlabel(textwrap.fill(caption, 160), fontsize="small")
    return figure


def _bound(axes: Axes, shown: Iterable[Points]) -> None:
    """Sets the limits of the vertical axis from its points and lines."""
    points = [
        p for each in shown for side in each.values() for p in side.values()
    ]
    axes.set_ylim(
        min(point.low for point in points) / 1.5,
        max(point.high for point in points) * 1.5,
    )


def _finish(figure: Figure, title: str, labelled: Axes, report: Path) -> None:
    """Adds the title with the legend, and writes the file."""
    figure.legend(
        *labelled.get_legend_handles_labels(),
        loc="outside upper center",
        ncols=3,
        fontsize="small",
        title=title,
        title_fontsize="large",
        frameon=False,
    )
    text = report.read_text(encoding="utf-8")
    figure.savefig(
        report.with_suffix(".svg"),
        metadata={"Date": None, "Description": digest(text)},
    )


def draw_round_trips(report: Path) -> None:
    """Draws the plot of a `shared_tensors` report, next to the report."""
    text = report.read_text(encoding="utf-8")
    points = round_trips(text)
    figure = _new_figure(
        "Dot: median; line: to the 99th percentile. Logarithmic axis. "
        f"Machine: {machine(text)}.",
        5,
    )
    axes = figure.add_subplot(ylabel="round trip, ms")
    _put(axes, points, rows(text)[0][1:])
    _bound(axes, [points])
    title = "Round trip of a message through a queue: lower is better"
    _finish(figure, title, axes, report)


def draw_batch_rates(report: Path) -> None:
    """Draws the plot of a `data_loader` report, next to the report."""
    text = report.read_text(encoding="utf-8")
    batches = batch_rates(text)
    figure = _new_figure(
        "Dot: median; line: quartiles. Logarithmic axis. The samples are in "
        f"memory. Machine: {machine(text)}.",
        4.5,
    )
    subplots = figure.subplots(1, len(batches), sharey=True)
    for axes, (batch, points) in zip(subplots, batches.items()):
        axes.set_title(batch, fontsize="medium")
        axes.set_xlabel("worker processes")
        _put(axes, points, list(next(iter(points.values()))))
    subplots[0].set_ylabel("batches per second")
    _bound(subplots[0], batches.values())
    title = "Batches of 32 samples from a DataLoader: higher is better"
    _finish(figure, title, subplots[0], report)


if __name__ == "__main__":
    draw_round_trips(REPORTS / "shared_tensors.md")
    draw_batch_rates(REPORTS / "data_loader.md")
    sys.exit(0)
