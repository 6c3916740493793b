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
"""paddle.DataParallel on ranks that `spawn` and `launch` started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from concurrent_base import (
    WAIT_S,
    Worker,
    pristine_environment,
    start_command,
)
from data_parallel_base import Ranks, RanksCase, answer_calls
from test_data_parallel_reducer import CoreCases

import paddle.distributed as dist


def serve(address: str) -> None:
    """Answers the calls of the test process until it closes the connection."""
    with Client(address) as connection:
        connection.send((dist.get_rank(), os.getpid()))
        with contextlib.suppress(EOFError):
            answer_calls(connection)


class ConnectedRanks(Ranks):
    """Ranks that connect to this process, however they are started."""

    def __init__(self, size: int):
        self._connections: list[Connection] = []
        self._pids: list[int] = []
        self._folder = tempfile.TemporaryDirectory()
        address = os.path.join(self._folder.name, "socket")
        try:
            with Listener(address) as listener:
                self.start(address, size)
                self.accept(listener, size)
        except BaseException:
            self.kill()
            raise

    def start(self, address: str, size: int) -> None:
        raise NotImplementedError

    def accept(self, listener: Listener, size: int) -> None:
        by_rank = {}
        for _ in range(size):
            connection = Worker(listener.accept).result()
            if not connection.poll(WAIT_S):
                raise AssertionError(f"a rank did not answer in {WAIT_S} s")
            rank, pid = connection.recv()
            by_rank[rank] = connection
            self._pids.append(pid)
        self._connections = [by_rank[rank] for rank in range(size)]

    def _answer(self, rank: int) -> Any:
        if not self._connections[rank].poll(WAIT_S):
            raise AssertionError(f"rank {rank} did not answer in {WAIT_S} s")
        return self._connections[rank].recv()

    def kill(self) -> None:
        # The launcher gives each rank a session of its own.
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._folder.cleanup()


class SpawnedRanks(ConnectedRanks):
    """Ranks that paddle.distributed.spawn starts."""

    def start(self, address: str, size: int) -> None:
        self._context = dist.spawn(
            serve, (address,), size, join=False, daemon=True, backend="gloo"
        )

    def end(self) -> None:
        self.kill()
        for process in self._context.processes:
            process.join(WAIT_S)


class LaunchedRanks(ConnectedRanks):
    """Ranks that paddle.distributed.launch starts."""

    def start(self, address: str, size: int) -> None:
        self._launcher = start_command(
            [
                *(sys.executable, "-m", "paddle.distributed.launch"),
                *("--nproc_per_node", str(size)),
                *("--log_dir", self._folder.name),
                *(os.path.abspath(__file__), "serve", address),
            ],
            {
                **pristine_environment(),
                "PADDLE_DISTRI_BACKEND": "gloo",
                # If there are devices, the launcher gives each rank one.
                "CUSTOM_DEVICE_ROOT": "",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._launcher.pid, signal.SIGKILL)
        super().kill()

    def logs(self) -> str:
        files = sorted(Path(self._folder.name).glob("workerlog.*"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def end(self) -> None:
        for connection in self._connections:
            connection.close()
        try:
            status = self._launcher.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            status = None
        if status == 0:
            self._folder.cleanup()
            return
        logs = self.logs()
        self.kill()
        raise AssertionError(f"the launcher's status is {status}:\n{logs}")


class TestSpawn(CoreCases, RanksCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.ranks = SpawnedRanks(cls.size)


class TestLaunch(CoreCases, RanksCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.ranks = LaunchedRanks(cls.size)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        unittest.main()
