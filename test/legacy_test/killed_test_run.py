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
"""Ends the processes of tests when the test run is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG = 1
# The test process; its forked children have the same value.
_tests = os.getpid()


def end_with(starter: int) -> None:
    """
    Makes the kernel kill this process when the process that started it ends.
    The starter must have started it from its main thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != starter:
        # The starter has already ended.
        os._exit(1)


def end_with_tests() -> None:
    """Calls `end_with` in a child of the tests, for example as `preexec_fn`."""
    end_with(_tests)


def wait_until_tests_end() -> None:
    """Waits until the test process has ended."""
    while exists(_tests):
        time.sleep(0.01)


def exists(pid: int) -> bool:
    """Returns whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
