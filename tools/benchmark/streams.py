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
"""Measures streams of threads: ours against Paddle's own wheel, in one run.

    python -m tools.benchmark.streams [--rounds N] [--report FILE.md]

Runs on the test device. The two wheels take turns, so that a machine that
changes its speed changes it for both: at the same calls, timed on one core, and
at serving one model to several threads.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from tools.benchmark import devices
from tools.benchmark.report import machine, write_report
from tools.benchmark.worker import Worker
from tools.command_line import reports_errors
from tools.environment import host_device, stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("streams_worker.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

# Calls per round: about 5 ms each.
NUMBERS = {
    "current_stream()": 4_000,
    "set_stream(s)": 1_000,
    "with stream_guard(s)": 500,
    "with stream_guard(Stream())": 50,
    "with stream_guard(pooled stream)": 500,
    "zeros([1]) on the CPU": 500,
    "x * 2 on the CPU": 1_000,
    "zeros([1])": 300,
    "x * 2": 300,
    "to_static(relu(x @ w))": 50,
}
OPERATORS = [name for name in NUMBERS if "stream" not in name]

# "At first" is before any thread of the process has set a stream, so that it
# comes first.
CASES = [
    *(("main, at first", name) for name in OPERATORS),
    *(("child, at first", name) for name in OPERATORS),
    *(("main", name) for name in NUMBERS),
    *(("child", name) for name in NUMBERS),
    *(("child with a stream", name) for name in NUMBERS),
    *(("main while a child has a stream", name) for name in NUMBERS),
    ("new child for each call", "with stream_guard(s)"),
    ("new child for each call", "with stream_guard(pooled stream)"),
]

THREADS = (1, 2, 4)
REQUESTS = 50  # Per round, for each number of threads.
BATCHES = 25  # Likewise, for each number of workers.


class Service(NamedTuple):
    """How a model is served: by which wheel, on which streams."""

    wheel: str
    own_streams: bool
    with_lock: bool


SERVICES = {
    f"{wheel}, {streams}": Service(wheel, own_streams, with_lock)
    for wheel in ("stock", "ours")
    for streams, own_streams, with_lock in (
        ("default stream", False, False),
        ("own streams, one lock", True, True),
        ("own streams", True, False),
    )
}

SERVING = f"""\
A queue of {REQUESTS} requests is served by 1, 2 or 4 threads on **one** device:
to_tensor, twice relu(x @ w + b), numpy(). On *own streams* each request is
within `stream_guard` of its thread's stream. *One lock* lets one thread at a
time into the guard, which is what a service on the stock wheel needs, since a
guard moves all threads there. A wrong answer is one that differs from that of
a single thread.

