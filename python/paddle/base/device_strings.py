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
"""Converts device strings, indices and other values to places.

A device string is 'cpu', or a type with or without an index: 'gpu' or 'gpu:0',
'xpu', 'ipu', or a type that a plugin registered. 'cuda' and 'dcu' mean 'gpu'.
Every error names the value and the devices that exist. It is a ValueError, and
also a TypeError for a value that is not a string, an index or a place.
All functions are thread-safe.
"""

from __future__ import annotations

import os
from typing import Callable

import paddle

from . import core
from .device_counts import device_count, device_names

__all__ = []

_ALIASES = {"cuda": "gpu", "dcu": "gpu"}


# No NamedTuple: to define one takes longer than to import all of this module.
class _Type:
    """A device type that Paddle may have been compiled without."""

    def __init__(
        self,
        toolkit: str,
        is_compiled: Callable[[], bool],
        place: Callable[[int], core.Place],
        pinned_place: Callable[[], core.Place] | None = None,
    ) -> None:
        self.toolkit = toolkit
        self.is_compiled = is_compiled
        self.place = place
        self.pinned_place = pinned_place


# Each entry looks its functions up late: a Paddle without the type lacks some.
_TYPES = {
    "gpu": _Type(
        "CUDA",
        lambda: core.is_compiled_with_cuda(),
        lambda index: core.CUDAPlace(index),
        lambda: core.CUDAPinnedPlace(),
    ),
    "xpu": _Type(
        "XPU",
        lambda: core.is_compiled_with_xpu(),
        lambda index: core.XPUPlace(index),
        lambda: core.XPUPinnedPlace(),
    ),
    "ipu": _Type(
        "IPU",
        lambda: core.is_compiled_with_ipu(),
        lambda index: core.IPUPlace(),
    ),
}


def _with_devices(reason: str) -> str:
    devices = ", ".join(device_names())
    return f"{reason} The devices of this process are {devices}."


def _error(reason: str) -> ValueError:
    return ValueError(_with_devices(reason))


# Paddle 3.3.0 raises a ValueError in some functions and a TypeError in others.
class DeviceTypeError(TypeError, ValueError):
    """The error for a value whose type cannot be a device."""


def error_of_type(device: object) -> DeviceTypeError:
    """
    Returns the error for a value that cannot be a device, or for a place that
    the function does not support.
    """
    wanted = "a name such as 'cpu' or 'gpu:0', or a place"
    if isinstance(device, core.Place):
        wanted = "of the type that this function is for"
    return DeviceTypeError(
        _with_devices(
            f"The device must be {wanted}, but received {device!r} of type "
            f"{type(device).__name__}."
        )
    )


def checked_place(device: object) -> core.Place:
    """
    Returns the place `device`. A tensor's place, which is of the base class for
    every device, becomes one of the class of its device, unless this Paddle
    lacks that class.

    Raises:
        DeviceTypeError: it is not a place.
    """
    if not isinstance(device, core.Place):
        raise error_of_type(device)
    is_missing = (
        device.is_gpu_place() and not core.is_compiled_with_cuda()
    ) or (device.is_xpu_place() and not core.is_compiled_with_xpu())
    if type(device) is not core.Place or is_missing:
        return device
    # Not at the top: framework.py imports this module before the other.
    from .threads.devices import concrete_place
    from .threads.thread_value import UNSET

    concrete = concrete_place(device)
    return device if concrete is UNSET else concrete


def checked_index(index: int) -> int:
    """
    Returns `index`, a device index.

    Raises:
        DeviceTypeError: it is True or False, which are integers in Python.
        ValueError: it is negative.
    """
    if isinstance(index, bool):
        raise error_of_type(index)
    if index < 0:
        raise _error(
            f"A device index must be 0 or more, but received {index!r}."
        )
    return index


def name_of_index(index: int, current: str) -> str:
    """
    Returns the name of the device with an index and the type of the device
    named `current`.

    Raises:
        DeviceTypeError: see `checked_index`.
        ValueError: the index is negative, or not 0 for the CPU.
    """
    checked_index(index)
    kind = current.partition(":")[0]
    if kind != "cpu":
        return f"{kind}:{index}"
    if index:
        raise _error(
            "The current device is the CPU, which only has index 0, but "
            f"received {index!r}. Please pass the name of a device."
        )
    return kind


def error_of_streams(place: object) -> TypeError:
    """Returns the error for a device that does not have streams."""
    return TypeError(
        _with_devices(
            "The device must be a GPU, an XPU or a custom device, which have "
            f"streams, but received {place!r}."
        )
    )


def parse_index(index: str, device: str) -> int:
    """
    Converts `index`, such as '0' in the device string 'gpu:0', to a number.

    Raises:
        ValueError: it is not a number.
    """
    if not (index.isascii() and index.strip().isdecimal()):
        raise _error(
            f"A device index must be a number such as 0, but "
            f"{device!r} has {index!r}."
        )
    return int(index)


