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
"""Programs of `to_static` and `jit.load`, and first runs of static programs, on
several threads.

Invariants:

- Only one thread at a time traces, loads, saves or compiles a program. All of
  these switch process-wide state, such as the default program and the insertion
  point of the next operator.
- A program runs in a scope that no other run uses until the last variable in it
  is freed: after the forward pass if there is no backward pass, otherwise after
  the backward pass, or when the graph is dropped. Scopes are kept with their
  program, because the executor keeps one interpreter per scope. There are as
  many scopes as the program has had concurrent runs.

So programs run in parallel, each run in its own scope. Only building them is
serialized.
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Callable, TypeVar

from typing_extensions import ParamSpec

from paddle.base import core

from . import fork

if TYPE_CHECKING:
    from collections.abc import Hashable
    from types import ModuleType

__all__ = []

_InputT = ParamSpec("_InputT")
_RetT = TypeVar("_RetT")

# Held while a program is built, and in paddle.grad. Reentrant, because tracing
# calls functions that are traced themselves, and the function whose gradient is
# computed may compute a gradient itself. One lock for both, because hooks nest
# each inside the other.
_building = threading.RLock()
# Loaded by the first program or predictor, to keep `import paddle` fast.
# Protected by _building, so that no fork occurs during its import.
_native: ModuleType | None = None
# The attribute that holds the keys of `first_call_alone`.
_CALLED = "_first_calls_done"
# Without all of them, programs run in the oldest form of the executor.
_PIR_FLAGS = (
    "FLAGS_enable_pir_api",
    "FLAGS_enable_pir_in_executor",
    "FLAGS_enable_pir_with_pt_in_dy2st",
)
# How long a fork waits for a program that another thread builds, and the first
# predictor for the lock. The waits are bounded because the thread that holds
# the lock may itself wait for the waiting one.
_FORK_WAIT_S = 5.0
# The number of forks between the first process and this one.
_forks = 0


class _Fork(threading.local):
    """The locks that the calling thread's fork has taken and must release."""

    has_building = False
    has_native = False


_fork = _Fork()


def _lock() -> None:
    # A signal handler may raise after any call. So record first what must be
    # unlocked; _unlock checks whether it was locked.
    _fork.has_native = False
    _fork.has_building = False
    # First, because a predictor's work, for which the pause waits, may need the
    # locks below. The order of the fork handlers differs between builds.
    _pause_predictors()
    deadline = time.monotonic() + _FORK_WAIT_S
    # A fork in a trace or in a gradient hook: _unlock must not release the lock
    # of the outer call, so this must not acquire it once more.
    if not _building._is_owned():
        _fork.has_building = True
        _building.acquire(timeout=_FORK_WAIT_S)
    if _native is not None:
        _fork.has_native = True
        _native.lock_building(max(0.0, deadline - time.monotonic()))


def _pause_predictors() -> None:
    predictors = getattr(core.libpaddle, "_predictor_threads", None)
    if predictors is not None:
        predictors.pause_for_fork()


def _unlock() -> bool:
    """Releases the locks, and returns whether nothing was half built at the
    fork."""
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
            "program or was in paddle.grad, because that took longer than "
            f"{_FORK_WAIT_S:g} s. The child must not build programs: fork "
            "before the threads start, or use the start method spawn.",
            RuntimeWarning,
            stacklevel=2,
        )


@fork.run_in_child(fork.Step.PROGRAMS)
def _unlock_in_child(was_main: bool) -> None:
    global _building, _checking, _forks, _taking
    _forks += 1
    # Another thread may have held these at the fork.
    _checking, _taking = threading.Lock(), threading.Lock()
    if not _unlock():
        # The threads that hold these locks are not in the child.
        _building = threading.RLock()
        if _native is not None:
            _native.replace_building_lock()


# A child must not inherit a program that another thread has half built.
fork.before_fork(_lock, _unlock_in_parent)


def _abandon_lock() -> None:
    global _building
    if _building._is_owned():
        _building = threading.RLock()


# A child of multiprocessing never returns to the trace or the gradient hook
# that started it, and so never releases the lock that it inherits.
util.register_after_fork(_abandon_lock, lambda abandon: abandon())

_taking = threading.Lock()
# Why _native cannot be loaded.
_native_error: str | None = None
# If programs cannot run on several threads: the only thread that may run them.
_only_thread: threading.Thread | None = None
_checking = threading.Lock()


