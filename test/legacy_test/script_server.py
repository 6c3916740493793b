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
"""A process that has imported Paddle, and forks to run scripts.

forked_script.py starts it. It imports no other module of the tests: such a
module would keep the server's state, such as the process id in
killed_test_run.py.
"""

from __future__ import annotations

import gc
import json
import os
import random  # noqa: F401
import socket
import sys
import threading  # noqa: F401
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType

# The functions that Paddle calls at a fork have to run when a script forks, not
# when the server does: a script is no child of a process that uses Paddle.
# Those of Python's modules also run when the server forks: `random` has one, so
# that scripts draw different numbers.
_hooks = []
_register = os.register_at_fork
os.register_at_fork = lambda **hooks: _hooks.append(hooks)
import paddle  # noqa: E402, F401

os.register_at_fork = _register


def next_script() -> CodeType:
    """
    Serves requests from stdin, which is a socket, until its other end closes. A
    request is a script with its arguments, sent with its stdout and stderr, or
    a process id, whose wait status is the answer. Returns only in forked
    children, each time with the script that the child has to run.
    """
    # Collections in the children skip the objects of the import: nearly all are
    # in use, and visiting them would copy their memory.
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    server = os.getpid()
    while True:
        message, streams, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if isinstance(request, int):
            _, status = os.waitpid(request, 0)
            requests.send(str(status).encode())
        elif os.fork() == 0:
            break
        for stream in streams:
            os.close(stream)
    script, *arguments = request
    _become_script(server, streams)
    requests.send(str(os.getpid()).encode())
    requests.close()
    sys.argv = ["-c", *arguments]
    # Without the __future__ import of this module.
    return compile(script, "<string>", "exec", dont_inherit=True)


def _become_script(server: int, streams: list[int]) -> None:
    """Makes this child of the server as if it was started for the script."""
    from killed_test_run import end_with

    end_with(server)
    for hooks in _hooks:
        os.register_at_fork(**hooks)
    os.setsid()
    for target, source in enumerate(
        (os.open(os.devnull, os.O_RDONLY), *streams)
    ):
        os.dup2(source, target)
        os.close(source)
