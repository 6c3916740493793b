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
"""Helpers for per-thread device tests: lists of devices, and scripts."""

from __future__ import annotations

import functools
import os
import sys
import textwrap
import unittest
from typing import TYPE_CHECKING

import numpy as np
from concurrent_base import (
    in_thread,
    pristine_environment,
    run_command,
    script_command,
)
from forked_script import run_forked_script

import paddle

if TYPE_CHECKING:
    from collections.abc import Callable


def device_lists() -> dict[str, list[str]]:
    """
    Returns a list of devices for each kind of machine that the tests support.
    Each list ends with the CPU. For a kind that this machine lacks, the list
    has only the CPU. If it lacks all kinds, the only kind is "cpu".
    """
    counts = {
        "gpu": paddle.device.cuda.device_count()
        if paddle.is_compiled_with_cuda()
        else 0,
        "custom_cpu": paddle.framework.core.get_custom_device_count(
            "custom_cpu"
        )
        if "custom_cpu" in paddle.device.get_all_custom_device_type()
        else 0,
    }
    lists = {
        kind: [f"{kind}:{i}" for i in range(count)] + ["cpu"]
        for kind, count in counts.items()
    }
    return lists if any(counts.values()) else {"cpu": ["cpu"]}


def on_every_device_list(case: type) -> None:
    """
    Class decorator: replaces a test case that reads `self.devices` with one
    case per kind of machine, which is skipped on other machines.
    """
    module = sys.modules[case.__module__]
    for kind, devices in device_lists().items():
        name = f"{case.__name__}_{kind}"
        members = {"devices": devices, "__module__": case.__module__}
        derived = type(name, (_OnDevices, case), members)
        if len(devices) == 1 and kind != "cpu":
            derived.__unittest_skip__ = True
            derived.__unittest_skip_why__ = f"no device of kind {kind!r} here"
        setattr(module, name, derived)


_ANOTHER_DEVICE = (
    "a GPU, or the plugin in test/custom_runtime/host_device, built and named "
    "by CUSTOM_DEVICE_ROOT"
)


def needs_another_device(test: Callable) -> Callable:
    """
    Decorator for a test that reads `self.devices`: skips it where the CPU is
    the only device.
    """

    @functools.wraps(test)
    def run(case: unittest.TestCase) -> None:
        if len(case.devices) == 1:
            case.skipTest(
                f"needs another device than the CPU: {_ANOTHER_DEVICE}"
            )
        test(case)

    return run


def check_has_streams(case: unittest.TestCase) -> None:
    """Skips a test that reads `self.devices` if the CPU is the only device."""
    if len(case.devices) == 1:
        case.skipTest(f"needs a device that has streams: {_ANOTHER_DEVICE}")


class _OnDevices:
    """
    Starts each test on the first device, and restores the device afterwards.
    `other` is the second device, or the first if there is only one.
    """

    devices: list[str]

    @property
    def other(self) -> str:
        return self.devices[:2][-1]

    def setUp(self):
        before = paddle.get_device()
        self.addCleanup(paddle.set_device, before)
        paddle.set_device(self.devices[0])
        super().setUp()


def places_of_new_tensors() -> set[str]:
    """
    Returns the calling thread's current devices according to `get_device` and
    to new tensors. Python chooses the place of most of these tensors, C++ that
    of the last one.
    """
    tensors = (
        paddle.to_tensor([1.0]),
        paddle.zeros([2]),
        paddle.rand([2]),
        paddle.nn.Linear(2, 2)(paddle.ones([1, 2])),
        paddle.Tensor(np.ones(2)),
    )
    return {paddle.get_device(), *map(place_name, tensors)}


def place_name(tensor: paddle.Tensor) -> str:
    """Returns a tensor's place in the format of `paddle.get_device`."""
    return str(tensor.place)[len("Place(") : -1]


