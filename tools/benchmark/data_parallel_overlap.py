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
"""Measures how much communication is hidden behind backward on a free core.

    python -m tools.benchmark.data_parallel_overlap [--visits N]
        [--report FILE.md]

The layers wait instead of computing, as if an accelerator computed, so that a
core is free for communication. Two ranks communicate within one machine, and as
two machines: in network namespaces, over a slowed link. The latter needs Linux,
root and iproute2.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tools.benchmark.data_parallel import RANKS, STEPS, Ranks, free_port
from tools.benchmark.data_parallel_overlap_worker import (
    AFTERWARDS,
    LAYERS,
    NOTHING_SENT,
    OVERLAPPED,
    VARIANTS,
    WARM_UP,
    WITHOUT,
)
from tools.benchmark.report import machine, write_report
from tools.command_line import reports_errors
from tools.environment import stock_and_ours
from tools.tree import SUPPORTED
from tools.wheel import REPO

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = Path(__file__).with_name("data_parallel_overlap_worker.py")
LINK = "2gbit"
# How long backward of a layer takes, by setting.
ONE_MACHINE, TWO_MACHINES = "one machine", "two machines"
LAYER_MS = {ONE_MACHINE: 10, TWO_MACHINES: 25}


class Visit(NamedTuple):
    """The time of a step in one visit, and the reducer's hidden share."""

    seconds: float
    hidden: float | None


# By setting, whether gradients are views, and variant.
Found = dict[tuple[str, bool, str], list[Visit]]


@contextlib.contextmanager
def namespaces() -> Iterator[list[str]]:
    """Creates one network namespace per machine, and a slow link between."""
    names = [f"overlap-{os.getpid()}-{number}" for number in range(RANKS)]
    with contextlib.ExitStack() as stack:
        for name in names:
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "delete", name)
        first, second = names
        _run(
            *("ip", "link", "add", "link0", "netns", first, "type", "veth"),
            *("peer", "name", "link0", "netns", second),
        )
        for number, name in enumerate(names, 1):
            inside = ("ip", "-n", name)
            address = f"10.0.0.{number}/24"
            _run(*inside, "address", "add", address, "dev", "link0")
            _run(*inside, "link", "set", "link0", "up")
            _run(*inside, "link", "set", "lo", "up")
            _run(
                *("tc", "-n", name, "qdisc", "add", "dev", "link0", "root"),
                *("tbf", "rate", LINK, "burst", "1mb", "latency", "50ms"),
            )
        yield names


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}. Network "
            "namespaces need root and iproute2."
        )


@contextlib.contextmanager
def ranks_of(setting: str, python: Path) -> Iterator[Ranks]:
    """Starts the ranks of a setting."""
    port = free_port()
    addresses = [f"127.0.0.1:{port + rank}" for rank in range(RANKS)]
    variables = {}
    prefixes: list[list[str]] = [[] for _ in range(RANKS)]
    with contextlib.ExitStack() as stack:
        if setting == TWO_MACHINES:
            # Ranks with separate /dev/shm count as on different machines.
            shell = 'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"'
            prefixes = [
                ["ip", "netns", "exec", name, "sh", "-c", shell]
                for name in stack.enter_context(namespaces())
            ]
            addresses = [f"10.0.0.{rank + 1}:{port}" for rank in range(RANKS)]
            variables["GLOO_SOCKET_IFNAME"] = "link0"
        commands = [
            [
                *prefix,
                str(python),
                str(WORKER),
                *(str(rank), ",".join(addresses), str(LAYER_MS[setting])),
            ]
            for rank, prefix in enumerate(prefixes)
        ]
        yield stack.enter_context(
            contextlib.closing(Ranks(commands, **variables))
        )


def measure(python: Path, visits: int) -> tuple[Found, str]:
    """Returns the results of all visits, and the version of Paddle."""
    found: Found = {
        case: []
        for case in itertools.product(LAYER_MS, (False, True), VARIANTS)
    }
    for setting in LAYER_MS:
        with ranks_of(setting, python) as ranks:
            for visit in range(visits):
                print(f"{setting}, visit {visit + 1} of {visits}", flush=True)
                for views, variant in itertools.product(
                    (False, True), VARIANTS
                ):
                    answers = ranks.ask(variant, views, STEPS)
                    slowest = max(seconds for seconds, _ in answers)
                    found[setting, views, variant].append(
                        Visit(slowest / STEPS, answers[0][1])
                    )
            version = ranks.version
    return found, version


