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
"""static.device_guard acts on the calling thread."""

from __future__ import annotations

import threading
import unittest

from concurrent_base import WAIT_S, Worker, in_thread
from thread_device_base import ForkTestCase, on_every_device_list, run_script

import paddle
from paddle.base import framework


def device_of_new_op():
    """Returns the device of an operator created now; "" if it has none."""
    with framework._dygraph_guard(None):
        block = framework.Program().global_block()
        op = block.append_op(
            type="fill_constant",
            outputs={"Out": [block.create_var(dtype="float32", shape=[1])]},
            attrs={"shape": [1], "dtype": 5, "value": 1.0},
        )
        return op.attr(
            framework.core.op_proto_and_checker_maker.kOpDeviceAttrName()
        )


@on_every_device_list
class TestOpDevice(unittest.TestCase):
    def test_op_device_of_static_device_guard_is_per_thread(self):
        entered, may_leave = threading.Event(), threading.Event()

        def inside():
            with paddle.static.device_guard("cpu"):
                entered.set()
                self.assertTrue(may_leave.wait(WAIT_S))
                inner = device_of_new_op()
            return inner, device_of_new_op()

        worker = Worker(inside)
        self.assertTrue(entered.wait(WAIT_S))
        self.assertEqual(device_of_new_op(), "")
        with paddle.static.device_guard("gpu"):
            self.assertEqual(in_thread(device_of_new_op), "gpu")
        may_leave.set()
        self.assertEqual(worker.result(), ("cpu", ""))

    def test_guard_of_a_finished_thread_does_not_move_another_thread(self):
        def suspend():
            with paddle.static.device_guard("gpu"):
                yield

        def begin():
            suspended = suspend()
            next(suspended)
            return suspended

        suspended = in_thread(begin)
        with paddle.static.device_guard("cpu"):
            suspended.close()
            self.assertEqual(device_of_new_op(), "cpu")


class TestFork(ForkTestCase):
    def test_op_device_outlives_a_fork_from_a_thread(self):
        run_script(
            self,
            """
            from test_thread_op_device import *

            def fork_inside():
                guard = paddle.static.device_guard("cpu")

                def leave():
                    assert device_of_new_op() == "cpu"
                    assert in_thread(device_of_new_op) == "cpu"
                    guard.__exit__(None, None, None)
                    assert device_of_new_op() == ""

                with guard:
                    forked(leave)

            in_thread(fork_inside)
            """,
            self.devices,
        )

    def test_guard_left_after_a_fork_restores_the_threads_device(self):
        run_script(
            self,
            """
            from test_thread_op_device import *

            def fork_inside():
                guard = paddle.static.device_guard("cpu")

                def leave():
                    assert device_of_new_op() == "cpu"
                    guard.__exit__(None, None, None)
                    assert device_of_new_op() == "gpu"

                with guard:
                    forked(leave)
                assert device_of_new_op() == "gpu"

            with paddle.static.device_guard("gpu"):
                in_thread(fork_inside)
            """,
            self.devices,
        )


if __name__ == "__main__":
    unittest.main()
