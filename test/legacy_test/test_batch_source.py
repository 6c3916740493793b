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
"""BatchSource: batches of one dataset for several reader threads."""

from __future__ import annotations

import gc
import itertools
import os
import random
import sys
import threading
import time
import traceback
import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

import numpy as np
from concurrent_base import (
    WAIT_S,
    Worker,
    in_thread,
    in_threads,
    run_command,
    script_command,
    switch_threads_often,
    wait_until,
)
from forked_script import run_forked_script
from thread_device_base import on_every_device_list, run_script

import paddle
from paddle.incubate.multiprocessing.batch_source import BatchSource
from paddle.incubate.multiprocessing.thread_group import start_threads
from paddle.io import BatchSampler, Dataset, IterableDataset
from paddle.io.dataloader.tensors_in_objects import tensors_in_objects

# The first index of each batch: 16 arrays in batches of two.
FIRSTS = range(0, 16, 2)


class DeliberateError(Exception):
    pass


class Numbers(Dataset):
    """The numbers from 0, each with a random number from Paddle."""

    def __init__(self, length, fail_at=None):
        self.length, self.fail_at = length, fail_at

    def __getitem__(self, i):
        if i == self.fail_at:
            raise DeliberateError("no such sample")
        return {"number": np.array(i), "random": paddle.rand([2]).numpy()}

    def __len__(self):
        return self.length


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class Arrays(Dataset):
    """Arrays filled with their index; a batch of two is large enough for
    `ArrayPool`."""

    def __getitem__(self, i):
        return np.full([1 << 13], i, "float32")

    def __len__(self):
        return 16


class StreamOfArrays(IterableDataset):
    def __iter__(self):
        arrays = Arrays()
        return (arrays[i] for i in range(len(arrays)))


def plain(batch):
    return {name: value.tolist() for name, value in batch.items()}


def numbers(batches):
    return [i for batch in batches for i in batch["number"].tolist()]


def read(source, nreaders, epochs=1, pauses=None):
    """Reads concurrently with all readers, with a pause before each batch, and
    returns the batches of each reader and epoch."""

    def one(rank):
        reader, read = source.reader(rank), []
        for _ in range(epochs):
            read.append([])
            for batch in reader:
                if pauses is not None:
                    time.sleep(pauses[rank].random() / 1000)
                read[-1].append(plain(batch))
        return read

    return in_threads(*[lambda r=rank: one(r) for rank in range(nreaders)])


def source_threads():
    return [
        thread
        for thread in threading.enumerate()
        if type(thread).__name__ == "_SourceThread"
    ]


