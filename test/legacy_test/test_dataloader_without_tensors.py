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
"""Batches without tensors are delivered like others."""

from __future__ import annotations

import unittest
from typing import Any

import numpy as np

import paddle
from paddle.io import DataLoader, Dataset, IterableDataset

# How a DataLoader makes its batches.
KINDS = {
    "no workers": {},
    "no buffer": {"use_buffer_reader": False},
    "processes": {"num_workers": 2},
    "no shared memory": {"num_workers": 2, "use_shared_memory": False},
    "persistent processes": {"num_workers": 2, "persistent_workers": True},
}


class Samples(Dataset):
    def __init__(self, samples: list) -> None:
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


class Stream(IterableDataset):
    def __init__(self, samples: list) -> None:
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


def without_tensors(samples: list) -> None:
    return None


class TestBatchesWithoutTensors(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def check(self, dataset: Dataset, expected: list, **arguments: Any) -> None:
        for kind, workers in KINDS.items():
            with self.subTest(kind=kind):
                loader = DataLoader(dataset, **arguments, **workers)
                for _ in range(2):
                    self.assertEqual(list(loader), expected)

    def test_batches_of_strings(self):
        self.check(Samples(["a", "b", "c"]), [["a", "b"], ["c"]], batch_size=2)

    def test_samples_that_are_strings_numbers_or_none(self):
        samples = ["a", b"b", 3, 0.5, None, [], {"x": "y"}]
        self.check(Samples(samples), samples, batch_size=None)

    def test_batches_of_none(self):
        self.check(
            Samples([1, 2, 3, 4]),
            [None, None],
            batch_size=2,
            collate_fn=without_tensors,
        )

    def test_samples_of_an_iterable_dataset(self):
        for workers in ({}, {"num_workers": 1}):
            loader = DataLoader(Stream(["a", 1]), batch_size=None, **workers)
            self.assertEqual(list(iter(loader)), ["a", 1])

    def test_a_batch_without_tensors_among_others(self):
        first, last = paddle.zeros([2]), paddle.ones([2])
        for kind, workers in KINDS.items():
            with self.subTest(kind=kind):
                loader = DataLoader(
                    Samples([first, "between", last]),
                    batch_size=None,
                    **workers,
                )
                zeros, between, ones = list(loader)
                self.assertEqual(between, "between")
                self.assertEqual(zeros.tolist(), [0.0, 0.0])
                self.assertEqual(ones.tolist(), [1.0, 1.0])

    def test_a_program_is_not_fed_with_a_batch_without_tensors(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        program = paddle.static.Program()
        with paddle.static.program_guard(program):
            fed = paddle.static.data("fed", [-1], "uint8")
        ones = np.ones([2], "uint8")
        for kind, workers in KINDS.items():
            with self.subTest(kind=kind):
                loader = DataLoader(
                    Samples([ones, "a string", ones]),
                    feed_list=[fed],
                    places=[paddle.CPUPlace()],
                    batch_size=None,
                    return_list=False,
                    **workers,
                )
                iterator = iter(loader)
                next(iterator)
                with self.assertRaisesRegex(
                    TypeError, r"\['fed'\] .* no tensors: 'a string'"
                ):
                    next(iterator)
                self.assertRaises(StopIteration, next, iterator)


if __name__ == "__main__":
    unittest.main()