The test device is not fast: a stream is a thread of the same two cores. To
stand for a device that computes elsewhere, each of its operations sleeps for
0.4 ms, and uses no core meanwhile. So the figures say how far requests overlap
on the device, and not how fast a real one would be: one that a single request
fills has nothing to gain from a second stream."""


LOADING = f"""\
A `DataLoader` with 1, 2 or 4 worker threads, whose dataset computes each sample
on the device: twice relu(x @ w). A batch is 2 samples; {BATCHES} of them are
taken, doubled on the device, and compared with the expected values. On *one
stream* the workers use that of the thread that iterates, as they do where the
memory of a device cannot wait for streams. Operations sleep as above."""


def calls(pythons: dict[str, Path], plugin: Path, rounds: int) -> list[str]:
    """Returns the table of the times of calls, in Markdown."""
    lines = [*devices.TABLE_HEAD]
    print(*lines, sep="\n")
    # Cores of a shared machine differ in speed from moment to moment.
    core = {max(os.sched_getaffinity(0))}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(
                contextlib.closing(
                    Worker(python, WORKER, NUMBERS, plugin, core, **ONE_THREAD)
                )
            )
            for python in pythons.values()
        ]
        return lines + devices.measure(*workers, CASES, rounds)


def services(pythons: dict[str, Path], plugin: Path, rounds: int) -> list[str]:
    """Returns the table of what services do, in Markdown."""
    rates = {(name, n): [] for name in SERVICES for n in THREADS}
    wrong = dict.fromkeys(rates, 0)
    with contextlib.ExitStack() as stack:
        # A process each: one where threads move each other does not recover.
        workers = {
            name: stack.enter_context(
                contextlib.closing(
                    Worker(
                        pythons[service.wheel],
                        WORKER,
                        NUMBERS,
                        plugin,
                        os.sched_getaffinity(0),
                        **ONE_THREAD,
                    )
                )
            )
            for name, service in SERVICES.items()
        }
        for _ in range(rounds):
            for name, threads in rates:
                seconds, mistakes = workers[name].ask(
                    "serve", *SERVICES[name][1:], threads, REQUESTS
                )
                rates[name, threads].append(REQUESTS / seconds)
                wrong[name, threads] += mistakes
    return rates_table(
        rates, wrong, "requests/s", "thread", "answers", REQUESTS
    )


def loading(python: Path, plugin: Path, rounds: int) -> list[str]:
    """Returns the table of what a DataLoader does, in Markdown."""
    cases = {"one stream": False, "own streams": True}
    rates = {(name, n): [] for name in cases for n in THREADS}
    wrong = dict.fromkeys(rates, 0)
    worker = Worker(
        python,
        WORKER,
        NUMBERS,
        plugin,
        os.sched_getaffinity(0),
        **ONE_THREAD,
    )
    with contextlib.closing(worker):
        for _ in range(rounds):
            for name, workers in rates:
                seconds, mistakes = worker.ask(
                    "load", cases[name], workers, BATCHES
                )
                rates[name, workers].append(BATCHES / seconds)
                wrong[name, workers] += mistakes
    return rates_table(rates, wrong, "batches/s", "worker", "batches", BATCHES)


def rates_table(
    rates: dict[tuple[str, int], list[float]],
    wrong: dict[tuple[str, int], int],
    unit: str,
    who: str,
    what: str,
    per_round: int,
) -> list[str]:
    """Returns the table of what was done in the rounds, in Markdown.

    Args:
        rates: the rate in each round, by name and number of threads.
        wrong: how many results were wrong, likewise.
        unit: of the rates.
        who: what one of the threads is.
        what: the results.
        per_round: how many results there are in a round.
    """
    titles = [f"{n} {who}{'s' * (n > 1)}" for n in THREADS]
    rounds = len(next(iter(rates.values())))
    lines = [
        f"| {unit} | {' | '.join(titles)} | wrong {what}, of "
        f"{rounds * per_round:,} each |",
        f"|---|{'---:|' * (len(THREADS) + 1)}",
    ]
    for name in dict.fromkeys(name for name, _ in rates):
        medians = [f"{statistics.median(rates[name, n]):,.0f}" for n in THREADS]
        mistakes = [f"{wrong[name, n]:,}" for n in THREADS]
        lines.append(
            f"| {name} | {' | '.join(medians)} | {' + '.join(mistakes)} |"
        )
    print(*lines, sep="\n")
    return lines


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark.streams")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "streams.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = {"stock": stock, "ours": ours}
    measured = (pythons, host_device(stock), args.rounds)
    lines = [
        "# One current stream per thread",
        "",
        "Written by `nox -s bench`. Medians of rounds in which the stock wheel",
        "and ours take turns, on the test device of `test/custom_runtime`.",
        "",
        f"{machine()}; {args.rounds} rounds.",
        "",
        "## What a call takes",
        "",
        "Times in ns, with the work of the device for the call. The ratio is",
        "the median of the rounds' ratios, in each of which both ran one after",
        "the other. *At first* is a process in which no stream was ever set.",
        "*Main* and *child* are on the default stream, of a process in which",
        "streams were set. `s` is a known stream: with `set_stream`, one of",
        "two in turn. A pooled stream is the next one of ours: stock has no",
        "pool, and enters a guard of `s`. *New child for each call* is a",
        "thread's first guard, without the start of the thread.",
        "",
        *calls(*measured),
        "",
        "## Several threads serve one model on one device",
        "",
        SERVING,
        "",
        *services(*measured),
        "",
        "## Worker threads of a DataLoader on one device",
        "",
        LOADING,
        "",
        *loading(ours, *measured[1:]),
    ]
    write_report(args.report, lines)
    print(f"\nThe report is {args.report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
