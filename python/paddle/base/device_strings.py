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

Also checks other arguments that choose a device or a stream.

A device string is 'cpu', or a type with or without an index: 'gpu' or 'gpu:0',
'xpu', 'ipu', or a type that a plugin registered. 'cuda' and 'dcu' mean 'gpu'.
Every error names the value and the devices that exist. It is a ValueError, and
also a TypeError for a value that is not a string, an index or a place.
All functions are thread-safe.

`paddle.device`, `static.device_guard` and `get_device_module` also take GPUs
and XPUs that are not here: a program may be built for another machine.
"""

from __future__ import annotations

import operator
import os
from typing import TYPE_CHECKING, Callable

import paddle

from . import core
from .device_counts import device_count, device_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

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
        current_index: Callable[[], int] | None = None,
    ) -> None:
        self.toolkit = toolkit
        self.is_compiled = is_compiled
        self.place = place
        self.pinned_place = pinned_place
        self.current_index = current_index


# Each entry looks its functions up late: a Paddle without the type lacks some.
_TYPES = {
    "gpu": _Type(
        "CUDA",
        lambda: core.is_compiled_with_cuda(),
        lambda index: core.CUDAPlace(index),
        lambda: core.CUDAPinnedPlace(),
        lambda: core.get_cuda_current_device_id(),
    ),
    "xpu": _Type(
        "XPU",
        lambda: core.is_compiled_with_xpu(),
        lambda index: core.XPUPlace(index),
        lambda: core.XPUPinnedPlace(),
        lambda: core.get_xpu_current_device_id(),
    ),
    "ipu": _Type(
        "IPU",
        lambda: core.is_compiled_with_ipu(),
        lambda index: core.IPUPlace(),
    ),
}


def with_devices(reason: str) -> str:
    """Returns an error message: a reason and the devices that exist."""
    devices = ", ".join(device_names())
    return f"{reason} The devices of this process are {devices}."


def _error(reason: str) -> ValueError:
    return ValueError(with_devices(reason))


# Paddle 3.3.0 raises a ValueError in some functions and a TypeError in others.
class DeviceTypeError(TypeError, ValueError):
    """The error for a value whose type cannot be a device."""


# In Paddle 3.3.0, the classes of streams raise a RuntimeError for a type and an
# IndexError for an index. Other functions raise a ValueError.
class MissingDeviceError(RuntimeError, IndexError, ValueError):
    """Raised by streams, events and `device_count` for a missing device."""


def error_of_type(device: object) -> DeviceTypeError:
    """
    Returns the error for a value that cannot be a device, or for a place that
    the function does not support.
    """
    wanted = "a name such as 'cpu' or 'gpu:0', or a place"
    if isinstance(device, core.Place):
        wanted = "of the type that this function is for"
    return DeviceTypeError(
        with_devices(
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


def _error_of_integer(what: str, value: object) -> DeviceTypeError:
    return DeviceTypeError(
        with_devices(
            f"{what} must be an integer, but received {value!r} of type "
            f"{type(value).__name__}."
        )
    )


def error_of_index(index: object) -> DeviceTypeError:
    """
    Returns the error for a value that is neither an index nor a place of the
    type that the function is for.
    """
    if isinstance(index, core.Place):
        return error_of_type(index)
    return _error_of_integer("A device index", index)


def checked_count(count: int) -> int:
    """
    Returns `count`, a number of devices.

    Raises:
        DeviceTypeError: it is not an integer.
    """
    if not hasattr(type(count), "__index__"):
        raise _error_of_integer("The number of devices", count)
    return count


def checked_index(index: int) -> int:
    """
    Returns `index`, a device index, as an int.

    Raises:
        DeviceTypeError: it is not an integer, or is True or False, which are
            integers in Python.
        ValueError: it is negative.
    """
    try:
        number = None if isinstance(index, bool) else operator.index(index)
    except TypeError:
        number = None
    if number is None:
        raise _error_of_integer("A device index", index)
    if number < 0:
        raise _error(
            f"A device index must be 0 or more, but received {index!r}."
        )
    return number


def name_of_index(index: int, current: str) -> str:
    """
    Returns the name of the device with an index and the type of the device
    named `current`.

    Raises:
        DeviceTypeError: see `checked_index`.
        ValueError: the index is negative, or not 0 for the CPU.
    """
    number = checked_index(index)
    kind = current.partition(":")[0]
    if kind != "cpu":
        return f"{kind}:{number}"
    if number:
        raise _error(
            "The current device is the CPU, which only has index 0, but "
            f"received {index!r}. Please pass the name of a device."
        )
    return kind


def error_of_streams(place: object) -> TypeError:
    """Returns the error for a device that does not have streams."""
    return TypeError(
        with_devices(
            "The device must be a GPU, an XPU or a custom device, which have "
            f"streams, but received {place!r}."
        )
    )


def check_has_streams(place: core.Place) -> None:
    """
    Checks that `place` is of a type that has streams.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(place, (core.CUDAPlace, core.XPUPlace, core.CustomPlace)):
        raise error_of_streams(place)


