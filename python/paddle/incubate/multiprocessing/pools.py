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
"""Pools of processes: one message fails at a time, and all workers begin alike.

Python's `multiprocessing.pool` pickles the number of a job together with its
payload. A tensor that cannot be attached then ends the thread that distributes
results, or a worker, and the job never finishes. And replacement workers are
forked by a thread of the pool, not by the thread that made the pool.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import struct
import time
from collections.abc import Iterable, Mapping
from multiprocessing import pool, queues
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable, NoReturn

import paddle
from paddle.base import framework
from paddle.base.threads import devices, streams

from .caller_modes import modes_of_caller
from .spawned_process import end_at_sigterm

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess
    from threading import Thread

# The number of the job and the index within it.
_HEADER = struct.Struct("=qq")


class _Queue(queues.SimpleQueue):
    """
    A queue of tuples that begin with the number of a job and an index. None
    marks the end. The rest of a tuple is pickled separately from these two, so
    that an error in unpickling it is an error of this job.
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
        Receives what nobody else will, so that its tensors can be freed. The
        last message may be cut off, by the end of its sender.
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
            rest = self._content_for(error)
        return (job, index, *rest)

    def _content_for(self, error: Exception) -> tuple:
        """Returns what stands for a rest that could not be unpickled."""
        raise NotImplementedError


def _raise(error: Exception) -> NoReturn:
    raise error


class _Tasks(_Queue):
    def _content_for(self, error: Exception) -> tuple:
        return _raise, (error,), {}


class _Results(_Queue):
    def _content_for(self, error: Exception) -> tuple:
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
        is_forked = context.get_start_method() == "fork"
        self.Process = _process(_in_state_of_caller() if is_forked else _run)
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
        # It is kept: workers take nothing from here on.
        inqueue._rlock.acquire()
        # The thread may wait for room to put a task.
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
    """Runs what a worker is to do."""
    end_at_sigterm()
    target(*args)


def _process(run: Callable[..., object]) -> Callable[..., BaseProcess]:
    """Returns what makes a process of a pool, whose target `run` runs."""

    def process(
        context: BaseContext,
        *,
        target: Callable[..., object],
        args: Iterable[Any],
    ) -> BaseProcess:
        return context.Process(target=run, args=(target, args))

    return process


def _in_state_of_caller() -> Callable[..., object]:
    """
    Returns what runs the target of a forked process. Whichever thread forks it,
    it begins as if the calling thread had forked it now.
    """
    place = framework._current_expected_place()
    is_dynamic = paddle.in_dynamic_mode()
    set_modes = modes_of_caller()

    def run(target: Callable[..., object], args: Iterable[Any]) -> None:
        # Not the tracer of the creator, which may be that of its place.
        tracer = devices.process_tracer if is_dynamic else None
        framework.global_var._dygraph_tracer_ = tracer
        framework._set_expected_place(place)
        set_modes()
        _run(target, args)

    return streams.with_streams_of_creator(run)


class _WithPool:
    """A context of `multiprocessing` with the pools of this module."""

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
    """Returns the context of a start method, with pools that can carry tensors.

    It is the one of ``multiprocessing`` but for its ``Pool``, see :func:`Pool`.

    Args:
        method (str|None, optional): ``'fork'``, ``'spawn'`` or
            ``'forkserver'``. Default: None, the start method of the process,
            which is fixed by this call.

    Returns:
        BaseContext: the context.

    Raises:
        ValueError: there is no such start method.

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
    """Makes a pool of processes, to which tensors can be sent.

    It differs from the ``Pool`` of ``multiprocessing`` in two ways. If a task
    or a result cannot be unpickled, because a tensor cannot be attached for
    example, only that job fails. With ``'fork'``, every worker, also one that
    replaces another later, begins in the state that the calling thread has now:
    on its device and streams, in its graph mode, with its ``no_grad`` mode and
    its ``auto_cast`` level.

    Args:
        processes (int|None, optional): the number of workers. Default: None,
            the number of CPUs.
        initializer (Callable|None, optional): what each worker calls first.
            Default: None.
        initargs (Iterable, optional): the arguments of the initializer.
            Default: ().
        maxtasksperchild (int|None, optional): how many tasks a worker does
            until another one replaces it. Default: None, any number.

    Returns:
        multiprocessing.pool.Pool: the pool, with the default start method.
        Those with another one are made by ``get_context(method).Pool``.

    Raises:
        TypeError, ValueError: an argument is of a wrong type, or out of range.

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
