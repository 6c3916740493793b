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
"""Sends and receives between ranks of different machines, over TCP.

Gloo is not used here: its receive fails after 30 seconds, whatever the timeout
of the group is, and it terminates the process if the sizes differ.
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
from typing import TYPE_CHECKING, Callable, NamedTuple

from paddle.base import core

from .machine_connections import (
    close_when_forked,
    connect,
    probe_when_idle,
    receive,
    seconds_until,
)
from .python_process_group import Task

if TYPE_CHECKING:
    import datetime

    from paddle import Tensor

    from .machine_connections import Listener

# The size of a message and the type of its elements.
_HEADER = struct.Struct("!Q24s")
# The length of a receiver's answer, which precedes its text. An empty text
# accepts the message.
_LENGTH = struct.Struct("!I")
_ACCEPTED = _LENGTH.pack(0)
# The data of a message of at most this size follow the header immediately.
# Those of a larger one follow the answer, so that a receiver that is late or
# refuses the message need not read them.
_IMMEDIATE_BYTES = 1 << 16
# How long a thread waits for another transfer before it ends. It takes up to a
# millisecond to start one.
_IDLE_THREAD_S = 1.0
# Threads whose connections are shut down end within this time.
_TIME_TO_END_S = 5.0


class _RefusedError(RuntimeError):
    """The receiver passed another tensor than the sender. Both raise this."""


class _Message(NamedTuple):
    data: memoryview
    dtype: str
    owner: core.DenseTensor  # keeps the memory of the data

    @classmethod
    def of(cls, tensor: Tensor) -> _Message:
        # The caller's tensor may get other memory during the transfer.
        owner = core.DenseTensor()
        owner._share_data_with(tensor.get_tensor())
        size = tensor.size * tensor.element_size()
        array = (ctypes.c_char * size).from_address(tensor.data_ptr())
        dtype = str(tensor.dtype).split(".")[-1]
        return cls(memoryview(array).cast("B"), dtype, owner)


class _Channel:
    """The transfers between two ranks in one direction.

    They run one at a time, in call order. After one has failed, the next one
    would read or write in the middle of its data, so that it fails, too.

    Attributes:
        failure: why a transfer has failed.
        connection: set when the ranks are connected.
    """

    def __init__(self):
        self.failure: str | None = None
        self.connection: socket.socket | None = None
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._turn = threading.Lock()  # held while a call runs
        self._mutex = threading.Lock()  # guards the following
        self._pending = 0
        self._has_thread = False

    def run(self, call: Callable[[], str | None], sync_op: bool) -> Task:
        """Runs a call that returns why it failed. A synchronous call runs on
        this thread if no earlier one is in flight."""
        task = Task(sync_op)
        with self._mutex:
            runs_here = sync_op and self._pending == 0
            if not runs_here and not self._has_thread:
                threading.Thread(target=self._run_calls, daemon=True).start()
                self._has_thread = True
            self._pending += 1
            if not runs_here:
                self._calls.put((task, call))
        if runs_here:
            task.end(self._run(call))
        if sync_op:
            task.wait()
        return task

    def _run(self, call: Callable[[], str | None]) -> str | None:
        try:
            with self._turn:
                return call()
        finally:
            with self._mutex:
                self._pending -= 1

    def _run_calls(self) -> None:
        while True:
            try:
                task, call = self._calls.get(timeout=_IDLE_THREAD_S)
            except queue.Empty:
                with self._mutex:
                    if self._pending == 0:
                        self._has_thread = False
                        return
                continue
            failure = self._run(call)
            # After a wait, no reference to the memory of the data may remain.
            del call
            task.end(failure)


class _Peer:
    """A rank of another machine."""

    def __init__(self, address: str):
        self.address = address
        self.channels = {"send": _Channel(), "recv": _Channel()}
        self.connecting = threading.Lock()  # held to connect for sending
        self.has_left = False


class MachineTransfers:
    """The sends and receives between one rank and ranks of other machines.

    Each rank connects to another one before its first transfer with it, and
    sends through this connection. A rank that waits until the other one has
    connected, too, learns through its own connection when the other one dies.

    Args:
        rank: the rank of this process.
        listener: the listener of this rank.
        addresses: the addresses of the listeners of other machines' ranks.
        timeout: how long a transfer waits for the other rank.
    """

    def __init__(
        self,
        rank: int,
        listener: Listener,
        addresses: dict[int, str],
        timeout: datetime.timedelta,
    ):
        self._process = os.getpid()
        self._rank = rank
        self._listener = listener
        self._timeout = timeout
        self._peers = {other: _Peer(a) for other, a in addresses.items()}
        # Guards the following and the attributes of peers and channels. It is
        # notified when one of them changes.
        self._changed = threading.Condition()
        self._why_closed: str | None = None
        self._running = 0  # transfers, and the thread that accepts connections
        self._events: select.epoll | None = None  # set by the first transfer
        self._watched: dict[int, _Peer] = {}  # by descriptor
        # The threads that are in `run`. A signal handler there would wait for
        # locks of its own thread.
        self._calling: set[int] = set()
        close_when_forked(self)

    def run(self, name: str, tensor: Tensor, rank: int, sync_op: bool) -> Task:
        """Runs `send` to a rank or `recv` from it."""
        thread = threading.get_ident()
        if thread in self._calling:
            raise RuntimeError(
                f"Rank {self._rank} called {name} with rank {rank} in a signal "
                "handler that interrupted another transfer, which cannot "
                "continue before the handler returns. Only set a flag in the "
                "handler, and communicate later."
            )
        try:
            # Within the try block: a signal handler may raise after this line.
            self._calling.add(thread)
            self._start()
            call = functools.partial(
                self._transfer, name, rank, _Message.of(tensor)
            )
            return self._peers[rank].channels[name].run(call, sync_op)
        finally:
            self._calling.discard(thread)

    def close(self, reason: str) -> None:
        """Makes transfers in flight and later ones fail for this reason, unless
        there was an earlier one."""
        self._shut_down(reason)
        with self._changed:
            # Close no descriptor that a thread uses.
            self._changed.wait_for(lambda: not self._running, _TIME_TO_END_S)
            self._close_descriptors()

    def close_in_child(self) -> None:
        """Closes the descriptors that a forked process has inherited."""
        if os.getpid() != self._process:
            self._close_descriptors()

    def _connections(self) -> list[socket.socket]:
        return [
            channel.connection
            for peer in self._peers.values()
            for channel in peer.channels.values()
            if channel.connection is not None
        ]

    def _shut_down(self, reason: str) -> None:
        with self._changed:
            self._why_closed = self._why_closed or reason
            self._changed.notify_all()
            self._listener.shut_down()
            for connection in self._connections():
                _shut_down(connection)

    def _close_descriptors(self) -> None:
        self._listener.close()
        for connection in self._connections():
            connection.close()
        if self._events is not None:
            self._events.close()

    def _start(self) -> None:
        """Starts the thread that accepts connections."""
        with self._changed:
            if self._events is None and self._why_closed is None:
                events = select.epoll()
                events.register(self._listener, select.EPOLLIN)
                threading.Thread(
                    target=self._watch, args=(events,), daemon=True
                ).start()
                self._events = events
                self._running += 1

    def _watch(self, events: select.epoll) -> None:
        """Accepts connections, and notices which ranks leave."""
        try:
            while self._why_closed is None:
                for number, _ in events.poll():
                    peer = self._watched.get(number)
                    if peer is None:
                        self._accept()
                        continue
                    with self._changed:
                        peer.has_left = True
                        self._changed.notify_all()
        except Exception as error:
            self._shut_down(
                f"Rank {self._rank} cannot accept connections of other "
                f"machines: {error}. Create a new group."
            )
        finally:
            self._end_one()

    def _end_one(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _accept(self) -> None:
        # There is no client if it has closed its connection.
        with contextlib.suppress(socket.timeout):
            self._listener.accept(time.monotonic(), self._admit)

    def _admit(self, rank: int, connection: socket.socket) -> None:
        _prepare(connection)
        self._add("recv", self._peers[rank], connection)

    def _add(self, name: str, peer: _Peer, connection: socket.socket) -> None:
        """Uses a connection for transfers, unless they have failed already."""
        channel = peer.channels[name]
        with self._changed:
            channel.connection = connection
            if channel.failure is not None or self._why_closed is not None:
                _shut_down(connection)
            self._changed.notify_all()

    def _transfer(self, name: str, rank: int, message: _Message) -> str | None:
        """Runs a transfer. Returns why it failed."""
        peer = self._peers[rank]
        channel = peer.channels[name]
        with self._changed:
            if self._why_closed or channel.failure:
                return self._why_closed or channel.failure
            self._running += 1
        deadline = time.monotonic() + self._timeout.total_seconds()
        try:
            transfer = self._send if name == "send" else self._receive
            transfer(rank, peer, message, deadline)
        except _RefusedError as error:
            return str(error)
        except BaseException as error:
            reason = self._reason(name, rank, deadline, error)
            self._fail(name, channel, reason)
            if not isinstance(error, Exception):
                raise
            return reason
        finally:
            self._end_one()
        return None

    def _reason(
        self, name: str, rank: int, deadline: float, error: BaseException
    ) -> str:
        """Returns why a transfer failed, given the error that it raised."""
        if self._why_closed is not None:
            return self._why_closed
        way = "to" if name == "send" else "from"
        text = f"{name} {way} rank {rank} failed on rank {self._rank}. "
        if time.monotonic() >= deadline:
            return (
                f"{text}It waited {self._timeout} for rank {rank}. Check why "
                "that rank is stopped, slow or in other code, or pass a longer "
                "timeout."
            )
        if isinstance(error, OSError):
            return (
                f"{text}Rank {rank} has died, has failed or has left the "
                f"group, or its machine cannot be reached: {error}. See its "
                "output, and create a new group."
            )
        return f"{text}{type(error).__name__}: {error}"

    def _fail(self, name: str, channel: _Channel, reason: str) -> None:
        """Makes later transfers fail, too, on both ranks."""
        with self._changed:
            channel.failure = reason
            if channel.connection is not None:
                # A connection for sending stays open for reading: its end
                # means that the other rank has left.
                how = socket.SHUT_WR if name == "send" else socket.SHUT_RDWR
                _shut_down(channel.connection, how)

    def _send(
        self, rank: int, peer: _Peer, message: _Message, deadline: float
    ) -> None:
        connection = self._connected(peer, deadline)
        header = _HEADER.pack(len(message.data), message.dtype.encode())
        if len(message.data) <= _IMMEDIATE_BYTES:
            _send_all(connection, header + message.data, deadline)
        else:
            _send_all(connection, header, deadline)
            _read_answer(connection, deadline)
            _send_all(connection, message.data, deadline)
        # Wait until all data have been received, so that this rank may leave.
        _read_answer(connection, deadline)

    def _receive(
        self, rank: int, peer: _Peer, message: _Message, deadline: float
    ) -> None:
        self._connected(peer, deadline)
        connection = self._wait_for_sender(peer, deadline)
        connection.settimeout(_seconds_until(deadline))
        size, dtype = _HEADER.unpack(receive(connection, _HEADER.size))
        dtype = dtype.rstrip(b"\0").decode()
        if (size, dtype) != (len(message.data), message.dtype):
            if size <= _IMMEDIATE_BYTES:
                receive(connection, size)
            text = (
                f"Rank {rank} sends {size} bytes of {dtype} to rank "
                f"{self._rank}, which receives {len(message.data)} bytes of "
                f"{message.dtype}. Pass tensors of the same size and type."
            )
            connection.sendall(_LENGTH.pack(len(text)) + text.encode())
            raise _RefusedError(text)
        if size > _IMMEDIATE_BYTES:
            connection.sendall(_ACCEPTED)
        _receive_into(connection, message.data, deadline)
        connection.sendall(_ACCEPTED)

    def _connected(self, peer: _Peer, deadline: float) -> socket.socket:
        """Returns the connection for sending to a rank."""
        channel = peer.channels["send"]
        with peer.connecting:
            if channel.connection is None:
                connection = connect(peer.address, self._rank, deadline)
                _prepare(connection)
                with self._changed:
                    self._watched[connection.fileno()] = peer
                self._add("send", peer, connection)
                self._events.register(
                    connection, select.EPOLLRDHUP | select.EPOLLONESHOT
                )
            return channel.connection

    def _wait_for_sender(self, peer: _Peer, deadline: float) -> socket.socket:
        """Returns the connection for receiving from a rank."""
        channel = peer.channels["recv"]
        with self._changed:
            self._changed.wait_for(
                lambda: channel.connection or peer.has_left or self._why_closed,
                _seconds_until(deadline),
            )
            if channel.connection is None:
                raise ConnectionResetError("its connection was closed")
            return channel.connection


def _seconds_until(deadline: float) -> float:
    """Returns a valid timeout of a socket. Raises after the deadline."""
    if time.monotonic() >= deadline:
        raise socket.timeout("timed out")
    return seconds_until(deadline)


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    probe_when_idle(connection)


def _shut_down(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Ends the calls of other threads that use a connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(how)


def _send_all(
    connection: socket.socket, data: bytes | memoryview, deadline: float
) -> None:
    connection.settimeout(_seconds_until(deadline))
    connection.sendall(data)


def _read_answer(connection: socket.socket, deadline: float) -> None:
    connection.settimeout(_seconds_until(deadline))
    (length,) = _LENGTH.unpack(receive(connection, _LENGTH.size))
    if length != 0:
        raise _RefusedError(receive(connection, length).decode())


def _receive_into(
    connection: socket.socket, data: memoryview, deadline: float
) -> None:
    while data:
        connection.settimeout(_seconds_until(deadline))
        count = connection.recv_into(data)
        if count == 0:
            raise ConnectionResetError("its connection was closed")
        data = data[count:]
