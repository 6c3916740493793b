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
"""Checks the arguments of `spawn` and `start_processes`."""

from __future__ import annotations

import math
import multiprocessing
import numbers
import signal
import sys
from collections.abc import Sequence
from typing import Callable

from .device_names import device_counts, parse

_INSTALL_HINTS = {
    "gpu": "This Paddle was built without CUDA: install paddlepaddle-gpu.",
    "xpu": "This Paddle was built without XPU: install paddlepaddle-xpu.",
}
_INSTALL_HINT_OF_OTHERS = (
    "The plugin of a custom device is loaded from the folder that the "
    "environment variable CUSTOM_DEVICE_ROOT names."
)


def check(fn: Callable, args: tuple, nprocs: int, start_method: str) -> None:
    if sys.platform != "linux":
        raise NotImplementedError(
            "spawn() and start_processes() need Linux, but this is "
            f"{sys.platform!r}. Run this program on Linux."
        )
    if not callable(fn):
        raise TypeError(f"`fn` must be callable, but received {fn!r}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            "`args` must be a tuple of the arguments after the rank, such as "
            f"(x,), but received {type(args).__name__}."
        )
    if not isinstance(nprocs, numbers.Integral) or isinstance(nprocs, bool):
        raise TypeError(
            f"`nprocs` must be an integer, but received {nprocs!r}."
        )
    if nprocs < 0:
        raise ValueError(f"`nprocs` must be at least 0, but received {nprocs}.")
    methods = multiprocessing.get_all_start_methods()
    if start_method not in methods:
        raise ValueError(
            f"`start_method` must be one of {methods}, but received "
            f"{start_method!r}."
        )
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        # The kernel then discards exit codes, and join would never return.
        raise RuntimeError(
            "The SIGCHLD signal must not be ignored, because exit codes are "
            "lost then. Call signal.signal(signal.SIGCHLD, signal.SIG_DFL) "
            "before starting processes."
        )


def check_seconds(name: str, seconds: float | None) -> None:
    if seconds is None:
        return
    if not isinstance(seconds, numbers.Real) or math.isnan(seconds):
        raise ValueError(
            f"`{name}` must be None or a number of seconds, but received "
            f"{seconds!r}."
        )


def device_names(
    devices: str | Sequence[str] | None, nprocs: int, start_method: str
) -> list[str] | list[None]:
    """Returns the device of each process, after checking that it exists."""
    if devices is None:
        return [None] * nprocs
    if isinstance(devices, str):
        names = _names_of_type(devices, nprocs)
    else:
        if not isinstance(devices, Sequence):
            raise TypeError(
                "`devices` must be None, the name of a type or a sequence of "
                f"names, but received {devices!r}."
            )
        names = list(devices)
        if len(names) != nprocs:
            raise ValueError(
                "`devices` must be one for each process, but received "
                f"{len(names)} devices for {nprocs} processes."
            )
        for name in names:
            _check_device(name)
    # Importing Paddle has initialized CUDA.
    if start_method == "fork" and any(name.startswith("gpu") for name in names):
        raise ValueError(
            "`start_method` must be 'spawn' or 'forkserver' with a GPU among "
            f"the devices {names}, but received 'fork': a forked process "
            "cannot use CUDA."
        )
    return names


def _names_of_type(kind: str, nprocs: int) -> list[str]:
    if kind == "cpu":
        return ["cpu"] * nprocs
    count = _device_count(kind)
    if count < nprocs:
        raise ValueError(
            f"The devices of type {kind!r} must be one for each process, but "
            f"there are {count} for {nprocs} processes."
        )
    return [f"{kind}:{rank}" for rank in range(nprocs)]


def _check_device(name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(
            "`devices` must be names such as 'cpu' or 'gpu:0', but received "
            f"{name!r}."
        )
    if name == "cpu":
        return
    kind, index, _ = parse(name)
    if kind == "cpu":
        raise ValueError(
            f"The device {name!r} has an index, but there is one CPU device. "
            "Write 'cpu'."
        )
    count = _device_count(kind)
    if index is None or index >= count:
        raise ValueError(
            f"The devices of type {kind!r} must be '{kind}:<index>' with an "
            f"index less than {count}, but received {name!r}."
        )


def _device_count(kind: str) -> int:
    counts = device_counts()
    if kind not in counts:
        hint = _INSTALL_HINTS.get(kind, _INSTALL_HINT_OF_OTHERS)
        raise ValueError(
            f"The type of the devices must be one of {['cpu', *counts]}, but "
            f"received {kind!r}. {hint}"
        )
    return counts[kind]
