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
"""Default streams; guards for streams of other devices and several streams.

The tests run on all devices with streams: GPUs, and the devices of the plugin
in test/custom_runtime/host_device.
"""

import threading
import unittest
from types import SimpleNamespace
from unittest import mock

from concurrent_base import WAIT_S, Worker, in_thread
from thread_device_base import (
    StreamTestCase,
    handle,
    on_every_device_list,
    place_name,
    places_of_new_tensors,
)

import paddle
from paddle.base import core
from paddle.base.threads import devices, stream_guards, streams
from paddle.base.threads.thread_value import UNSET
from paddle.device import (
    Event,
    Stream,
    default_stream,
    set_stream,
    stream_guard,
)


def place_of_zeros():
    return place_name(paddle.zeros([1]))


@on_every_device_list
class TestDefaultStream(StreamTestCase):
    def defaults_by_name(self):
        return [handle(default_stream(device)) for device in self.accelerators]

    def test_default_stream_is_the_initial_stream_of_a_thread(self):
        self.assertEqual(self.defaults_by_name(), self.defaults)
        self.assertEqual(in_thread(self.defaults_by_name), self.defaults)

    def test_does_not_change_with_the_current_stream(self):
        def inside():
            with stream_guard(Stream()):
                self.assertEqual(self.defaults_by_name(), self.defaults)
                in_child = in_thread(self.defaults_by_name)
                self.assertEqual(in_child, self.defaults)

        inside()
        in_thread(inside)

    def test_default_device_is_the_current_one(self):
        for device, default in zip(self.accelerators, self.defaults):
            with paddle.device.device_guard(device):
                self.assertEqual(handle(default_stream()), default)

    def test_takes_a_place_and_an_index(self):
        place = paddle.device._convert_to_place(self.devices[0])
        self.assertEqual(handle(default_stream(place)), self.defaults[0])
        self.assertEqual(handle(default_stream(0)), self.defaults[0])
        of_tensor = paddle.zeros([1]).place
        self.assertEqual(handle(default_stream(of_tensor)), self.defaults[0])

    def test_setting_the_default_stream_removes_the_threads_own_stream(self):
        def own():
            set_stream(Stream())
            set_stream(default_stream())
            return self.current()

        self.assertEqual(in_thread(own), self.defaults)

    def test_error_for_the_cpu_names_the_devices_that_have_streams(self):
        for device in ("cpu", core.CPUPlace(), core.Place()):
            for function in (default_stream, Stream):
                with self.assertRaisesRegex(
                    TypeError,
                    f"received Place\\(.*\\). .*{self.accelerators[0]}",
                ):
                    function(device)

    def test_value_that_is_not_a_device_is_named(self):
        with self.assertRaisesRegex(TypeError, "received 1.5 of type float"):
            default_stream(1.5)


