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
"""Killed processes of a DataLoader leave nothing in shared memory."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import time
import unittest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from concurrent_base import WAIT_S, wait_until
from killed_test_run import exists
from shared_tensor_base import (  # noqa: F401
    STRATEGIES,
    run_sharing_script,
    setUpModule,
    start_sharing_script,
    tearDownModule,
)
from shared_tensor_leaks import no_leak, shared_files_of

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base.shared_storage import collect_dead
from paddle.io import DataLoader, IterableDataset
from paddle.io.dataloader.collate import default_collate_fn
from paddle.io.dataloader.shared_batch import BatchSharer

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SIZE = 1 << 16

SCRIPT = """
import gc
import json
import test_dataloader_shared_memory as module
from shared_tensor_leaks import shared_files_of

def files():
    return shared_files_of(os.environ["PADDLE_SHARED_MEMORY_TREE"])

def loader(item=module.image):
    return paddle.io.DataLoader(
        module.Items(item, 64), batch_size=2, num_workers=2
    )

def killed_at_20(i):
    if i == 20:
        os.kill(os.getpid(), 9)
    return module.image(i)
"""


def send_and_wait(connection, strategy):
    """Sends two batches like a worker, and then waits to be killed."""
    sharing.set_sharing_strategy(strategy)
    sharer = BatchSharer(default_collate_fn)
    for number in range(2):
        batch = sharer.collate_fn([np.full([SIZE], i) for i in range(3)])
        connection.send_bytes(pickle.dumps(sharer.message(number, batch)))
        del batch
    connection.recv()


def start_script(body):
    """Starts a script that prints a line. Returns the process and the line."""
    process = start_sharing_script(SCRIPT + body)
    return process, json.loads(process.stdout.readline())


class Sender(NamedTuple):
    """A worker that has sent two batches."""

    process: multiprocessing.Process
    connection: Connection
    first: bytes
    second: bytes

    def kill(self):
        self.process.kill()
        self.process.join(WAIT_S)
        self.process.close()
        self.connection.close()


class TestKilledWorker(unittest.TestCase):
    def start(self, strategy):
        ours, theirs = multiprocessing.Pipe()
        worker = multiprocessing.get_context("fork").Process(
            target=send_and_wait, args=(theirs, strategy), daemon=True
        )
        worker.start()
        theirs.close()
        self.addCleanup(ours.close)
        messages = []
        for _ in range(2):
            self.assertTrue(ours.poll(WAIT_S))
            messages.append(ours.recv_bytes())
        return Sender(worker, ours, *messages)

    def test_message_that_is_not_received_expires_with_its_worker(self):
        for strategy in STRATEGIES:
            with self.subTest(strategy), no_leak():
                tree = os.environ["PADDLE_SHARED_MEMORY_TREE"]
                before = shared_files_of(tree)
                sender = self.start(strategy)
                self.assertEqual(
                    len(shared_files_of(tree) - before),
                    strategy == "file_system",
                )
                sender.kill()
                collect_dead()
                self.assertEqual(shared_files_of(tree) - before, set())
                with self.assertRaises((RuntimeError, ValueError)):
                    pickle.loads(sender.first)

    def test_message_in_a_segment_in_use_expires_with_its_worker(self):
        for strategy in STRATEGIES:
            with self.subTest(strategy), no_leak():
                sender = self.start(strategy)
                _, (batch,), _ = pickle.loads(sender.first)
                sender.kill()
                collect_dead()
                with self.assertRaises((RuntimeError, ValueError)):
                    pickle.loads(sender.second)
                self.assertEqual(np.array(batch)[2, SIZE - 1], 2)
                del batch

    def test_received_batch_outlives_its_worker(self):
        for strategy in STRATEGIES:
            with self.subTest(strategy), no_leak():
                sender = self.start(strategy)
                _, (batch,), _ = pickle.loads(sender.first)
                sender.kill()
                collect_dead()
                self.assertEqual(np.array(batch)[:, -1].tolist(), [0, 1, 2])
                del batch

    def test_nothing_is_left_when_a_worker_of_a_loader_is_killed(self):
        run_sharing_script(
            self,
            SCRIPT
            + """
def load():
    batches = []
    try:
        for batch in loader(killed_at_20):
            batches.append(batch)
    except (RuntimeError, SystemError) as error:
        # Python or the handler of SIGCHLD, whichever is first.
        assert "exit unexpectedly" in str(error) or (
            " is killed" in str(error)
        ), error
        for i, batch in enumerate(batches):
            assert batch[:, 0, 0, 0].tolist() == [2 * i, 2 * i + 1], batch
        return len(batches)

assert load() > 0
deadline = time.monotonic() + 60
while files() and time.monotonic() < deadline:
    gc.collect()
    time.sleep(0.1)
assert not files(), files()
assert not multiprocessing.active_children()
""",
        )


class TestKilledParent(unittest.TestCase):
    def assert_leaves_nothing(self, process, pids, tree):
        self.addCleanup(process.communicate)
        wait_until(
            lambda: not any(exists(pid) for pid in pids),
            "end of the workers",
        )
        self.assertEqual(shared_files_of(tree), set())

    def start(self, rest):
        return start_script(
            f"""
batches = iter(loader())
batch = next(batches)
pids = [worker.pid for worker in multiprocessing.active_children()]
assert files()
tree = os.environ["PADDLE_SHARED_MEMORY_TREE"]
print(json.dumps([pids, tree]), flush=True)
{rest}
"""
        )

    def test_workers_end_and_leave_nothing(self):
        process, (pids, tree) = self.start("time.sleep(1000)")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        self.assert_leaves_nothing(process, pids, tree)

    def test_nothing_is_left_when_all_are_killed(self):
        process, (pids, tree) = self.start("time.sleep(1000)")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        # The next process that shares a tensor removes leftovers.
        run_sharing_script(self, "paddle.ones([1]).share_memory_()")
        self.assert_leaves_nothing(process, pids, tree)

    def test_process_that_leaves_an_epoch_ends_with_nothing_left(self):
        process, (pids, tree) = self.start("")
        self.assertEqual(process.wait(WAIT_S), 0)
        self.assert_leaves_nothing(process, pids, tree)


class FromQueue(IterableDataset):
    """A dataset that passes on tensors from a queue and keeps none of them."""

    def __init__(self, queue, count):
        self.queue, self.count = queue, count

    def __iter__(self):
        for _ in range(self.count):
            yield self.queue.get(timeout=WAIT_S)


def put_tensors(queue, count):
    for i in range(count):
        queue.put(paddle.full([SIZE], float(i)))


class TestTensorsOfOthers(unittest.TestCase):
    def test_batches_made_by_a_process_that_has_ended_arrive(self):
        context = multiprocessing.get_context("fork")
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")
        queue = context.Queue()
        maker = context.Process(target=put_tensors, args=(queue, 8))
        maker.start()
        # Its last tensors are in the pipe when it ends.
        maker.join(WAIT_S)
        self.assertEqual(maker.exitcode, 0)
        arrived = []
        for batch in DataLoader(
            FromQueue(queue, 8), batch_size=None, num_workers=1
        ):
            # Lets the worker get ahead and drop the next tensors.
            time.sleep(0.05)
            (tensor,) = batch if isinstance(batch, list) else [batch]
            arrived.append(tensor[0].item())
        self.assertEqual(arrived, list(range(8)))
        queue.close()


if __name__ == "__main__":
    unittest.main()