def _allow_threads() -> None:
    """
    Makes programs safe to run on several threads. If that is impossible, only
    one thread may run them: the calling thread, unless another one already
    does. Requires: the building lock.

    Raises:
        RuntimeError: another thread that has run a program is still alive. The
            message says why programs cannot run on several threads.
    """
    _load_native()
    _check_may_run()


def _load_native() -> None:
    """Requires: the building lock, so that no fork occurs meanwhile."""
    global _native, _native_error
    if _native is not None or _native_error is not None:
        return
    try:
        _native = core.libpaddle._program_threads
    except ImportError as error:
        _native_error = str(error.__cause__ or error)


def lock_building() -> object | None:
    """
    Lets only the calling thread build programs in C++ until it destroys the
    returned object. Threads that wait do not keep the GIL. Returns None if this
    Paddle has no such lock. Thread-safe.
    """
    if _native is None and _native_error is None:
        # Bounded, because a hook of paddle.grad, which holds this lock, may
        # wait for the calling thread.
        locked = _building.acquire(timeout=_FORK_WAIT_S)
        try:
            _load_native()
        finally:
            if locked:
                _building.release()
    return None if _native is None else _native.BuildGuard()


def _refusal() -> str | None:
    """Returns why several threads cannot run programs, or None if they can."""
    if _native_error is not None:
        return _native_error
    flags = core.globals()
    if any(flags[name] for name in _PIR_FLAGS):
        return None
    # The cache of interpreters then ignores the scope of a run.
    return (
        f"{', '.join(_PIR_FLAGS)} are all off, so that all runs of a program "
        "use one interpreter. Set one of them, or run all programs on one "
        "thread."
    )


def _check_may_run() -> None:
    """Raises a RuntimeError as `_allow_threads`."""
    global _only_thread
    reason = _refusal()
    if reason is None:
        return
    thread = threading.current_thread()
    with _checking:
        if _only_thread is None or not _only_thread.is_alive():
            _only_thread = thread
        if _only_thread is thread:
            return
    raise RuntimeError(
        f"Thread {thread.name!r} cannot run a program of to_static or "
        f"jit.load, since thread {_only_thread.name!r} has run one, and "
        f"programs cannot run on several threads of this process: {reason}"
    )


def one_at_a_time(
    function: Callable[_InputT, _RetT],
) -> Callable[_InputT, _RetT]:
    """
    Decorates a function that traces, loads, saves or compiles programs: only
    one thread at a time runs a decorated function. Others wait.

    The decorated function is thread-safe.
    """

    @functools.wraps(function)
    def function_alone(*args: _InputT.args, **kwargs: _InputT.kwargs) -> _RetT:
        with _building:
            return function(*args, **kwargs)

    return function_alone


def first_call_alone(
    program_of: Callable[..., tuple[Any, Hashable]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Decorates a function that builds a program in its first call. Calls are
    serialized until the first one has returned, and parallel after that.

    Args:
        program_of: takes the function's arguments, and returns an object and a
            key that identify the program.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def function_first_alone(*args: Any, **kwargs: Any) -> Any:
            owner, key = program_of(*args, **kwargs)
            # Not with getattr: a Layer makes it slow for missing attributes.
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
    Computes the gradients for `paddle.grad`, one call at a time, because the
    engine has only one list of the nodes that lead to the inputs. Thread-safe.
    """
    with _building:
        return core.eager.run_partial_grad(*args)


def make_once(
    cache: dict[Any, Any],
    key: Hashable,
    make: Callable[[Any], Any],
    argument: Any,
) -> None:
    """Sets `cache[key]` to `make(argument)` unless it is already set.
    Thread-safe."""
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
        scopes_of_programs: the scopes of each program. If all are in use, a new
            one is added.
        program: identifies the program.
    """
    if _forks:
        # In a forked child, interpreters of the parent's scopes lack their
        # threads.
        program = (program, _forks)
    scopes = scopes_of_programs.setdefault(program, [])
    _check_may_run()
    scope = _take_one(scopes)
    if scope is None and _native is not None:
        # The scope of a call that failed before its run began.
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
    if _native is not None:
        return _native.take_scope(scope.raw_address())
    with _taking:
        # A new scope is not marked as reusable, just like one in use.
        free = scope._can_reused
        scope._can_reused = False
        return free
