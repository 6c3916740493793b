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
"""Checks the arguments of `start_processes`, `spawn` and `start_threads`."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable

from paddle.base import core
from paddle.base.device_counts import (
    device_counts,
    device_names,
)

from .argument_checks import check_count
from .device_names import name_of, parse

if TYPE_CHECKING:
    from paddle._typing import PlaceLike

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
    check_call(fn, args, nprocs, "nprocs")
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


def check_call(fn: Callable, args: tuple, count: int, name: str) -> None:
    """Checks a function, its arguments, and the number of its calls."""
    if not callable(fn):
        raise TypeError(f"`fn` must be callable, but received {fn!r}.")
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            "`args` must be a tuple of the arguments after the rank, such as "
            f"(x,), but received {type(args).__name__}."
        )
    check_count(name, count, 0)


def devices_of_ranks(
    devices: str | Sequence[PlaceLike] | None, world_size: int
) -> list[str] | list[None]:
    """Returns the name of the device of each rank, after checking that it
    exists."""
    if devices is None:
        return [None] * world_size
    if isinstance(devices, str):
        return _names_of_type(devices, world_size)
    if not isinstance(devices, Sequence):
        raise TypeError(
            "`devices` must be None, the name of a type or a sequence of "
            f"names or places, but received {devices!r}."
        )
    if len(devices) != world_size:
        raise ValueError(
            "`devices` must name one device per rank, but received "
            f"{len(devices)} devices for {world_size} ranks."
        )
    return [_name_of_device(device) for device in devices]


def check_fork(names: list[str] | list[None]) -> None:
    """Checks that forked processes may use the devices."""
    # Importing Paddle has initialized CUDA.
    if any(name is not None and name.startswith("gpu") for name in names):
        raise ValueError(
            "`start_method` must be 'spawn' or 'forkserver' with a GPU among "
            f"the devices {names}, but received 'fork': a forked process "
            "cannot use CUDA."
        )


def _names_of_type(device_type: str, world_size: int) -> list[str]:
    if ":" in device_type:
        # Raises the error of a wrong name.
        name = _name_of_device(device_type)
        raise ValueError(
            "`devices` must be a type such as 'cpu' or 'gpu', or a sequence of "
            f"one device per rank, but received {device_type!r}. Pass "
            f"{[name]} * {world_size} to use one device for all ranks."
        )
    kind, _ = parse(device_type)
    if kind == "cpu":
        return ["cpu"] * world_size
    count = _device_count(kind, device_type)
    if count < world_size:
        raise ValueError(
            f"There must be one device of type {kind!r} per rank, but there "
            f"are {count} for {world_size} ranks."
        )
    return [f"{kind}:{rank}" for rank in range(world_size)]


def _name_of_device(device: PlaceLike) -> str:
    if not isinstance(device, (str, core.Place)):
        raise TypeError(
            "`devices` must be places or names such as 'cpu' or 'gpu:0', but "
            f"received {device!r}. The devices of this process are "
            f"{', '.join(device_names())}."
        )
    name = device if isinstance(device, str) else name_of(device)
    kind, index = parse(name)
    if kind == "cpu":
        if ":" in name:
            raise ValueError(
                f"The device {device!r} has an index, but there is one CPU "
                "device. Write 'cpu'."
            )
        return kind
    count = _device_count(kind, device)
    if index is None or index >= count:
        raise ValueError(
            f"The devices of type {kind!r} must be '{kind}:<index>' with an "
            f"index less than {count}, but received {device!r}."
        )
    return f"{kind}:{index}"


def _device_count(kind: str, device: PlaceLike) -> int:
    """Returns the number of devices of the type that `device` names."""
    counts = device_counts()
    if kind not in counts:
        hint = _INSTALL_HINTS.get(kind, _INSTALL_HINT_OF_OTHERS)
        raise ValueError(
            f"The type of the devices must be one of {['cpu', *counts]}, but "
            f"received {device!r}. {hint}"
        )
    return counts[kind]
