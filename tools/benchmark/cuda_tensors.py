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
"""Measures GPU memory sent between processes: ours against torch.

    python -m tools.benchmark.cuda_tensors [--report FILE.md]

Needs a GPU, torch with CUDA, CMake, Ninja and a C++ compiler. It does not need
Paddle, because ours is only the core. A time is from sending storages that were
not sent before until the receiver's answer, which contains a word of each
message. Without torch.cuda, or with the stand-in driver, only ours runs, and
the result is not a measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import multiprocessing
import multiprocessing.util
import secrets
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools.command_line import reports_errors
from tools.series import PatchError
from tools.wheel import BUILD, cmake_build, step

PATIENCE = 120  # seconds to wait for an answer
VISITS = 5
WARM_UP = 2  # rounds of a visit
MIB = 1 << 20
DROPPED = "dropped"


class Row(NamedTuple):
    """Messages sent in a row: each a list of storages, or an int if empty."""

    size: int
    storages: int
    messages: int
    rounds: int


FLOOR, SMALLEST, BURST = "an int", "1 KiB", "1,000 x 1 KiB"
ROWS = {
    FLOOR: Row(0, 0, 1, 50),
    SMALLEST: Row(1 << 10, 1, 1, 50),
    "64 MiB": Row(64 * MIB, 1, 1, 10),
    "1 GiB": Row(1024 * MIB, 1, 1, 5),
    "64 x 4 KiB": Row(4 << 10, 64, 1, 10),
    BURST: Row(1 << 10, 1, 1000, 2),
}
HELD = Row(64 * MIB, 1, 4, 1)
PAGE = """\
# GPU memory between processes

{facts}

{table}

The two take turns. Except for storages per second, less is better. A time is
from sending storages that were not sent before until the receiver's answer,
which contains a word of each message. The last row is what the sender's device
still holds after the receiver was killed.