class SourceTestCase(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        wait_until(lambda: not source_threads(), "the source's thread ends")


class TestBatches(SourceTestCase):
    def test_batches_are_distributed_round_robin(self):
        source = BatchSource(Numbers(11), nreaders=2, batch_size=2)
        read_by = read(source, 2)
        self.assertEqual(
            [[b["number"] for b in epoch] for (epoch,) in read_by],
            [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]],
        )

    def test_no_sample_is_left_out_or_read_twice(self):
        for nreaders, shuffle in itertools.product((1, 2, 3, 4), (False, True)):
            source = BatchSource(
                Numbers(23), nreaders, batch_size=3, shuffle=shuffle
            )
            for epoch in zip(*read(source, nreaders, epochs=2)):
                taken = [
                    i for b in itertools.chain(*epoch) for i in b["number"]
                ]
                self.assertEqual(sorted(taken), [*range(23)])
                if not shuffle and nreaders == 1:
                    self.assertEqual(taken, [*range(23)])

    def test_the_seed_alone_determines_what_a_reader_gets(self):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)

        def read_again(source_seed, number):
            source = BatchSource(
                Numbers(20), 3, batch_size=2, shuffle=True, seed=source_seed
            )
            pauses = [random.Random(seed + 3 * number + r) for r in range(3)]
            return read(source, 3, epochs=2, pauses=pauses)

        first = read_again(5, 0)
        self.assertEqual([read_again(5, i) for i in (1, 2)], [first] * 2)
        self.assertNotEqual(read_again(6, 3), first)
        for epochs in first:
            self.assertNotEqual(*epochs)

    def test_a_seed_that_is_not_given_is_drawn_from_paddles_generator(self):
        def drawn():
            source = BatchSource(Numbers(9), 1, shuffle=True)
            return source.seed, read(source, 1)

        paddle.seed(3)
        first = drawn()
        self.assertNotEqual(drawn(), first)
        paddle.seed(3)
        self.assertEqual(drawn(), first)

    def test_batches_that_are_not_full_can_be_left_out(self):
        for dataset in (Numbers(11), Stream()):
            source = BatchSource(
                dataset,
                1,
                batch_size=4,
                drop_last=True,
                collate_fn=lambda samples: len(samples),
            )
            self.assertEqual([*source.reader(0)], [4, 4])

    def test_a_batch_sampler_decides_the_batches(self):
        epochs = []

        class Sampler(BatchSampler):
            def __init__(self):
                pass

            def set_epoch(self, epoch):
                epochs.append(epoch)

            def __iter__(self):
                return iter([[3, 1], [2]])

        source = BatchSource(Numbers(9), 2, batch_sampler=Sampler())
        read_by = read(source, 2, epochs=2)
        self.assertEqual(
            [[[b["number"] for b in e] for e in epochs] for epochs in read_by],
            [[[[3, 1]]] * 2, [[[2]]] * 2],
        )
        self.assertEqual(epochs[:2], [0, 1])

    def test_an_iterable_dataset_is_iterated_over_in_each_epoch(self):
        source = BatchSource(Stream(), 2, batch_size=4)
        readers = [source.reader(rank) for rank in range(2)]
        for _ in range(2):
            self.assertEqual(
                [[batch.tolist() for batch in reader] for reader in readers],
                [[[0, 1, 2, 3], [8, 9]], [[4, 5, 6, 7]]],
            )

    def test_memory_of_batches_that_were_dropped_is_used_again(self):
        for dataset in (Arrays(), StreamOfArrays()):
            with mock.patch("numpy.empty", wraps=np.empty) as allocate:
                source = BatchSource(
                    dataset, nreaders=1, batch_size=2, capacity=8
                )
                reader = source.reader(0)
                for _ in range(10):
                    first = [batch[:, 0].tolist() for batch in reader]
                    self.assertEqual(first, [[i, i + 1] for i in FIRSTS])
                del source, reader
            # Of 80 batches, at one time 8 are ready; others are being made or
            # used in this loop.
            self.assertIn(allocate.call_count, range(1, 17))

    def test_memory_of_a_batch_that_is_kept_is_not_used_again(self):
        reader = BatchSource(Arrays(), nreaders=1, batch_size=2).reader(0)
        kept = list(reader)
        for _ in reader:
            pass
        for i, batch in zip(FIRSTS, kept):
            self.assertEqual(batch.unique().tolist(), [i, i + 1])

    def test_custom_collate_function(self):
        source = BatchSource(
            Numbers(4), 1, batch_size=2, collate_fn=lambda batch: len(batch)
        )
        self.assertEqual([*source.reader(0)], [2, 2])

    def test_arrays_of_a_custom_collate_function_are_copied(self):
        array = np.ones([2], "float32")
        source = BatchSource(range(1), 1, collate_fn=lambda batch: array)
        (batch,) = source.reader(0)
        batch.fill_(7)
        self.assertEqual(array.tolist(), [1, 1])

    def test_batches_are_made_before_anybody_reads(self):
        made = []

        class Noted(Numbers):
            def __getitem__(self, i):
                made.append(i)
                return i

        source = BatchSource(Noted(100), 2, capacity=3)
        # Three batches per reader, and one that waits for room.
        wait_until(lambda: len(made) == 7, "seven batches are made")
        wait_until(lambda: source._thread._wake, "the thread waits")
        self.assertEqual(made, [*range(7)])

    def test_the_source_reads_in_the_state_of_its_creator(self):
        class Modes(Numbers):
            def __getitem__(self, i):
                return paddle.is_grad_enabled()

        with paddle.no_grad():
            source = BatchSource(Modes(1), 1)
        self.assertEqual(
            [batch.tolist() for batch in source.reader(0)], [[False]]
        )


