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
"""Measures per-thread streams: ours against stock, in one run.

    python -m tools.benchmark.streams [--rounds N] [--report FILE.md]

Runs on the test device. It times the same calls on one core, and serves one
model to several threads. The two wheels take turns, so that a change of the
machine's speed affects both.
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

# "At first" means before any thread of the process has set a stream, so these
# cases must come first.
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
BATCHES = 25  # Per round, for each number of workers.


class Service(NamedTuple):
    """How a model is served: with which wheel, streams and lock."""

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
to_tensor, twice relu(x @ w + b), numpy(). With *own streams*, each request runs
in a `stream_guard` with its thread's stream. *One lock* lets one thread at a
time into the guard. A service on the official wheel needs such a lock, because
there a guard changes the stream of all threads. A wrong result is one that
differs from the result of a single thread.

The test device is not fast: a stream is a thread on the same two cores. To
simulate a device that computes elsewhere, each of its operations sleeps for
0.4 ms, without using a core. So the figures show how far requests overlap on
the device, and not how fast a real device would be. A real device that a single
request fills gains nothing from a second stream."""


LOADING = f"""\
A `DataLoader` with 1, 2 or 4 worker threads, whose dataset computes each sample
on the device: twice relu(x @ w). A batch has 2 samples. {BATCHES} batches are
doubled on the device and compared with the expected values. On *one stream*,
the workers use the consumer's stream, as they do when the memory of a device
cannot wait for streams. Operations sleep as above."""


def calls(pythons: dict[str, Path], plugin: Path, rounds: int) -> list[str]:
    """Returns the table of the times of calls, in Markdown."""
    lines = [*devices.TABLE_HEAD]
    print(*lines, sep="\n")
    # The cores of a shared machine change their speed independently.
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
    """Returns the table of the services' rates, in Markdown."""
    rates = {(name, n): [] for name in SERVICES for n in THREADS}
    wrong = dict.fromkeys(rates, 0)
    with contextlib.ExitStack() as stack:
        # One process per service: after threads have changed each other's
        # stream, a process does not recover.
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
        rates, wrong, "requests/s", "thread", "results", REQUESTS
    )


def loading(python: Path, plugin: Path, rounds: int) -> list[str]:
    """Returns the table of a DataLoader's rates, in Markdown."""
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
    """Returns a table of rates and wrong results, in Markdown.

    Args:
        rates: the rate in each round, by name and number of threads.
        wrong: the number of wrong results, by name and number of threads.
        unit: the unit of the rates.
        who: the noun for one of the threads.
        what: the plural noun for the results.
        per_round: the number of results per round.
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
        "Written by `nox -s bench`. Medians of rounds in which the official",
        'wheel ("stock") and the custom wheel ("ours") take turns, on the test',
        "device of `test/custom_runtime`.",
        "",
        f"{machine()}; {args.rounds} rounds.",
        "",
        "## Time of a call",
        "",
        "Times in ns, including the device's work for the call. In each round,",
        "both wheels run one after the other; the ratio is the median of the",
        "rounds' ratios. *At first* is a process in which no stream was ever",
        "set. *Main* and *child* are on the default stream, in a process in",
        "which streams were set. `s` is an existing stream; `set_stream`",
        "alternates between two. A pooled stream is the next stream of the",
        "custom wheel's pool; the official wheel has no pool, and enters a",
        "guard with `s` instead. *New child for each call* is a thread's first",
        "guard, without starting the thread.",
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
