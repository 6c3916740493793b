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
"""Times calls with one Paddle, on request.

Reads JSON lines `["seconds", WHERE, WHAT, NUMBER]`, and answers each with the
seconds that NUMBER calls of WHAT took on the thread WHERE.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import timeit
from concurrent.futures import ThreadPoolExecutor

import paddle
from paddle.base import framework

DEVICES = ["cpu", *paddle.device.get_all_custom_device_type()]
if len(DEVICES) > 1:
    DEVICES = [f"{DEVICES[1]}:0", f"{DEVICES[1]}:1"]


def switching(devices):
    """Returns a call that sets the next of the devices, cyclically."""
    turn = [0]

    def set_next():
        turn[0] = (turn[0] + 1) % len(devices)
        paddle.set_device(devices[turn[0]])

    return set_next


def entering(device):
    """Returns a call that enters and leaves a device context."""

    def enter_and_leave():
        with paddle.device.device(device):
            pass

    return enter_and_leave


def calls():
    """Returns the timed calls by name."""
    paddle.set_device(DEVICES[0])
    linear = paddle.nn.Linear(8, 8)
    x = paddle.ones([4, 8])
    square = paddle.ones([256, 256])
    return {
        "_current_expected_place_()": framework._current_expected_place_,
        "get_device()": paddle.get_device,
        "set_device(...)": switching(DEVICES),
        "with device(...)": entering(DEVICES[-1]),
        "zeros([1])": lambda: paddle.zeros([1]),
        "Linear(8, 8) forward": lambda: linear(x),
        "matmul of [256, 256]": lambda: paddle.matmul(square, square),
    }


def on_a_thread(function):
    """Runs `function` on a new thread, and returns its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def while_another_waits(inside, function):
    """
    Runs `function` while another thread waits inside of `inside`. That thread
    calls `inside(wait)`; `inside` must call `wait` in the intended state.
    """
    is_set, may_end = threading.Event(), threading.Event()

    def wait():
        is_set.set()
        may_end.wait()

    thread = threading.Thread(target=inside, args=(wait,))
    thread.start()
    is_set.wait()
    try:
        return function()
    finally:
        may_end.set()
        thread.join()


def with_a_device(function):
    """Sets this thread's own device, and runs `function`."""
    paddle.set_device(DEVICES[0])
    return function()


def seconds_of_tasks(pool, task, number):
    """Returns the seconds of `number` tasks that are submitted together."""
    start = time.perf_counter()
    for future in [pool.submit(task) for _ in range(number)]:
        future.result()
    return time.perf_counter() - start


WHERE = {
    "main": lambda function: function(),
    "child": on_a_thread,
    "child with a device": lambda f: on_a_thread(lambda: with_a_device(f)),
    "main while a child has a device": lambda f: while_another_waits(
        with_a_device, f
    ),
}


def answer_questions(functions):
    """
    Calls, for each input line, the function that it names, with its arguments,
    and prints the result.
    """
    for line in sys.stdin:
        function, *arguments = json.loads(line)
        print(json.dumps(functions[function](*arguments)), flush=True)


def main():
    what = calls()
    for call in what.values():
        call()

    # A pool starts its threads with the first tasks.
    pools = {
        "pool of 4": ThreadPoolExecutor(4),
        "pool of 4 with a device": ThreadPoolExecutor(
            4, initializer=paddle.set_device, initargs=[DEVICES[0]]
        ),
    }

    def seconds(where, name, number):
        if where in pools:
            return seconds_of_tasks(pools[where], what[name], number)
        return WHERE[where](lambda: timeit.timeit(what[name], number=number))

    answer_questions({"seconds": seconds})


if __name__ == "__main__":
    main()