@on_every_device_list
class TestStreamOfAnotherDevice(StreamTestCase):
    def setUp(self):
        super().setUp()
        self.second = self.second_accelerator()

    def on_main_and_child(self, function):
        function()
        in_thread(function)

    def test_guard_sets_the_current_device(self):
        @self.on_main_and_child
        def enter():
            stream = Stream(self.second)
            with stream_guard(stream):
                self.assertEqual(places_of_new_tensors(), {self.second})
                here = paddle.device.current_stream()
                self.assertEqual(handle(here), handle(stream))
                self.assertEqual(
                    self.current(),
                    [self.defaults[0], handle(stream), *self.defaults[2:]],
                )
                self.check_computes()
            self.assertEqual(places_of_new_tensors(), {self.devices[0]})
            self.assertEqual(self.current(), self.defaults)

    def test_guard_sets_the_current_device_of_a_thread_on_the_cpu(self):
        @self.on_main_and_child
        def enter():
            with paddle.device.device_guard("cpu"):
                with stream_guard(Stream(self.second)):
                    self.assertEqual(place_of_zeros(), self.second)
                self.assertEqual(place_of_zeros(), "cpu")

    def test_thread_without_a_device_follows_the_main_thread_again(self):
        def enter():
            with stream_guard(Stream(self.second)):
                pass
            return devices.current_place.get_local()

        self.assertIs(in_thread(enter), UNSET)

    def test_thread_without_a_device_keeps_that_of_the_stream(self):
        entered, may_go_on = threading.Event(), threading.Event()

        def enter():
            with stream_guard(Stream(self.devices[0])):
                entered.set()
                self.assertTrue(may_go_on.wait(WAIT_S))
                inside = places_of_new_tensors()
            return inside, places_of_new_tensors()

        worker = Worker(enter)
        self.assertTrue(entered.wait(WAIT_S))
        with paddle.device.device_guard(self.second):
            may_go_on.set()
            self.assertEqual(
                worker.result(), ({self.devices[0]}, {self.second})
            )

    def test_other_threads_keep_their_device(self):
        def enter():
            with stream_guard(Stream(self.second)):
                return in_thread(place_of_zeros), place_of_zeros()

        self.assertEqual(in_thread(enter), (self.devices[0], self.second))

    def test_threads_without_a_device_follow_the_main_thread_into_it(self):
        with stream_guard(Stream(self.second)):
            self.assertEqual(in_thread(place_of_zeros), self.second)
            self.assertEqual(in_thread(self.current), self.defaults)
        self.assertEqual(in_thread(place_of_zeros), self.devices[0])

    def test_current_device_of_cuda_is_the_stream_s_inside_the_guard(self):
        first, second = Stream(self.devices[0]), Stream(self.second)
        set_devices = [7]
        stand_in = SimpleNamespace(
            CUDAPlace=type(second.device),
            get_cuda_current_device_id=lambda: set_devices[-1],
            set_cuda_current_device_id=set_devices.append,
        )
        with mock.patch.multiple(core, create=True, **vars(stand_in)):
            with stream_guard(first):
                self.assertEqual(set_devices, [7, 0])
                with self.assertRaises(KeyError), stream_guard(second):
                    self.assertEqual(set_devices, [7, 0, 1])
                    raise KeyError
        self.assertEqual(set_devices, [7, 0, 1, 0, 7])

    def test_current_device_of_cuda_is_not_set_if_it_is_the_stream_s(self):
        stream = Stream(self.devices[0])
        stand_in = SimpleNamespace(
            CUDAPlace=type(stream.device),
            get_cuda_current_device_id=lambda: 0,
            set_cuda_current_device_id=mock.Mock(),
        )
        with mock.patch.multiple(core, create=True, **vars(stand_in)):
            with stream_guard(stream):
                self.assertEqual(
                    handle(paddle.device.current_stream()), handle(stream)
                )
        stand_in.set_cuda_current_device_id.assert_not_called()
        self.assertEqual(self.current(), self.defaults)

    def test_device_is_restored_after_an_error(self):
        @self.on_main_and_child
        def enter():
            with self.assertRaises(KeyError), stream_guard(Stream(self.second)):
                raise KeyError
            self.assertEqual(place_of_zeros(), self.devices[0])

    def test_device_set_inside_the_guard_does_not_outlast_it(self):
        @self.on_main_and_child
        def enter():
            paddle.set_device(self.devices[0])
            with stream_guard(Stream(self.second)):
                paddle.set_device("cpu")
            self.assertEqual(place_of_zeros(), self.devices[0])

    def test_reentered_guard_restores_each_step(self):
        @self.on_main_and_child
        def enter():
            guard = stream_guard(Stream(self.second))
            with guard:
                with paddle.device.device_guard(self.devices[0]):
                    with guard:
                        self.assertEqual(place_of_zeros(), self.second)
                    self.assertEqual(place_of_zeros(), self.devices[0])
                self.assertEqual(place_of_zeros(), self.second)
            self.assertEqual(place_of_zeros(), self.devices[0])

    def test_failure_to_set_the_device_restores_the_stream(self):
        guard = stream_guard(Stream(self.second))
        with mock.patch.object(
            stream_guards, "set_place", side_effect=MemoryError
        ):
            with self.assertRaises(MemoryError):
                guard.__enter__()
        self.assertEqual(self.current(), self.defaults)
        with self.assertRaisesRegex(RuntimeError, "has not entered it"):
            guard.__exit__(None, None, None)


@on_every_device_list
class TestEventsOfAnotherDevice(StreamTestCase):
    def setUp(self):
        super().setUp()
        self.stream = Stream(self.second_accelerator())

    def check_event(self):
        event = self.stream.record_event()
        event.synchronize()
        self.assertTrue(event.query())
        self.assertEqual(str(event.device), str(self.stream.device))

    def test_stream_records_an_event_whatever_the_current_device(self):
        self.check_event()
        with paddle.device.device_guard("cpu"):
            self.check_event()
        in_thread(self.check_event)

    def test_an_event_does_not_change_the_device_of_other_threads(self):
        seen = []
        create = paddle.device._create_event_base

        def seen_by_another_thread(**options):
            seen.append(in_thread(paddle.get_device))
            return create(**options)

        with mock.patch.object(
            paddle.device, "_create_event_base", seen_by_another_thread
        ):
            self.check_event()
            Stream().wait_stream(self.stream)
        self.assertEqual(seen, [self.devices[0]] * 2)

    def test_an_event_is_created_on_the_gpu_of_its_stream(self):
        set_devices = [7]
        stand_in = {
            "CUDAPlace": type(self.stream.device),
            "get_cuda_current_device_id": lambda: set_devices[-1],
            "set_cuda_current_device_id": set_devices.append,
        }
        with mock.patch.multiple(core, create=True, **stand_in):
            self.stream.record_event()
        self.assertEqual(set_devices, [7, 1, 7])

    def test_an_event_of_another_device_is_refused(self):
        event = Event()
        with self.assertRaisesRegex(
            ValueError, f"{self.devices[0]}.*{self.devices[1]}"
        ):
            event.record(self.stream)

    def test_streams_of_two_devices_wait_for_each_other(self):
        other = Stream()
        other.wait_stream(self.stream)
        self.stream.wait_stream(other)
        other.synchronize()
        self.stream.synchronize()
        self.assertTrue(other.query() and self.stream.query())


