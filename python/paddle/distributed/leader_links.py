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
"""Connections between the leaders of machines, by which each hears at once that
another one has died or failed. Gloo would wait for 30 seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import select
import socket
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIOCGIFADDR = 0x8915
_KEY_BYTES = 16
# A leader's number, or the length of a message, which precedes its text. A
# message without a text says goodbye.
_UINT32 = struct.Struct("!I")
# How long a leader takes that is not stopped. A text fits into its buffers.
_SHORT_S = 5.0
# Gloo gives a call up after 30 seconds.
LONGEST_CALL_S = 35.0
# A machine or network that fails closes no connection. One that was idle for
# so long is probed, so often, and counts as broken without an answer: before
# gloo gives up, which does not know whom it has lost.
_IDLE_S = 10
_PROBE_INTERVAL_S = 5
_PROBES = 3

_open: weakref.WeakSet[LeaderLinks] = weakref.WeakSet()


class LinkError(RuntimeError):
    """Another leader has died, is out of reach, or has said why it failed."""


def _interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(
                any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode())
            )
        except OSError as error:
            raise RuntimeError(
                f"GLOO_SOCKET_IFNAME names the network interface {name!r}, "
                f"whose IPv4 address cannot be had: {error.strerror}. Name one "
                "that has such an address, see the output of `ip address`."
            ) from error
    return socket.inet_ntoa(found[20:24])


def _listen() -> socket.socket:
    """Listens where gloo does: the leaders reach each other there."""
    name = os.environ.get("GLOO_SOCKET_IFNAME")
    if name:
        return socket.create_server((_interface_address(name), 0))
    with contextlib.suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(
            socket.gethostname(), 0, type=socket.SOCK_STREAM
        ):
            with contextlib.suppress(OSError):
                return socket.create_server(address[:2], family=family)
    return socket.create_server(("127.0.0.1", 0))


class Listener:
    """Where other leaders connect to this one.

    Attributes:
        address (str): what they have to know.
    """

    def __init__(self):
        self._socket = _listen()
        # Strangers that connect do not know it.
        self._key = os.urandom(_KEY_BYTES)
        host, port = self._socket.getsockname()[:2]
        self.address = f"{host} {port} {self._key.hex()}"

    def close(self) -> None:
        self._socket.close()

    def accept(self, deadline: float) -> tuple[int, socket.socket]:
        """Returns the number of a leader that has connected."""
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            found, _ = self._socket.accept()
            with contextlib.suppress(OSError):
                found.settimeout(_SHORT_S)
                if _receive(found, _KEY_BYTES) == self._key:
                    (number,) = _UINT32.unpack(_receive(found, _UINT32.size))
                    return number, found
            found.close()


def _connect(address: str, number: int, deadline: float) -> socket.socket:
    host, port, key = address.split()
    found = socket.create_connection(
        (host, int(port)), max(deadline - time.monotonic(), 0.001)
    )
    found.settimeout(_SHORT_S)
    found.sendall(bytes.fromhex(key) + _UINT32.pack(number))
    return found


def _probe_when_idle(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S),
        (socket.TCP_KEEPCNT, _PROBES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("its connection was closed")
        data += more
    return data


class LeaderLinks:
    """The connections of one leader.

    It runs calls that wait for other leaders, and stops waiting when one of
    these has died, which closes its connection, cannot be reached any more, or
    has said why it failed. The call goes on then, on a thread of this object,
    and no other one can be made.

    One thread at a time may call the methods.

    Args:
        listener: that of this leader; it is closed.
        ranks: the leaders' ranks.
        addresses: those of their listeners.
        number: which of them this leader is.
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
        _open.add(self)
        deadline = time.monotonic() + timeout
        try:
            for other in range(number):
                self._add(other, _connect(addresses[other], number, deadline))
            for _ in range(number + 1, len(addresses)):
                self._add(*listener.accept(deadline))
        except OSError as error:
            self._close_descriptors()
            raise RuntimeError(
                f"Rank {ranks[number]} cannot connect to the leaders of the "
                f"other machines, ranks {list(ranks)}, at {addresses}: {error}."
                " See that their hosts' names have addresses that the others "
                "reach, or set GLOO_SOCKET_IFNAME."
            ) from error
        finally:
            listener.close()
        self._thread = threading.Thread(target=self._run_calls, daemon=True)
        self._thread.start()

    def _add(self, number: int, connection: socket.socket) -> None:
        _probe_when_idle(connection)
        self._peers[connection.fileno()] = self._ranks[number], connection
        self._poll.register(connection, select.POLLIN)

    def run(
        self, call: Callable[[], Any], timeout: float = LONGEST_CALL_S
    ) -> Any:
        """Returns what a call returns, or raises what it raises.

        Raises:
            LinkError: another leader has died, failed, or is out of reach.
            TimeoutError: the call has not ended after `timeout` seconds.
        """
        self._look(0)
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
            self._look(left)
        result, error = self._outcome
        self._outcome = (None, None)
        if error is not None:
            # Gloo does not know which one it has lost.
            self._look(_SHORT_S)
            raise error
        return result

    def tell(self, text: str) -> None:
        """Tells all others why this leader's machine fails, or goodbye."""
        data = text.encode()
        for _, connection in self._peers.values():
            # One that has died needs no text.
            with contextlib.suppress(OSError):
                connection.sendall(_UINT32.pack(len(data)) + data)

    def close(self) -> None:
        """Says goodbye. Waits for the end of a call that was given up."""
        self.tell("")
        self._calls.put(None)
        self._thread.join(LONGEST_CALL_S)
        self._close_descriptors()

    def close_in_child(self) -> None:
        """Closes what a forked process has inherited.

        Connections would not break while it lives.
        """
        if os.getpid() != self._process:
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        for _, connection in self._peers.values():
            connection.close()
        self._peers.clear()
        self._ended.close()
        self._ends.close()

    def _look(self, seconds: float) -> None:
        """Waits for the end of the call, or for a peer that fails."""
        found = [number for number, _ in self._poll.poll(seconds * 1000)]
        if self._ended.fileno() in found:
            self._ended.recv(1)
            self._is_running = False
            return
        for number in found:
            self._hear(number)

    def _hear(self, number: int) -> None:
        rank, connection = self._peers[number]
        try:
            (length,) = _UINT32.unpack(_receive(connection, _UINT32.size))
            text = _receive(connection, length).decode()
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
            # Closed already if the call was given up for long.
            with contextlib.suppress(OSError):
                self._ends.send(b".")


def _close_in_child() -> None:
    for links in list(_open):
        links.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
