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

import sys
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
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        default = self.devices[0]
        # The search for the default takes a thread switch, as it may on a GPU.
        search = framework._init_global_expected_place
        self.addCleanup(
            setattr, framework, "_init_global_expected_place", search
        )
        has_searched, is_set = threading.Event(), threading.Event()

        def slow_search():
            has_searched.set()
            is_set.wait(0.02)
            return search()

        framework._init_global_expected_place = slow_search
        for _ in range(20):
            has_searched.clear()
            is_set.clear()
            framework._global_expected_place_ = None
            workers = [Worker(paddle.get_device) for _ in range(4)]
            self.assertTrue(has_searched.wait(WAIT_S))
            paddle.set_device(self.devices[1])
            is_set.set()
            for worker in workers:
                self.assertIn(worker.result(), {default, self.devices[1]})
            self.assertEqual(paddle.get_device(), self.devices[1])


class TestFork(ForkTestCase):
    def test_fork_while_another_thread_initialises_the_device(self):
        run_script(
            self,
            """
            from thread_device_base import *
            from paddle.base import default_place

            held, may_end = threading.Event(), threading.Event()

            def hold():
                with default_place.lock:
                    held.set()
                    may_end.wait(WAIT_S)

            def in_child():
                paddle.set_device(devices[1])
                assert places_of_new_tensors() == {devices[1]}

            worker = Worker(hold)
            assert held.wait(WAIT_S)
            forked(in_child)
            may_end.set()
            worker.result()
            """,
            self.devices,
        )


if __name__ == "__main__":
    unittest.main()