def handle(stream: paddle.device.Stream) -> int:
    """Returns the handle of a stream, which is unique on its device."""
    return stream.stream_base.raw_stream


def current_handles(devices: list[str]) -> list[int]:
    """Returns the current stream of the calling thread on each device."""
    return [handle(paddle.device.current_stream(device)) for device in devices]


class StreamTestCase(unittest.TestCase):
    """
    Base class of stream tests, for `on_every_device_list`: `accelerators` are
    the devices with streams, `defaults` their default streams. After each test,
    the main thread and new threads must use the default streams.
    """

    def setUp(self):
        super().setUp()
        check_has_streams(self)
        self.accelerators = self.devices[:-1]
        self.defaults = self.current()
        self.addCleanup(self.check_all_are_on_the_defaults)

    def current(self) -> list[int]:
        return current_handles(self.accelerators)

    def check_all_are_on_the_defaults(self):
        self.assertEqual(self.current(), self.defaults)
        self.assertEqual(in_thread(self.current), self.defaults)

    def with_first(self, stream: paddle.device.Stream) -> list[int]:
        """Returns the default streams, with `stream` for the first device."""
        return [handle(stream), *self.defaults[1:]]

    def second_accelerator(self) -> str:
        if len(self.accelerators) == 1:
            self.skipTest("needs two accelerators")
        return self.accelerators[1]

    def check_computes(self):
        """Checks a result that the current device computes."""
        twice = paddle.full([4], 3.0) * 2
        self.assertEqual((twice + twice).tolist(), [12.0] * 4)

    def on_new_stream(self, function, *args):
        """Calls a function on a new stream, then checks the current streams."""
        stream = paddle.device.Stream()
        with paddle.device.stream_guard(stream):
            result = function(*args)
            self.assertEqual(self.current(), self.with_first(stream))
        return result

    def on_threads(self, function, *args):
        """
        Calls a function on two threads with different streams, on a thread
        without its own stream and on the main thread. Checks that all results
        are equal, and returns the result.
        """
        results = [
            in_thread(self.on_new_stream, function, *args),
            in_thread(self.on_new_stream, function, *args),
            in_thread(function, *args),
            function(*args),
        ]
        self.assertEqual(results, [results[0]] * len(results))
        return results[0]


# It does not import Paddle: some scripts import it in their own way.
SCRIPT_HEAD = """
import faulthandler, multiprocessing, os, signal, sys, threading
from concurrent_base import *
def forked(function):
    pid = os.fork()
    if pid == 0:
        # A child that hangs prints its stacks and ends before its parent is
        # killed. This uses a signal: `dump_traceback_later` starts a thread.
        faulthandler.register(signal.SIGALRM, chain=True)
        signal.alarm(60)
        try:
            function()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
"""


def run_script(
    case: unittest.TestCase,
    body: str,
    devices: list[str],
    tests_import: bool = False,
) -> str:
    """
    Runs `body` in a separate process, since it forks or imports Paddle in its
    own way; `tests_import` says the latter. It can use the helpers, `devices`,
    and `other`: the second device, or the only one. Returns the process's
    stderr.
    """
    script = (
        f"{SCRIPT_HEAD}devices = {devices!r}\n"
        "other = next(reversed(devices[:2]), None)\n"
        f"{textwrap.dedent(body)}"
    )
    if not tests_import:
        return run_forked_script(case, script).stderr
    environment = {**pristine_environment(), "GLOG_minloglevel": "2"}
    return run_command(case, script_command(script), environment).stderr


@unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
class ForkTestCase(unittest.TestCase):
    """
    Base class of tests that fork. They run on the plugin, or on a machine with
    only a CPU, since a process must not fork after it has used a GPU.
    """

    devices = device_lists().get("custom_cpu", ["cpu"])

    def setUp(self):
        if len(self.devices) == 1 and "gpu" in device_lists():
            self.skipTest(
                "no device of kind 'custom_cpu' here, and no fork on GPUs"
            )
