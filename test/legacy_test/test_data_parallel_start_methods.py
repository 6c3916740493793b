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
        connection.send(dist.get_rank())
        with contextlib.suppress(EOFError):
            answer_calls(connection)


def connect(listener: Listener, size: int) -> list[Connection]:
    """Returns the connections to the ranks, in order."""
    by_rank = {}
    for _ in range(size):
        connection = Worker(listener.accept).result()
        if not connection.poll(WAIT_S):
            raise AssertionError(f"a rank did not answer in {WAIT_S} s")
        by_rank[connection.recv()] = connection
    return [by_rank[rank] for rank in range(size)]


class SpawnedRanks(Ranks):
    """Ranks that paddle.distributed.spawn starts."""

    def __init__(self, size: int):
        with tempfile.TemporaryDirectory() as folder:
            address = os.path.join(folder, "socket")
            with Listener(address) as listener:
                context = dist.spawn(
                    serve, (address,), size, join=False, backend="gloo"
                )
                self._processes = context.processes
                self._connections = connect(listener, size)


class LaunchedRanks(Ranks):
    """Ranks that paddle.distributed.launch starts."""

    def __init__(self, size: int):
        self._folder = tempfile.TemporaryDirectory()
        address = os.path.join(self._folder.name, "socket")
        with Listener(address) as listener:
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
            self._connections = connect(listener, size)

    def end(self) -> None:
        for connection in self._connections:
            connection.close()
        try:
            status = self._launcher.wait(WAIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._launcher.pid, signal.SIGKILL)
            self._folder.cleanup()
        if status != 0:
            raise AssertionError(f"the launcher exited with status {status}")


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
