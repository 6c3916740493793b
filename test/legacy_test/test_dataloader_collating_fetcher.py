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
"""Batches that are assembled sample by sample, and their memory."""

from __future__ import annotations

import collections
import gc
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, in_threads, switch_threads_often
from test_dataloader_shared_memory import Items, plain
from test_dataloader_threads import load

import paddle
from paddle.io.dataloader.collate import default_collate_fn
from paddle.io.dataloader.collating_fetcher import ArrayPool, CollatingFetcher
from paddle.io.dataloader.worker import _DatasetKind

# A number of float32 elements whose memory the pool reuses: more than 64 KiB.
LARGE = 1 << 15

Pair = collections.namedtuple("Pair", "x y")


def gather(samples, kind=_DatasetKind.MAP, drop_last=False):
    fetcher = CollatingFetcher(kind, samples, drop_last, ArrayPool(2))
    return fetcher.fetch(range(len(samples)), threading.Event())


def described(batch):
    """Returns a batch as nested lists with the types in it. Tuples become
    lists, as in loaders."""
    if isinstance(batch, np.ndarray):
        return batch.dtype, batch.tolist()
    if isinstance(batch, dict):
        return {key: described(field) for key, field in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [described(field) for field in batch]
    return type(batch), plain(batch)


class TestSameAsDefaultCollation(unittest.TestCase):
    def check(self, *samples):
        expected = described(default_collate_fn([*samples]))
        self.assertEqual(described(gather(samples)), expected)

    def check_raises(self, error, *samples):
        for collate in (default_collate_fn, gather):
            with self.assertRaises(error):
                collate([*samples])

    def test_arrays_of_each_data_type(self):
        for dtype in "?bBhHiIlLefdFD":
            self.check(*np.arange(12).reshape(3, 2, 2).astype(dtype))

    def test_arrays_with_no_dimension_and_with_no_elements(self):
        self.check(np.array(1), np.array(2))
        self.check(np.zeros([0, 3]), np.zeros([0, 3]))

    def test_arrays_that_are_not_contiguous(self):
        array = np.arange(24).reshape(2, 3, 4)
        self.check(array[0].T, array[1].T)
        self.check(array[0, ::2, ::-1], array[1, ::2, ::-1])

    def test_arrays_that_are_big_endian(self):
        self.check(*np.arange(4).reshape(2, 2).astype(">i4"))

    def test_arrays_of_strings_dates_and_objects_are_stacked(self):
        self.check(*np.array([["a", "b"], ["c", "d"]]))
        self.check(*np.array([[1, 2], [3, 4]], "datetime64[D]"))
        self.check(*np.array([[{}, 1], [None, "x"]], object))

    def test_arrays_of_different_data_types_get_their_common_type(self):
        self.check(np.ones(2, "int32"), np.ones(2, "int32"), np.ones(2))
        self.check(np.array(1), np.array(2), np.array(0.5))
        self.check(np.ones(2, "float32"), [1.5, 2.5])

    def test_arrays_of_different_shapes_are_refused(self):
        self.check_raises(ValueError, np.ones(2), np.ones(2), np.ones(3))

    def test_numbers_strings_and_fields_at_any_depth(self):
        self.check(1, 2, 0.5)
        self.check("a", "b")
        self.check(b"a", b"b")
        self.check(*[{"a": [i, (np.ones(2) * i, str(i))]} for i in range(3)])
        self.check(Pair(1, np.ones(2)), Pair(2, np.zeros(2)))
        self.check([], [])

    def test_keys_that_the_first_sample_lacks_are_left_out(self):
        self.check({"a": 1}, {"a": 2, "b": 3})

    def test_keys_that_a_later_sample_lacks_are_refused(self):
        self.check_raises(KeyError, {"a": 1, "b": 3}, {"a": 2})

    def test_samples_with_unequal_numbers_of_fields_are_refused(self):
        with self.assertRaisesRegex(RuntimeError, "2 fields and with 1: .3,."):
            gather([(1, 2), (3,)])

    def test_samples_that_cannot_be_collated_are_refused(self):
        self.check_raises(TypeError, object(), object())

    def test_an_iterable_dataset_ends_with_a_batch_that_is_not_full(self):
        for drop_last, lengths in ((False, [4, 2]), (True, [4])):
            fetcher = CollatingFetcher(
                _DatasetKind.ITER, np.arange(6), drop_last, ArrayPool(2)
            )
            for length in lengths:
                batch = fetcher.fetch(range(4), threading.Event())
                self.assertEqual(len(batch), length)
            with self.assertRaises(StopIteration):
                fetcher.fetch(range(4), threading.Event())

    def test_an_iterable_dataset_of_arrays_ends_with_a_smaller_array(self):
        fetcher = CollatingFetcher(
            _DatasetKind.ITER, np.ones([3, LARGE]), False, ArrayPool(2)
        )
        batch = fetcher.fetch(range(4), threading.Event())
        self.assertEqual(batch.shape, (3, LARGE))
        self.assertTrue((batch == 1).all())


class TestMemory(unittest.TestCase):
    def setUp(self):
        self.pool = ArrayPool(2)

    def new(self, size=LARGE):
        return self.pool.empty((size,), np.dtype("float32"))

    def test_memory_of_a_dropped_array_is_reused(self):
        array = self.new()
        address = array.ctypes.data
        del array
        self.assertEqual(self.new().ctypes.data, address)

    def test_memory_is_not_reused_while_a_view_refers_to_it(self):
        array = self.new()
        address = array.ctypes.data
        view = array[1:].reshape(-1, 1)
        del array
        self.assertNotEqual(self.new().ctypes.data, address)
        del view
        self.assertIn(address, (self.new().ctypes.data, self.new().ctypes.data))

    def test_memory_of_a_large_array_is_not_used_for_a_small_one(self):
        array = self.new(4 * LARGE)
        address = array.ctypes.data
        del array
        self.assertNotEqual(self.new().ctypes.data, address)
        self.assertEqual(self.new(4 * LARGE).ctypes.data, address)

    def test_number_of_unused_pieces_of_memory_is_limited(self):
        dropped = [self.new() for _ in range(5)]
        addresses = {array.ctypes.data for array in dropped}
        memories = [weakref.ref(array.base._memory) for array in dropped]
        dropped.clear()
        self.assertEqual(sum(memory() is not None for memory in memories), 2)
        again = [self.new(), self.new()]
        self.assertLessEqual({array.ctypes.data for array in again}, addresses)

    def test_an_array_outlives_the_pool(self):
        array = self.new()
        memory = weakref.ref(array.base._memory)
        self.pool = None
        array[:] = 1
        self.assertIsNotNone(memory())
        del array
        self.assertIsNone(memory())

    def test_an_array_does_not_keep_unused_memory_of_a_dropped_pool(self):
        free, kept = self.new(), self.new()
        memory = weakref.ref(free.base._memory)
        del free
        self.assertIsNotNone(memory())
        self.pool = None
        self.assertIsNone(memory())
        kept[:] = 1

    def test_threads_never_get_memory_that_is_in_use(self):
        switch_threads_often(self)

        def use(number):
            for i in range(300):
                arrays = [self.new(), self.new()]
                for array in arrays:
                    array[:] = number
                view = arrays.pop()[i:]
                arrays.clear()
                self.assertTrue((view == number).all())

        in_threads(*[lambda n=n: use(n) for n in range(4)])


class AliveCounter:
    """Makes samples, and counts those that are alive when the next is made."""

    def __init__(self):
        self.last = []
        self.alive = 0

    def __call__(self, i):
        self.alive += sum(last() is not None for last in self.last)
        sample = np.full(LARGE, i, "float32")
        self.last = [weakref.ref(sample)]
        return sample


class TestLoader(unittest.TestCase):
    def test_a_sample_is_dropped_before_the_next_one_is_made(self):
        samples = AliveCounter()
        for _ in load(Items(samples, 24), num_workers=1, batch_size=8):
            pass
        self.assertEqual(samples.alive, 0)

    def test_memory_of_dropped_batches_is_reused(self):
        loader = load(
            Items(lambda i: np.zeros(LARGE, "float32"), 200),
            num_workers=2,
            batch_size=2,
            places=[paddle.CPUPlace()],
        )
        with mock.patch("numpy.empty", wraps=np.empty) as allocate:
            for _ in loader:
                pass
        # Four batches are ready or being made; others are used in this loop.
        self.assertIn(allocate.call_count, range(1, 12))

    def test_end_of_a_loop_frees_its_memory_without_the_garbage_collector(self):
        pools = []

        def new_pool(*arguments):
            pool = ArrayPool(*arguments)
            pools.append(weakref.ref(pool))
            return pool

        gc.disable()
        self.addCleanup(gc.enable)
        module = "paddle.io.dataloader.thread_workers"
        with mock.patch(f"{module}.ArrayPool", new_pool):
            for _ in load(Items(lambda i: np.zeros(LARGE), 20), batch_size=2):
                pass
        for thread in threading.enumerate():
            if thread.name.startswith("DataLoader worker"):
                thread.join(WAIT_S)
        self.assertEqual([pool() for pool in pools], [None])

    def check_keeps_memory(self, *keep):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)
        random = np.random.default_rng(seed)
        kept = []
        loader = load(
            Items(lambda i: np.full(LARGE, i // 2, "float32"), 200),
            batch_size=2,
            places=[paddle.CPUPlace()],
        )
        for number, batch in enumerate(loader):
            kept.append((number, random.choice(keep)(batch)))
            del batch
            if random.integers(2):
                kept.pop(random.integers(len(kept)))
        for number, rest in kept:
            if rest is not None:
                values = np.asarray(rest)
                self.assertEqual({*np.unique(values)}, {number})

    def test_every_kind_of_reference_to_a_batch_keeps_its_memory(self):
        self.check_keeps_memory(
            lambda batch: batch,
            lambda batch: batch[1:],
            lambda batch: batch.detach().reshape([-1]),
            lambda batch: np.from_dlpack(batch),
            lambda batch: None,
        )

    def test_what_get_tensor_returns_keeps_the_memory_of_a_batch(self):
        self.check_keeps_memory(
            lambda batch: batch.get_tensor(), lambda batch: None
        )


if __name__ == "__main__":
    unittest.main()
