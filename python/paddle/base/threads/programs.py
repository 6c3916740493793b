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
"""Programs of `to_static` and `jit.load` that several threads build and run.

Invariants:

- One thread at a time traces, loads, saves or compiles a program. All of that
  switches state of the process, such as the default program and the point where
  the next operator goes.
- A program runs in a scope that no other run uses until the last variable in it
  is freed: after the forward pass if there is no backward pass, else after the
  backward pass, or when the graph is dropped. Scopes are kept with their
  program, as many as it has had runs at the same time, because the executor
  keeps an interpreter for each.

So programs run at the same time, each in its own scope, and wait for each other
only to be built.
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core
from paddle.base.cpp_module import find_cpp_module

from . import fork

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import ModuleType

__all__ = []

# Reentrant, because tracing calls functions that are traced themselves, and a
# gradient may be that of a function that computes one. There is one lock for
# both, because hooks do each inside the other.
_building = threading.RLock()
# Loaded by the first program: `import paddle` should not pay for it. The lock
# protects it, so that no fork comes in the middle of its import.
_native: ModuleType | None = None
# The attribute that holds the keys of `first_call_alone`.
_CALLED = "_first_calls_done"
# How long a fork waits for a program that another thread builds. That thread
# may itself wait for the fork, so the wait ends.
_FORK_WAIT_S = 5.0
# How many forks lie between the first process and this one.
_forks = 0


class _Fork(threading.local):
    """What the fork of a thread has locked, and has to unlock."""

    has_building = False
    has_native = False


_fork = _Fork()


def _lock() -> None:
    # A handler of a signal may raise after any call, so what is to be unlocked
    # is written down first, and whether it was locked is asked afterwards.
    deadline = time.monotonic() + _FORK_WAIT_S
    _fork.has_native = False
    _fork.has_building = not _building._is_owned()
    _building.acquire(timeout=_FORK_WAIT_S)
    if _native is not None:
        _fork.has_native = True
        _native.lock_building(max(0.0, deadline - time.monotonic()))


def _unlock() -> bool:
    """Returns whether nothing was half built when the process was forked."""
    locked_native = _native is None or (
        _fork.has_native and _native.unlock_building()
    )
    _fork.has_native = False
    locked = _building._is_owned()
    if locked and _fork.has_building:
        _building.release()
    _fork.has_building = False
    return locked and locked_native


def _unlock_in_parent() -> None:
    if not _unlock():
        warnings.warn(
            "The process was forked while another thread was building a "
            "program, or was in paddle.grad, since it had not ended within "
            f"{_FORK_WAIT_S:g} s. The child must not build programs: fork "
            "before the threads start, or start the child by spawn.",
            RuntimeWarning,
            stacklevel=2,
        )


@fork.take_step(fork.Step.PROGRAMS)
def _unlock_in_child(was_main: bool) -> None:
    global _building, _forks
    _forks += 1
    if not _unlock():
        # Their holders are not in the child.
        _building = threading.RLock()
        if _native is not None:
            _native.replace_building_lock()


# A child must not inherit a program that another thread has half built.
fork.wait_before(_lock, _unlock_in_parent)

# Whether the scopes of runs are returned when their variables are freed.
_returns_scopes = False
_taking = threading.Lock()
# Why programs cannot run on several threads of this process, and the one thread
# that may run them then.
_refusal: RuntimeError | None = None
_only_thread: threading.Thread | None = None
_checking = threading.Lock()


def _load_native() -> None:
    """Sets `_native`, or `_refusal` if there is none. Requires: the building
    lock."""
    global _native, _refusal
    if _native is not None or _refusal is not None:
        return
    _native = find_cpp_module("_program_cache")
    if _native is None:
        _refusal = RuntimeError(
            "this Paddle was built without locks for the interpreters of "
            "programs, a part in C++ of the custom wheel for Linux. Run all "
            "programs on one thread."
        )


def _allow_threads() -> None:
    """
    Makes programs safe to run on several threads. Where that cannot be, the
    calling thread may run them, unless another one does. Requires: the building
    lock.

    Raises:
        RuntimeError: as `_check_is_only_thread`.
    """
    global _refusal, _returns_scopes
    _load_native()
    if _refusal is None:
        try:
            # Each time, as a library may have been loaded meanwhile.
            _native.enforce_thread_safe()
            _returns_scopes = True
        except RuntimeError as error:
            _refusal = error
    if _refusal is not None:
        _check_is_only_thread()


def _check_is_only_thread() -> None:
    """
    Raises:
        RuntimeError: a thread that has run a program is still alive. The text
            says why programs cannot run on several threads.
    """
    global _only_thread
    thread = threading.current_thread()
    with _checking:
        if _only_thread is None or not _only_thread.is_alive():
            _only_thread = thread
        if _only_thread is thread:
            return
    raise RuntimeError(
        f"Thread {thread.name!r} cannot run a program of to_static or "
        f"jit.load, since thread {_only_thread.name!r} has run one, and "
        f"programs cannot run on several threads of this process: {_refusal}"
    ) from _refusal


def one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorator of a function that traces, loads, saves or compiles programs. A
    thread that calls it waits while another thread is in such a function.

    The decorated function is thread-safe.
    """

    @functools.wraps(function)
    def function_alone(*args: Any, **kwargs: Any) -> Any:
        with _building:
            return function(*args, **kwargs)

    return function_alone


