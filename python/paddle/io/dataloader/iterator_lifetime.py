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
"""
Ends the reader thread and the worker processes of an iterator over a DataLoader
when the iterator is dropped, and its reader thread also when Python exits.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable

from ...framework import core
from ..multiprocess_utils import (
    MP_STATUS_CHECK_INTERVAL,
    CleanupFuncRegistrar,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

__all__ = []

# How long dropping an iterator waits for its workers, and then for its thread.
# Those that are still making a batch then end after it.
_WAIT_S = 1.0

# The iterators of the threads of this process, see `iterator_of_thread`. Not a
# WeakSet, which cannot be iterated over while another thread adds to it.
_thread_iterators: set[weakref.ref[Any]] = set()

# Set when Python begins to exit.
_exiting = threading.Event()


@functools.lru_cache(None)
def _thread_iterator_type(iterator_type: type) -> type:
    return type(
        iterator_type.__name__, (iterator_type,), {"__del__": lambda self: None}
    )


def iterator_of_thread(iterator: Any) -> Any:
    """
    Returns an object for the reader thread that starts next. It has the methods
    and attributes of `iterator`, and changes on either object are seen on both.
    But it does not keep `iterator` alive, whose `__del__` ends the thread.
    """
    if hasattr(iterator, "_workers"):
        # Only if there are processes: loading it takes time.
        from multiprocessing.connection import Pipe

        iterator._woken, iterator._wake = Pipe(duplex=False)
    of_thread = object.__new__(_thread_iterator_type(type(iterator)))
    of_thread.__dict__ = vars(iterator)
    _thread_iterators.add(weakref.ref(of_thread, _thread_iterators.discard))
    return of_thread


def get_result(iterator: Any) -> Any:
    """
    Returns the next result of the worker processes. Raises `queue.Empty` after
    the timeout of `iterator`, or if `end_reader_thread` wakes the thread, and
    EOFError if a worker has ended in the middle of a result.
    """
    # Only here: loading it takes time.
    from multiprocessing import connection

    reader = iterator._data_queue._reader
    ready = connection.wait([reader, iterator._woken], iterator._timeout)
    if reader not in ready:
        raise queue.Empty
    from .worker_results import receive

    return receive(iterator)


def enforce_same_process(iterator: Any) -> None:
    """Raises RuntimeError in a process that was forked after `iterator` was
    created."""
    if iterator._process != os.getpid():
        raise RuntimeError(
            f"This DataLoader iterator belongs to process {iterator._process}, "
            "whose threads do not exist in this forked process "
            f"({os.getpid()}). Iterate over the loader again."
        )


def _end_daemon_thread_at_exit() -> None:
    """
    Ends the calling thread if it is a daemon and Python exits. Otherwise Python
    would end it when it returns from the C++ reader, which aborts the process.
    """
    if _exiting.is_set() and threading.current_thread().daemon:
        # threading catches it silently.
        raise SystemExit


def reads_batch(next_batch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """
    Decorates `__next__` of an iterator: it raises RuntimeError in a forked
    child, see `enforce_same_process`. Any exception but the end of an epoch
    ends the iterator: further calls raise StopIteration, because the C++ reader
    may not be read again, or the next batch would get the structure of a batch
    that was lost, for example by Ctrl-C. At exit, a daemon thread ends here.
    """

    @functools.wraps(next_batch)
    def wrapped(iterator: Any) -> Any:
        enforce_same_process(iterator)
        if iterator._ended:
            _end_daemon_thread_at_exit()
            raise StopIteration
        try:
            iterator._may_read = False
            # After this assignment: the exit first sets _exiting, and then
            # waits for threads that read.
            _end_daemon_thread_at_exit()
            batch = next_batch(iterator)
            iterator._may_read = True
            return batch
        except StopIteration:
            # Persistent workers may begin another epoch.
            iterator._ended = iterator._thread_done_event.is_set()
            iterator._may_read = not iterator._ended
            _end_daemon_thread_at_exit()
            raise
        except BaseException:
            end_after_error(iterator)
            raise

    return wrapped


def end_after_error(iterator: Any) -> None:
    """Ends an iterator whose state an error has left undefined. Its `__next__`
    then raises StopIteration."""
    iterator._ended = True
    iterator._exit_thread_unexpectedly()


def end_dropped(iterator: Any) -> None:
    """Does the work of the `__del__` of `iterator`."""
    attributes = vars(iterator)
    if attributes.get("_process", os.getpid()) != os.getpid():
        # The workers belong to the parent. The destructors of the queues and
        # of the reader would wait for threads that this process does not have.
        _keep_forever(attributes)
        return
    if attributes.get("_shutdown", True):
        # Here: a reference cycle, for example through an error, may keep the
        # attributes until a forked child collects them, where the reader would
        # wait for threads that do not exist.
        attributes.pop("_reader", None)
        return
    # Its traceback refers to the attributes.
    attributes.pop("_error", None)
    if hasattr(iterator, "_workers"):
        if _exiting.is_set():
            # An error has ended its thread, so _end_reader_threads does not
            # know it. A queue that was never used would wait for a new thread.
            _drop_reader(iterator)
            _keep_forever(attributes)
            return
        # An error of a worker matters to nobody now.
        core._erase_process_pids(id(iterator))
    iterator._try_shutdown_all(_WAIT_S)
    _drop_reader(iterator)
    # Nobody reads it any more, so the exit need not wait for that.
    iterator._ended = True


def _keep_forever(kept: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _drop_reader(iterator: Any) -> None:
    """
    Drops the C++ reader. Its destructor holds the GIL while it waits for the
    reader's threads. These need the GIL if they drop a tensor whose memory
    belongs to Python. So take the remaining batches first, without the GIL: the
    threads are idle then. A reader that cannot be read is never destroyed.
    Batches of worker processes are in memory that does not belong to Python.
    """
    reader = vars(iterator).pop("_reader", None)
    if reader is None or hasattr(iterator, "_workers"):
        return
    try:
        while iterator._may_read:
            iterator._may_read = False
            reader.read_next_list()
            iterator._may_read = True
    except StopIteration:
        return
    except Exception:  # of a batch that nobody takes
        pass
    _keep_forever(reader)


def _ask_to_end(iterator: Any) -> None:
    iterator._exit_thread_expectedly()
    if hasattr(iterator, "_workers"):
        iterator._wake.send_bytes(b"wake up")


def end_reader_thread(iterator: Any, timeout: float | None) -> None:
    """Asks the reader thread to end, and waits for it, at most `timeout`
    seconds. Has no effect if it did not start."""
    thread = iterator._thread
    if thread is None or thread.ident is None:
        return
    _ask_to_end(iterator)
    if thread is not threading.current_thread():
        thread.join(timeout)


def join_workers(iterator: Any, timeout: float | None) -> None:
    """Waits until the worker processes of `iterator` have ended, at most
    `timeout` seconds in all."""
    workers: Sequence[BaseProcess] = iterator._workers
    deadline = None if timeout is None else time.monotonic() + timeout
    for worker in workers:
        worker.join(deadline and max(0, deadline - time.monotonic()))
    for worker in workers:
        if worker.is_alive():
            # It may be starting, and look for the semaphores of these by name.
            worker._used = (
                iterator._data_queue,
                iterator._indices_queues,
                iterator._workers_done_event,
            )


def _end_reader_threads() -> None:
    _exiting.set()
    iterators = [reference() for reference in list(_thread_iterators)]
    # Not by truth: the length of an iterator may be 0 or undefined.
    iterators = [i for i in iterators if i is not None]
    iterators = [i for i in iterators if i._process == os.getpid()]
    for iterator in iterators:
        iterator._shutdown = True
        if hasattr(iterator, "_workers"):
            # multiprocessing terminates the workers; their queues end with the
            # process.
            _keep_forever(vars(iterator))
    # A thread that runs in C++ while Python or the process ends may crash it.
    for iterator in iterators:
        with contextlib.suppress(Exception):
            _ask_to_end(iterator)
    deadline = time.monotonic() + MP_STATUS_CHECK_INTERVAL
    for iterator in iterators:
        end_reader_thread(iterator, max(0, deadline - time.monotonic()))
        # A daemon thread may be reading it.
        while (
            not (iterator._may_read or iterator._ended)
            and time.monotonic() < deadline
        ):
            time.sleep(0.001)
        # This waits until the reader has made its last copy to a device: Paddle
        # unloads the devices next.
        _drop_reader(iterator)


CleanupFuncRegistrar.register(_end_reader_threads)