class TestErrors(SourceTestCase):
    def test_an_error_of_the_dataset_reaches_every_reader(self):
        """It follows the batches before it, and has its traceback."""
        source = BatchSource(Numbers(9, fail_at=5), 3)

        def one(rank):
            taken = []
            reader = source.reader(rank)
            for _ in range(2):
                try:
                    for batch in reader:
                        taken.append(batch["number"].item())
                except DeliberateError:
                    self.assertIn("__getitem__", traceback.format_exc())
                else:
                    raise AssertionError("the epoch has ended")
            return taken

        self.assertEqual(
            in_threads(*[lambda r=rank: one(r) for rank in range(3)]),
            [[0, 3], [1, 4], [2]],
        )

    def test_a_dataset_that_raises_stop_iteration_does_not_end_the_epoch(self):
        class Stopping(Numbers):
            def __getitem__(self, i):
                raise StopIteration

        with self.assertRaisesRegex(RuntimeError, "dataset or the collate_fn"):
            list(BatchSource(Stopping(3), 1).reader(0))

    def test_a_collate_fn_that_raises_stop_iteration_does_not_end_the_epoch(
        self,
    ):
        def collate(samples):
            raise StopIteration

        for dataset in (Numbers(3), Stream()):
            with self.assertRaisesRegex(
                RuntimeError, "dataset or the collate_fn"
            ):
                list(BatchSource(dataset, 1, collate_fn=collate).reader(0))

    def test_iter_that_raises_stop_iteration_does_not_end_the_epoch(self):
        class Stopping(IterableDataset):
            def __iter__(self):
                return iter([next(iter([]))])

        with self.assertRaisesRegex(RuntimeError, "StopIteration"):
            list(BatchSource(Stopping(), 1).reader(0))

    def test_each_reader_is_returned_once(self):
        source = BatchSource(Numbers(3), 2)
        kept = source.reader(1)
        with self.assertRaisesRegex(
            RuntimeError, "Reader 1 .* already returned"
        ):
            source.reader(1)
        for error, message, rank in (
            (ValueError, "2, but received 2", 2),
            (ValueError, "2, but received -1", -1),
            (TypeError, "an integer, but received '0'", "0"),
            (TypeError, "an integer, but received 0.0", 0.0),
        ):
            with self.assertRaisesRegex(error, message):
                source.reader(rank)
        del kept

    def test_wrong_arguments_are_named(self):
        sampler = BatchSampler(Numbers(3))
        for error, message, options in (
            (TypeError, "nreaders.* 1.5", {"nreaders": 1.5}),
            (TypeError, "nreaders.* True", {"nreaders": True}),
            (ValueError, "nreaders.* 0", {"nreaders": 0}),
            (ValueError, "batch_size.* -1", {"batch_size": -1}),
            (ValueError, "capacity.* 0", {"capacity": 0}),
            (ValueError, "seed .* -1", {"seed": -1}),
            (
                ValueError,
                "no `batch_size`",
                {"batch_sampler": sampler, "shuffle": True},
            ),
            (
                ValueError,
                "IterableDataset",
                {"dataset": Stream(), "shuffle": True},
            ),
        ):
            options = {"dataset": Numbers(3), "nreaders": 1, **options}
            with self.assertRaisesRegex(error, message):
                BatchSource(**options)


class TestTensorsInObjects(unittest.TestCase):
    def found(self, batch):
        return [tensor for tensor, _ in tensors_in_objects(batch)]

    def test_attributes_slots_and_sets_are_searched(self):
        class Slotted:
            __slots__ = ("value",)

        tensor, other, slotted = paddle.ones([1]), paddle.ones([1]), Slotted()
        slotted.value = {tensor}
        found = self.found([slotted, SimpleNamespace(values=[other])])
        self.assertEqual({*map(id, found)}, {id(tensor), id(other)})

    def test_datasets_and_layers_are_not_searched(self):
        dataset = Numbers(3)
        dataset.tensor = paddle.ones([1])
        batch = SimpleNamespace(dataset=dataset, layer=paddle.nn.Linear(2, 2))
        self.assertEqual(self.found([batch]), [])

    def test_batches_are_not_searched_without_devices(self):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("CUSTOM_DEVICE_ROOT", None)
        run_command(
            self,
            script_command(
                "from test_batch_source import *\n"
                "module = 'paddle.incubate.multiprocessing.batch_source'\n"
                "with mock.patch(f'{module}.tensors_in_objects') as search:\n"
                "    source = BatchSource(Numbers(3), 1)\n"
                "    assert numbers(source.reader(0)) == [0, 1, 2]\n"
                "search.assert_not_called()\n"
            ),
            {**environment, "GLOG_minloglevel": "2"},
        )


