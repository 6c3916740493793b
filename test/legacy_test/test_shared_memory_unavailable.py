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
"""Sharing on a system without open file description locks, as before Linux 3.15
and in some sandboxes. Paddle then sends tensors and batches as it did before.

A filter of system calls makes the kernel answer as such a system does.
"""

import platform
import sys
import unittest

from concurrent_base import (
    pristine_environment,
    run_command,
    script_command,
)

# The numbers of fcntl and of the architecture, by the machine.
_MACHINES = {"x86_64": (72, 0xC000003E), "aarch64": (25, 0xC00000B7)}

# Documentation/userspace-api/seccomp_filter.rst of Linux explains such filters.
_FILTER = """
import ctypes, errno, fcntl, os, struct

LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER, ARCHITECTURE, SECOND_ARGUMENT = 0, 4, 24
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NO_NEW_PRIVILEGES, SET_FILTER, FILTER_MODE = 38, 22, 2

steps = [
    (LOAD, 0, 0, ARCHITECTURE),
    (JUMP_IF_EQUAL, 0, 6, {architecture}),
    (LOAD, 0, 0, NUMBER),
    (JUMP_IF_EQUAL, 0, 4, {fcntl}),
    (LOAD, 0, 0, SECOND_ARGUMENT),
    (JUMP_IF_EQUAL, 1, 0, fcntl.F_OFD_SETLK),
    (JUMP_IF_EQUAL, 0, 1, fcntl.F_OFD_GETLK),
    (RETURN, 0, 0, FAIL | errno.EINVAL),
    (RETURN, 0, 0, ALLOW),
]
code = b"".join(struct.pack("HBBI", *step) for step in steps)
buffer = ctypes.create_string_buffer(code, len(code))
program = ctypes.create_string_buffer(
    struct.pack("HP", len(steps), ctypes.addressof(buffer))
)
prctl = ctypes.CDLL(None, use_errno=True).prctl
for arguments in (
    (NO_NEW_PRIVILEGES, 1, 0, 0, 0),
    (SET_FILTER, FILTER_MODE, program, 0, 0),
):
    if prctl(*arguments) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
try:
    fcntl.fcntl(0, fcntl.F_OFD_GETLK, bytes(32))
    raise AssertionError("there are locks")
except OSError as error:
    assert error.errno == errno.EINVAL
"""

_SEND = """
import paddle
from paddle import multiprocessing

paddle.set_device("cpu")

def send(queue):
    queue.put(paddle.full([5], 7.0))
    acknowledged.get()

context = multiprocessing.get_context("fork")
queue, acknowledged = context.Queue(), context.Queue()
child = context.Process(target=send, args=(queue,))
child.start()
assert queue.get().tolist() == [7.0] * 5
acknowledged.put(None)
child.join()
assert child.exitcode == 0
"""

_LOAD = """
import numpy as np
import paddle

class Squares(paddle.io.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return np.float32([index * index])

loader = paddle.io.DataLoader(Squares(), batch_size=2, num_workers=2)
sums = [float(batch.sum()) for batch in loader]
assert sums == [1.0, 13.0, 41.0, 85.0], sums
"""

_SHARE = """
import paddle

paddle.set_device("cpu")
x = paddle.ones([3])
try:
    x.share_memory_()
except RuntimeError as error:
    assert "has no open file description locks" in str(error), error
else:
    raise AssertionError("shared without locks")
assert x.tolist() == [1.0] * 3
"""


HAS_FILTER = sys.platform == "linux" and platform.machine() in _MACHINES


def run_without_locks(case: unittest.TestCase, script: str) -> None:
    """Runs a script in a process to which the kernel grants no locks."""
    number, architecture = _MACHINES[platform.machine()]
    prefix = _FILTER.format(fcntl=number, architecture=architecture)
    run_command(case, script_command(prefix + script), pristine_environment())


@unittest.skipUnless(
    HAS_FILTER, "the filter is for Linux on x86-64 and AArch64"
)
class TestWithoutLocks(unittest.TestCase):
    def test_tensors_are_sent(self):
        run_without_locks(self, _SEND)

    def test_batches_of_worker_processes_are_loaded(self):
        run_without_locks(self, _LOAD)

    def test_sharing_in_place_says_what_is_missing(self):
        run_without_locks(self, _SHARE)


if __name__ == "__main__":
    unittest.main()
