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
"""Per-thread devices: which device a thread uses."""

from __future__ import annotations

import _thread
import concurrent.futures
import queue
import threading
import unittest

import numpy as np
from concurrent_base import WAIT_S, Worker, in_thread
from thread_device_base import (
    needs_another_device,
    on_every_device_list,
    place_name,
    places_of_new_tensors,
)

import paddle
from paddle.base import framework
from paddle.base.threads.devices import current_place
from paddle.base.threads.thread_value import UNSET


@on_every_device_list
class TestCurrentDevice(unittest.TestCase):
    @needs_another_device
    def test_main_thread_sets_the_device_of_the_process(self):
        paddle.set_device(self.devices[1])
        self.assertEqual(places_of_new_tensors(), {self.devices[1]})
        self.assertEqual(in_thread(places_of_new_tensors), {self.devices[1]})

    def test_thread_that_set_nothing_follows_the_main_thread_live(self):
        asked, answered = queue.Queue(), queue.Queue()

        def follow():
            while asked.get(timeout=WAIT_S):
                answered.put(places_of_new_tensors())

        worker = Worker(follow)
        for device in [*self.devices, *self.devices]:
            paddle.set_device(device)
            asked.put(True)
            self.assertEqual(answered.get(timeout=WAIT_S), {device})
        asked.put(False)
        worker.result()

    @needs_another_device
    def test_device_set_by_a_thread_is_seen_only_by_that_thread(self):
        is_set, may_end = threading.Event(), threading.Event()

        def own():
            paddle.set_device(self.devices[1])
            is_set.set()
            self.assertTrue(may_end.wait(WAIT_S))
            return places_of_new_tensors()

        worker = Worker(own)
        self.assertTrue(is_set.wait(WAIT_S))
        self.assertEqual(places_of_new_tensors(), {self.devices[0]})
        self.assertEqual(in_thread(places_of_new_tensors), {self.devices[0]})
        may_end.set()
        self.assertEqual(worker.result(), {self.devices[1]})

    @needs_another_device
    def test_device_set_by_a_thread_outlasts_changes_of_the_main_thread(self):
        is_set, has_moved = threading.Event(), threading.Event()

        def own():
            paddle.set_device(self.devices[1])
            is_set.set()
            self.assertTrue(has_moved.wait(WAIT_S))
            return places_of_new_tensors()

        worker = Worker(own)
        self.assertTrue(is_set.wait(WAIT_S))
        paddle.set_device(self.devices[-1])
        has_moved.set()
        self.assertEqual(worker.result(), {self.devices[1]})

    @needs_another_device
    def test_device_of_a_thread_ends_with_the_thread(self):
        in_thread(paddle.set_device, self.devices[1])
        # New threads may reuse a finished thread's ident, but not its device.
        for _ in range(50):
            self.assertEqual(in_thread(paddle.get_device), self.devices[0])

    @needs_another_device
    def test_child_of_a_thread_with_a_device_follows_the_main_thread(self):
        def own():
            paddle.set_device(self.devices[1])
            return in_thread(places_of_new_tensors)

        self.assertEqual(in_thread(own), {self.devices[0]})

    def test_inheritance_chain_of_threads(self):
        def link(depth):
            inherited = places_of_new_tensors()
            self.assertEqual(inherited, {self.devices[0]})
            device = self.devices[depth % len(self.devices)]
            paddle.set_device(device)
            if depth:
                in_thread(link, depth - 1)
            self.assertEqual(places_of_new_tensors(), {device})

        in_thread(link, 8)

    @needs_another_device
    def test_thread_of_a_pool_keeps_its_device_between_tasks(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(paddle.set_device, self.devices[1]).result(WAIT_S)
            seen = pool.submit(places_of_new_tensors).result(WAIT_S)
        self.assertEqual(seen, {self.devices[1]})

    def test_thread_of_a_pool_without_a_device_follows_the_main_thread(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            for device in self.devices:
                paddle.set_device(device)
                seen = pool.submit(places_of_new_tensors).result(WAIT_S)
                self.assertEqual(seen, {device})

    @needs_another_device
    def test_thread_without_a_threading_object(self):
        seen = queue.Queue()

        def raw():
            seen.put(places_of_new_tensors())
            paddle.set_device(self.devices[1])
            seen.put(places_of_new_tensors())

        _thread.start_new_thread(raw, ())
        self.assertEqual(seen.get(timeout=WAIT_S), {self.devices[0]})
        self.assertEqual(seen.get(timeout=WAIT_S), {self.devices[1]})
        self.assertEqual(places_of_new_tensors(), {self.devices[0]})

    @needs_another_device
    def test_index_without_a_type_uses_the_type_of_the_threads_device(self):
        def own():
            paddle.set_device(self.devices[1])
            return paddle.set_device(0), paddle.device.current_device()

        paddle.set_device("cpu")
        place, index = in_thread(own)
        self.assertEqual((str(place), index), (f"Place({self.devices[0]})", 0))

    @needs_another_device
    def test_current_device_returns_the_threads_device(self):
        def own():
            paddle.set_device(self.devices[1])
            return paddle.device.current_device()

        _, _, index = self.devices[1].partition(":")
        self.assertEqual(in_thread(own), int(index or 0))

    @needs_another_device
    def test_set_device_takes_the_place_of_a_tensor(self):
        there = paddle.to_tensor([1.0], place=self.devices[1])

        def own():
            paddle.set_device("cpu")
            paddle.set_device(there.place)
            return places_of_new_tensors()

        self.assertEqual(in_thread(own), {self.devices[1]})
        self.assertEqual(own(), {self.devices[1]})

    def test_unknown_device_does_not_change_the_threads_device(self):
        def own():
            paddle.set_device(self.other)
            with self.assertRaisesRegex(ValueError, "device"):
                paddle.set_device("no_such_device")
            return places_of_new_tensors()

        self.assertEqual(in_thread(own), {self.other})

    def test_error_for_an_invalid_device_names_it_and_changes_nothing(self):
        def own():
            paddle.set_device(self.other)
            with self.assertRaisesRegex(TypeError, "1.5 of type float"):
                paddle.set_device(1.5)
            return places_of_new_tensors()

        self.assertEqual(in_thread(own), {self.other})
        with self.assertRaises(ValueError):
            paddle.set_device(1.5)
        self.assertEqual(places_of_new_tensors(), {self.devices[0]})


@on_every_device_list
class TestCpuAsOwnDevice(unittest.TestCase):
    """The CPU as a thread's own device, as opposed to no device of its own."""

    def own(self):
        return current_place.get_local()

    def while_a_thread_is_on_the_cpu(self, set_cpu, look):
        """
        Calls `look` while a thread that ran `set_cpu` is alive. Returns that
        thread's own device and the result of `look`.
        """
        is_set, may_end = threading.Event(), threading.Event()

        def stay():
            set_cpu()
            is_set.set()
            self.assertTrue(may_end.wait(WAIT_S))
            return str(self.own())

        worker = Worker(stay)
        self.assertTrue(is_set.wait(WAIT_S))
        found = look()
        may_end.set()
        return worker.result(), found

    def test_cpu_set_by_a_thread_affects_no_other_thread(self):
        for set_cpu in (
            lambda: paddle.set_device("cpu"),
            paddle.device.device("cpu").__enter__,
        ):
            own, others = self.while_a_thread_is_on_the_cpu(
                set_cpu, lambda: in_thread(self.own)
            )
            self.assertEqual(own, "Place(cpu)")
            self.assertIs(others, UNSET)

    def test_child_of_a_thread_on_the_cpu_has_no_own_device(self):
        def begin():
            paddle.set_device("cpu")
            return in_thread(self.own)

        self.assertIs(in_thread(begin), UNSET)

    def test_cpu_outlasts_what_the_main_thread_sets(self):
        own, _ = self.while_a_thread_is_on_the_cpu(
            lambda: paddle.set_device("cpu"),
            lambda: paddle.set_device(self.devices[0]),
        )
        self.assertEqual(own, "Place(cpu)")


@on_every_device_list
class TestTracerState(unittest.TestCase):
    """A thread with a device has its own tracer; users must not notice."""

    def test_backward_runs_on_the_threads_device(self):
        def train():
            paddle.set_device(self.other)
            layer = paddle.nn.Linear(4, 4)
            loss = paddle.nn.functional.relu(layer(paddle.rand([8, 4]))).sum()
            loss.backward()
            return {
                place_name(loss),
                place_name(layer.weight.grad),
                place_name(layer.bias.grad),
            }

        self.assertEqual(in_thread(train), {self.other})

    def test_first_tensor_of_a_thread_may_be_made_in_cpp(self):
        def place_of_first_tensor():
            paddle.set_device(self.other)
            # Most functions in Python would read the thread's tracer first.
            return place_name(paddle.Tensor(np.ones(1)))

        self.assertEqual(in_thread(place_of_first_tensor), self.other)

    def test_no_grad_is_per_thread(self):
        entered, may_leave = threading.Event(), threading.Event()

        def inside():
            paddle.set_device(self.other)
            with paddle.no_grad():
                entered.set()
                self.assertTrue(may_leave.wait(WAIT_S))
                paddle.set_device("cpu")
                return paddle.is_grad_enabled()

        worker = Worker(inside)
        self.assertTrue(entered.wait(WAIT_S))
        self.assertTrue(paddle.is_grad_enabled())
        may_leave.set()
        # Setting a device inside does not turn gradients on again.
        self.assertFalse(worker.result())

    @needs_another_device  # the CPU has no float16
    def test_auto_cast_is_per_thread_and_survives_a_device_switch(self):
        entered, may_leave = threading.Event(), threading.Event()

        def level():
            # Operators read this level before they cast their inputs.
            return framework.core._get_amp_attrs()._amp_level

        def inside():
            paddle.set_device(self.other)
            with paddle.amp.auto_cast(dtype="float16"):
                paddle.set_device("cpu")
                entered.set()
                self.assertTrue(may_leave.wait(WAIT_S))
                return level()

        worker = Worker(inside)
        self.assertTrue(entered.wait(WAIT_S))
        self.assertEqual(level(), framework.core.AmpLevel.O0)
        may_leave.set()
        self.assertEqual(worker.result(), framework.core.AmpLevel.O1)

    def test_auto_cast_uses_the_device_of_the_thread(self):
        def tracer_place():
            paddle.set_device(self.other)
            with paddle.amp.auto_cast(enable=False):
                return str(framework._dygraph_tracer()._expected_place)

        self.assertEqual(in_thread(tracer_place), f"Place({self.other})")

    def test_to_static_works_on_a_thread_as_on_the_main_thread(self):
        layer = paddle.nn.Linear(4, 4)
        weights = {k: v.numpy() for k, v in layer.state_dict().items()}
        data = paddle.rand([2, 4]).numpy()

        def run(device):
            paddle.set_device(device)
            mine = paddle.nn.Linear(4, 4)
            mine.set_state_dict(weights)
            static = paddle.jit.to_static(mine, full_graph=True)
            out = static(paddle.to_tensor(data))
            return place_name(out), out.numpy().tobytes()

        on_main = {device: run(device) for device in self.devices}
        paddle.set_device(self.devices[0])
        for device in self.devices:
            self.assertEqual(in_thread(run, device), on_main[device])
        self.assertEqual(places_of_new_tensors(), {self.devices[0]})

    def test_parameter_names_are_unique_across_threads(self):
        def names(device):
            paddle.set_device(device)
            return [
                parameter.name
                for _ in range(20)
                for parameter in paddle.nn.Linear(1, 1).parameters()
            ]

        workers = [Worker(names, d) for d in self.devices for _ in range(2)]
        seen = [name for worker in workers for name in worker.result()]
        self.assertEqual(len(seen), len(set(seen)))

    def test_names_of_unnamed_tensors_are_unique_per_device(self):
        def names(device):
            paddle.set_device(device)
            return [paddle.to_tensor([1.0]).name for _ in range(200)]

        workers = [Worker(names, self.other) for _ in range(4)]
        seen = [name for worker in workers for name in worker.result()]
        self.assertEqual(len(seen), len(set(seen)))

    def test_seed_is_process_wide(self):
        def draw():
            paddle.set_device(self.other)
            return paddle.rand([8]).numpy().tobytes()

        paddle.seed(7)
        first = in_thread(draw)
        in_thread(paddle.seed, 7)
        self.assertEqual(in_thread(draw), first)

    def test_train_and_eval_mode_do_not_depend_on_the_device(self):
        def dropped():
            paddle.set_device(self.other)
            layer = paddle.nn.Dropout(0.999)
            layer.eval()
            return float(layer(paddle.ones([64])).sum())

        self.assertEqual(in_thread(dropped), 64.0)


if __name__ == "__main__":
    unittest.main()
