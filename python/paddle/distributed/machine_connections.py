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
"""TCP connections between ranks of different machines."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Callable

_SIOCGIFADDR = 0x8915
_KEY_BYTES = 16
_NUMBER = struct.Struct("!I")  # of the rank that connects
# poll() takes a C int.
MAX_POLL_MS = 2**31 - 1
# A rank that is not stopped answers within this time.
REPLY_TIMEOUT_S = 5.0
# A machine or network that fails closes no connection. So the kernel probes a
# connection that was idle for _IDLE_S, and closes it after _PROBES unanswered
# probes. This is sooner than gloo's timeout, whose error does not name the lost
# rank.
_IDLE_S = 10
_PROBE_INTERVAL_S = 5
_PROBES = 3
CHECK_ADDRESSES = (
    "Check that each host's name resolves to an address that the other machines"
    " can reach, or set GLOO_SOCKET_IFNAME"
)

# The objects whose descriptors a forked process closes.
_open: weakref.WeakSet = weakref.WeakSet()


def _interface_address(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            found = fcntl.ioctl(
                any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode())
            )
        except OSError as error:
            raise RuntimeError(
                f"GLOO_SOCKET_IFNAME names the network interface {name!r}, "
                f"which has no usable IPv4 address: {error.strerror}. Set an "
                "interface with an IPv4 address; `ip address` lists them."
            ) from error
    return socket.inet_ntoa(found[20:24])


def _listen() -> socket.socket:
    """Listens at the address that gloo uses, where ranks reach each other."""
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
    """The socket to which ranks of other machines connect.

    Attributes:
        address (str): the text that they need to connect.
    """

    def __init__(self):
        self._socket = _listen()
        # Distinguishes ranks from other clients, which do not know it.
        self._key = os.urandom(_KEY_BYTES)
        host, port = self._socket.getsockname()[:2]
        self.address = f"{host} {port} {self._key.hex()}"

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def shut_down(self) -> None:
        """Wakes a thread that waits for connections."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def accept(
        self, deadline: float, add: Callable[[int, socket.socket], None]
    ) -> None:
        """Accepts a client. Calls `add(number, connection)` if it is a rank.

        That call is on a thread of its own, since the client may be a stranger
        that sends nothing.
        """
        self._socket.settimeout(seconds_until(deadline))
        client = self._socket.accept()[0]
        threading.Thread(
            target=self._admit, args=(client, add), daemon=True
        ).start()

    def _admit(
        self, client: socket.socket, add: Callable[[int, socket.socket], None]
    ) -> None:
        number = self._number_of(client)
        if number is not None:
            add(number, client)

    def _number_of(self, client: socket.socket) -> int | None:
        """Returns the number of the rank that has connected. Closes the
        connection of a stranger, and returns None."""
        with contextlib.suppress(OSError):
            client.settimeout(REPLY_TIMEOUT_S)
            if receive(client, _KEY_BYTES) == self._key:
                (number,) = _NUMBER.unpack(receive(client, _NUMBER.size))
                return number
        client.close()
        return None


def seconds_until(deadline: float) -> float:
    """Returns a valid timeout of a socket, which is never zero."""
    return min(max(deadline - time.monotonic(), 0.001), MAX_POLL_MS / 1000)


def connect(address: str, number: int, deadline: float) -> socket.socket:
    host, port, key = address.split()
    try:
        found = socket.create_connection(
            (host, int(port)), seconds_until(deadline)
        )
    except OSError as error:
        raise ConnectionError(
            f"cannot connect to {host} port {port} ({error}). {CHECK_ADDRESSES}"
        ) from error
    found.settimeout(REPLY_TIMEOUT_S)
    found.sendall(bytes.fromhex(key) + _NUMBER.pack(number))
    return found


def probe_when_idle(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _IDLE_S),
        (socket.TCP_KEEPINTVL, _PROBE_INTERVAL_S),
        (socket.TCP_KEEPCNT, _PROBES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("its connection was closed")
        data += more
    return data


def close_when_forked(owner: Any) -> None:
    """Calls `owner.close_in_child()` in processes that are forked from now on,
    as long as the object lives."""
    _open.add(owner)


def _close_in_child() -> None:
    for owner in list(_open):
        owner.close_in_child()


os.register_at_fork(after_in_child=_close_in_child)
