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
"""GPU tensors between processes that are killed at random instants."""

from __future__ import annotations

import multiprocessing
import os
import random
import unittest
from collections import deque
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

import numpy as np
from concurrent_base import WAIT_S
from cuda_ipc_base import devices, gpu, ipc_stats, needs_gpu
from shared_tensor_base import (  # noqa: F401
    LONG,
    setUpModule,
    tearDownModule,
)
from test_shared_tensor_stress import (
    KEPT,
    SEED,
    SIZES,
    KillSchedule,
    wait_for_any,
)

import paddle
import paddle.incubate.multiprocessing as sharing

KILLS = 100 if LONG else 8
CONSUMERS = 2
MOST_MESSAGES = 1000 if LONG else 250


class Message(NamedTuple):
    """A pickled tensor, the owner of its memory, and its elements."""

    maker: int
    value: int
    pickled: bytes


class Held(NamedTuple):
    """A tensor that is held for a while, and its expected elements."""

    maker: int
    value: int
    tensor: paddle.Tensor

    def check(self) -> None:
        found = np.unique(gpu.to_cpu(self.tensor).numpy()).tolist()
        assert found == [self.value], f"{found} in place of {self.value}"


class Store:
    """The tensors that a process holds, and the messages that it sends."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._held: deque[Held] = deque()

    def take(self, message: Message) -> None:
        """
        Receives a tensor and checks it, and checks the tensor that it replaces.

        Raises RuntimeError if its memory does not exist any more.
        """
        tensor = ForkingPickler.loads(message.pickled)
        self._held.append(Held(message.maker, message.value, tensor))
        self._held[-1].check()
        if len(self._held) > KEPT:
            self._held.popleft().check()

    def next_message(self) -> Message:
        """Returns a message with a held tensor or with a new one."""
        if self._held and self._rng.random() < 0.3:
            held = self._rng.choice(self._held)
        else:
            held = self._new()
        pickled = bytes(ForkingPickler.dumps(held.tensor))
        return Message(held.maker, held.value, pickled)

    def clear(self) -> None:
        while self._held:
            self._held.popleft().check()

    def _new(self) -> Held:
        value = self._rng.randrange(256)
        tensor = paddle.full([self._rng.choice(SIZES)], value, "uint8")
        device = self._rng.randrange(devices)
        return Held(os.getpid(), value, gpu.to_gpu(tensor, device))


def consume(connection, seed: int) -> None:
    """Answers each message with another message; None ends it."""
    store = Store(seed)
    parent = multiprocessing.parent_process().pid
    for message in iter(connection.recv, None):
        try:
            store.take(message)
        except RuntimeError:
            # Of this process and of its parent, both alive, none may be lost.
            if message.maker in (os.getpid(), parent):
                raise
        connection.send(store.next_message())
    store.clear()


class Consumer:
    """A process that gets a message only when it has no other to answer."""

    def __init__(self, context, seed: int, schedule: KillSchedule):
        self.schedule = schedule
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=consume, args=(theirs, seed), daemon=True
        )
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join(WAIT_S)

    def end(self) -> int | None:
        """Receives the pending answer, and returns the exit code."""
        if self.connection.poll(WAIT_S):
            self.connection.recv()
            self.connection.send(None)
        self.process.join(WAIT_S)
        return self.process.exitcode


@needs_gpu
class TestStress(unittest.TestCase):
    def kill_consumers_at_random(self) -> tuple[int, int]:
        """Returns the numbers of killed consumers and received messages."""
        rng = random.Random(SEED)
        context = multiprocessing.get_context("forkserver")
        store = Store(rng.getrandbits(32))
        consumers: dict = {}
        killed: set[int] = set()
        received = 0
        longest_s = 0.0
        while len(killed) < KILLS or not received:
            while len(consumers) < CONSUMERS:
                schedule = KillSchedule(rng, MOST_MESSAGES, longest_s)
                consumer = Consumer(context, rng.getrandbits(32), schedule)
                consumers[consumer.connection] = consumer
                consumer.connection.send(store.next_message())
            schedules = [consumer.schedule for consumer in consumers.values()]
            for connection in wait_for_any(consumers, schedules):
                message = connection.recv()
                try:
                    store.take(message)
                except RuntimeError:
                    self.assertIn(message.maker, killed)
                received += 1
                schedule = consumers[connection].schedule
                schedule.count_message()
                longest_s = max(longest_s, schedule.message_s)
                connection.send(store.next_message())
            for connection, consumer in list(consumers.items()):
                if consumer.schedule.left_s() == 0:
                    del consumers[connection]
                    consumer.kill()
                    killed.add(consumer.process.pid)
        for consumer in consumers.values():
            self.assertEqual(consumer.end(), 0)
        store.clear()
        return len(killed), received

    def test_values_are_correct_and_memory_is_released(self):
        print(f"PADDLE_SHARED_TENSOR_SEED={SEED}", flush=True)
        used = [gpu.used(device) for device in range(devices)]
        common = ipc_stats()
        killed, received = self.kill_consumers_at_random()
        # Expire the messages in the pipes of killed processes.
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(ipc_stats(), common)
        self.assertEqual([gpu.used(device) for device in range(devices)], used)
        print(f"{killed} consumers killed, {received} messages received")


if __name__ == "__main__":
    unittest.main()
