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
"""`paddle.amp` on several threads at once."""

from __future__ import annotations

import threading
import unittest
from typing import TYPE_CHECKING
from unittest import mock

from concurrent_base import WAIT_S, Worker, in_thread, in_threads
from thread_device_base import device_lists

import paddle
import paddle.multiprocessing as mp
from paddle.amp.auto_cast import amp_global_state
from paddle.base import core

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


# Of the accelerators: the CPU does not cast.
DEVICE = next(
    (
        device
        for devices in device_lists().values()
        for device in devices
        if device != "cpu"
    ),
    None,
)


def lists() -> list[set[str]]:
    return [set(ops) for ops in core._get_amp_op_list()]


def exp_stays_float16() -> bool:
    """Runs `exp`, which `auto_cast` computes in float32 unless it is white."""
    x = paddle.ones([2], "float16")
    return paddle.exp(x).dtype == paddle.float16


def auto_cast(*white: str) -> AbstractContextManager:
    return paddle.amp.auto_cast(dtype="float16", custom_white_list=white)


class TestAutoCast(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def test_a_thread_starts_with_empty_lists(self):
        with paddle.amp.auto_cast(False):
            self.assertEqual(in_thread(lists), [set(), set()])

    def test_an_error_leaves_auto_cast_off(self):
        tracer = paddle.base.framework._dygraph_tracer()
        with (
            mock.patch.object(
                type(tracer), "_set_amp_op_list", side_effect=OSError
            ),
            self.assertRaises(OSError),
            paddle.amp.auto_cast(False, level="O2"),
        ):
            pass
        self.assertEqual(tracer._amp_level, core.AmpLevel.O0)

    def test_auto_cast_sets_the_lists_of_the_calling_thread(self):
        first_inside, both_inside, first_left = (
            threading.Event() for _ in range(3)
        )

        def leave_first():
            with paddle.amp.auto_cast(False, custom_white_list={"tanh"}):
                first_inside.set()
                self.assertTrue(both_inside.wait(WAIT_S))
                inside = "tanh" in lists()[0]
            first_left.set()
            return inside, lists()

        def leave_last():
            self.assertTrue(first_inside.wait(WAIT_S))
            with paddle.amp.auto_cast(False, custom_black_list={"tanh"}):
                both_inside.set()
                self.assertTrue(first_left.wait(WAIT_S))
                white, black = lists()
            return "tanh" in white, "tanh" in black, lists()

        empty = [set(), set()]
        self.assertEqual(
            in_threads(leave_first, leave_last),
            [(True, empty), (False, True, empty)],
        )
        self.assertEqual(lists(), empty)


@unittest.skipUnless(DEVICE, "no device that casts here")
class TestOnADevice(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(DEVICE)

    def test_operators_use_the_lists_of_their_thread(self):
        both_inside = threading.Barrier(2, timeout=WAIT_S)

        def run(*white):
            with auto_cast(*white):
                both_inside.wait()
                found = exp_stays_float16()
                both_inside.wait()
                return found

        self.assertEqual(
            in_threads(lambda: run(), lambda: run("exp")), [False, True]
        )

    def test_operators_run_while_other_threads_enter_and_leave(self):
        def run(*white):
            for _ in range(100):
                with auto_cast(*white):
                    self.assertEqual(exp_stays_float16(), bool(white))
                self.assertTrue(exp_stays_float16())

        in_threads(run, lambda: run("exp"), run)

    def test_a_worker_thread_keeps_the_lists_of_its_creator(self):
        left = threading.Event()
        found = []

        def run():
            self.assertTrue(left.wait(WAIT_S))
            found.extend([lists() == of_creator, exp_stays_float16()])

        with auto_cast("exp"):
            of_creator = lists()
            worker = mp.WorkerThread(run)
            worker.start()
        left.set()
        worker.join(WAIT_S)
        self.assertEqual(found, [True, True])
        self.assertEqual(lists(), [set(), set()])

    def test_a_worker_thread_outside_of_auto_cast_sets_no_lists(self):
        with auto_cast():
            pass
        found = []
        worker = mp.WorkerThread(lambda: found.append(lists()))
        worker.start()
        worker.join(WAIT_S)
        self.assertEqual(found, [[set(), set()]])


class TestGradScaler(unittest.TestCase):
    @unittest.skipUnless(DEVICE, "no device that casts here")
    def test_a_worker_thread_keeps_the_data_type_of_its_creator(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(DEVICE)
        left = threading.Event()
        found = []

        def run():
            self.assertTrue(left.wait(WAIT_S))
            found.append(amp_global_state().amp_dtype)

        before = amp_global_state().amp_dtype
        self.addCleanup(setattr, amp_global_state(), "amp_dtype", before)
        with auto_cast():
            worker = mp.WorkerThread(run)
            worker.start()
        with paddle.amp.auto_cast(False, dtype="bfloat16"):
            left.set()
            worker.join(WAIT_S)
        self.assertEqual(found, ["float16"])

    def test_the_data_type_of_auto_cast_belongs_to_the_thread(self):
        before = amp_global_state().amp_dtype
        entered, may_go_on = threading.Event(), threading.Event()

        def scale():
            with paddle.amp.auto_cast(False, dtype="float16"):
                entered.set()
                self.assertTrue(may_go_on.wait(WAIT_S))
                scaler = paddle.amp.GradScaler(True, init_loss_scaling=8.0)
                # The constructor disables it without an accelerator.
                scaler._enable = True
                scaler._use_dynamic_loss_scaling = True
                scaler.scale(paddle.ones([1]))
                return scaler._enable

        worker = Worker(scale)
        self.assertTrue(entered.wait(WAIT_S))

        def enter_other():
            with paddle.amp.auto_cast(False, dtype="bfloat16"):
                return amp_global_state().amp_dtype

        self.assertEqual(in_thread(enter_other), "bfloat16")
        may_go_on.set()
        self.assertTrue(worker.result())
        self.assertEqual(amp_global_state().amp_dtype, before)


if __name__ == "__main__":
    unittest.main()
