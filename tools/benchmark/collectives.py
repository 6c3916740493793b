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
"""Measures communication between processes: ours, Paddle's gloo, torch's gloo.

    python -m tools.benchmark.collectives [--visits N] [--report FILE.md]

Needs torch. The contestants take turns, a few rounds per visit, so that a
change of the machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

from tools.benchmark.report import machine, write_report
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("collectives_worker.py")
# Bytes, and rounds per visit.
MESSAGES = {
    "4 KiB": (4 << 10, 50),
    "1 MiB": (1 << 20, 10),
    "64 MiB": (64 << 20, 3),
}
# The time limit in seconds for a job to start, to answer and to end, each.
PATIENCE = 120


class Contestant(NamedTuple):
    """A library, the environment that runs it, and the kind of memory."""

    environment: str
    library: str
    shared: bool = False


CONTESTANTS = {
    "shm, shared tensor": Contestant("ours", "shm", True),
    "shm": Contestant("ours", "shm"),
    "shm between machines": Contestant("ours", "shm between machines"),
    "Paddle's gloo": Contestant("stock", "gloo"),
    "torch's gloo": Contestant("here", "torch"),
    "process_vm_readv": Contestant("ours", "readv"),
    "memcpy": Contestant("ours", "memcpy"),
}
GROUPS = ("shm, shared tensor", "shm", "Paddle's gloo", "torch's gloo")


class Table(NamedTuple):
    """An operation of some ranks, and the contestants that run it.

    On one core, a rank that waits must sleep, so that another one can run.
    """

    title: str
    operation: str
    ranks: int
    contestants: tuple[str, ...] = GROUPS
    one_core: bool = False


TABLES = (
    Table("all_reduce, 2 ranks", "all_reduce", 2, (*GROUPS, "memcpy")),
    Table("all_reduce, 4 ranks", "all_reduce", 4, (*GROUPS, "memcpy")),
    Table("all_reduce, 2 ranks on one core", "all_reduce", 2, one_core=True),
    Table("send, 2 ranks", "send", 2, (*GROUPS, "process_vm_readv")),
    Table("send, 16 ranks, 14 of which are idle", "send", 16),
    Table(
        "send, 2 ranks that report two machines",
        "send",
        2,
        ("shm between machines", "Paddle's gloo"),
    ),
    Table("gather, 4 ranks", "gather", 4),
    Table("scatter, 4 ranks", "scatter", 4),
)


class Failed(Exception):
    """A job gave no answer; the text says why."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Job:
    """The running ranks of one library.

    Raises:
        Failed: there is no answer, and the ranks are gone.
    """

    def __init__(
        self, python: Path, library: str, size: int, one_core: bool
    ) -> None:
        port = str(free_port())
        self._ranks = [
            subprocess.Popen(
                [
                    *(str(python), str(WORKER)),
                    *(library, str(rank), str(size), port),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={
                    **{
                        name: value
                        for name, value in os.environ.items()
                        if "CUSTOM_DEVICE" not in name
                    },
                    "OMP_NUM_THREADS": "1",
                },
            )
            for rank in range(size)
        ]
        if one_core:
            for rank in self._ranks:
                os.sched_setaffinity(rank.pid, {min(os.sched_getaffinity(0))})
        self.version = self._answers()[0]

    def seconds(
        self, operation: str, size: int, shared: bool, rounds: int
    ) -> list[float]:
        """Returns the seconds of each round, on its slowest rank."""
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                line = json.dumps([operation, size, shared, rounds])
                print(line, file=rank.stdin, flush=True)
        return [max(of_ranks) for of_ranks in zip(*self._answers())]

    def _answers(self) -> list:
        timer = threading.Timer(PATIENCE, self._kill)
        timer.start()
        lines = [rank.stdout.readline() for rank in self._ranks]
        timer.cancel()
        if not all(lines):
            self._kill()
            raise Failed(f"no answer in {PATIENCE} s, or a rank has ended")
        return [json.loads(line) for line in lines]

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    def close(self) -> None:
        """Ends the ranks, and kills them if they do not exit."""
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError):
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._kill()
                rank.wait()