def _type_named(name: str, device: str) -> str:
    """Returns the device type for `name`, the first part of `device`."""
    custom_types = core.get_all_custom_device_type() or []
    lower = name.lower()
    for custom_type in (name, lower):
        if custom_type in custom_types:
            return custom_type
    kind = _ALIASES.get(lower, lower)
    if kind == "cpu":
        return kind
    if kind not in _TYPES:
        raise _error(
            "The device must be 'cpu', or a device type such as 'gpu' or "
            f"'gpu:0', but received {device!r}."
        )
    _check_is_compiled(kind, device)
    return kind


def custom_type(device: str) -> str:
    """
    Returns the type of `device`, the name of a plugin's device.

    Raises:
        ValueError: no plugin registered the type.
    """
    kind = _type_named(device.partition(":")[0], device)
    if kind not in (core.get_all_custom_device_type() or []):
        raise _error(f"The device must be a plugin's, but received {device!r}.")
    return kind


def _check_is_compiled(kind: str, device: str) -> None:
    if not _TYPES[kind].is_compiled():
        toolkit = _TYPES[kind].toolkit
        raise _error(
            f"The device {device!r} cannot be used, since this PaddlePaddle is "
            f"not compiled with {toolkit}."
        )


def selected_index(kind: str) -> int:
    """
    Returns the index of the device that `paddle.distributed.launch` selected
    for this process, or 0 if it selected none.
    """
    if kind == "gpu":
        return paddle.distributed.ParallelEnv().dev_id
    variable = f"FLAGS_selected_{kind}s"
    selected = os.getenv(variable, "0")
    return parse_index(selected.split(",")[0], f"{variable}={selected}")


def place_of(
    device: str, default_index: Callable[[str], int] = lambda kind: 0
) -> core.Place:
    """
    Returns the place of a device.

    Args:
        device (str): the device, such as 'cpu', 'gpu' or 'gpu:0'.
        default_index (Callable): returns the index for a device type if
            `device` has no index.

    Raises:
        ValueError: the device does not exist.
    """
    if device == "cpu":  # A fast path for the most frequent device.
        return core.CPUPlace()
    name, colon, index = device.strip().partition(":")
    kind = _type_named(name, device)
    if kind == "cpu":
        if colon:
            raise _error(
                f"The CPU has no index, but received {device!r}. Please pass "
                "'cpu'."
            )
        return core.CPUPlace()
    number = parse_index(index, device) if colon else default_index(kind)
    count = device_count(kind)
    if number >= count:
        raise _error(
            f"There is no device '{kind}:{number}': this process has {count} "
            f"of type {kind!r}."
        )
    if kind in _TYPES:
        return _TYPES[kind].place(number)
    return core.CustomPlace(kind, number)


def _place_among(kind: str, device: str | int | core.Place) -> core.Place:
    """Returns the place of `device`. An index is one of a device of `kind`."""
    name = name_of_index(device, kind) if isinstance(device, int) else device
    return place_of(name) if isinstance(name, str) else checked_place(name)


def custom_device_id(device: str | int | core.Place | None) -> int:
    """
    Returns the index of a device for `paddle.device.custom_device`. That module
    supports one device type, the first that a plugin registered. None means
    device 0.

    Raises:
        DeviceTypeError: `device` cannot be a device.
        ValueError: the device does not exist.
    """
    if device is None:
        return 0
    kind = (core.get_all_custom_device_type() or ["cpu"])[0]
    place = _place_among(kind, device)
    if not place.is_custom_place():
        raise _error(
            f"The device must be a plugin's device, but received {device!r}."
        )
    if place.custom_device_type() != kind:
        raise _error(
            f"The device must be of type {kind!r}, which "
            f"paddle.device.custom_device supports, but received {device!r}."
        )
    return place.custom_device_id()


def accelerator_id(device: str | int | core.Place | None) -> int:
    """
    Returns the index of a device for functions that support GPUs or, where
    Paddle is compiled without CUDA, the devices of the first plugin. None means
    the current GPU, or the plugin's device 0.

    Raises:
        DeviceTypeError: `device` cannot be a device.
        ValueError: the device does not exist.
    """
    if not core.is_compiled_with_cuda():
        return custom_device_id(device)
    if device is None:
        return core.get_cuda_current_device_id()
    place = _place_among("gpu", device)
    if not place.is_gpu_place():
        raise _error(f"The device must be a GPU, but received {device!r}.")
    return place.gpu_device_id()


def place_of_memory(place: str) -> core.Place:
    """
    Converts an argument `place`, which says where a function allocates: a
    device, pinned memory such as 'gpu_pinned', or 'device', an undefined place.

    Raises:
        ValueError: the place does not exist.
    """
    name = place.strip().lower()
    if name == "device":
        return core.Place()
    if name.endswith("_pinned"):
        kind = name[: -len("_pinned")].replace("cuda", "gpu")
        if kind in _TYPES and _TYPES[kind].pinned_place:
            _check_is_compiled(kind, place)
            return _TYPES[kind].pinned_place()
    return place_of(place)
