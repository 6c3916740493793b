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
"""A producer-consumer pipeline that survives `kill -9` of its workers.

    python pipeline.py

Producers create batches, and consumers reduce each batch to a number. Batches
stay in shared memory; only a few hundred bytes go through the pipes. A producer
and a consumer are killed just after they receive an item, and other workers
process that item again. The example prints the items that were processed again,
the number of wrong results, and the memory that is still shared.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import paddle
import paddle.multiprocessing as mp

ITEMS = 24
WORKERS = 2
ATTEMPTS = 3

# A process that imports Paddle once, and then forks workers in milliseconds.
context = mp.get_context("forkserver")
context.set_forkserver_preload(["paddle"])


def produce(number: int) -> paddle.Tensor:
    time.sleep(0.1)  # as if it read a file
    return paddle.full([256, 1024], float(number))


def consume(batch: paddle.Tensor) -> float:
    time.sleep(0.1)  # as if it wrote one
    return batch.mean().item()


def work(function, connection) -> None:
    """Works until the parent closes its end of the pipe."""
    paddle.set_device("cpu")
    with contextlib.suppress(EOFError):
        while True:
            connection.send(function(connection.recv()))


class Worker:
    """A process with its own pipe.

    A common queue would not survive: a process that is killed while it uses the
    queue leaves its lock locked forever, or an incomplete message in it.
    """

    def __init__(self, function):
        self.pipe, theirs = context.Pipe()
        arguments = (function, theirs)
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        # Now only the worker holds that end, so `recv` raises when it dies.
        theirs.close()

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


class Stage:
    """Workers with the same job; the first to get item `victim` is killed."""

    def __init__(self, function, victim: int):
        self.function, self.victim, self.again = function, victim, []
        self.idle = queue.SimpleQueue()
        for _ in range(WORKERS):
            self.idle.put(Worker(function))

    def run(self, number: int, value):
        """Processes an item on a worker, and on another if the first dies."""
        for _ in range(ATTEMPTS):
            worker = self.idle.get()
            try:
                worker.pipe.send(value)
                if number == self.victim and number not in self.again:
                    worker.process.kill()
                return worker.pipe.recv()
            except (EOFError, ConnectionError):
                worker.close()
                worker = Worker(self.function)
                self.again.append(number)
            finally:
                self.idle.put(worker)
        raise RuntimeError(f"item {number} has ended {ATTEMPTS} workers")

    def close(self) -> None:
        for _ in range(WORKERS):
            self.idle.get().close()


def main() -> int:
    paddle.set_device("cpu")
    producers = Stage(produce, ITEMS // 3)
    consumers = Stage(consume, ITEMS // 2)

    def run(number: int) -> float:
        return consumers.run(number, producers.run(number, number))

    # Each thread has one item at a time, which bounds the memory.
    with ThreadPoolExecutor(2 * WORKERS) as threads:
        results = list(threads.map(run, range(ITEMS)))
    for stage in (producers, consumers):
        stage.close()
        print(f"{stage.function.__name__}: done again: {stage.again}")
    wrong = sum(result != n for n, result in enumerate(results))
    print(f"{len(results)} results, {wrong} wrong")
    # An unreceived message keeps its batch alive: expire the messages that the
    # killed workers have not read.
    mp.collect_shared_memory(message_timeout=0)
    stats = mp.shared_memory_stats()
    print(f"left: {stats['used']} bytes, {stats['attached']} foreign segments")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
