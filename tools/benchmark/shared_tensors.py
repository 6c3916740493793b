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
"""Measures tensors sent between processes: ours, stock, torch and memcpy.

    python -m tools.benchmark.shared_tensors [--visits N] [--report FILE.md]

Needs torch and matplotlib. Writes the report, and the plot next to it. The
contestants take turns, a few rounds per visit, so that a change of the
machine's speed affects all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tools.benchmark.plots import draw_round_trips
from tools.benchmark.shared_tensors_report import (
    COPIED,
    Results,
    show,
    write,
)
from tools.benchmark.shared_tensors_worker import MESSAGES
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

WORKER = Path(__file__).with_name("shared_tensors_worker.py")
SHARED_FILES = Path("/dev/shm")

# The time limit in seconds to start, to answer and to end, each.
PATIENCE = 120


class Contestant(NamedTuple):
    """A library, the environment that runs it, and the sharing strategy."""

    environment: str
    library: str
    strategy: str = ""


CONTESTANTS = {
    "ours, file_system": Contestant("ours", "paddlepaddle", "file_system"),
    "ours, file_descriptor": Contestant(
        "ours", "paddlepaddle", "file_descriptor"
    ),
    "stock": Contestant("stock", "paddlepaddle"),
    "torch, file_system": Contestant("here", "torch", "file_system"),
    "torch, file_descriptor": Contestant("here", "torch", "file_descriptor"),
    "memcpy": Contestant("ours", "memcpy"),
}


class Failed(Exception):
    """A contestant gave no answer; the text says why."""


class Pair:
    """The running processes of one contestant.

    Raises:
        Failed: in each method but `close`, if there is no answer. The
            processes are then killed.
    """

    def __init__(self, python: Path, contestant: Contestant) -> None:
        self._process = subprocess.Popen(
            [str(python), str(WORKER), *contestant[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # With more threads, those of a parallel fill would still spin in
            # the timed part.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.pids = [self._process.pid]
        self.version, self.pids = self._answer()

    def seconds(self, message: str) -> list[float]:
        """Returns the seconds of each round of a message."""
        with contextlib.suppress(BrokenPipeError):
            print(message, file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> list:
        timer = threading.Timer(PATIENCE, self._kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        answer = json.loads(line) if line else None
        if isinstance(answer, list):
            return answer
        self._kill()
        if answer is None:
            code = self._process.wait()
            hung = f"killed, with no answer in {PATIENCE} s"
            answer = hung if code == -signal.SIGKILL else f"ended with {code}"
        raise Failed(answer)

    def _kill(self) -> None:
        # Not the whole process group: libraries' helper processes must clean
        # up after the killed processes.
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the processes, and kills them if they do not exit."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()


def files_of(pid: int) -> set[str]:
    """Returns the shared memory files that a running process maps."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except FileNotFoundError:
        return set()
    return set(re.findall(f"{SHARED_FILES}/(\\S+)$", maps, re.MULTILINE))


def left_behind(
    pids: set[int], mapped: set[str], before: set[str]
) -> list[str]:
    """Removes files that contestants and their helper processes left behind.

    Args:
        pids: the contestants' processes, which have all ended. Stock and torch
            put the process id into the names of their files.
        mapped: further files that belong to contestants.
        before: files that existed before the contestants.

    Returns:
        The names of the removed files.
    """
    until = time.monotonic() + 5
    while True:
        theirs = []
        for name in set(os.listdir(SHARED_FILES)) - before:
            numbered = re.match("(?:paddle|torch)_([0-9]+)_", name)
            if name in mapped or numbered and int(numbered[1]) in pids:
                theirs.append(name)
        if not theirs or time.monotonic() > until:
            break
        time.sleep(0.1)
    for name in theirs:
        (SHARED_FILES / name).unlink(missing_ok=True)
    return sorted(theirs)


def measure(
    pythons: dict[str, Path], contestants: dict[str, Contestant], visits: int
) -> Results:
    """Measures all contestants on all messages; the contestants take turns.

    Args:
        pythons: the interpreter of each environment.
        contestants: by name. A contestant that fails on a message is not
            measured on that message again, and is restarted for the next.
        visits: the number of visits per contestant and message.
    """
    results = Results()
    running: dict[str, Pair] = {}
    pids: set[int] = set()
    before = set(os.listdir(SHARED_FILES))

    def visit(name: str, message: str) -> None:
        contestant = contestants[name]
        try:
            if name not in running:
                pair = Pair(pythons[contestant.environment], contestant)
                stack.callback(pair.close)
                results.versions[name] = pair.version
                pids.update(pair.pids)
                running[name] = pair
            seconds = running[name].seconds(message)
            results.seconds.setdefault((name, message), []).extend(seconds)
        except Failed as reason:
            results.failures[name, message] = str(reason)
            running.pop(name, None)

    with contextlib.ExitStack() as stack:
        for turn in range(visits):
            # No progress bar: its thread would disturb the measurement.
            print(f"visit {turn + 1} of {visits}", flush=True)
            for message, name in itertools.product(MESSAGES, contestants):
                takes_part = name != "memcpy" or message in COPIED
                if takes_part and (name, message) not in results.failures:
                    visit(name, message)
        mapped = set().union(*(files_of(pid) for pid in pids))
    results.left_behind = left_behind(pids, mapped, before)
    return results


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.shared_tensors"
    )
    parser.add_argument("--visits", type=int, default=20)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "shared_tensors.md",
    )
    args = parser.parse_args(argv)
    stock, ours = stock_and_ours(SUPPORTED[0])
    pythons = {"stock": stock, "ours": ours, "here": Path(sys.executable)}
    results = measure(pythons, CONTESTANTS, args.visits)
    show(results)
    plot = args.report.with_suffix(".svg")
    write(results, args.report, plot.name)
    draw_round_trips(args.report)
    print(f"The report is {args.report}, the plot {plot}")
    return 1 if results.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
