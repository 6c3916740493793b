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
"""DataLoader with worker threads: the device and streams of its batches.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import threading
import time
import unittest

import numpy as np
from host_device_control import TooSlow, delay, with_ample_delay
from test_host_device import name_of, setUpModule
from test_thread_stream_order import StreamTest, handle, in_thread

import paddle
from paddle.device import Stream, current_stream, stream_guard
from paddle.io import DataLoader, Dataset

__all__ = ["setUpModule"]


# In microseconds: ample time for a thread to run.
DELAY = 100_000


class Made(Dataset):
    """A dataset whose items a function creates."""

    def __init__(self, make, length):
        self.make, self.length = make, length

    def __getitem__(self, i):
        return self.make(i)

    def __len__(self):
        return self.length


def load(make, length=6, num_workers=2, **options):
    return DataLoader(
        Made(make, length),
        num_workers=num_workers,
        worker_type="thread",
        **options,
    )


def array(i):
    return np.full([2], i, "float32")


class TestDevice(StreamTest):
    def test_batches_are_on_the_device_of_the_iterating_thread(self):
        def places():
            paddle.set_device(name_of(2))
            return {str(batch.place) for batch in load(array)}

        self.assertEqual(in_thread(places), {f"Place({name_of(2)})"})

    def test_workers_create_tensors_on_that_device(self):
        made = []

        def make(i):
            made.append(str(paddle.zeros([2]).place))
            return array(i)

        paddle.set_device(name_of(1))
        list(load(make))
        self.assertEqual(set(made), {f"Place({name_of(1)})"})

    def test_batches_are_on_the_place_that_the_loader_names(self):
        for make in (array, lambda i: paddle.full([2], float(i))):
            batches = [*load(make, places=paddle.CPUPlace(), batch_size=2)]
            self.assertEqual({str(b.place) for b in batches}, {"Place(cpu)"})
            self.assertEqual(
                [b[:, 0].tolist() for b in batches],
                [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]],
            )

    @with_ample_delay
    def test_other_threads_run_while_a_worker_copies_to_the_device(self):
        """The copy waits for the work of the stream."""

        def make(i):
            with delay(0, DELAY, handle(current_stream())):
                paddle.full([2], 1.0)
            return array(i)

        def count_and_load():
            loading = threading.Thread(target=list, args=[load(make, length=1)])
            loading.start()
            while loading.is_alive():
                times.append(time.monotonic_ns())

        times = []
        trace = self.trace_of(count_and_load)
        (full,) = [each for each in trace if each.kind == "full"]
        half = (full.begin_ns + full.end_ns) // 2
        if not any(half < t < full.end_ns for t in times):
            raise TooSlow("this thread did not run while the copy waited")

    def test_workers_compute_on_the_streams_of_the_creator(self):
        stream = Stream()
        handles = []

        def make(i):
            handles.append(handle(current_stream()))
            return paddle.full([2], float(i)) * 2

        # Batches for the current device are created on the workers' streams.
        with stream_guard(stream):
            loader = load(make, places=paddle.CPUPlace())
            batches = [batch.tolist() for batch in loader]
        self.assertEqual(set(handles), {handle(stream)})
        self.assertEqual(batches, [[[2.0 * i] * 2] for i in range(6)])


if __name__ == "__main__":
    unittest.main()
