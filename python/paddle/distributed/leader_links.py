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
"""Connections between the leaders of machines. Through them a leader detects
immediately that another one has died or failed. Gloo would wait for 30 seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import select
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core

from .machine_connections import (
    CHECK_ADDRESSES,
    MAX_POLL_MS,
    REPLY_TIMEOUT_S,
    close_when_forked,
    connect,
    probe_when_idle,
    receive,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paddle.base.core import ProcessGroup, Store

    from .machine_connections import Listener

# The length of a message, which precedes its text. An empty text means that the
# leader leaves. A text fits into the socket buffers.
_LENGTH = struct.Struct("!I")
# A gloo call fails after 30 seconds.
LONGEST_CALL_S = 35.0
# Paddle itself keeps gloo's connections until the process exits.
_gloo_groups: list[ProcessGroup] = []


class LinkError(RuntimeError):
    """Another leader has died, is unreachable, or has reported a failure."""


class LeaderLinks:
    """The connections of one leader to the others.

    Runs calls that wait for other leaders, and stops waiting when one of these
    has died, which closes its connection, is unreachable, or has reported a
    failure. The call then continues on a thread of this object, and no further
    call is possible.

    Only one thread at a time may call the methods.

    Args:
        listener: the listener of this leader, which is closed here.
        ranks: the ranks of the leaders.
        addresses: the addresses of their listeners.
        number: the index of this leader among them.
        timeout: how many seconds to wait for the others.
    """

    def __init__(
        self,
        listener: Listener,
        ranks: Sequence[int],
        addresses: Sequence[str],
        number: int,
        timeout: float,
    ):
        self._process = os.getpid()
        self._ranks = ranks
        self._peers: dict[int, tuple[int, socket.socket]] = {}
        self._poll = select.poll()
        self._ended, self._ends = socket.socketpair()
        self._poll.register(self._ended, select.POLLIN)
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._outcome: tuple[Any, BaseException | None] = (None, None)
        self._is_running = False
        close_when_forked(self)
        deadline = time.monotonic() + timeout
        try:
            for other in range(number):
                self._add(other, connect(addresses[other], number, deadline))
            self._accept(listener, len(addresses) - 1 - number, deadline)
        except (OSError, RuntimeError) as error:
            self._close_descriptors()
            reason = str(error)
            if CHECK_ADDRESSES not in reason:
                reason = f"{reason}. {CHECK_ADDRESSES}"
            raise RuntimeError(
                f"Rank {ranks[number]} cannot connect to the leaders of the "
                f"other machines, ranks {list(ranks)}, at {addresses}: "
                f"{reason}."
            ) from error
        finally:
            listener.close()
        self._thread = threading.Thread(target=self._run_calls, daemon=True)
        self._thread.start()

    def _accept(
        self, listener: Listener, missing: int, deadline: float
    ) -> None:
        """Adds the leaders that connect to this one."""
        if missing == 0:
            return
        found: queue.SimpleQueue = queue.SimpleQueue()

        def accept() -> None:
            try:
                while True:
                    listener.accept(deadline, lambda *leader: found.put(leader))
            except Exception as error:  # also if no thread can be started
                found.put(error)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            for _ in range(missing):
                leader = found.get()
                if isinstance(leader, Exception):
                    raise leader
                self._add(*leader)
        finally:
            listener.shut_down()
            thread.join()

    def _add(self, number: int, connection: socket.socket) -> None:
        probe_when_idle(connection)
        self._peers[connection.fileno()] = self._ranks[number], connection
        self._poll.register(connection, select.POLLIN)

    def run(
        self, call: Callable[[], Any], timeout: float = LONGEST_CALL_S
    ) -> Any:
        """Runs a call and returns its result, or raises its exception.

        Raises:
            LinkError: another leader has died, failed, or is unreachable.
            TimeoutError: the call has not returned after `timeout` seconds.
        """
        self._poll_once(0)
        self._is_running = True
        self._calls.put(call)
        deadline = time.monotonic() + timeout
        while self._is_running:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"The call between leaders did not end in {timeout:g} s. "
                    "Look for a leader that is stopped or cannot be reached, or"
                    " pass a longer timeout."
                )
            self._poll_once(left)
        result, error = self._outcome
        self._outcome = (None, None)
        if error is not None:
            # Prefer a LinkError: gloo's error does not name the lost leader.
            self._poll_once(REPLY_TIMEOUT_S)
            raise error
        return result

    def send_failure(self, text: str) -> None:
        """Sends the reason for a failure to the other leaders."""
        self._send(text)

    def send_leaving(self) -> None:
        """Tells the other leaders that this one leaves."""
        self._send("")

    def _send(self, text: str) -> None:
        data = text.encode()
        for _, connection in self._peers.values():
            # A leader that has died needs no text.
            with contextlib.suppress(OSError):
                connection.sendall(_LENGTH.pack(len(data)) + data)

    def close(self) -> None:
        """
        Leaves: tells the other leaders, and waits until an abandoned call has
        returned.
        """
        self.send_leaving()
        self._calls.put(None)
        self._thread.join(LONGEST_CALL_S)
        self._close_descriptors()

    def close_in_child(self) -> None:
        """Closes the descriptors that a forked process has inherited.

        Otherwise the connections would stay open as long as the child lives.
        """
        if os.getpid() != self._process:
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        for _, connection in self._peers.values():
            connection.close()
        self._peers.clear()
        self._ended.close()
        self._ends.close()

    def _poll_once(self, seconds: float) -> None:
        """Waits until the call returns or a peer fails, or for the seconds."""
        milliseconds = min(seconds * 1000, MAX_POLL_MS)
        found = [number for number, _ in self._poll.poll(milliseconds)]
        if self._ended.fileno() in found:
            self._ended.recv(1)
            self._is_running = False
            return
        for number in found:
            self._receive_text(number)

    def _receive_text(self, number: int) -> None:
        rank, connection = self._peers[number]
        try:
            (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
            text = receive(connection, length).decode()
        except OSError as error:
            raise LinkError(
                f"Rank {rank}, the leader of its machine, has died, or its "
                f"machine cannot be reached: {error}. See its output, and "
                "start all ranks again."
            ) from error
        if text:
            raise LinkError(text)
        self._poll.unregister(number)

    def _run_calls(self) -> None:
        while (call := self._calls.get()) is not None:
            result, error = None, None
            try:
                result = call()
            except Exception as caught:
                error = caught
            del call
            self._outcome = (result, error)
            del result, error
            # Already closed if the call was abandoned for too long.
            with contextlib.suppress(OSError):
                self._ends.send(b".")


def create_gloo_group(
    store: Store, rank: int, size: int, group_id: int
) -> ProcessGroup:
    """Creates a group over gloo that forked children of this process do not
    disturb when they exit."""
    _protect_from_children()
    group = core.ProcessGroupGloo.create(store, rank, size, group_id)
    _gloo_groups.append(group)
    return group


@functools.cache
def _protect_from_children() -> None:
    os.register_at_fork(after_in_child=_keep_gloo_at_exit)


def _keep_gloo_at_exit() -> None:
    """Makes this forked process exit without destroying gloo's connections.

    Destroying them would remove them from the epoll instance of the parent,
    whose operations would then wait forever. And it waits for gloo's thread,
    which this process does not have.
    """
    for group in _gloo_groups:
        # A reference that even the end of Python does not drop.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    libc = ctypes.CDLL(None)
    libc.on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    # Paddle has further connections, which a C++ destructor destroys. So end
    # the process before that, but after Python. The function that is registered
    # last runs first: fcloseall writes what the buffers of C files still
    # contain, as exit() does at its end.
    for function in (libc["_exit"], libc.fcloseall):
        libc.on_exit(ctypes.cast(function, ctypes.c_void_p), None)