class Results(NamedTuple):
    """Seconds, or the reason of a failure, by table, contestant and message."""

    seconds: dict[tuple[Table, str, str], list[float]]
    failures: dict[tuple[Table, str, str], str]
    versions: dict[str, str]


def measure(pythons: dict[str, Path], visits: int) -> Results:
    """Measures all contestants of each table, which take turns."""
    results = Results({}, {}, {})
    for table in TABLES:
        with contextlib.ExitStack() as stack:
            jobs: dict[str, Job] = {}
            for turn in range(visits):
                print(f"{table.title}, visit {turn + 1}/{visits}", flush=True)
                for message in MESSAGES:
                    for name in table.contestants:
                        key = (table, name, message)
                        if key not in results.failures:
                            _visit(pythons, results, jobs, stack, key)
    return results


def _visit(
    pythons: dict[str, Path],
    results: Results,
    jobs: dict[str, Job],
    stack: contextlib.ExitStack,
    key: tuple[Table, str, str],
) -> None:
    """Measures a message with a contestant, and starts its ranks if needed."""
    table, name, message = key
    contestant = CONTESTANTS[name]
    count, rounds = MESSAGES[message]
    try:
        if contestant.library not in jobs:
            # memcpy needs only one process.
            job = Job(
                pythons[contestant.environment],
                contestant.library,
                1 if contestant.library == "memcpy" else table.ranks,
                table.one_core,
            )
            stack.callback(job.close)
            jobs[contestant.library] = job
            results.versions[contestant.library] = job.version
        seconds = jobs[contestant.library].seconds(
            table.operation, count, contestant.shared, rounds
        )
        results.seconds.setdefault(key, []).extend(seconds)
    except Failed as reason:
        results.failures[key] = str(reason)
        jobs.pop(contestant.library, None)


def _percentile(seconds: list[float]) -> float:
    ordered = sorted(seconds)
    return ordered[math.ceil(0.99 * len(ordered)) - 1]


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f}"


def tables(results: Results) -> list[str]:
    """Returns the tables, in Markdown."""
    lines = []
    for table in TABLES:
        lines += [
            f"## {table.title}",
            "",
            f"| µs: median, 99 % | {' | '.join(MESSAGES)} |",
            f"|---|{'---:|' * len(MESSAGES)}",
        ]
        for name in table.contestants:
            cells = []
            for message in MESSAGES:
                key = (table, name, message)
                seconds = results.seconds.get(key)
                cells.append(
                    results.failures[key]
                    if key in results.failures
                    else f"{_microseconds(statistics.median(seconds))}, "
                    f"{_microseconds(_percentile(seconds))}"
                )
            lines.append(f"| {name} | {' | '.join(cells)} |")
        first = table.contestants[0]
        rounds = [
            f"{len(results.seconds.get((table, first, m), [])):,}"
            for m in MESSAGES
        ]
        lines += [f"| rounds | {' | '.join(rounds)} |", ""]
    return lines


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.collectives"
    )
    parser.add_argument("--visits", type=int, default=20)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "collectives.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = {"stock": stock, "ours": ours, "here": Path(sys.executable)}
    results = measure(pythons, args.visits)
    lines = [
        "# Communication between processes",
        "",
        "Written by `nox -s bench`. Tensors of float32, which all_reduce sums;",
        "the size is that of the tensor of one rank. The time of a round is",
        "that of its slowest rank. The contestants take turns. A *shared",
        "tensor* is a tensor after `share_memory_()`. `memcpy` copies as many",
        "bytes within one process. `process_vm_readv` is one system call with",
        "which the receiver reads the sender's memory, and a message in each",
        "direction.",
        "",
        f"{machine()}; "
        + ", ".join(
            f"{name} {version}"
            for name, version in results.versions.items()
            if version
        )
        + ".",
        "",
        *tables(results),
    ]
    print("\n".join(lines))
    write_report(args.report, lines)
    print(f"The report is {args.report}")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
