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
"""Times calls and serves requests on streams with one Paddle, on request.

Reads JSON lines [FUNCTION, ARGUMENT, ...], and answers each with the function's
result. Runs on the test device, whose Python module must be on the search path.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from unittest import mock

import numpy as np
from devices_worker import (
    DEVICES,
    answer_questions,
    on_a_thread,
    while_another_waits,
)
from host_device_control import delay

import paddle
from paddle.io import DataLoader, Dataset

# How long a device operation sleeps in serving and loading.
OPERATION_MICROSECONDS = 400


def setting(streams):
    """Returns a call that sets the next of the streams, cyclically."""
    turn = [0]

    def set_next():
        turn[0] = (turn[0] + 1) % len(streams)
        paddle.device.set_stream(streams[turn[0]])

    return set_next


def entering(new_stream):
    """Returns a call that enters and leaves a guard with `new_stream()`."""

    def enter_and_leave():
        with paddle.device.stream_guard(new_stream()):
            pass

    return enter_and_leave


def calls(streams):
    """Returns the timed calls by name."""
    on_cpu = paddle.ones([1], device="cpu")
    x = paddle.ones([1])
    weight, row = paddle.ones([8, 8]), paddle.ones([1, 8])

    @paddle.jit.to_static(full_graph=True)
    def program(row):
        return paddle.nn.functional.relu(row @ weight)

    return {
        "current_stream()": paddle.device.current_stream,
        "set_stream(s)": setting(streams),
        "with stream_guard(s)": entering(lambda: streams[0]),
        "with stream_guard(Stream())": entering(paddle.device.Stream),
        "with stream_guard(pooled stream)": entering(
            # Stock has no pool.
            getattr(paddle.device, "get_stream_from_pool", lambda: streams[0])
        ),
        "zeros([1]) on the CPU": lambda: paddle.zeros([1], device="cpu"),
        "x * 2 on the CPU": lambda: on_cpu * 2,
        "zeros([1])": lambda: paddle.zeros([1]),
        "x * 2": lambda: x * 2,
        "to_static(relu(x @ w))": lambda: program(row),
    }


def on_a_stream(stream, function):
    """Runs `function` with `stream` set, then restores the previous stream."""
    previous = paddle.device.set_stream(stream)
    try:
        return function()
    finally:
        paddle.device.set_stream(previous)


def once(call):
    """Returns the seconds that one call takes."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class Calls:
    """Times calls on threads with and without their own stream."""

    def __init__(self):
        default = paddle.device.current_stream()
        *streams, own = (paddle.device.Stream() for _ in range(3))
        self._calls = calls(streams)
        # Setting the default stream means having no own stream. Restoring the
        # previous stream also undoes a timed set_stream.
        self._where = {
            "main, at first": lambda f: f(),
            "child, at first": on_a_thread,
            "main": lambda f: on_a_stream(default, f),
            "child": lambda f: on_a_thread(lambda: on_a_stream(default, f)),
            "child with a stream": lambda f: on_a_thread(
                lambda: on_a_stream(own, f)
            ),
            "main while a child has a stream": lambda f: while_another_waits(
                lambda wait: on_a_stream(own, wait), f
            ),
        }

    def seconds(self, where, name, number):
        """Returns the seconds of `number` calls, with the device's work."""
        call = self._calls[name]
        if where == "new child for each call":
            return sum(on_a_thread(lambda: once(call)) for _ in range(number))

        def timed():
            begin = time.perf_counter()
            for _ in range(number):
                call()
            paddle.device.synchronize()
            return time.perf_counter() - begin

        return self._where[where](timed)


class Service:
    """Serves one small model to threads."""

    def __init__(self):
        paddle.seed(0)
        self._weights = [paddle.rand([16, 16]) - 0.5 for _ in range(2)]
        self._bias = paddle.rand([16])
        self._inputs = np.random.default_rng(0).random((64, 4, 16), "float32")
        self._answers = [self._answer(x) for x in self._inputs]

    def _answer(self, x):
        x = paddle.to_tensor(x)
        for weight in self._weights:
            x = paddle.nn.functional.relu(x @ weight + self._bias)
        # Unlike Stream.synchronize(), this waits without the GIL.
        return x.numpy()

    def serve(self, own_streams, with_lock, threads, requests):
        """
        Returns the seconds that the threads took for the requests, and how many
        results differed from those of a single thread.

        Args:
            own_streams: whether each thread serves in a guard with its own
                stream, not on the default stream.
            with_lock: whether one thread at a time serves.
        """
        numbers = queue.SimpleQueue()
        for number in range(requests):
            numbers.put(number % len(self._inputs))
        lock = threading.Lock() if with_lock else contextlib.nullcontext()
        wrong = []
        may_begin = threading.Barrier(threads + 1)

        def work():
            stream = paddle.device.Stream() if own_streams else None
            may_begin.wait()
            with contextlib.suppress(queue.Empty):
                while True:
                    number = numbers.get_nowait()
                    with lock, paddle.device.stream_guard(stream):
                        answer = self._answer(self._inputs[number])
                    if not np.array_equal(answer, self._answers[number]):
                        wrong.append(number)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        with delay(0, OPERATION_MICROSECONDS):
            may_begin.wait()
            begin = time.perf_counter()
            for worker in workers:
                worker.join()
            return time.perf_counter() - begin, len(wrong)


class Computed(Dataset):
    """Samples that are computed on the device."""

    def __init__(self, length):
        self._weight = paddle.rand([16, 16])
        self._length = length

    def __getitem__(self, i):
        x = paddle.full([4, 16], float(i))
        for _ in range(2):
            x = paddle.nn.functional.relu(x @ self._weight)
        return x

    def __len__(self):
        return self._length


def load(own_streams, workers, batches):
    """
    Returns the seconds that the batches take, which worker threads compute and
    this thread uses, and how many batches are wrong.

    Args:
        own_streams: whether each worker uses its own stream, not this thread's.
    """
    # Stock does not have this module.
    from paddle.io.dataloader import stream_workers

    dataset = Computed(2 * batches)
    # Doubling is exact.
    expected = [2 * dataset[i].numpy() for i in range(len(dataset))]
    loader = DataLoader(
        dataset, batch_size=2, num_workers=workers, worker_type="thread"
    )
    streams_or_not = contextlib.nullcontext()
    if not own_streams:
        # As when the memory of a device cannot wait for streams.
        streams_or_not = mock.patch.object(
            stream_workers, "_have_own_streams", lambda places: False
        )
    wrong = 0
    with delay(0, OPERATION_MICROSECONDS), streams_or_not:
        begin = time.perf_counter()
        for i, batch in enumerate(loader):
            doubled = (batch * 2).numpy()
            wrong += not np.array_equal(doubled, expected[2 * i : 2 * i + 2])
        return time.perf_counter() - begin, wrong


def main():
    paddle.set_device(DEVICES[0])
    answer_questions(
        {"seconds": Calls().seconds, "serve": Service().serve, "load": load}
    )


if __name__ == "__main__":
    main()
