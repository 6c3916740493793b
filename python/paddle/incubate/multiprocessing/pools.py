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
"""Pools whose jobs fail independently, and whose workers start in one state.

Python's `multiprocessing.pool` pickles a job number together with its payload.
If a received tensor cannot be attached, the result thread or the worker ends,
and the job never finishes. Also, a thread of the pool forks replacement
workers, not the thread that created the pool.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import struct
import time
from multiprocessing import pool, queues
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import paddle
from paddle.base import framework
from paddle.base.threads import devices, streams

from .caller_modes import modes_of_caller
from .spawned_process import sigterm_blocked, unblock_sigterm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess
    from threading import Thread

# The number of the job and the index within it.
_HEADER = struct.Struct("=qq")


class _Queue(queues.SimpleQueue):
    """
    A queue of tuples that begin with a job number and an index; None marks the
    end. The rest of a tuple is pickled separately, so that an error in
    unpickling it fails only this job.
    """

    def put(self, message: tuple | None) -> None:
        buffer = io.BytesIO()
        if message is not None:
            job, index, *rest = message
            buffer.write(_HEADER.pack(job, index))
            ForkingPickler(buffer).dump(rest)
        with self._wlock:
            self._writer.send_bytes(buffer.getbuffer())

    def get(self) -> tuple | None:
        with self._rlock:
            content = self._reader.recv_bytes()
        return self._loaded(content)

    def get_with_lock_held(self) -> tuple | None:
        return self._loaded(self._reader.recv_bytes())

    def drop_all(self) -> None:
        """
        Receives the remaining messages, so that their tensors are freed. The
        last one may be incomplete if its sender was killed.
        """
        os.set_blocking(self._reader.fileno(), False)
        with contextlib.suppress(BlockingIOError, EOFError):
            while True:
                self.get_with_lock_held()

    def _loaded(self, content: bytes) -> tuple | None:
        if not content:
            return None
        job, index = _HEADER.unpack_from(content)
        try:
            rest = ForkingPickler.loads(memoryview(content)[_HEADER.size :])
        except Exception as error:
            rest = self._replacement_for(error)
        except (SystemExit, GeneratorExit) as error:
            # They would end the thread of the pool that takes results.
            raised = RuntimeError(f"Unpickling the message raised {error!r}.")
            rest = self._replacement_for(raised)
        return (job, index, *rest)

    def _replacement_for(self, error: Exception) -> tuple:
        """Returns a substitute for a rest that cannot be unpickled."""
        raise NotImplementedError


def _raise(error: Exception) -> NoReturn:
    raise error


class _Tasks(_Queue):
    def _replacement_for(self, error: Exception) -> tuple:
        return _raise, (error,), {}


class _Results(_Queue):
    def _replacement_for(self, error: Exception) -> tuple:
        return ((False, error),)


class _Pool(pool.Pool):
    def __init__(
        self,
        processes: int | None,
        initializer: Callable[..., object] | None,
        initargs: Iterable[Any],
        maxtasksperchild: int | None,
        context: BaseContext,
    ) -> None:
        if context.get_start_method() == "fork":
            kind = _starting_with_sigterm_blocked(context.Process)
            self.Process = _process(kind, _in_state_of_caller())
        else:
            self.Process = _process(context.Process, _run)
        super().__init__(
            processes, initializer, initargs, maxtasksperchild, context
        )

    def _setup_queues(self) -> None:
        self._inqueue = _Tasks(ctx=self._ctx)
        self._outqueue = _Results(ctx=self._ctx)
        self._quick_put = self._inqueue.put
        self._quick_get = self._outqueue.get

    @staticmethod
    def _help_stuff_finish(
        inqueue: _Tasks, task_handler: Thread, size: int
    ) -> None:
        # Never released: workers take no more tasks.
        inqueue._rlock.acquire()
        # The thread may be waiting for room in the pipe.
        while inqueue._reader.poll() and task_handler.is_alive():
            inqueue.get_with_lock_held()
            time.sleep(0)

    @classmethod
    def _terminate_pool(
        cls, taskqueue: Any, inqueue: _Tasks, outqueue: _Results, *others: Any
    ) -> None:
        super()._terminate_pool(taskqueue, inqueue, outqueue, *others)
        inqueue.drop_all()
        outqueue.drop_all()


def _run(target: Callable[..., object], args: Iterable[Any]) -> None:
    """Runs the target of a worker."""
    unblock_sigterm()
    target(*args)


def _process(
    kind: type[BaseProcess], run: Callable[..., object]
) -> Callable[..., BaseProcess]:
    """Returns a function that creates a worker of the type `kind`; `run` calls
    its target."""

    def process(
        context: BaseContext,
        *,
        target: Callable[..., object],
        args: Iterable[Any],
    ) -> BaseProcess:
        return kind(target=run, args=(target, args))

    return process


class _WithSigtermBlocked:
    """Makes a process start with SIGTERM blocked. It is a base class, since a
    function that a process refers to and that refers to it would keep its
    descriptors until the next garbage collection."""

    def start(self) -> None:
        # A pool that is left immediately ends workers that still start.
        with sigterm_blocked():
            super().start()


@functools.cache
def _starting_with_sigterm_blocked(
    kind: type[BaseProcess],
) -> type[BaseProcess]:
    # Python derives the names of the workers from the name of the type.
    return type(kind.__name__, (_WithSigtermBlocked, kind), {})


def _in_state_of_caller() -> Callable[..., object]:
    """
    Captures the state of the calling thread. Returns a function that runs the
    target of a forked process in that state, whichever thread forks it.
    """
    place = framework._current_expected_place()
    is_dynamic = paddle.in_dynamic_mode()
    set_modes = modes_of_caller()

    def run(target: Callable[..., object], args: Iterable[Any]) -> None:
        # The creator's tracer may belong to the creator's own device.
        tracer = devices.process_tracer if is_dynamic else None
        framework.global_var._dygraph_tracer_ = tracer
        framework._set_expected_place(place)
        set_modes()
        _run(target, args)

    return streams.with_streams_of_creator(run)


class _WithPool:
    """Gives a context of `multiprocessing` the pools of this module."""

    def Pool(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
    ) -> pool.Pool:
        return _Pool(processes, initializer, initargs, maxtasksperchild, self)

    def get_context(self, method: str | None = None) -> BaseContext:
        return self if method is None else get_context(method)

    def __reduce__(self) -> tuple:
        return get_context, (self.get_start_method(),)


def _contexts() -> Mapping[str, BaseContext]:
    found = {}
    for method in multiprocessing.get_all_start_methods():
        kind = type(multiprocessing.get_context(method))
        found[method] = type(kind.__name__, (_WithPool, kind), {})()
    return found


_CONTEXTS = _contexts()


def get_context(method: str | None = None) -> BaseContext:
    """Returns the context of a start method, with a ``Pool`` for tensors.

    It is the context of ``multiprocessing``, except for its :func:`Pool`.

    Args:
        method (str|None, optional): ``'fork'``, ``'spawn'`` or
            ``'forkserver'``. Default: None, the start method of the process,
            which cannot be changed after this call.

    Returns:
        BaseContext: the context.

    Raises:
        ValueError: the start method does not exist.

    Examples:
        .. code-block:: python

            >>> import paddle.multiprocessing as mp
            >>> print(mp.get_context('fork').get_start_method())
            fork
    """
    name = multiprocessing.get_context(method).get_start_method()
    return _CONTEXTS[name]


def Pool(
    processes: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    maxtasksperchild: int | None = None,
) -> pool.Pool:
    """Creates a pool of processes that can exchange tensors.

    It differs from the ``Pool`` of ``multiprocessing`` in two ways. If a task
    or a result cannot be unpickled, for example because a tensor cannot be
    attached, only that job fails. With ``'fork'``, every worker, including
    later replacements, starts in the state that the calling thread has now: its
    device and streams, graph mode, ``no_grad`` mode and ``auto_cast`` level.

    Args:
        processes (int|None, optional): the number of workers. Default: None,
            the number of CPUs.
        initializer (Callable|None, optional): called first by each worker.
            Default: None.
        initargs (Iterable, optional): the arguments of the initializer.
            Default: ().
        maxtasksperchild (int|None, optional): the number of tasks after which
            a worker is replaced. Default: None, no limit.

    Returns:
        multiprocessing.pool.Pool: the pool, with the default start method; for
        another one, call ``get_context(method).Pool``.

    Raises:
        TypeError, ValueError: an argument has a wrong type, or is out of range.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.multiprocessing as mp
            >>> with mp.get_context('fork').Pool(2) as pool:
            ...     print(pool.map(len, [paddle.ones([3]), paddle.ones([2])]))
            [3, 2]
    """
    return get_context().Pool(
        processes, initializer, initargs, maxtasksperchild
    )
