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
"""Runs timed cases under one Paddle, on demand.

Reads lines `CASE NUMBER` and answers each with the seconds that NUMBER calls
took. A case is named WHERE/WHAT: the thread it runs on, and what it calls.
"""

from __future__ import annotations

import sys
import threading
import timeit

import paddle
from paddle.base import framework

DEVICES = ["cpu", *paddle.device.get_all_custom_device_type()]
if len(DEVICES) > 1:
    DEVICES = [f"{DEVICES[1]}:0", f"{DEVICES[1]}:1"]


def switching(devices):
    """Returns a call that sets each of the devices in turn, for ever."""
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
    """Returns what is timed, by name."""
    paddle.set_device(DEVICES[0])
    linear = paddle.nn.Linear(8, 8)
    x = paddle.ones([4, 8])
    return {
        "_current_expected_place_()": framework._current_expected_place_,
        "get_device()": paddle.get_device,
        "set_device(...)": switching(DEVICES),
        "with device(...)": entering(DEVICES[-1]),
        "zeros([1])": lambda: paddle.zeros([1]),
        "Linear(8, 8) forward": lambda: linear(x),
    }


def on_a_thread(function):
    """Runs `function` on a thread of its own and returns what it returns."""
    result = []
    thread = threading.Thread(target=lambda: result.append(function()))
    thread.start()
    thread.join()
    return result[0]


def while_another_has_a_device(function):
    """Runs `function` here, while a thread with a device of its own waits."""
    is_set, may_end = threading.Event(), threading.Event()

    def own():
        paddle.set_device(DEVICES[0])
        is_set.set()
        may_end.wait()

    thread = threading.Thread(target=own)
    thread.start()
    is_set.wait()
    try:
        return function()
    finally:
        may_end.set()
        thread.join()


def with_a_device(function):
    """Runs `function` on a thread that has set a device of its own."""

    def own():
        paddle.set_device(DEVICES[0])
        return function()

    return on_a_thread(own)


WHERE = {
    "main": lambda function: function(),
    "child": on_a_thread,
    "child with a device": with_a_device,
    "main while a child has a device": while_another_has_a_device,
}


def main():
    what = calls()
    for call in what.values():
        call()
    for line in sys.stdin:
        case, number = line.rsplit(" ", 1)
        where, _, name = case.partition("/")
        call, count = what[name], int(number)
        took = WHERE[where](lambda c=call, n=count: timeit.timeit(c, number=n))
        print(took, flush=True)


if __name__ == "__main__":
    main()
