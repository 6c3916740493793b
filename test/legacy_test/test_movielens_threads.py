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

import os
import tempfile
import unittest
import zipfile
from unittest import mock

import numpy as np
from concurrent_base import in_threads, switch_threads_often

from paddle.dataset import common, movielens
from paddle.text.datasets import Movielens

_RATINGS = 3000


class TestMovielens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = os.path.join(folder.name, "ml-1m.zip")
        with zipfile.ZipFile(cls.path, "w") as package:
            package.writestr(
                "ml-1m/movies.dat",
                "".join(
                    f"{i}::Movie{i} (1990)::Comedy\n"
                    for i in range(1, _RATINGS + 1)
                ),
            )
            package.writestr("ml-1m/users.dat", "1::F::25::7::1\n")
            # Each rating is of its own movie, whose id identifies it.
            package.writestr(
                "ml-1m/ratings.dat",
                "".join(f"1::{i}::3::0\n" for i in range(1, _RATINGS + 1)),
            )
        patch = mock.patch.object(common, "download", lambda *_: cls.path)
        patch.start()
        cls.addClassCleanup(patch.stop)

    def split(self, mode):
        """Returns the numbers of the ratings that belong to a mode."""
        random = np.random.RandomState(0)
        in_test = [random.rand() < 0.1 for _ in range(_RATINGS)]
        return [
            i for i, test in enumerate(in_test, 1) if test == (mode == "test")
        ]

    def ratings(self, mode):
        dataset = Movielens(data_file=self.path, mode=mode)
        return [int(dataset[i][4][0]) for i in range(len(dataset))]

    def read_ratings(self, mode):
        # Without the warning that the reader is deprecated.
        reader = movielens.__reader__(is_test=mode == "test")
        return [sample[4] for sample in reader]

    def check_splits_on_threads(self, ratings):
        expected = [self.split("train"), self.split("test")]
        switch_threads_often(self)
        for _ in range(3):
            self.assertEqual(
                in_threads(lambda: ratings("train"), lambda: ratings("test")),
                expected,
            )

    def check_generator_of_the_program(self, ratings):
        np.random.seed(7)
        expected = np.random.rand(2).tolist()
        np.random.seed(7)
        first = np.random.rand()
        ratings("test")
        self.assertEqual([first, np.random.rand()], expected)

    def test_datasets_made_on_two_threads_have_their_splits(self):
        self.check_splits_on_threads(self.ratings)

    def test_readers_on_two_threads_have_their_splits(self):
        self.check_splits_on_threads(self.read_ratings)

    def test_a_dataset_leaves_the_generator_of_the_program_alone(self):
        self.check_generator_of_the_program(self.ratings)

    def test_a_reader_leaves_the_generator_of_the_program_alone(self):
        self.check_generator_of_the_program(self.read_ratings)


if __name__ == "__main__":
    unittest.main()