def first_call_alone(
    program_of: Callable[..., tuple[Any, Hashable]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Decorator of a function that builds a program when it is called for the
    first time. Only calls before the first one has returned are made one at a
    time.

    Args:
        program_of: takes the arguments of the function, and returns an object
            and a key that stand for the program.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def function_first_alone(*args: Any, **kwargs: Any) -> Any:
            owner, key = program_of(*args, **kwargs)
            # Not by getattr, which a Layer makes slow for what it lacks.
            called = owner.__dict__
            if key in called.get(_CALLED, ()):
                return function(*args, **kwargs)
            with _building:
                if key not in called.get(_CALLED, ()):
                    _allow_threads()
                    result = function(*args, **kwargs)
                    called[_CALLED] = called.get(_CALLED, frozenset()) | {key}
                    return result
            return function(*args, **kwargs)

        return function_first_alone

    return decorate


def run_partial_grad(*args: Any) -> list[core.eager.Tensor | None]:
    """
    Computes the gradients for `paddle.grad`, one call at a time: the engine has
    one list of the nodes that lead to the inputs. Thread-safe.
    """
    with _building:
        _load_native()
        if _native is None:
            return core.eager.run_partial_grad(*args)
        # The engine copies nodes, whose scopes it must not free with them.
        return _native.call_gradient(core.eager.run_partial_grad, *args)


def make_once(
    cache: dict[Any, Any],
    key: Hashable,
    make: Callable[[Any], Any],
    argument: Any,
) -> None:
    """Sets `cache[key]` to `make(argument)`, unless another thread has set it
    meanwhile. Thread-safe."""
    with _building:
        if key not in cache:
            cache[key] = make(argument)


def take_scope(
    scopes_of_programs: dict[Hashable, list[core._Scope]], program: Hashable
) -> core._Scope:
    """
    Returns a scope that no run uses, and reserves it until its variables are
    freed. Thread-safe.

    Args:
        scopes_of_programs: the scopes of each program, to which a new one is
            added if all are in use.
        program: what stands for the program.
    """
    if _forks:
        # The interpreters of the parent's scopes have no threads here.
        program = (program, _forks)
    scopes = scopes_of_programs.setdefault(program, [])
    if _refusal is not None:
        _check_is_only_thread()
    scope = _take_one(scopes)
    if scope is None and _returns_scopes:
        # Of a call that has failed before its run began.
        scope = _native.take_abandoned_scope(scopes)
    if scope is None:
        scope = core.Scope()
        _take(scope)
        scopes.append(scope)
    return scope


def _take_one(scopes: list[core._Scope]) -> core._Scope | None:
    for scope in scopes:
        if _take(scope):
            return scope
    return None


def _take(scope: core._Scope) -> bool:
    if _returns_scopes:
        return _native.take_scope(scope.raw_address())
    with _taking:
        # A new scope says that it cannot be reused, as one in use does.
        free = scope._can_reused
        scope._can_reused = False
        return free
