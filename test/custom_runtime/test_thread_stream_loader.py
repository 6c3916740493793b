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

"""Per-thread streams: loaders, which work for the thread that creates them.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import os
import sys
import threading
import unittest
from typing import TYPE_CHECKING, Any

import numpy as np
from host_device_control import delay
from test_host_device import name_of, run_python, setUpModule
from test_thread_stream_order import (
    SIZE,
    WAIT_S,
    StreamTest,
    filled,
    handle,
    in_thread,
)

import paddle
from paddle.device import Stream, current_stream, set_stream, stream_guard
from paddle.io import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

__all__ = ["setUpModule"]

# More than a loader prefetches.
COUNT = 12
# In microseconds: the delay of each operation on a slow stream.
DELAY = 5_000


class Arrays(Dataset):
    """Samples in host memory."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(SIZE, index, "float32")


class Tensors(Arrays):
    """Samples that the reader thread computes on the current device."""

    def __getitem__(self, index: int) -> paddle.Tensor:
        return paddle.to_tensor(np.full(SIZE, index, "float32")) * 1


class WorkerProcesses(Arrays):
    """The process that makes each sample."""

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array(os.getpid())


def slow(stream: Stream) -> AbstractContextManager[None]:
    """Delay the operations that are submitted to a stream of device 0."""
    return delay(0, DELAY, handle(stream))


def loader_of(dataset: Dataset, **kwargs: Any) -> DataLoader:
    return DataLoader(dataset, batch_size=None, places=name_of(0), **kwargs)


def loader_of_generator() -> Iterable:
    loader = paddle.base.io.DataLoader.from_generator(
        capacity=2, return_list=True
    )
    return loader.set_batch_generator(
        lambda: ([Arrays()[i]] for i in range(COUNT)),
        places=name_of(0),
    )