class TestEnd(SourceTestCase):
    def test_a_reader_that_leaves_early_ends_the_source(self):
        source = BatchSource(Numbers(100), 2)
        first, second = source.reader(0), source.reader(1)
        for batch in first:
            if batch["number"].item() == 4:
                break
        taken = []
        with self.assertRaisesRegex(
            RuntimeError, "reader 0 left after 3 batches of epoch 0"
        ):
            for batch in second:
                taken.append(batch["number"].item())
        self.assertGreaterEqual(len(taken), 3)
        self.assertEqual(taken, [*range(1, 2 * len(taken), 2)])
        with self.assertRaisesRegex(RuntimeError, "reader 0 left"):
            list(first)

    def test_a_reader_may_leave_in_a_later_epoch(self):
        source = BatchSource(Numbers(4), 2)
        first, second = source.reader(0), source.reader(1)
        self.assertEqual([numbers(first), numbers(second)], [[0, 2], [1, 3]])
        next(iter(first))
        taken = []
        with self.assertRaisesRegex(
            RuntimeError, "reader 0 left after 1 batches of epoch 1"
        ):
            while True:
                for batch in second:
                    taken += numbers([batch])
        self.assertEqual(taken[:1], [1])

    def test_a_slow_reader_gets_as_many_batches_as_one_that_has_left(self):
        has_left = threading.Event()
        self.addCleanup(has_left.set)

        class Held(Numbers):
            def __getitem__(self, i):
                if i == 7:
                    has_left.wait(WAIT_S)
                return super().__getitem__(i)

        source = BatchSource(Held(100), 2, capacity=3)
        first, second = source.reader(0), source.reader(1)
        batches = iter(first)
        self.assertEqual(numbers(next(batches) for _ in range(4)), [0, 2, 4, 6])
        # The second reader's last batch is read while its queue is full.
        del first, batches
        has_left.set()
        wait_until(
            lambda: source._thread._wake or not source_threads(),
            "the thread waits for room",
        )
        taken = []
        with self.assertRaisesRegex(RuntimeError, "reader 0 left after 4"):
            for batch in second:
                taken += numbers([batch])
        self.assertEqual(taken, [1, 3, 5, 7])

    def test_no_epoch_begins_after_a_reader_has_left(self):
        has_left, made = threading.Event(), []
        self.addCleanup(has_left.set)

        class Sampler(BatchSampler):
            def __init__(self):
                pass

            def __iter__(self):
                yield [0]
                has_left.wait(WAIT_S)

        source = BatchSource(
            Numbers(1),
            1,
            batch_sampler=Sampler(),
            collate_fn=lambda samples: made.append(len(samples)),
        )
        next(iter(source.reader(0)))
        has_left.set()
        wait_until(lambda: not source_threads(), "the source's thread ends")
        self.assertEqual(made, [1])

    def test_the_source_keeps_no_batch_that_was_taken(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        class Batch:
            pass

        def collate(samples):
            if samples != [0]:
                gate.wait(WAIT_S)
            return Batch()

        source = BatchSource(range(2), 1, collate_fn=collate)
        batches = iter(source.reader(0))
        batch = weakref.ref(next(batches))
        waiting = Worker(next, batches)
        wait_until(lambda: batch() is None, "the batch has been dropped")
        gate.set()
        self.assertIsInstance(waiting.result(), Batch)

    def test_readers_that_leave_after_the_same_number_get_no_error(self):
        source = BatchSource(Numbers(100), 3, capacity=1)

        def one(rank):
            taken = []
            for batch in source.reader(rank):
                taken.append(batch["number"].item())
                if len(taken) == 7:
                    break
            return taken

        self.assertEqual(
            in_threads(*[lambda r=rank: one(r) for rank in range(3)]),
            [[*range(rank, 21, 3)] for rank in range(3)],
        )

    def test_the_source_ends_with_its_readers(self):
        source = BatchSource(Numbers(100), 2)
        readers = [source.reader(rank) for rank in range(2)]
        self.assertEqual(len(source_threads()), 1)
        del readers

    def test_the_source_ends_if_it_is_dropped_unread(self):
        source = BatchSource(Numbers(100), 2)
        self.assertEqual(len(source_threads()), 1)
        del source

    def test_readers_go_on_without_the_source(self):
        readers = [
            source.reader(rank)
            for source in [BatchSource(Numbers(4), 2)]
            for rank in range(2)
        ]
        gc.collect()
        self.assertEqual([numbers(r) for r in readers], [[0, 2], [1, 3]])

    def test_a_thread_that_fails_ends_the_source_and_the_others(self):
        source = BatchSource(Numbers(1000), 3)

        def train(rank):
            for i, _ in enumerate(source.reader(rank)):
                if (rank, i) == (1, 5):
                    raise DeliberateError

        with self.assertRaises(DeliberateError):
            start_threads(train, nthreads=3)

    def test_a_reader_that_waits_ends_when_its_thread_is_stopped(self):
        gate = threading.Event()
        self.addCleanup(gate.set)

        class Held(Numbers):
            def __getitem__(self, i):
                gate.wait(WAIT_S)
                return i

        source = BatchSource(Held(9), 2)
        group = start_threads(
            lambda rank: list(source.reader(rank)), nthreads=2, join=False
        )
        for thread in group.threads:
            wait_until(lambda t=thread: t._wake, "the reader waits")
        group.stop()
        self.assertTrue(group.join(WAIT_S))
        gate.set()

    def test_a_program_exits_while_a_source_makes_batches(self):
        for read in ("", "next(iter(reader)); "):
            run_forked_script(
                self,
                "from test_batch_source import *\n"
                "source = BatchSource(Numbers(10**6), 2, capacity=10**6)\n"
                f"reader = source.reader(0); {read}\n",
            )

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_child_gets_an_error_and_the_parent_continues(self):
        run_script(
            self,
            """
            from test_batch_source import BatchSource
            # The sources' threads create only numpy arrays: in a child, any
            # thread that allocates a tensor and ends can corrupt the heap or
            # hang, since the memory statistics list the parent's threads, too.
            source = BatchSource(range(9), 1)
            reader = source.reader(0)
            batches = iter(reader)
            next(batches)
            def child():
                for read in (lambda: next(batches), lambda: list(reader)):
                    try:
                        read()
                    except RuntimeError as error:
                        assert "forked" in str(error), error
                    else:
                        raise AssertionError("read")
                own = BatchSource(range(4), 1).reader(0)
                assert [batch.item() for batch in own] == [0, 1, 2, 3]
            forked(child)
            assert [batch.item() for batch in batches] == [*range(1, 9)]
            """,
            ["cpu"],
        )


class TestStress(SourceTestCase):
    def test_readers_that_leave_at_any_moment(self):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)
        rng = random.Random(seed)
        switch_threads_often(self)
        for _ in range(25):
            nreaders = rng.randint(1, 4)
            # Long enough that each reader gets batches in each epoch.
            length = rng.randint(nreaders, 60)
            source = BatchSource(
                range(length), nreaders, capacity=rng.randint(1, 3)
            )
            leave_at = [rng.randint(1, 100) for _ in range(nreaders)]

            def one(rank, source=source, leave_at=leave_at):
                epochs, reader = [], source.reader(rank)
                try:
                    while True:
                        epochs.append([])
                        for batch in reader:
                            epochs[-1].append(batch.item())
                            if sum(map(len, epochs)) == leave_at[rank]:
                                return epochs
                except RuntimeError as error:
                    self.assertIn("left after", str(error))
                return epochs

            taken = in_threads(
                *[lambda r=rank: one(r) for rank in range(nreaders)]
            )
            for rank, (*ended, begun) in enumerate(taken):
                expected = [*range(rank, length, nreaders)]
                self.assertEqual(ended, [expected] * len(ended))
                self.assertEqual(begun, expected[: len(begun)])
            counts = [
                len(range(rank, length, nreaders)) for rank in range(nreaders)
            ]
            # The reader that leaves first gets its number of batches. The
            # others get as many of that epoch, if they have as many.
            epoch, last = min(
                divmod(leave - 1, count)
                for leave, count in zip(leave_at, counts)
            )
            for epochs, count in zip(taken, counts):
                self.assertGreaterEqual(
                    sum(map(len, epochs)), epoch * count + min(last + 1, count)
                )


class Devices(SourceTestCase):
    def test_batches_are_on_the_device_of_each_reader(self):
        devices = [self.devices[-1], self.devices[0], "cpu"]
        source = BatchSource(Numbers(9), 3)
        found = {}

        def one(rank):
            for batch in source.reader(rank):
                found.setdefault(rank, set()).add(str(batch["number"].place))

        start_threads(one, nthreads=3, devices=devices)
        self.assertEqual(
            found,
            {rank: {f"Place({device})"} for rank, device in enumerate(devices)},
        )

    def test_tensors_of_the_dataset_move_to_the_device_of_the_reader(self):
        class Tensors(Numbers):
            def __getitem__(self, i):
                return paddle.full([2], float(i))

        def read_there():
            paddle.set_device(self.devices[-1])
            return [
                (str(batch.place), batch.tolist())
                for batch in BatchSource(Tensors(2), 1).reader(0)
            ]

        place = f"Place({self.devices[-1]})"
        self.assertEqual(
            in_thread(read_there), [(place, [[0.0] * 2]), (place, [[1.0] * 2])]
        )


on_every_device_list(Devices)
del Devices


if __name__ == "__main__":
    unittest.main()
