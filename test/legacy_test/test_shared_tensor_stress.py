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
"""Shared tensors of processes that are killed at random instants."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import time
import unittest
import zlib
from collections import deque
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler

from concurrent_base import WAIT_S
from shared_tensor_base import (  # noqa: F401
    LONG,
    SharingTestCase,
    setUpModule,
    tearDownModule,
)
from shared_tensor_leaks import no_leak

import paddle
import paddle.incubate.multiprocessing as sharing

SEED = int(
    os.environ.get(
        "PADDLE_SHARED_TENSOR_SEED", random.SystemRandom().getrandbits(32)
    )
)
KILLS = 1800 if LONG else 120
CREWS = 2
MOST_MESSAGES = 200
KEPT = 8
SIZES = (1, 100, 5000, 200_000)


def checksum(tensor: paddle.Tensor) -> int:
    return zlib.crc32(tensor.numpy().tobytes())


def check(message: tuple[int, list[paddle.Tensor]]) -> None:
    """Raises AssertionError if the tensors have lost their initial values."""
    expected, tensors = message
    for tensor in tensors:
        found = checksum(tensor)
        assert found == expected, f"{found} in place of {expected}"


def new_message(rng: random.Random) -> tuple[int, list[paddle.Tensor]]:
    """Returns a checksum, and one or two tensors with that checksum."""
    tensor = paddle.full([rng.choice(SIZES)], rng.randrange(256), "uint8")
    tensors = [tensor, tensor[:]] if rng.random() < 0.3 else [tensor]
    return checksum(tensor), tensors


def over_shared_memory(message):
    return ForkingPickler.loads(ForkingPickler.dumps(message))


class KillSchedule:
    """
    Decides when a process is killed: at a random instant of its work on a
    random message.

    It counts messages, and then a fraction of the time for one message, so that
    the process gets equally far on a busy and on an idle machine.

    Args:
        rng: the random number generator.
        most_messages: the maximum number of messages before the kill.
        message_s: the expected time for one message, in seconds.
    """

    def __init__(self, rng, most_messages: int, message_s: float):
        self._rng = rng
        # Some processes die while they start, some immediately after that.
        self._messages = rng.choice((0, 1, rng.randrange(most_messages)))
        self._plan(message_s)

    def _plan(self, message_s: float) -> None:
        self.message_s = message_s
        self._begin = time.monotonic()
        self._end = self._begin + self._rng.random() * message_s

    def count_message(self) -> None:
        if self._messages > 0:
            self._messages -= 1
            self._plan(time.monotonic() - self._begin)

    def left_s(self) -> float:
        """Returns the remaining seconds; infinite before the last message."""
        if self._messages > 0:
            return math.inf
        return max(0.0, self._end - time.monotonic())


def wait_for_any(connections, schedules) -> list:
    """
    Returns the readable connections, or none when a process is due to be
    killed.

    Raises AssertionError if neither happens in time.
    """
    left_s = min(schedule.left_s() for schedule in schedules)
    found = wait(connections, min(left_s, WAIT_S))
    assert found or left_s < WAIT_S, f"nothing happened for {WAIT_S} s"
    return found


class Held:
    """Messages that are kept for a while; checked on arrival and removal."""

    def __init__(self):
        self._messages = deque()

    def add(self, message) -> None:
        check(message)
        self._messages.append(message)
        if len(self._messages) > KEPT:
            check(self._messages.popleft())

    def clear(self) -> None:
        while self._messages:
            check(self._messages.popleft())


class Broken(Exception):
    """The process at the other end of a pipe has died."""


def take(connection, strategy: str):
    """
    Returns the next message, or None if it is lost, because a memfd may be lost
    with its sender. Raises Broken if no message can arrive any more.
    """
    try:
        data = connection.recv_bytes()
    except (EOFError, OSError) as error:
        raise Broken from error
    try:
        return ForkingPickler.loads(data)
    except RuntimeError:
        if strategy == "file_system":
            raise
        return None


def give(connection, message) -> None:
    """Sends a message. Raises Broken if the receiver has died."""
    data = ForkingPickler.dumps(message)
    try:
        connection.send_bytes(data)
    except OSError as error:
        raise Broken from error


def begin(strategy: str, foreign_ends: list) -> None:
    # An end that another process keeps open hides the death of its owner.
    for end in foreign_ends:
        end.close()
    sharing.set_sharing_strategy(strategy)


def produce(strategy, foreign_ends, seed, inherited, there):
    begin(strategy, foreign_ends)
    rng = random.Random(seed)
    with contextlib.suppress(Broken):
        while True:
            message = inherited if rng.random() < 0.1 else new_message(rng)
            check(message)
            give(there, message)


def hold_and_pass(strategy, here, there, passed_on) -> None:
    """Holds messages for a while, and sends on the result of `passed_on`."""
    held = Held()
    with contextlib.suppress(Broken):
        while True:
            message = take(here, strategy)
            if message is not None:
                held.add(message)
                give(there, passed_on(message))
    held.clear()


def forward(strategy, foreign_ends, here, there):
    begin(strategy, foreign_ends)
    hold_and_pass(strategy, here, there, lambda message: message)


def consume(strategy, foreign_ends, seed, here, report):
    begin(strategy, foreign_ends)
    rng = random.Random(seed)
    hold_and_pass(
        strategy,
        here,
        report,
        lambda message: message if rng.random() < 0.3 else None,
    )


class Pipeline:
    """
    A producer, a forwarder and a consumer, each with a pipe to the next; the
    consumer's pipe leads to the test. When one of them is killed, the others
    end on their own, and the pipes are closed.
    """

    def __init__(self, context, strategy: str, seed: int, inherited, schedule):
        self.schedule = schedule
        to_forwarder, from_producer = context.Pipe(duplex=False)
        start = self._starter(context, strategy)
        self.workers = [
            start(produce, [to_forwarder], seed, inherited, from_producer)
        ]
        from_producer.close()
        to_consumer, from_forwarder = context.Pipe(duplex=False)
        self.workers.append(
            start(forward, [to_consumer], to_forwarder, from_forwarder)
        )
        to_forwarder.close()
        from_forwarder.close()
        self.output, from_consumer = context.Pipe(duplex=False)
        self.workers.append(
            start(consume, [self.output], seed + 1, to_consumer, from_consumer)
        )
        to_consumer.close()
        from_consumer.close()
        self.killed: set[int] = set()

    @staticmethod
    def _starter(context, strategy):
        def start(role, *args):
            process = context.Process(
                target=role, args=(strategy, *args), daemon=True
            )
            process.start()
            return process

        return start

    def kill(self, index: int) -> None:
        self.killed.add(index)
        self.workers[index].kill()

    def end(self) -> list[str]:
        """Joins the workers, and returns the errors of their ends."""
        self.output.close()
        wrong = []
        for index, worker in enumerate(self.workers):
            worker.join(WAIT_S)
            allowed = (0, -9) if index in self.killed else (0,)
            if worker.exitcode not in allowed:
                wrong.append(f"worker {index} ended with {worker.exitcode}")
                worker.kill()
                worker.join()
            worker.close()
        return wrong


class StressTestCase(SharingTestCase):
    """Runs pipelines of processes, some of which are killed at random."""

    def kill_crews_at_random(self, method: str) -> None:
        print(f"PADDLE_SHARED_TENSOR_SEED={SEED}", flush=True)
        rng = random.Random(SEED)
        context = multiprocessing.get_context(method)
        inherited = over_shared_memory(new_message(rng))
        held = Held()
        pipelines, kills, checked, wrong = [], 0, 0, []
        longest_s = 0.0
        while (kills < KILLS or not checked) and not wrong:
            while len(pipelines) < CREWS:
                seed = rng.getrandbits(32)
                schedule = KillSchedule(rng, MOST_MESSAGES, longest_s)
                pipelines.append(
                    Pipeline(context, self.strategy, seed, inherited, schedule)
                )
            outputs = {pipeline.output: pipeline for pipeline in pipelines}
            for output in wait_for_any(
                outputs, [pipeline.schedule for pipeline in pipelines]
            ):
                pipeline = outputs[output]
                try:
                    message = take(output, self.strategy)
                except Broken:
                    pipelines.remove(pipeline)
                    wrong += pipeline.end()
                    continue
                pipeline.schedule.count_message()
                longest_s = max(longest_s, pipeline.schedule.message_s)
                if message is not None:
                    held.add(message)
                    checked += 1
            for pipeline in pipelines:
                if pipeline.schedule.left_s() == 0:
                    pipeline.kill(rng.randrange(3))
                    kills += 1
                    # The other workers may be killed while they end.
                    pipeline.schedule = KillSchedule(
                        rng, MOST_MESSAGES, pipeline.schedule.message_s
                    )
        for pipeline in pipelines:
            pipeline.kill(rng.randrange(3))
            wrong += pipeline.end()
        held.clear()
        check(inherited)
        # Expire the messages in the pipes of killed workers.
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(wrong, [], f"PADDLE_SHARED_TENSOR_SEED={SEED}")
        print(f"{kills} kills, {checked} messages checked after a pipeline")

    def assert_survives(self, method: str) -> None:
        # Create the segment of this process first.
        over_shared_memory(new_message(random.Random(0)))
        with no_leak():
            self.kill_crews_at_random(method)


class TestStressOverFiles(StressTestCase):
    def test_values_are_correct_and_memory_is_reclaimed(self):
        self.assert_survives("fork")

    @unittest.skipUnless(LONG, "set PADDLE_SHARED_TENSOR_LONG=1 for it")
    def test_values_are_correct_and_memory_is_reclaimed_with_spawn(self):
        self.assert_survives("spawn")


class TestStressOverDescriptors(TestStressOverFiles):
    strategy = "file_descriptor"


if __name__ == "__main__":
    unittest.main()
