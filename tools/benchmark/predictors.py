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
"""Measures predictors on threads: ours against stock.

    python -m tools.benchmark.predictors [--rounds N] [--report FILE.md]

The wheels take turns, in an order that is reversed each round. Kernels run on
the calling thread, so that each thread uses one core.

A second process of the stock wheel is a control: its difference from the first
is noise. On busy cores there is much noise, because a run wakes a Paddle thread
for each tensor that it frees, and that thread may preempt the running thread.
Processes of our wheel, with one thread each, are the control for threads: they
share no lock, so their throughput shows what the machine allows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
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
# Two predictors of the same wheel and model can differ in speed for the whole
# life of their processes. So processes are replaced after so many rounds.
ROUNDS_OF_A_PROCESS = 3
SIDES = ("stock", "stock again", "ours")
# Up to one thread per core, but at least two.
THREADS = [n for n in (2, 4, 8) if n <= max(2, len(os.sched_getaffinity(0)))]
QUESTIONS = (
    ("seconds",),
    ("longest_pause",),
    *(("seconds_of_threads", count) for count in (1, *THREADS)),
)
PROCESSES = "seconds of processes"


def start(stack: contextlib.ExitStack, python: Path) -> Worker:
    """Starts a worker, which the stack closes."""
    worker = Worker(
        python,
        WORKER,
        CALLS,
        None,
        os.sched_getaffinity(0),
        OMP_NUM_THREADS="1",
    )
    return stack.enter_context(contextlib.closing(worker))


def seconds_of_processes(workers: list[Worker], model: str) -> float:
    """Returns the time of the slowest of some processes that run at once."""
    for worker in workers:
        worker.send("seconds_of_threads", model, 1, CALLS[model])
    return max([worker.receive() for worker in workers])


def measure(
    pythons: dict[str, Path], rounds: int
) -> dict[tuple[str, tuple], list[float]]:
    """Returns one answer per round, by side and question."""
    questions = [
        (name, model, *rest) for model in CALLS for name, *rest in QUESTIONS
    ]
    answers = {(side, question): [] for question in questions for side in SIDES}
    for model, count in itertools.product(CALLS, THREADS):
        answers["ours", (PROCESSES, model, count)] = []
    with contextlib.ExitStack() as stack:
        for i in range(rounds):
            if i % ROUNDS_OF_A_PROCESS == 0:
                stack.close()
                workers = {side: start(stack, pythons[side]) for side in SIDES}
                processes = [
                    workers["ours"],
                    *(
                        start(stack, pythons["ours"])
                        for _ in range(max(THREADS) - 1)
                    ),
                ]
                # Wait until all workers have created their predictors, which
                # keeps the cores busy.
                for worker in [*workers.values(), *processes]:
                    worker.ask("seconds", next(iter(CALLS)), 1)
            for question in questions:
                calls = CALLS[question[1]]
                for side in SIDES[:: 1 if i % 2 else -1]:
                    answer = workers[side].ask(*question, calls)
                    answers[side, question].append(answer)
            for model, count in itertools.product(CALLS, THREADS):
                answers["ours", (PROCESSES, model, count)].append(
                    seconds_of_processes(processes[:count], model)
                )
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
        alone, pause, one, *several = (
            [(side, (name, model, *rest)) for side in SIDES]
            for name, *rest in QUESTIONS
        )
        rows = {
            "one call, CPU time in ms": [
                milliseconds(key, calls) for key in alone
            ],
            "one call, ratio to stock": [
                "1",
                *(median_ratio(key, alone[0]) for key in alone[1:]),
            ],
            **{
                f"throughput of {count} threads, ratio to one": [
                    median_ratio(key, all_threads, count)
                    for key, all_threads in zip(one, keys)
                ]
                for count, keys in zip(THREADS, several)
            },
            **{
                f"throughput of {count} processes, ratio to one": [
                    "",
                    "",
                    median_ratio(
                        one[-1], ("ours", (PROCESSES, model, count)), count
                    ),
                ]
                for count in THREADS
            },
            "longest pause of another thread, ms": [
                milliseconds(key, 1) for key in pause
            ],
            "longest pause in any round, ms": [
                f"{1000 * max(answers[key]):.2f}" for key in pause
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
        "Written by `nox -s bench`. Medians of rounds in which the official",
        'wheel ("stock") and the custom wheel ("ours") take turns, in an order',
        "that is reversed each round; ratios are medians of the rounds'",
        'ratios. "Stock again" is another process of the official wheel; its',
        "difference from the first is noise. A call copies the input, runs and",
        "copies the output. Each of several threads has its own predictor, a",
        "clone of the first one. Several processes have one thread each: their",
        "throughput shows what the machine allows. The other thread, whose",
        "longest pause is given, runs only Python code. oneDNN is off unless a",
        "row names it, and `OMP_NUM_THREADS` is 1.",
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
