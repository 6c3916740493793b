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
"""Per-thread streams: stress tests with frequent thread switches."""

from __future__ import annotations

import os
import queue
import random
import sys
import threading
import unittest

from concurrent_base import (
    WAIT_S,
    Worker,
    in_thread,
    rounds_until,
    run_together,
    switch_threads_often,
)
from thread_device_base import StreamTestCase, handle, on_every_device_list

import paddle
from paddle.device import Stream, current_stream, set_stream, stream_guard

SEED = int(os.environ.get("THREAD_STREAM_SEED", random.randrange(2**32)))
ROUNDS = int(os.environ.get("THREAD_STREAM_ROUNDS", 150))


class RandomGuards:
    """
    Enters and leaves random guards on the calling thread, and checks its
    current streams.
    """

    def __init__(self, case: StreamTestCase, seed: int, shared: list[Stream]):
        self.case = case
        self.chooser = random.Random(seed)
        own = [Stream(device) for device in case.accelerators]
        self.streams = [*shared, *own]

    def stream(self) -> Stream:
        if self.chooser.random() < 0.2:
            return Stream(self.chooser.choice(self.case.accelerators))
        return self.chooser.choice(self.streams)

    def enter_random_guards(self, expected: list[int], depth: int):
        """Enters a guard on the streams `expected`, and leaves it."""
        stream = self.stream()
        inside = self.moved(expected, stream)
        with stream_guard(stream):
            self.check(inside)
            for _ in range(self.chooser.randrange(3) if depth else 0):
                self.enter_random_guards(inside, depth - 1)
            self.check(inside)
            if self.chooser.random() < 0.3:
                # Another stream of the same device; the guard restores it.
                stream = Stream(stream.device)
                set_stream(stream)
                self.check(self.moved(inside, stream))
        self.check(expected)

    def moved(self, expected: list[int], stream: Stream) -> list[int]:
        index = stream.device.get_device_id()
        return [*expected[:index], handle(stream), *expected[index + 1 :]]

    def check(self, expected: list[int]):
        self.case.assertEqual(self.case.current(), expected)
        with paddle.device.device_guard(
            self.chooser.choice(self.case.accelerators)
        ):
            value = self.chooser.randrange(1000)
            x = paddle.full([self.chooser.choice([1, 64, 4096])], value)
            x = x.astype("float32")
            y = x * 2 + x
            if self.chooser.random() < 0.5:
                del x
            self.case.assertEqual(
                [y.min().item(), y.max().item()], [3 * value] * 2
            )


@on_every_device_list
class TestStress(StreamTestCase):
    def setUp(self):
        super().setUp()
        print(f"THREAD_STREAM_SEED={SEED}", file=sys.stderr)
        switch_threads_often(self)
        # Some are default streams.
        self.shared = [
            *map(current_stream, self.accelerators),
            *(Stream(device) for device in self.accelerators * 2),
        ]

    def run_random_guards(self, i):
        guards = RandomGuards(self, SEED + i, self.shared)
        for _ in range(ROUNDS // 8):
            guards.enter_random_guards(self.defaults, 3)
        self.assertEqual(self.current(), self.defaults)

    def test_threads_enter_and_leave_guards(self):
        run_together(6, self.run_random_guards)

    def test_main_thread_enters_and_leaves_guards_with_them(self):
        workers = [Worker(self.run_random_guards, i) for i in range(4)]
        self.run_random_guards(4)
        for worker in workers:
            worker.result()

    def test_short_lived_threads(self):
        def stay(i):
            chooser = random.Random(SEED + i)
            self.assertEqual(self.current(), self.defaults)
            expected = self.defaults
            guards = RandomGuards(self, SEED + i, self.shared)
            for _ in range(chooser.randrange(3)):
                stream = guards.stream()
                set_stream(stream)
                expected = guards.moved(expected, stream)
            guards.enter_random_guards(expected, 1)

        def start_others(i):
            for k in range(ROUNDS // 6):
                in_thread(stay, i * ROUNDS + k)

        run_together(4, start_others)

    def test_threads_without_streams_stay_on_the_defaults(self):
        is_over = threading.Event()
        rounds = [0] * 3

        def stay(i):
            while not is_over.is_set():
                self.assertEqual(self.current(), self.defaults)
                if rounds[i] % 8 == 0:
                    self.check_computes()
                rounds[i] += 1

        workers = [Worker(stay, i) for i in range(3)]
        chooser = random.Random(SEED)
        self.addCleanup(set_stream, self.shared[0])
        try:
            for _ in rounds_until(lambda: all(rounds), ROUNDS):
                stream = chooser.choice([*self.shared, Stream()])
                with stream_guard(stream):
                    self.check_computes()
                    self.assertIn(handle(stream), self.current())
        finally:
            is_over.set()
            for worker in workers:
                worker.result()
        self.assertGreater(min(rounds), 0)

    def test_tensors_are_passed_on_with_events(self):
        # Each thread adds one, on its own stream, after the previous thread.
        chain = [queue.Queue() for _ in range(5)]

        def add_one(i):
            stream = Stream()
            kept = []
            with stream_guard(stream):
                for _ in range(ROUNDS):
                    x, event = chain[i].get(timeout=WAIT_S)
                    stream.wait_event(event)
                    # Its memory must not be reused before it is read.
                    kept.append(x)
                    chain[i + 1].put((x + 1, stream.record_event()))
                stream.synchronize()

        def feed(_):
            for value in range(ROUNDS):
                x = paddle.full([256], float(value))
                chain[0].put((x, current_stream().record_event()))

        def read(_):
            for value in range(ROUNDS):
                x, event = chain[-1].get(timeout=WAIT_S)
                event.synchronize()
                self.assertEqual({*x.tolist()}, {value + len(chain) - 1.0})

        workers = [Worker(add_one, i) for i in range(len(chain) - 1)]
        workers += [Worker(feed, 0), Worker(read, 0)]
        for worker in workers:
            worker.result()


if __name__ == "__main__":
    unittest.main()
