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
"""Finding the default device never undoes a set_device."""

from __future__ import annotations

import threading
import unittest

from thread_device_base import (
    WAIT_S,
    ForkTestCase,
    Worker,
    on_every_device_list,
    run_script,
)

import paddle
from paddle.base import framework


@on_every_device_list
class TestDefaultPlace(unittest.TestCase):
    def test_default_device_found_by_many_threads_does_not_undo_a_set(self):
        place = paddle.device._convert_to_place(self.devices[1])
        # Between its look at the place and its write, the search asks this; it
        # may take its time, as with a driver that has to start.
        core = framework.core
        ask = core.is_compiled_with_cuda
        self.addCleanup(setattr, core, "is_compiled_with_cuda", ask)
        has_looked, is_set = threading.Event(), threading.Event()

        def ask_slowly():
            has_looked.set()
            is_set.wait(0.05)
            return ask()

        core.is_compiled_with_cuda = ask_slowly
        for _ in range(20):
            has_looked.clear()
            is_set.clear()
            framework._global_expected_place_ = None
            workers = [
                Worker(framework._current_expected_place_) for _ in range(4)
            ]
            self.assertTrue(has_looked.wait(WAIT_S))
            paddle.device.set_device(place)
            is_set.set()
            for worker in workers:
                worker.result()
            self.assertEqual(paddle.get_device(), self.devices[1])


class TestFork(ForkTestCase):
    def test_fork_while_another_thread_initialises_the_device(self):
        run_script(
            self,
            """
            from thread_device_base import *
            from paddle.base import default_place

            held, may_end = threading.Event(), threading.Event()

            def search():
                held.set()
                may_end.wait(WAIT_S)

            def in_child():
                paddle.set_device(devices[1])
                assert places_of_new_tensors() == {devices[1]}

            worker = Worker(default_place.seek, search)
            assert held.wait(WAIT_S)
            forked(in_child)
            may_end.set()
            worker.result()
            """,
            self.devices,
        )


if __name__ == "__main__":
    unittest.main()