def error_of_module(device: object) -> RuntimeError:
    """Returns the error for a device that `paddle` has no module for."""
    return RuntimeError(
        with_devices(f"Paddle has no module for the device {device!r}.")
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


def split(device: str) -> tuple[str, int | None]:
    """
    Returns the type in the device string `device`, as it is written there, and
    the index, or None if there is none. The device need not exist.

    Raises:
        ValueError: the index is not a number.
    """
    kind, colon, index = device.strip().partition(":")
    return kind, parse_index(index, device) if colon else None


def error_of_plugin_type(kind: object) -> ValueError:
    """Returns the error for a value that is not the type of a plugin's
    devices."""
    if not isinstance(kind, str):
        return DeviceTypeError(
            with_devices(
                "The device type must be a name, but received "
                f"{kind!r} of type {type(kind).__name__}."
            )
        )
    return MissingDeviceError(
        with_devices(
            "The device type must be one that a plugin registered, without an "
            f"index, but received {kind!r}."
        )
    )


def plugin_type(kind: str) -> str:
    """
    Returns the type of a plugin's devices that `kind` names.

    Raises:
        DeviceTypeError: `kind` is not a string.
        MissingDeviceError: no plugin here registered the type.
    """
    if isinstance(kind, str):
        custom_types = core.get_all_custom_device_type() or []
        for name in (kind.strip(), kind.strip().lower()):
            if name in custom_types:
                return name
    raise error_of_plugin_type(kind)


def _check_device_of_streams(
    kind: str, index: object, is_current: bool
) -> None:
    try:
        place_of(kind if is_current else f"{kind}:{checked_index(index)}")
    except DeviceTypeError:
        raise
    except ValueError as error:
        raise MissingDeviceError(*error.args) from None


def check_stream_device(kind: str, device: object = None) -> None:
    """
    Checks the device that a stream or an event of a type could not be made for.
    Returns if the device is not the reason. The constructors call this where
    they fail.

    Args:
        kind (str): the type, "gpu" or "xpu".
        device (object): what the constructor received: an index or a place.
            None or a negative index means the current device.

    Raises:
        DeviceTypeError: `device` is neither.
        MissingDeviceError: it does not exist.
    """
    is_current = device is None or (isinstance(device, int) and device < 0)
    if isinstance(device, core.Place):
        if not getattr(device, f"is_{kind}_place")():
            raise error_of_type(device)
        is_current = True
    _check_device_of_streams(kind, device, is_current)


def check_plugin_stream_device(
    device: object = None, device_id: object = -1
) -> None:
    """
    Checks the device that a stream or an event of a plugin's device could not
    be made for. Returns if the device is not the reason. The constructors call
    this where they fail.

    Args:
        device (object): what the constructor received: a place or a type.
        device_id (object): the index. -1 means the current device.

    Raises:
        DeviceTypeError: a value is of another type.
        MissingDeviceError: the device does not exist.
    """
    if isinstance(device, core.Place):
        if not device.is_custom_place():
            raise error_of_type(device)
        return
    # Unlike device strings, the classes take only the exact name.
    if plugin_type(device) != device:
        raise error_of_plugin_type(device)
    if not isinstance(device_id, int) or device_id != -1:
        _check_device_of_streams(device, device_id, is_current=False)


def _type_of_any_machine(
    name: str, device: str, of_any_machine: Collection[str]
) -> str:
    """
    Returns the device type for `name`, the first part of `device`: one of the
    types that the machine of a program may have, or one that a plugin here
    registered.
    """
    lower = name.lower()
    if lower in of_any_machine:
        return lower
    kind = _type_named(name, device)
    if kind not in (core.get_all_custom_device_type() or []):
        raise _error(f"The device must be a plugin's, but received {device!r}.")
    return kind


def type_and_index(
    device: str, index: int | None, of_any_machine: Collection[str]
) -> tuple[str, int | None]:
    """
    Returns the type and the index for `paddle.device(device, index)`. They are
    "cpu" and None for the CPU, whatever the index. Without an index, it is 0.

    Args:
        device (str): the type, with or without an index.
        index (int|None): the index, if `device` has none.
        of_any_machine (Collection): the types whose devices need not exist.

    Raises:
        DeviceTypeError: see `checked_index`.
        ValueError: `device` has an index although there is another, the index
            is not a number, or the device of a plugin does not exist.
    """
    name, own_index = split(device)
    kind = _type_of_any_machine(name, device, of_any_machine)
    if kind == "cpu":
        return kind, None
    if own_index is None:
        number = 0 if index is None else checked_index(index)
    elif index is None:
        number = own_index
    else:
        raise _error(
            f"The device {device!r} already has an index, but received the "
            f"index {index!r}. Please pass only one of them."
        )
    if kind not in of_any_machine:
        place_of(f"{kind}:{number}")
    return kind, number


def device_of_operators(device: str) -> str:
    """
    Returns the name that operators keep of the device for
    `static.device_guard`. The device need not exist here. The name "" means any
    device, and the index "all", as in "gpu:all", every stage of a pipeline.

    Raises:
        DeviceTypeError: `device` is not a string.
        ValueError: there is no such type, or the index is neither a number nor
            "all".
    """
    if not isinstance(device, str):
        raise error_of_type(device)
    if not device:
        return device
    name, colon, index = device.strip().partition(":")
    kind = _type_of_any_machine(name, device, ("cpu", "gpu", "dcu", "xpu"))
    if not colon:
        return kind
    if kind == "cpu":
        raise _error_of_cpu_index(device)
    number = index if index == "all" else parse_index(index, device)
    return f"{kind}:{number}"


def _error_of_cpu_index(device: str) -> ValueError:
    return _error(
        f"The CPU has no index, but received {device!r}. Please pass 'cpu'."
    )


def _check_is_compiled(kind: str, device: str) -> None:
    if not _TYPES[kind].is_compiled():
        toolkit = _TYPES[kind].toolkit
        raise _error(
            f"The device {device!r} cannot be used, since this PaddlePaddle is "
            f"not compiled with {toolkit}."
        )


def indices_in(variable: str, value: str) -> list[int]:
    """
    Returns the device indices that an environment variable lists.

    Raises:
        ValueError: one is not a number.
    """
    return [
        parse_index(index, f"{variable}={value}") for index in value.split(",")
    ]


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
            raise _error_of_cpu_index(device)
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


def places_of_type(
    kind: str,
    indices: int | Sequence[int] | None,
    all_indices: Callable[[], Iterable[int]],
) -> list[core.Place]:
    """
    Returns the places for functions that list devices of one type, "gpu" or
    "xpu": those with the given indices, or with all.

    Raises:
        DeviceTypeError: see `checked_index`.
        ValueError: a device does not exist.
    """
    if indices is None:
        _check_is_compiled(kind, kind)
        indices = all_indices()
    elif not isinstance(indices, (list, tuple)):
        indices = [indices]
    return [place_of(name_of_index(index, kind)) for index in indices]


def _first_custom_type() -> str:
    """Returns the first type that a plugin registered, or "cpu" if none did."""
    return (core.get_all_custom_device_type() or ["cpu"])[0]


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
    kind = _first_custom_type()
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


def id_of_type(kind: str, device: str | int | core.Place | None) -> int:
    """
    Returns the index of a device for functions that support one type, "gpu" or
    "xpu". None means the current device of that type, and so does -1, as in
    Paddle 3.3.0.

    Raises:
        DeviceTypeError: `device` cannot be a device.
        ValueError: there is no such device of that type.
    """
    if device is None or (isinstance(device, int) and device == -1):
        place = place_of(kind, lambda kind: _TYPES[kind].current_index())
        return place.get_device_id()
    place = _place_among(kind, device)
    if not getattr(place, f"is_{kind}_place")():
        raise _error(
            f"The device must be of type {kind!r}, but received {device!r}."
        )
    return place.get_device_id()


def accelerator_id(device: str | int | core.Place | None) -> int:
    """
    Returns the index of a device for functions that support GPUs or, where
    Paddle is compiled without CUDA, the devices of the first plugin. None means
    the current device of that type, or device 0 if the current device is
    another one.

    Raises:
        DeviceTypeError: `device` cannot be a device.
        ValueError: the device does not exist.
    """
    if core.is_compiled_with_cuda():
        return id_of_type("gpu", device)
    if device is None:
        current = paddle.framework._current_expected_place()
        if (
            current.is_custom_place()
            and current.custom_device_type() == _first_custom_type()
        ):
            return current.custom_device_id()
    return custom_device_id(device)


def accelerator_place(index: int | None) -> core.Place:
    """
    Returns the place for `Tensor.cuda(index)`, which means the devices of the
    last plugin, else XPUs, else GPUs. None means the current device, or device
    0 if the current device is the CPU.

    Raises:
        DeviceTypeError: see `checked_index`.
        ValueError: the device does not exist.
    """
    if index is None:
        current = paddle.framework._current_expected_place()
        if not current.is_cpu_place():
            return current
    custom_types = core.get_all_custom_device_type()
    if custom_types:
        kind = custom_types[-1]
    else:
        kind = "xpu" if core.is_compiled_with_xpu() else "gpu"
    return place_of(name_of_index(0 if index is None else index, kind))


def check_is_cpu(device: str | int | core.Place | None) -> None:
    """
    Checks that `device` is None or the CPU.

    Raises:
        DeviceTypeError: `device` cannot be a device.
        ValueError: it is another device, or does not exist.
    """
    if device is not None and not _place_among("cpu", device).is_cpu_place():
        raise _error(f"The device must be the CPU, but received {device!r}.")


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