Measured by `python -m tools.benchmark.cuda_tensors --report FILE`. It needs a
GPU, CMake, Ninja, a C++ compiler and a PyTorch with CUDA, but not Paddle.
"""


class Storage:
    """A storage of the core, dropped with the last reference to this object."""

    def __init__(self, call, maker: str, *arguments) -> None:
        self._call, self.pointer = call, ctypes.c_void_p()
        call(maker, *arguments, ctypes.byref(self.pointer))

    def __del__(self) -> None:
        self._call("Drop", self.pointer)


class Ours:
    """Our core library, loaded in a process of a process tree."""

    def __init__(self, library: Path, tree: int) -> None:
        self._core = ctypes.CDLL(str(library))
        self._message = ctypes.create_string_buffer(self._core.MessageBytes())
        self._call("Start", ctypes.c_uint64(tree))
        # Runs after the receivers have ended.
        multiprocessing.util.Finalize(
            None, self._call, args=("Leave",), exitpriority=-1
        )

    def _call(self, name: str, *arguments) -> None:
        function = getattr(self._core, name)
        function.restype = ctypes.c_char_p
        error = function(*arguments)
        if error:
            raise PatchError(error.decode())

    def make(self, size: int, count: int, word: int) -> list:
        arguments = (self._call, "Cut", ctypes.c_uint64(size), word)
        return [Storage(*arguments) for _ in range(count)]

    def sendable(self, storage: Storage) -> bytes:
        self._call("Send", storage.pointer, self._message)
        return self._message.raw

    def usable(self, message: bytes) -> Storage:
        return Storage(self._call, "Receive", message)

    def word(self, storage: Storage) -> int:
        word = ctypes.c_uint32()
        self._call("ReadWord", storage.pointer, ctypes.byref(word))
        return word.value

    def bytes_held(self) -> int:
        sent = ctypes.c_uint64()
        self._call("Collect", ctypes.byref(sent))
        return sent.value


class Torch:
    """The same interface for torch, which sends the tensors themselves."""

    def __init__(self) -> None:
        import torch.multiprocessing

        self._torch = torch

    def make(self, size: int, count: int, word: int) -> list:
        options = {"dtype": self._torch.int32, "device": "cuda"}
        made = [self._torch.empty(size // 4, **options) for _ in range(count)]
        for tensor in made:
            tensor[0] = word
        self._torch.cuda.synchronize()
        return made

    def sendable(self, tensor):
        return tensor

    usable = sendable

    def word(self, tensor) -> int:
        return int(tensor[0])

    def bytes_held(self) -> int:
        self._torch.cuda.ipc_collect()
        return self._torch.cuda.memory_allocated()


def receive(contestant, count: int, messages) -> tuple[list, int]:
    """Returns the storages of `count` messages, and the sum of their words."""
    held, words = [], 0
    for _ in range(count):
        message = messages.get()
        if isinstance(message, int):
            words += message
        else:
            held += [contestant.usable(sent) for sent in message]
            words += contestant.word(held[-1])
    return held, words


def serve(contestant_of, messages, answers) -> None:
    """The receiver.

    It first gets the number of messages, then the messages, and finally the
    request to drop them.
    """
    try:
        contestant = contestant_of()
        gc.freeze()
        while True:
            count = messages.get()
            held, words = receive(contestant, count, messages)
            answers.send(words)
            messages.get()
            del held
            answers.send(DROPPED)
    except Exception as error:
        answers.send(repr(error))


class Pair:
    """A contestant in this process, and its receiver.

    Raises:
        PatchError: in methods, if the receiver gives an unexpected answer.
    """

    def __init__(self, contestant_of) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._messages = spawn.SimpleQueue()
        self._answers, theirs = spawn.Pipe(duplex=False)
        args = (contestant_of, self._messages, theirs)
        self._receiver = spawn.Process(target=serve, args=args, daemon=True)
        self._receiver.start()
        # Otherwise the end of the receiver would go unnoticed.
        theirs.close()
        self._messages._reader.close()
        self._contestant = contestant_of()
        gc.freeze()

    def _expect(self, due: int | str) -> None:
        answer = f"none in {PATIENCE} s"
        if self._answers.poll(PATIENCE):
            try:
                answer = self._answers.recv()
            except EOFError:
                answer = "its end"
        if answer != due:
            raise PatchError(f"the receiver's answer is not {due}: {answer}")

    def _send(self, row: Row, word: int) -> tuple[list, float]:
        """Returns the storages that the receiver holds, and the seconds."""
        self._messages.put(row.messages)
        count = row.storages * row.messages
        made = self._contestant.make(row.size, count, word)
        lists = [made[i :: row.messages] for i in range(row.messages)]
        sendable = self._contestant.sendable
        start = time.perf_counter()
        # If the receiver ended, its answer says why.
        with contextlib.suppress(BrokenPipeError):
            for each in lists:
                self._messages.put([sendable(one) for one in each] or word)
        self._expect(word * row.messages)
        return made, time.perf_counter() - start

    def seconds(self, row: Row) -> list[float]:
        """Returns the seconds of each round; a burst includes the drop."""
        rounds = []
        for word in range(1, WARM_UP + row.rounds + 1):
            made, seconds = self._send(row, word)
            start = time.perf_counter()
            self._messages.put(DROPPED)
            self._expect(DROPPED)
            dropping = time.perf_counter() - start
            rounds.append(seconds + (dropping if row == ROWS[BURST] else 0))
            del made
        return rounds[WARM_UP:]

    def bytes_left(self) -> int:
        """Returns the bytes of HELD that stay when its receiver is killed."""
        before = self._contestant.bytes_held()
        made, _ = self._send(HELD, 1)
        self._receiver.kill()
        self._receiver.join()
        del made
        return self._contestant.bytes_held() - before


def measure(pairs: dict[str, Pair], rows: dict[str, Row]) -> list[dict]:
    """Returns a column of the table for each pair; the pairs take turns."""
    seconds = {name: {label: [] for label in rows} for name in pairs}
    for _ in range(VISITS):
        for label, row in rows.items():
            for name, pair in pairs.items():
                seconds[name][label] += pair.seconds(row)
    return [column(seconds[name], pairs[name].bytes_left()) for name in pairs]


def column(seconds: dict[str, list[float]], left: int) -> dict[str, float]:
    medians = {row: statistics.median(of) for row, of in seconds.items()}
    burst = medians.pop(BURST)
    over = medians[SMALLEST] - medians[FLOOR]
    return {
        **{f"{row}, µs": 1e6 * median for row, median in medians.items()},
        f"{SMALLEST} minus {FLOOR}, µs": 1e6 * over,
        f"{BURST}, kept and dropped: storages per second": 1000 / burst,
        "left of 4 x 64 MiB, the receiver killed, MiB": left / MIB,
    }


def table(names: list[str], columns: list[dict], mark: str) -> list[str]:
    """Returns a Markdown table, with the ratio of its two columns."""
    lines = [
        f"| median | {' | '.join(names)} | ours / torch |",
        "|---|" + "---:|" * (len(names) + 1),
    ]
    for label in columns[0]:
        values = [of[label] for of in columns]
        cells = [label + mark, *(f"{value:,.1f}" for value in values)]
        has_ratio = len(values) == 2 and values[1]
        cells.append(f"{values[0] / values[1]:.2f}" if has_ratio else "")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def obstacle() -> str:
    """Returns why measuring is impossible here, or an empty string.

    Raises:
        PatchError: ours cannot run either.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise PatchError(f"no CUDA driver found: {error}") from None
    if hasattr(driver, "StandInCalls"):
        return "stand-in"
    try:
        import torch
    except ImportError:
        return "no torch"
    return "" if torch.cuda.is_available() else "no torch.cuda"


def machine() -> str:
    """Returns the description of what was measured."""
    import torch

    query = [
        "nvidia-smi",
        "--query-gpu=driver_version",
        "--format=csv,noheader",
    ]
    drivers = subprocess.check_output(query, text=True).split()
    return (
        f"{torch.cuda.get_device_name(0)}, driver {drivers[0]}, torch "
        f'{torch.__version__}. "Ours" sends storages of the C++ core, '
        "without Paddle; torch sends tensors."
    )


@reports_errors
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmark.cuda_tensors"
    )
    parser.add_argument("--report", type=Path, help="printed without it")
    args = parser.parse_args(argv)
    missing = obstacle()
    facts = "No report is written." if missing else machine()
    folder = BUILD / "benchmark" / "cuda_core"
    with step(f"building {folder}"):
        cmake_build(Path(__file__).with_name("cuda_core"), folder)
    tree = 1 + secrets.randbits(63)
    contestants = {"ours": partial(Ours, folder / "libcuda_core.so", tree)}
    largest = max(row.size for row in ROWS.values())
    if missing:
        # The stand-in driver allocates host memory.
        largest = HELD.size
    else:
        contestants["torch"] = Torch
    rows = {k: row for k, row in ROWS.items() if row.size <= largest}
    pairs = {name: Pair(of) for name, of in contestants.items()}
    mark = f" ({missing}, no measurement)" if missing else ""
    lines = table(list(pairs), measure(pairs, rows), mark)
    if missing or not args.report:
        print(facts, "", *lines, sep="\n")
    else:
        page = PAGE.format(facts=facts, table="\n".join(lines))
        args.report.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
