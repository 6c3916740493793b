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
"""The hooks of `paddle.autograd.saved_tensors_hooks`, per thread.

The C++ of autograd has one pair of hooks for the process. While any thread is
inside a context, that pair is `_pack` and `_unpack`: they call the hooks of the
calling thread's innermost context. On other threads they keep the tensor.

What a PyLayer saves on a thread that is outside of all contexts does not pass
through C++, which would pack it while another thread is inside one.
"""

from __future__ import annotations

import atexit
import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paddle.base import core

from . import device_guards, fork

if TYPE_CHECKING:
    from typing import Callable

    from paddle import Tensor

__all__ = []


class Hooks(Protocol):
    """A context with a pair of hooks."""

    pack_hook: Callable[[Tensor], Any]
    unpack_hook: Callable[[Any], Tensor]


# Not tuples: PyLayer would take their elements for saved tensors.


@dataclass(frozen=True)
class _Packed:
    value: Any
    unpack: Callable[[Any], Tensor]


@dataclass(frozen=True)
class _Kept:
    tensor: Tensor
    version: int


class _Local(threading.local):
    def __init__(self) -> None:
        # The contexts that the thread is inside of, innermost last, and whether
        # each applies. Those that were entered without gradients do not.
        self.entered: list[tuple[Hooks, bool]] = []


_local = _Local()
# Protects the next two.
_lock = threading.Lock()
# How many contexts that apply the threads are inside of.
_contexts = 0
# Whether C++ has the pair.
_is_registered = False
# Whether the pair remains registered after the last context. Unregistering it
# while another thread is between two reads of it would crash. So it stays once
# an operator on a thread without hooks has used it. Only the first such
# operator is at risk.
_is_permanent = False


def _innermost() -> Hooks | None:
    entered = reversed(_local.entered)
    return next((hooks for hooks, applies in entered if applies), None)


def _enables_gradients_after_an_error(hook: Callable) -> Callable:
    """
    Decorates a function that C++ calls without gradients while it records or
    runs operators. C++ enables them again only if the function returns.
    """

    @functools.wraps(hook)
    def hook_of_operators(argument: Any) -> Any:
        try:
            return hook(argument)
        except BaseException:
            core._set_has_grad(True)
            raise

    return hook_of_operators


@_enables_gradients_after_an_error
def _pack(tensor: Tensor) -> _Packed | _Kept:
    global _is_permanent
    hooks = _innermost()
    if hooks is None:
        _is_permanent = True
        # Not the tensor itself: an output would keep the graph that keeps it.
        return _Kept(tensor.detach(), tensor.inplace_version)
    return _Packed(hooks.pack_hook(tensor), hooks.unpack_hook)


@_enables_gradients_after_an_error
def _unpack(packed: _Packed | _Kept) -> Tensor:
    if isinstance(packed, _Packed):
        return packed.unpack(packed.value)
    if packed.tensor.inplace_version != packed.version:
        raise RuntimeError(
            "A tensor that backward needs was modified in place after the "
            f"forward pass: {packed.tensor}. Modify a copy instead."
        )
    return packed.tensor


def _get_container(context: Any) -> Any:
    try:
        return context._saved_without_hooks
    except AttributeError:
        return _call_in_its_mode(core.eager.PyLayer.container.__get__, context)


def _set_container(context: Any, tensors: Any) -> None:
    vars(context).pop("_saved_without_hooks", None)
    if _innermost() is None:
        # C++ would pack it while another thread is inside a context.
        context._saved_without_hooks = tensors
    else:
        _call_in_its_mode(
            core.eager.PyLayer.container.__set__, context, tensors
        )


def _call_in_its_mode(function: Callable, *args: Any) -> Any:
    # A PyLayer may run without gradients, and a hook may raise an error.
    mode = core._has_grad()
    try:
        return function(*args)
    finally:
        core._set_has_grad(mode)


# The attribute of a PyLayer's context with what the PyLayer saves.
container = property(_get_container, _set_container)


def enter(hooks: Hooks) -> None:
    """
    Makes `hooks` the hooks of the calling thread. In nested contexts, the
    innermost one applies. Entered without gradients, as under no_grad, it does
    not apply. Thread-safe.
    """
    global _contexts, _is_registered
    applies = core._has_grad()
    if applies:
        with _lock:
            if not _is_registered:
                core.eager.register_saved_tensors_hooks(_pack, _unpack)
                _is_registered = True
            _contexts += 1
    _local.entered.append((hooks, applies))


def leave(hooks: Hooks) -> None:
    """
    Ends `enter`. Thread-safe.

    Raises:
        RuntimeError: the thread is not inside `hooks`. Nothing changes.
    """
    global _contexts
    entered = _local.entered
    for i in reversed(range(len(entered))):
        if entered[i][0] is hooks:
            _, applies = entered.pop(i)
            break
    else:
        raise device_guards.left_on_wrong_thread("saved_tensors_hooks")
    if applies:
        with _lock:
            _contexts -= 1
            if _contexts == 0 and not _is_permanent:
                _unregister()


def _unregister() -> None:
    global _is_registered
    if _is_registered:
        core.eager.reset_saved_tensors_hooks()
        _is_registered = False


# Later, C++ would drop the pair at its own exit, and wait for the GIL forever.
atexit.register(_unregister)


@fork.run_in_child(fork.Step.SAVED_TENSORS_HOOKS)
def _forget_other_threads(was_main: bool) -> None:
    global _contexts, _is_permanent, _lock
    # Another thread may have held it at the fork.
    _lock = threading.Lock()
    _contexts = sum(applies for _, applies in _local.entered)
    _is_permanent = False
    if _contexts == 0:
        _unregister()
