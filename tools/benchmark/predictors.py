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
"""Measures predictors on threads, stock and ours.

    python -m tools.benchmark.predictors [--rounds N] [--report FILE.md]

The wheels take turns, in an order that is reversed each round. Kernels run on
the thread that calls them, so that two threads have two cores.

A second process of the stock wheel is the control: what it differs from the
first by is noise. There is much of it where cores are busy, since a run wakes
a thread of Paddle for each tensor that it frees, which then takes the core of
the thread that runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from pathlib import Path

from tools.benchmark.report import machine, write_report
from tools.benchmark.worker import Worker
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("predictors_worker.py")
# Calls per round.
CALLS = {"small model": 50, "large model": 3, "large model with oneDNN": 3}
# A predictor can be faster or slower than another one of the same wheel and
# model for as long as its process lives.
ROUNDS_OF_A_PROCESS = 3
SIDES = ("stock", "stock again", "ours")
QUESTIONS = (
    ("seconds",),
    ("seconds_of_threads", 1),
    ("seconds_of_threads", 2),
    ("longest_pause",),
)


def start(stack: contextlib.ExitStack, python: Path) -> Worker:
    """Starts a worker that goes with the stack."""
    worker = Worker(
        python,
        WORKER,
        CALLS,
        None,
        os.sched_getaffinity(0),
        OMP_NUM_THREADS="1",
    )
    return stack.enter_context(contextlib.closing(worker))


def measure(
    pythons: dict[str, Path], rounds: int
) -> dict[tuple[str, tuple], list[float]]:
    """Returns the answers by side, question and model, one for each round."""
    questions = [
        (name, model, *rest) for model in CALLS for name, *rest in QUESTIONS
    ]
    answers = {(side, question): [] for question in questions for side in SIDES}
    with contextlib.ExitStack() as stack:
        for i in range(rounds):
            if i % ROUNDS_OF_A_PROCESS == 0:
                stack.close()
                workers = {side: start(stack, pythons[side]) for side in SIDES}
                # Those that still make their predictors keep the cores busy.
                for worker in workers.values():
                    worker.ask("seconds", next(iter(CALLS)), 1)
            for question in questions:
                calls = CALLS[question[1]]
                for side in SIDES[:: 1 if i % 2 else -1]:
                    answer = workers[side].ask(*question, calls)
                    answers[side, question].append(answer)
    return answers


def table(answers: dict[tuple[str, tuple], list[float]]) -> list[str]:
    """Returns the table of the medians, in Markdown."""

    def median_ratio(above: tuple, below: tuple, factor: float = 1) -> str:
        ratios = [
            factor * a / b for a, b in zip(answers[above], answers[below])
        ]
        return f"{statistics.median(ratios):.2f}"

    def milliseconds(key: tuple, calls: int) -> str:
        return f"{1000 * statistics.median(answers[key]) / calls:.2f}"

    lines = [f"| | {' | '.join(SIDES)} |", "|---" + len(SIDES) * "|---:" + "|"]
    for model, calls in CALLS.items():
        alone, one, two, pause = (
            [(side, (name, model, *rest)) for side in SIDES]
            for name, *rest in QUESTIONS
        )
        rows = {
            "one call, ms of the processor": [
                milliseconds(key, calls) for key in alone
            ],
            "one call, ratio to stock": [
                "1",
                *(median_ratio(key, alone[0]) for key in alone[1:]),
            ],
            "throughput of two threads, ratio to one": [
                median_ratio(key, both, 2) for key, both in zip(one, two)
            ],
            "longest pause of another thread, ms": [
                milliseconds(key, 1) for key in pause
            ],
        }
        lines += [
            f"| {model}: {name} | {' | '.join(values)} |"
            for name, values in rows.items()
        ]
    return lines


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.predictors"
    )
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "predictors.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = dict(zip(SIDES, (stock, stock, ours)))
    found = table(measure(pythons, args.rounds))
    lines = [
        "# Predictors on threads",
        "",
        "Written by `nox -s bench`. Medians of rounds in which the stock wheel",
        "and ours take turns, in an order that is reversed each round; ratios",
        'are medians of the rounds\' ratios. "Stock again" is another process',
        "of the stock wheel: what it differs from stock by is noise. A call",
        "copies the input, runs and copies the output. Two threads have a",
        "predictor each, one the clone of the other. The other thread, whose",
        "longest pause is given, runs nothing but Python. oneDNN is off where",
        "it is not named, and `OMP_NUM_THREADS` is 1.",
        f"Each side has a new process every {ROUNDS_OF_A_PROCESS} rounds.",
        "",
        f"{machine()}; {args.rounds} rounds.",
        "",
        *found,
    ]
    write_report(args.report, lines)
    print("\n".join(lines), f"\nThe report is {args.report}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
