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
"""The wheel without native parts."""

from __future__ import annotations

import datetime
import subprocess
import sys
import unittest
from unittest import mock

from concurrent_base import WAIT_S, in_thread
from shm_group_base import free_port
from test_dataloader_shared_memory import Items
from thread_device_base import handle

import paddle
import paddle.multiprocessing as mp
from paddle.base import core
from paddle.base.threads import streams
from paddle.distributed import shared_memory_group

# Runs a script as on Windows: before the import of Paddle, removes the modules
# and the functions of `os` and `signal` that Windows lacks.
ON_WINDOWS = """
import asyncio, multiprocessing.context, os, setuptools, signal, sys, sysconfig
import numpy

sysconfig.get_config_vars()
for name in ("fork", "register_at_fork", "memfd_create", "pidfd_open"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGCHLD", "SIGKILL", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fcntl", "resource", "termios"):
    sys.modules[name] = None
sys.platform = "win32"
import paddle
import paddle.multiprocessing as mp
"""


def value_of(index):
    return paddle.to_tensor(index)


class TestImportWithoutFork(unittest.TestCase):
    def check(self, script):
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ON_WINDOWS + script],
            check=True,
            timeout=WAIT_S,
        )

    def test_threads_have_devices(self):
        self.check(
            """
def use_cpu():
    paddle.set_device("cpu")
    return paddle.ones([2]).place.is_cpu_place()
worker = mp.WorkerThread(use_cpu)
worker.start()
worker.join()
assert list(mp.Prefetcher(range(3))) == [0, 1, 2]
"""
        )


class TestErrors(unittest.TestCase):
    def check(self, message, function, *args, **kwargs):
        with self.assertRaisesRegex(
            NotImplementedError, f"{message}.*C\\+\\+.* Linux\\. "
        ):
            function(*args, **kwargs)

    def test_shared_memory(self):
        for function in (
            paddle.ones([2]).cpu().share_memory_,
            mp.shared_memory_stats,
            lambda: mp.empty_shared([2]),
            lambda: mp.by_value(paddle.ones([2]).cpu()),
        ):
            self.check("without shared memory", function)

    def test_per_thread_stream(self):
        stream = paddle.device.Stream("custom_cpu")
        self.check(
            "no per-thread streams",
            lambda: in_thread(paddle.device.set_stream, stream),
        )

    def test_seed_of_a_worker(self):
        self.check(
            "seed 3.*without random numbers per thread",
            lambda: mp.WorkerThread(print, seed=3),
        )

    def test_backend_shm(self):
        store = core.TCPStore("127.0.0.1", free_port(), True, 1)
        self.check(
            "without the backend shm",
            lambda: shared_memory_group.join(
                store, 0, 1, 0, datetime.timedelta(seconds=1)
            ),
        )

    def test_program_on_a_second_thread(self):
        @paddle.jit.to_static(full_graph=True)
        def double(x):
            return x * 2

        def run():
            return double(paddle.ones([2])).tolist()

        self.assertEqual(run(), [2.0, 2.0])
        with self.assertRaisesRegex(RuntimeError, "has no locks"):
            in_thread(run)


class TestStreamOfTheMainThread(unittest.TestCase):
    def setUp(self):
        # Other tests may have recorded the default stream.
        recorded = mock.patch.dict(streams._default_streams, clear=True)
        recorded.start()
        self.addCleanup(recorded.stop)
        self.default = paddle.device.current_stream("custom_cpu")
        self.addCleanup(paddle.device.set_stream, self.default)
        self.stream = paddle.device.Stream("custom_cpu")
        paddle.device.set_stream(self.stream)

    def test_all_threads_are_on_it(self):
        current = in_thread(paddle.device.current_stream, "custom_cpu")
        self.assertEqual(handle(current), handle(self.stream))

    def test_default_stream_stays_the_same(self):
        default = paddle.device.default_stream("custom_cpu")
        self.assertEqual(handle(default), handle(self.default))

    def test_reader_threads_of_a_loader_load(self):
        loader = paddle.io.DataLoader(Items(value_of, 4), batch_size=2)
        batches = [batch.tolist() for batch in loader]
        self.assertEqual(batches, [[0, 1], [2, 3]])


class TestWorkersWithoutGenerators(unittest.TestCase):
    def test_worker_draws_from_the_process_generator(self):
        def draw():
            numbers.append(paddle.rand([3]).tolist())

        numbers = []
        paddle.seed(5)
        draw()
        paddle.seed(5)
        worker = mp.WorkerThread(draw)
        worker.start()
        worker.join()
        self.assertEqual(*numbers)
        self.assertIsNone(worker.seed)

    def test_loader_on_threads_warns_and_loads(self):
        loader = paddle.io.DataLoader(
            Items(value_of, 6),
            batch_size=2,
            num_workers=2,
            worker_type="thread",
        )
        with self.assertWarnsRegex(RuntimeWarning, "generator of the process"):
            batches = [batch.tolist() for batch in loader]
        self.assertEqual(batches, [[0, 1], [2, 3], [4, 5]])


if __name__ == "__main__":
    unittest.main()
