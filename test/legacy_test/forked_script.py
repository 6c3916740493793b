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
"""Runs Python scripts in processes that have already imported Paddle.

The import takes longer than most scripts. So a server imports Paddle, once for
all scripts with the same environment, and forks for each script. The child is
like a new Python that has only imported Paddle: it has its own `__main__` and
session, and one thread. Paddle does not regard it as a forked child. It ends
like any Python, except that objects of the import are not collected.

Use `run_command` for a script that tests the import of Paddle, that has to act
before it (for example by setting flags, limits, or handlers of signals, forks
and exits), or that another program starts.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from concurrent_base import (
    WAIT_S,
    Worker,
    finish_command,
    pristine_environment,
    script_command,
    start_command,
)
from killed_test_run import exists

import paddle

if TYPE_CHECKING:
    import unittest


class _Server:
    """
    Runs script_server.py until the tests end. The main thread must start it,
    because it ends with the thread that has started it.
    """

    def __init__(self, environment: dict[str, str]):
        assert threading.current_thread() is threading.main_thread()
        self._socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._socket.settimeout(WAIT_S)
        self._asking = threading.Lock()
        serve = "exec(__import__('script_server').next_script())"
        with theirs:
            self._process = start_command(
                script_command(serve),
                environment,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
            )

    def ask(self, request: int | list[str], streams: tuple = ()) -> int:
        """Sends a request, and returns the answer; see script_server.py."""
        with self._asking:
            message = json.dumps(request).encode()
            try:
                socket.send_fds(self._socket, [message], streams)
                answer = self._socket.recv(32)
            except BaseException:
                # The next request would get the late answer to this one. This
                # ends the server and its scripts.
                self._socket.close()
                raise
        if not answer:
            raise AssertionError("the server has ended: stderr has the reason")
        return int(answer)


@functools.cache
def _server(environment: frozenset[tuple[str, str]]) -> _Server:
    return _Server(dict(environment))


class ForkedScript:
    """A script that runs in a fork of a server; like a subprocess.Popen."""

    def __init__(self, server: _Server, args: list[str]):
        self._server = server
        self.args = args
        self.returncode: int | None = None
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        try:
            self.pid = server.ask(args, (its_out, its_err))
        finally:
            os.close(its_out)
            os.close(its_err)
        self._readers: list[Worker] = []

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        streams = (self.stdout, self.stderr)
        self._readers = self._readers or [Worker(s.read) for s in streams]
        for reader in self._readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        out, err = (reader.result() for reader in self._readers)
        for stream in streams:
            stream.close()
        self.wait(timeout)
        return out, err

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            deadline = time.monotonic() + (timeout or WAIT_S)
            while exists(self.pid):
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.01)
            status = self._server.ask(self.pid)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start_forked_script(
    script: str, *arguments: str, **variables: str
) -> ForkedScript | subprocess.Popen:
    """
    Starts a script, whose stdout and stderr are pipes, in the tests' folder and
    the environment that this process was started with, plus `variables`. It is
    killed when the tests end.
    """
    environment = {**pristine_environment(), **variables}
    # CUDA does not work in forks of a process that has initialized it.
    if sys.platform == "linux" and paddle.device.cuda.device_count() == 0:
        server = _server(frozenset(environment.items()))
        return ForkedScript(server, [script, *arguments])
    return start_command(
        [*script_command(script), *arguments],
        # In a fork, messages of the import go to the server's stderr.
        {**environment, "GLOG_minloglevel": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run_forked_script(
    case: unittest.TestCase, script: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess:
    """
    Runs a script like `start_forked_script` to its end; fails `case` unless it
    exits with 0.
    """
    process = start_forked_script(script, *arguments, **variables)
    return finish_command(case, process)
