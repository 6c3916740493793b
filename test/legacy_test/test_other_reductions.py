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

from __future__ import annotations

import copyreg
import pickle
import unittest
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler

from shared_tensor_base import (  # noqa: F401
    SharingTestCase,
    echo,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)

import paddle
from paddle.base import core


def places():
    """Returns the places that this Paddle can name."""
    found = [core.CPUPlace()]
    if "custom_cpu" in paddle.device.get_all_custom_device_type():
        found.append(core.CustomPlace("custom_cpu", 1))
    if paddle.is_compiled_with_cuda():
        found += [core.CUDAPlace(0), core.CUDAPinnedPlace()]
    return found


def general(place):
    """Returns a place in the form of `Tensor.place`."""
    wrapped = core.Place()
    wrapped.set_place(place)
    return wrapped


def passed_on(value):
    return pickle.loads(ForkingPickler.dumps(value))


class Tagged(paddle.Tensor):
    """A class that is pickled as its base is."""


class RegisteredTensor(paddle.Tensor):
    pass


class CopyregTensor(paddle.Tensor):
    pass


class ReducedTensor(paddle.Tensor):
    # Tensor defines this method, too.
    def __reduce_ex__(self, protocol):
        return str, ("by its class",)


def tagged(tag):
    tensor = Tagged(paddle.ones([2]))
    tensor.tag = tag
    return tensor


def tag_of(tensor):
    return type(tensor).__name__, tensor.tag, tensor.tolist()


class TestSubclasses(unittest.TestCase):
    def test_a_tensor_of_a_subclass_arrives_over_the_same_memory(self):
        tensor = tagged("tag")
        (arrived,) = passed_on([tensor])
        self.assertEqual(tag_of(arrived), ("Tagged", "tag", [1, 1]))
        arrived.fill_(3)
        self.assertEqual(tensor.tolist(), [3, 3])

    def test_it_arrives_through_an_executor(self):
        # Its feeder thread and its workers have their own picklers.
        with ProcessPoolExecutor(1, get_context("fork")) as executor:
            found = executor.submit(tag_of, tagged("tag")).result()
            self.assertEqual(found, ("Tagged", "tag", [1, 1]))
            self.assertEqual(
                executor.submit(tagged, "back").result().tag, "back"
            )

    def test_registered_reducers_have_priority(self):
        def reduce(tensor):
            return str, ("registered",)

        self.addCleanup(
            ForkingPickler._extra_reducers.pop, RegisteredTensor, None
        )
        self.addCleanup(copyreg.dispatch_table.pop, CopyregTensor, None)
        ForkingPickler.register(RegisteredTensor, reduce)
        copyreg.pickle(CopyregTensor, reduce)
        for kind in RegisteredTensor, CopyregTensor:
            with self.subTest(kind):
                tensor = kind(paddle.ones([2]))
                self.assertEqual(passed_on(tensor), "registered")

    def test_a_class_that_defines_its_pickling_keeps_it(self):
        tensor = ReducedTensor(paddle.ones([2]))
        self.assertEqual(passed_on(tensor), "by its class")


class TestPlaces(unittest.TestCase):
    def test_a_place_arrives_as_it_is(self):
        for place in places():
            with self.subTest(place):
                arrived = passed_on(place)
                self.assertIs(type(arrived), type(place))
                self.assertEqual(arrived, place)

    def test_place_of_a_tensor_arrives(self):
        for place in places():
            with self.subTest(place):
                arrived = passed_on(general(place))
                self.assertIs(type(arrived), core.Place)
                self.assertEqual(arrived, general(place))
                self.assertEqual(str(arrived), str(place))


class TestGenerators(unittest.TestCase):
    def test_a_generator_arrives_with_its_seed_and_its_state(self):
        generator = core.Generator()
        generator.manual_seed(7)
        generator.random()
        arrived = passed_on(generator)
        self.assertEqual(arrived.initial_seed(), 7)
        drawn = [arrived.random() for _ in range(4)]
        self.assertEqual(drawn, [generator.random() for _ in range(4)])


@over_every_way_to_send()
class TestInAnotherProcess(SharingTestCase):
    def test_places_and_generators_go_there_and_back(self):
        generator = core.Generator()
        generator.manual_seed(7)
        sent = places() + [general(place) for place in places()]
        *arrived, returned = self.peer.call(echo, [*sent, generator])
        self.assertEqual(arrived, sent)
        self.assertEqual(returned.random(), generator.random())


if __name__ == "__main__":
    unittest.main()