@on_every_device_list
class TestEquality(StreamTestCase):
    def test_objects_of_one_stream_are_equal(self):
        stream = Stream()
        with stream_guard(stream):
            current = paddle.device.current_stream()
        self.assertIsNot(current, stream)
        self.assertEqual(current, stream)
        self.assertEqual(hash(current), hash(stream))

    def test_different_streams_and_other_objects_are_not_equal(self):
        stream = Stream()
        for other in (Stream(), default_stream(), None, 1):
            self.assertNotEqual(stream, other)


@on_every_device_list
class TestOnTheCpu(StreamTestCase):
    def test_streams_and_events_name_the_devices_that_have_them(self):
        with paddle.device.device_guard("cpu"):
            for make in (Stream, paddle.device.Event):
                with self.assertRaisesRegex(
                    TypeError,
                    f"received Place\\(cpu\\). .*{self.accelerators[0]}",
                ):
                    make()


@on_every_device_list
class TestSeveralStreams(StreamTestCase):
    def setUp(self):
        super().setUp()
        self.second_accelerator()
        self.streams = [Stream(device) for device in self.accelerators]
        self.handles = [handle(stream) for stream in self.streams]

    def test_each_stream_is_current_on_its_device(self):
        def enter(several):
            with stream_guard(several):
                self.assertEqual(self.current(), self.handles)
                self.assertEqual(place_of_zeros(), self.devices[0])
            self.assertEqual(self.current(), self.defaults)

        for several in (self.streams, tuple(self.streams)):
            enter(several)
            in_thread(enter, several)

    def test_streams_of_an_outer_guard_are_restored(self):
        def enter():
            with stream_guard(self.streams):
                with stream_guard([Stream(self.accelerators[1])]):
                    self.assertEqual(self.current()[0], self.handles[0])
                    self.assertNotEqual(self.current()[1], self.handles[1])
                self.assertEqual(self.current(), self.handles)

        enter()
        in_thread(enter)

    def test_empty_list_changes_nothing(self):
        with stream_guard([]):
            self.assertEqual(self.current(), self.defaults)

    def test_two_streams_of_one_device_are_refused(self):
        twice = [*self.streams, Stream(self.accelerators[1])]
        with mock.patch.object(streams, "set_stream") as set_stream:
            with self.assertRaisesRegex(ValueError, self.accelerators[1]):
                stream_guard(twice).__enter__()
        set_stream.assert_not_called()

    def test_two_objects_of_one_stream_are_accepted(self):
        with stream_guard(self.streams):
            current = paddle.device.current_stream(self.accelerators[1])
            with stream_guard([*self.streams, current]):
                self.assertEqual(
                    self.current(), list(map(handle, self.streams))
                )

    def test_an_object_other_than_a_stream_is_refused_and_changes_nothing(self):
        def enter():
            with self.assertRaisesRegex(TypeError, "str"):
                stream_guard([*self.streams, "gpu"]).__enter__()
            self.assertEqual(self.current(), self.defaults)

        enter()
        in_thread(enter)

    def test_all_others_are_restored_if_one_cannot_be(self):
        def enter():
            guard = stream_guard(self.streams)
            guard.__enter__()
            real = streams.set_stream

            def fail_for_the_last(base):
                if base.place.get_device_id() == len(self.streams) - 1:
                    raise MemoryError
                return real(base)

            with mock.patch.object(streams, "set_stream", fail_for_the_last):
                with self.assertRaises(MemoryError):
                    guard.__exit__(None, None, None)
            self.assertEqual(self.current()[:-1], self.defaults[:-1])
            set_stream(default_stream(self.accelerators[-1]))

        enter()
        in_thread(enter)


if __name__ == "__main__":
    unittest.main()