def hidden(nothing_sent: Visit, overlapped: Visit, afterwards: Visit) -> float:
    """Returns the share of the communication that does not lengthen a step."""
    communication = afterwards.seconds - nothing_sent.seconds
    return 1 - (overlapped.seconds - nothing_sent.seconds) / communication


def table(found: Found) -> list[str]:
    """Returns a table of step times and hidden shares of communication."""
    lines = [
        f"| | {' | '.join(f'{each}, ms' for each in VARIANTS)} | hidden | "
        "by the reducer | overhead |",
        "|---" + "|---:" * (len(VARIANTS) + 3) + "|",
    ]
    for setting, views in itertools.product(LAYER_MS, (False, True)):
        cells = []
        for variant in VARIANTS:
            times = [each.seconds for each in found[setting, views, variant]]
            low, median, high = statistics.quantiles(times)
            cells.append(
                f"{median * 1e3:.1f} ({low * 1e3:.1f} to {high * 1e3:.1f})"
            )
        without, nothing, overlapped, afterwards = (
            found[setting, views, variant]
            for variant in (WITHOUT, NOTHING_SENT, OVERLAPPED, AFTERWARDS)
        )
        # Within a visit, all variants had the same machine speed.
        share = statistics.median(map(hidden, nothing, overlapped, afterwards))
        of_reducer = statistics.median(each.hidden for each in overlapped)
        overhead = statistics.median(
            one.seconds / other.seconds - 1
            for one, other in zip(overlapped, without)
        )
        lines.append(
            f"| {setting}{', views' if views else ''} | {' | '.join(cells)} | "
            f"{share:.0%} | {of_reducer:.0%} | {overhead:.0%} |"
        )
    return lines


def report(python: Path, visits: int, file: Path) -> None:
    """Measures, prints the table, and writes the report."""
    found, version = measure(python, visits)
    lines = table(found)
    print(*lines, sep="\n")
    text = [
        "# Communication of DataParallel that is hidden behind backward",
        "",
        "Written by `nox -s bench`. A step is forward and backward of",
        f"{LAYERS} linear layers with 32 MiB of gradients, for one input row.",
        f"Backward of each layer waits for {LAYER_MS[ONE_MACHINE]} ms, with",
        f"two machines for {LAYER_MS[TWO_MACHINES]} ms, and leaves its core",
        f"free meanwhile, as with an accelerator. {RANKS} ranks over shm. The",
        "two machines are network namespaces of one machine, each with its",
        "own /dev/shm; they communicate with gloo over a link that tc slows",
        f"to {LINK}.",
        "",
        f"'{WITHOUT}' is a step under no_sync(). With '{NOTHING_SENT}', a",
        "hook returns each bucket unchanged: gradients are copied, but not",
        f"sent. With '{AFTERWARDS}', all buckets start after backward, through",
        "delay_all_reduce_named_params. 'Hidden' is the share of the",
        f"communication ('{AFTERWARDS}' minus '{NOTHING_SENT}') that does not",
        f"lengthen a step ('{OVERLAPPED}'). 'By the reducer' is hidden_share",
        "of DataParallel.statistics(): of the time from the start of the first",
        "bucket to the end, the share in which backward did not wait.",
        f"'Overhead' is '{OVERLAPPED}' divided by '{WITHOUT}', minus 1.",
        "",
        f"Median of the rounds (quartiles); a round is {STEPS} timed steps",
        f"after {WARM_UP} steps of warm-up. Shares are medians of the rounds'",
        "shares.",
        "",
        f"{machine()}; {visits} rounds; {version}.",
        "",
        *lines,
    ]
    write_report(file, text)
    print(f"\nThe report is {file}")


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.data_parallel_overlap"
    )
    parser.add_argument("--visits", type=int, default=7)
    parser.add_argument(
        "--report",
        type=Path,
        default=REPO / "docs" / "benchmark" / "data_parallel_overlap.md",
    )
    args = parser.parse_args(argv)
    _, ours = stock_and_ours(SUPPORTED[0])
    report(ours, args.visits, args.report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
