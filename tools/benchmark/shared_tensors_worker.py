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
"""One contestant: a pair of processes that send tensors, timed on request.

    python shared_tensors_worker.py LIBRARY STRATEGY

The first output line is the version and the ids of the processes. Then the
program reads message names, and answers each with the seconds of its rounds.
Each output line is JSON; a string is an error, after which the program exits.
LIBRARY is `paddlepaddle`, `torch` or `memcpy`. `memcpy` is a single process
that copies the bytes into shared memory. An empty STRATEGY is the library's
default.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import multiprocessing
import os
import platform
import sys
import time
from importlib import metadata
from typing import NamedTuple

FLOAT = ctypes.sizeof(ctypes.c_float)


class Message(NamedTuple):
    """Tensors of `size` bytes, or an int; sent `rounds` times in a row."""

    tensors: int
    size: int
    rounds: int
    again: bool = False


MESSAGES = {
    "an int": Message(0, 0, 50),
    "1 KiB": Message(1, 1 << 10, 50),
    "64 x 4 KiB": Message(64, 4 << 10, 10),
    "16 MiB": Message(1, 16 << 20, 10),
    "128 MiB": Message(1, 128 << 20, 5),
    "1 KiB again": Message(1, 1 << 10, 50, again=True),
    "16 MiB again": Message(1, 16 << 20, 10, again=True),
    "128 MiB again": Message(1, 128 << 20, 5, again=True),
}

# The first rounds of a visit are not counted, because the caches are cold.
WARM_UP = 3


def load(library, strategy):
    """Imports a library, sets its sharing strategy, and returns it."""
    if library == "torch":
        import torch as package
        import torch.multiprocessing as sharing
    else:
        import paddle as package
        import paddle.incubate.multiprocessing as sharing
    if strategy:
        sharing.set_sharing_strategy(strategy)
    # Keep the collector from searching the library's objects in a round.
    gc.freeze()
    return package


def make(package, message, value):
    """Returns a new message, filled with `value`."""
    tensors = [
        package.full([message.size // FLOAT], float(value))
        for _ in range(message.tensors)
    ]
    if not tensors:
        return value
    return tensors if len(tensors) > 1 else tensors[0]


def first_element(tensor):
    """Reads from memory directly, at the same cost for each library."""
    return ctypes.c_float.from_address(tensor.data_ptr()).value


def arrived(message):
    """Returns a number that identifies a message."""
    if message is None or isinstance(message, int):
        return message
    tensors = message if isinstance(message, list) else [message]
    return int(sum(first_element(tensor) for tensor in tensors))


def answer_all(library, strategy, messages, answers):
    """The receiver, which drops each message before it answers."""
    load(library, strategy)
    while True:
        try:
            answer = arrived(messages.get())
        except Exception as error:
            answer = repr(error)
        if answer is None:
            return
        answers.put(answer)


def round_trips(package, messages, answers, message):
    """Returns the seconds from sending to the answer, for each round.

    Raises:
        RuntimeError: the received message is not the sent one.
    """
    seconds = []
    sent = None
    for value in range(1, WARM_UP + message.rounds + 1):
        if sent is None or not message.again:
            # Free the old message before creating a new one.
            sent = None
            sent = make(package, message, value)
            expected = value * max(message.tensors, 1)
        start = time.perf_counter()
        messages.put(sent)
        answer = answers.get()
        seconds.append(time.perf_counter() - start)
        if answer != expected:
            raise RuntimeError(f"{expected} was sent, {answer} arrived")
    return seconds[WARM_UP:]


def copies(package, message):
    """Returns the seconds of a copy into warm shared memory, for each round.

    It copies a new tensor, like those that the other contestants send: half the
    cost of a copy depends on whether the bytes are in a cache.
    """
    seconds = []
    target = mmap.mmap(-1, message.size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(target))
    source = None
    for value in range(1, WARM_UP + message.rounds + 1):
        source = None
        source = make(package, message, value)
        start = time.perf_counter()
        ctypes.memmove(address, source.data_ptr(), message.size)
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP:]


def serve(version, pids, seconds_of):
    """Prints version and process ids, then times the messages from stdin."""
    print(json.dumps([version, pids]), flush=True)
    for line in sys.stdin:
        print(json.dumps(seconds_of(MESSAGES[line.strip()])), flush=True)


def main(library, strategy):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-2:])
    if library == "memcpy":
        package = load(library, strategy)
        serve(
            f"Python {platform.python_version()}",
            [os.getpid()],
            lambda message: copies(package, message),
        )
        return
    spawn = multiprocessing.get_context("spawn")
    queues = spawn.Queue(), spawn.Queue()
    receiver = spawn.Process(
        target=answer_all, args=(library, strategy, *queues), daemon=True
    )
    receiver.start()
    package = load(library, strategy)
    serve(
        f"{library} {metadata.version(library)}",
        [os.getpid(), receiver.pid],
        lambda message: round_trips(package, *queues, message),
    )
    queues[0].put(None)
    receiver.join()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as error:
        print(json.dumps(repr(error)), flush=True)
        raise
