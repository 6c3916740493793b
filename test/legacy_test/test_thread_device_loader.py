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
"""Data loaders on threads with their own devices."""

from __future__ import annotations

import os
import signal
import threading
import unittest
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, Worker, in_thread
from thread_device_base import (
    needs_another_device,
    on_every_device_list,
    place_name,
    places_of_new_tensors,
    run_script,
)

import paddle
from paddle.io.dataloader.dataloader_iter import _DataLoaderIterSingleProcess


class _Squares(paddle.io.Dataset):
    """A dataset whose items record the device that they were created on."""

    def __getitem__(self, i):
        made = paddle.to_tensor([float(i * i)])
        return made.numpy(), place_name(made) + "|" + paddle.get_device()

    def __len__(self):
        return 12


class _KilledAtItem5(paddle.io.Dataset):
    def __getitem__(self, i):
        if i == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return float(i)

    def __len__(self):
        return 12


@on_every_device_list
class TestDataLoader(unittest.TestCase):
    def load(self, device, workers):
        """Loads the squares on a new thread that sets `device`."""
        if device:
            paddle.set_device(device)
        loader = paddle.io.DataLoader(
            _Squares(),
            batch_size=4,
            num_workers=workers,
            use_shared_memory=False,
        )
        values, places, made_on = [], set(), set()
        for batch, where in loader:
            values += batch.reshape([-1]).tolist()
            places.add(place_name(batch))
            made_on.update(where)
        self.assertEqual(values, [float(i * i) for i in range(12)])
        self.assertEqual(paddle.get_device(), device or self.devices[0])
        return places, made_on

    @needs_another_device
    def test_reader_thread_uses_the_device_of_its_creator(self):
        places, made_on = in_thread(self.load, self.devices[1], 0)
        self.assertEqual(places, {self.devices[1]})
        self.assertEqual(made_on, {f"{self.devices[1]}|{self.devices[1]}"})
        self.assertEqual(places_of_new_tensors(), {self.devices[0]})

    def test_reader_thread_of_a_creator_without_a_device_follows_main(self):
        places, made_on = in_thread(self.load, None, 0)
        self.assertEqual(places, {self.devices[0]})
        self.assertEqual(made_on, {f"{self.devices[0]}|{self.devices[0]}"})

    def devices_of_reader_thread(self, device, **kwargs):
        """Loads from a generator, and returns the devices that it sees."""
        paddle.set_device(device)
        seen = []

        def batches():
            seen.append(paddle.get_device())
            yield [np.ones([2], "float32")]

        loader = paddle.base.io.DataLoader.from_generator(
            capacity=1, return_list=True, **kwargs
        )
        loader.set_batch_generator(batches, places="cpu")
        self.assertEqual(len(list(loader)), 1)
        return seen

    @needs_another_device
    def test_reader_thread_of_a_generator_uses_the_device_of_its_creator(self):
        device = self.devices[1]
        self.assertEqual(
            in_thread(self.devices_of_reader_thread, device), [device]
        )

    @needs_another_device
    def test_reader_thread_of_a_static_loader_uses_that_device_too(self):
        def load(device):
            paddle.enable_static()
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                x = paddle.static.data("x", [2], "float32")
            return self.devices_of_reader_thread(device, feed_list=[x])

        device = self.devices[1]
        self.assertEqual(in_thread(load, device), [device])

    @needs_another_device
    def test_late_reader_thread_does_not_undo_a_set_device(self):
        device_is_set = threading.Event()
        read = _DataLoaderIterSingleProcess._thread_loop

        def read_late(*args):
            self.assertTrue(device_is_set.wait(WAIT_S))
            read(*args)

        with mock.patch.object(
            _DataLoaderIterSingleProcess, "_thread_loop", read_late
        ):
            loader = iter(paddle.io.DataLoader(_Squares(), batch_size=4))
        paddle.set_device(self.devices[1])
        device_is_set.set()
        places = [places_of_new_tensors() for _ in loader]
        self.assertEqual(places, [{self.devices[1]}] * 3)

    def test_loaders_on_different_devices_run_concurrently(self):
        workers = [
            Worker(self.load, device, 0)
            for device in self.devices
            for _ in range(2)
        ]
        devices = [device for device in self.devices for _ in range(2)]
        for worker, device in zip(workers, devices):
            places, _ = worker.result()
            self.assertEqual(places, {device})

    @unittest.skipUnless(hasattr(os, "fork"), "workers are forked")
    def test_worker_processes_of_a_loader_on_a_thread(self):
        if self.devices[0].startswith("gpu"):
            self.skipTest("no fork once a GPU is in use")
        run_script(
            self,
            """
            import test_thread_device_loader as module
            from thread_device_base import *

            kind, _, _ = devices[0].partition(":")
            case = getattr(module, f"TestDataLoader_{kind}")("load")
            places, made_on = in_thread(case.load, other, 2)
            # A worker process creates its items on the CPU, as on stock.
            assert (places, made_on) == ({other}, {"cpu|cpu"}), (
                places, made_on
            )
            assert places_of_new_tensors() == {devices[0]}
            """,
            self.devices,
        )

    @unittest.skipUnless(hasattr(os, "fork"), "workers are forked")
    def test_worker_process_of_a_generator_on_a_thread(self):
        if self.devices[0].startswith("gpu"):
            self.skipTest("no fork once a GPU is in use")
        run_script(
            self,
            """
            import numpy as np
            from thread_device_base import *

            def load():
                loader = paddle.base.io.DataLoader.from_generator(
                    capacity=2, return_list=True, use_multiprocess=True
                )
                loader.set_batch_generator(
                    lambda: ([np.full([2], i, "float32")] for i in range(3)),
                    places="cpu",
                )
                return [batch.tolist() for (batch,) in loader]

            assert in_thread(load) == [[0, 0], [1, 1], [2, 2]]
            """,
            self.devices,
        )

    @unittest.skipUnless(hasattr(os, "fork"), "workers are forked")
    def test_killed_worker_of_a_loader_on_a_thread_is_an_error(self):
        if self.devices[0].startswith("gpu"):
            self.skipTest("no fork once a GPU is in use")
        run_script(
            self,
            """
            import test_thread_device_loader as module
            from thread_device_base import *

            def load():
                loader = paddle.io.DataLoader(
                    module._KilledAtItem5(), num_workers=1, timeout=5
                )
                for _ in loader:
                    pass

            try:
                in_thread(load)
            except RuntimeError as error:
                assert "1 workers exit unexpectedly" in str(error), error
            else:
                raise AssertionError("the death of the worker went unnoticed")
            """,
            self.devices,
        )


if __name__ == "__main__":
    unittest.main()