class TestLoaders(StreamTest):
    def check(self, batches: Iterable) -> None:
        """
        Check the values of batches that are used on the current stream, and
        released before it has used them.
        """
        used = []
        with slow(current_stream()):
            for batch in batches:
                tensor = batch[0] if isinstance(batch, list) else batch
                self.assertIn(name_of(0), str(tensor.place))
                used.append(tensor * 1)
                del tensor, batch
            current_stream().synchronize()
        self.assertEqual(
            [set(each.numpy().tolist()) for each in used],
            [{float(i)} for i in range(COUNT)],
        )

    def check_on_streams(self, dataset: Dataset, **kwargs: Any) -> None:
        def on_own_stream() -> None:
            with stream_guard(Stream()):
                self.check(loader_of(dataset, **kwargs))

        in_thread(on_own_stream)
        on_own_stream()
        with stream_guard(Stream()):
            in_thread(lambda: self.check(loader_of(dataset, **kwargs)))

    def test_samples_computed_on_the_device(self):
        self.check_on_streams(Tensors())

    def test_samples_in_host_memory(self):
        self.check_on_streams(Arrays())

    def test_samples_of_worker_processes(self):
        self.check_on_streams(Arrays(), num_workers=1)

    def test_loader_of_a_generator(self):
        def on_own_stream() -> None:
            with stream_guard(Stream()):
                self.check(loader_of_generator())

        in_thread(on_own_stream)

    def test_batches_stay_in_host_memory_without_a_buffered_reader(self):
        def on_own_stream() -> None:
            with stream_guard(Stream()):
                for batch in loader_of(Arrays(), use_buffer_reader=False):
                    self.assertTrue(batch.place.is_cpu_place())

        in_thread(on_own_stream)

    def test_main_thread_changes_its_stream_between_batches(self):
        # A stream that it sets for the first time.
        stream = Stream()
        with slow(self.default):
            batches = iter(loader_of(Tensors()))
            for i in range(COUNT):
                with stream_guard(stream):
                    batch = next(batches)
                    stream.wait_stream(self.default)
                    self.assert_holds(batch * 1, i)

    def test_batches_of_a_loader_that_was_created_in_a_guard(self):
        stream = Stream()
        with stream_guard(stream):
            batches = iter(loader_of(Tensors()))
        with slow(stream):
            for i, batch in enumerate(batches):
                self.assert_holds(batch, i)

    def test_persistent_workers_whose_epochs_are_on_different_streams(self):
        loader = loader_of(Arrays(), num_workers=1, persistent_workers=True)

        def on_own_stream() -> None:
            with stream_guard(Stream()):
                self.check(loader)

        self.check(loader)
        on_own_stream()
        in_thread(on_own_stream)
        in_thread(lambda: self.check(loader))
        self.check(loader)

    def test_persistent_workers_of_the_main_thread_stay(self):
        # A new process, in which no thread has set a stream yet.
        done = run_python(
            """
from paddle.device import Stream, stream_guard
from test_thread_stream_loader import WorkerProcesses, loader_of
loader = loader_of(WorkerProcesses(), num_workers=1, persistent_workers=True)
processes = {int(batch) for batch in loader}
with stream_guard(Stream("custom_cpu")):
    processes.update(int(batch) for batch in loader)
print(len(processes))
""",
            PYTHONPATH=os.pathsep.join(sys.path),
        )
        self.assertEqual((done.stdout, done.returncode), ("1\n", 0))

    def test_any_thread_keeps_the_workers_while_no_thread_has_set_a_stream(
        self,
    ):
        # A new process, in which no thread has set a stream yet.
        done = run_python(
            """
import threading
from test_thread_stream_loader import WorkerProcesses, loader_of
loader = loader_of(WorkerProcesses(), num_workers=1, persistent_workers=True)
processes = {int(batch) for batch in loader}
thread = threading.Thread(
    target=lambda: processes.update(int(batch) for batch in loader)
)
thread.start()
thread.join()
print(len(processes))
""",
            PYTHONPATH=os.pathsep.join(sys.path),
        )
        self.assertEqual((done.stdout, done.returncode), ("1\n", 0))

    def test_main_thread_sets_its_first_stream_after_it_created_a_loader(self):
        # A new process, in which another thread has imported Paddle.
        done = run_python(
            """
import threading
importing = threading.Thread(target=__import__, args=("paddle",))
importing.start()
importing.join()
import paddle
from paddle.device import Stream, current_stream, set_stream
from test_thread_stream_loader import Arrays, loader_of, slow
paddle.set_device("custom_cpu:0")
batches = iter(loader_of(Arrays()))
set_stream(Stream())
used = []
with slow(current_stream()):
    for batch in batches:
        used.append(batch * 1)
        del batch
    current_stream().synchronize()
print([each.numpy().tolist()[0] for each in used])
""",
            PYTHONPATH=os.pathsep.join(sys.path),
        )
        expected = f"{[float(i) for i in range(COUNT)]}\n"
        self.assertEqual((done.stdout, done.returncode), (expected, 0))

    def test_static_mode(self):
        def batches() -> None:
            paddle.enable_static()
            self.addCleanup(paddle.disable_static)
            # The default program is that of the other tests, too.
            program = paddle.static.Program()
            with paddle.static.program_guard(program):
                x = paddle.static.data("x", [SIZE], "float32")
            loader = DataLoader(
                Arrays(),
                feed_list=[x],
                batch_size=None,
                places=name_of(0),
                return_list=True,
            )
            values = [np.array(batch)[0] for batch in loader]
            self.assertEqual(values, list(range(COUNT)))

        def on_own_stream() -> None:
            with stream_guard(Stream()):
                batches()

        in_thread(on_own_stream)

    def test_child_does_not_wait_for_the_streams_of_other_threads(self):
        is_set, may_end = threading.Event(), threading.Event()

        def own():
            # Only the thread keeps the stream alive.
            set_stream(Stream())
            filled(1.0)
            is_set.set()
            may_end.wait(WAIT_S)

        thread = threading.Thread(target=own)
        thread.start()
        self.addCleanup(thread.join, WAIT_S)
        self.addCleanup(may_end.set)
        self.assertTrue(is_set.wait(WAIT_S))
        loader = DataLoader(
            paddle.io.TensorDataset([np.arange(4)]), num_workers=1
        )
        self.assertEqual(len(list(loader)), 4)


if __name__ == "__main__":
    unittest.main()
