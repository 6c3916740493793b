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

import threading
import unittest

import numpy as np
from host_device_control import delay
from test_host_device import setUpModule
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

__all__ = ["setUpModule"]


class Numbers(Dataset):
    """Samples that the reader thread computes on the current device."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> paddle.Tensor:
        return paddle.to_tensor(np.full(SIZE, index, "float32")) * 2


class TestLoaders(StreamTest):
    def check_loader(self) -> None:
        loader = DataLoader(
            Numbers(),
            batch_size=None,
            places=paddle.CustomPlace("custom_cpu", 0),
        )
        with delay(0, 5_000, handle(self.default)):
            for i, batch in enumerate(loader):
                once = batch * 1
                current_stream().synchronize()
                self.assertEqual(set(once.numpy().tolist()), {2.0 * i})

    def test_loader_computes_on_the_stream_of_its_creator(self):
        def run():
            with stream_guard(Stream()):
                self.check_loader()

        in_thread(run)

    def test_loader_computes_on_the_stream_of_the_main_thread(self):
        with stream_guard(Stream()):
            self.check_loader()

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
