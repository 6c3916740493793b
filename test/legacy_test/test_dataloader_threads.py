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
"""DataLoader with worker threads: the same batches as with processes."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
import unittest
import weakref

import numpy as np
from concurrent_base import (
    WAIT_S,
    in_thread,
    in_threads,
    switch_threads_often,
    wait_until,
)
from forked_script import run_forked_script
from test_dataloader_shared_memory import Items, Numbers, plain

import paddle
from paddle.incubate.multiprocessing import WorkerThread
from paddle.io import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    get_worker_info,
)


class WorkersTestCase(unittest.TestCase):
    """Counts only the workers of its own test. Workers of an earlier test may
    still be ending, and a failure report keeps its iterator alive."""

    def setUp(self):
        self.before = set(threading.enumerate())

    def workers(self):
        return [
            thread
            for thread in threading.enumerate()
            if thread.name.startswith("DataLoader worker")
            and thread not in self.before
        ]

    def wait_until_workers_end(self):
        wait_until(lambda: not self.workers(), "the workers end")


def load(dataset, num_workers=3, worker_type="thread", **options):
    return DataLoader(
        dataset, num_workers=num_workers, worker_type=worker_type, **options
    )


def mixed(i):
    """Returns fields of every kind, with random ones by Paddle's generator."""
    return {
        "array": np.full([3], i, "float32"),
        "tensor": paddle.full([2], i, "int64"),
        "random": paddle.rand([2]).numpy(),
        "fields": [i, float(i), str(i), (np.ones(i % 1 + 2), b"bytes")],
        "worker": get_worker_info().id,
    }


class Uneven(IterableDataset):
    """A dataset whose workers have different numbers of items; one has none."""

    def __iter__(self):
        worker = get_worker_info().id
        for i in range(worker * 5):
            yield np.array([worker, i]), paddle.randint(0, 1000, [1]).numpy()


def seeded_first(worker):
    paddle.seed(100 + worker)


class TestSameAsProcesses(unittest.TestCase):
    def check(self, dataset, epochs=1, **options):
        loaded = {}
        for worker_type in ("process", "thread"):
            # The loader draws its workers' seed from this generator.
            np.random.seed(7)
            loader = load(dataset, worker_type=worker_type, **options)
            loaded[worker_type] = [
                [plain(batch) for batch in loader] for _ in range(epochs)
            ]
            if loader._iterator is not None and worker_type == "process":
                # The workers would stay until the tests end.
                loader._iterator._try_shutdown_all()
        self.assertEqual(loaded["thread"], loaded["process"])
        self.assertTrue(all(loaded["thread"]))

    def test_batches_of_all_kinds_of_fields(self):
        self.check(Items(mixed, 23), batch_size=4)

    def test_shuffled_and_last_batch_dropped(self):
        self.check(Items(mixed, 23), batch_size=4, shuffle=True, drop_last=True)

    def test_custom_batch_sampler(self):
        dataset = Items(mixed, 10)
        sampler = BatchSampler(sampler=[9, 1, 5, 3, 3], batch_size=2)
        self.check(dataset, batch_sampler=sampler)

    def test_samples_that_are_not_collated(self):
        self.check(Items(mixed, 9), batch_size=None)

    def test_batches_without_tensors(self):
        self.check(Items(str, 9), batch_size=2)
        self.check(Items(str, 9), batch_size=None)

    def test_custom_collate_function(self):
        self.check(Items(mixed, 9), batch_size=2, collate_fn=first_array)

    def test_seeds_that_the_init_function_sets(self):
        self.check(Items(mixed, 9), batch_size=2, worker_init_fn=seeded_first)

    def test_iterable_datasets_split_between_workers(self):
        self.check(Numbers(), num_workers=2, batch_size=3)
        self.check(Numbers(), num_workers=2, batch_size=3, drop_last=True)
        self.check(Numbers(), num_workers=2, batch_size=None)

    def test_workers_that_end_at_different_times(self):
        self.check(Uneven(), batch_size=2, prefetch_factor=1)

    def test_persistent_workers(self):
        self.check(
            Items(mixed, 11), epochs=3, batch_size=2, persistent_workers=True
        )

    def test_batches_may_take_longer_than_the_timeout(self):
        """Paddle uses `timeout` to check that its worker processes live."""
        self.check(Items(slow_number, 3), timeout=0.02)


def slow_number(i):
    time.sleep(0.1)
    return np.array(i)


def first_array(samples):
    return samples[0]["array"]


class TestWorkers(WorkersTestCase):
    def test_worker_info_is_set_on_workers_only(self):
        batches = list(load(Items(worker_of, 6), num_workers=2))
        self.assertEqual(
            [batch.tolist() for batch in batches],
            [[[0, 2]], [[1, 2]]] * 3,
        )
        self.assertIsNone(get_worker_info())

    @unittest.skipUnless(sys.platform == "linux", "workers are not forked here")
    def test_worker_processes_that_a_worker_thread_forks_have_their_own_info(
        self,
    ):
        (batch,) = load(Items(workers_of_processes, 1), num_workers=1)
        self.assertEqual(batch.tolist(), [[[0, 2], [1, 2]]])

    def test_dataset_attributes_that_a_worker_sets_are_its_own(self):
        dataset = Share()
        batches = [
            batch.item()
            for batch in load(
                dataset,
                num_workers=2,
                batch_size=None,
                worker_init_fn=set_share,
            )
        ]
        self.assertEqual(sorted(batches), [0, 10])
        self.assertIsNone(dataset.share)

    def test_workers_share_the_data_of_one_dataset(self):
        dataset = Share()
        loader = load(dataset, num_workers=2, batch_size=None)
        np.testing.assert_array_equal(
            [batch.item() for batch in loader], [id(dataset.data)] * 2
        )

    def test_a_dataset_that_delegates_attributes_to_another_one(self):
        class Delegating(Dataset):
            def __init__(self, dataset):
                self.dataset = dataset

            def __getattr__(self, name):
                return getattr(self.dataset, name)

            def __getitem__(self, i):
                return self.dataset[i]

            def __len__(self):
                return len(self.dataset)

        batches = list(load(Delegating(Items(number, 4))))
        self.assertEqual([batch.item() for batch in batches], [0, 1, 2, 3])

    def test_an_array_or_a_list_is_shared_by_all_workers(self):
        class Numbers(list):
            pass

        for dataset in (np.ones([4, 2]), [1, 2], Numbers([1, 2])):
            datasets = self.datasets_of_workers(dataset)
            for own in datasets:
                self.assertIs(own, dataset)

    def test_attributes_in_slots_are_copied_too(self):
        class Slotted(Items):
            __slots__ = ("unset", "value")

        dataset = Slotted(number, 4)
        dataset.value = object()
        for own in self.datasets_of_workers(dataset):
            self.assertIsNot(own, dataset)
            self.assertIs(own.value, dataset.value)
            self.assertFalse(hasattr(own, "unset"))

    def test_a_dataset_may_define_how_it_is_copied(self):
        class WithoutFile(Items):
            file = None

            def __getstate__(self):
                return {**vars(self), "file": None}

        dataset = WithoutFile(number, 4)
        dataset.file = object()
        for own in self.datasets_of_workers(dataset):
            self.assertIsNot(own, dataset)
            self.assertIsNone(own.file)

    def datasets_of_workers(self, dataset):
        datasets = [None] * 2

        def keep(worker):
            datasets[worker] = get_worker_info().dataset

        list(load(dataset, num_workers=2, worker_init_fn=keep))
        return datasets

    def test_a_dataset_that_starts_again_after_its_end_is_read_once(self):
        for options in (
            {"num_workers": 1, "prefetch_factor": 4},
            {"num_workers": 2},
            {"collate_fn": np.stack},
            {"batch_size": None},
        ):
            options = {"num_workers": 1, "batch_size": 4, **options}
            loader = load(Restarting(), persistent_workers=True, **options)
            expected = [*range(8)] * options["num_workers"]
            for _ in range(2):
                loaded = [i for batch in loader for i in batch.flatten()]
                self.assertEqual(sorted(loaded), sorted(expected))

    def test_tensors_of_the_dataset_are_not_copied(self):
        tensor = paddle.ones([4])
        (batch,) = load(Items(lambda i: tensor, 1), batch_size=None)
        self.assertEqual(batch.data_ptr(), tensor.data_ptr())

    def test_arrays_of_the_dataset_are_copied(self):
        array = np.ones([4], "float32")
        for options in (
            {"batch_size": None},
            {"collate_fn": lambda samples: samples[0]},
            {"batch_size": 1},
        ):
            (batch,) = load(Items(lambda i: array, 1), **options)
            batch.fill_(7)
            self.assertEqual(array.tolist(), [1] * 4)

    def test_batches_have_no_gradient_graph(self):
        weight = paddle.ones([4])
        weight.stop_gradient = False
        (batch,) = load(Items(lambda i: weight * 2, 1), batch_size=1)
        self.assertTrue(batch.stop_gradient)
        self.assertTrue(batch.is_leaf)

    def test_persistent_workers_are_the_same_threads_in_each_epoch(self):
        loader = load(Items(ident, 8), num_workers=2, persistent_workers=True)
        epochs = [
            {batch.item() for batch in loader},
            {batch.item() for batch in loader},
        ]
        self.assertEqual(len(epochs[0]), 2)
        self.assertEqual(epochs[0], epochs[1])

    def test_epoch_after_an_abandoned_one_starts_from_the_beginning(self):
        loader = load(Items(number, 20), persistent_workers=True)
        for batch in loader:
            if batch.item() == 3:
                break
        self.assertEqual([batch.item() for batch in loader], [*range(20)])

    def test_prefetch_factor_limits_the_batches_made_ahead(self):
        made = []
        dataset = Items(lambda i: made.append(i) or np.array(i), 50)
        iterator = iter(
            load(dataset, num_workers=2, prefetch_factor=3, batch_size=None)
        )
        wait_until(lambda: len(made) == 6, "six batches ahead")
        next(iterator)
        wait_until(lambda: len(made) == 7, "one more")
        del iterator

    def test_tasks_of_an_abandoned_epoch_are_skipped(self):
        made, began, go_on = [], threading.Event(), threading.Event()

        def make(i):
            made.append(i)
            if i == 1:
                began.set()
                go_on.wait(WAIT_S)
            return np.array(i)

        loader = load(
            Items(make, 8),
            num_workers=1,
            prefetch_factor=8,
            persistent_workers=True,
        )
        next(iter(loader))
        self.assertTrue(began.wait(WAIT_S))
        second = iter(loader)
        go_on.set()
        self.assertEqual([batch.item() for batch in second], [*range(8)])
        self.assertEqual(made, [0, 1, *range(8)])

    def test_a_waiting_worker_keeps_no_batch_alive(self):
        class Batch:
            pass

        iterator = iter(
            load(Items(number, 1), num_workers=1, collate_fn=lambda _: Batch())
        )
        batch = weakref.ref(next(iterator))
        wait_until(lambda: batch() is None, "the batch has been dropped")
        self.assertEqual(len(self.workers()), 1)

    def test_several_threads_load_concurrently(self):
        def epoch():
            loader = load(Items(number, 40), num_workers=2)
            return [batch.item() for batch in loader]

        self.assertEqual(in_threads(*[epoch] * 4), [[*range(40)]] * 4)

    def test_workers_inherit_no_grad_of_the_creator(self):
        with paddle.no_grad():
            loader = iter(load(Items(gradient_mode, 2)))
        self.assertEqual([batch.item() for batch in loader], [False, False])


def number(i):
    return np.array(i)


def worker_of(i):
    info = get_worker_info()
    return np.array([info.id, info.num_workers])


def workers_of_processes(i):
    """Returns the info of two worker processes."""
    batches = load(Items(worker_of, 2), num_workers=2, worker_type="process")
    return np.concatenate([batch.numpy() for batch in batches])


def ident(i):
    return np.array(threading.get_ident())


def gradient_mode(i):
    return np.array(paddle.is_grad_enabled())


class Share(IterableDataset):
    share = None

    def __init__(self):
        self.data = object()

    def __iter__(self):
        yield np.array(id(self.data) if self.share is None else self.share)


def set_share(worker):
    get_worker_info().dataset.share = worker * 10


class Restarting(IterableDataset):
    """The numbers from 0 to 7, again after each end. Its own iterator."""

    position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == 8:
            self.position = 0
            raise StopIteration
        self.position += 1
        return np.array([self.position - 1])


class Raising(Dataset):
    """A dataset that raises for one sample."""

    def __init__(self, error, at=5):
        self.error, self.at = error, at

    def __getitem__(self, i):
        if i == self.at:
            raise self.error
        return np.array(i)

    def __len__(self):
        return 9


class Failing(BatchSampler):
    """Yields `count` batches of one sample. Then its iterator raises `error`,
    if it is set, and goes on."""

    def __init__(self, count, error):
        self.count, self.error = count, error

    def __iter__(self):
        length = self.count + (0 if self.error is None else 9)
        return map(self.batch, range(length))

    def batch(self, position):
        if position == self.count:
            raise self.error
        return [position]

    def __len__(self):
        return self.count


class TestErrors(WorkersTestCase):
    def test_an_error_of_the_dataset_comes_after_the_batches_before_it(self):
        loaded = []
        with self.assertRaisesRegex(KeyError, "no such sample"):
            for batch in load(Raising(KeyError("no such sample"))):
                loaded.append(batch.item())
        self.assertEqual(loaded, [*range(5)])

    def test_an_error_has_the_traceback_of_the_worker(self):
        with self.assertRaises(KeyError):
            try:
                list(load(Raising(KeyError("no such sample"))))
            except KeyError:
                self.assertIn("in __getitem__", traceback.format_exc())
                raise

    def test_after_an_error_the_epoch_has_ended(self):
        iterator = iter(load(Raising(ValueError("bad"), at=0)))
        with self.assertRaises(ValueError):
            next(iterator)
        with self.assertRaises(StopIteration):
            next(iterator)
        self.wait_until_workers_end()

    def test_an_error_does_not_keep_the_iterator(self):
        def fail(i):
            raise ValueError

        iterator = iter(load(Items(fail)))
        reference = weakref.ref(iterator)
        gc.disable()
        self.addCleanup(gc.enable)
        # assertRaises would clear the frames of the traceback.
        with contextlib.suppress(ValueError):
            next(iterator)
        del iterator
        self.assertIsNone(reference())

    def test_persistent_workers_survive_an_error(self):
        dataset = Raising(ValueError("bad"))
        loader = load(dataset, persistent_workers=True)
        with self.assertRaises(ValueError):
            list(loader)
        dataset.at = None
        # The workers have copies, in which the sample is still bad.
        with self.assertRaises(ValueError):
            list(loader)

    def test_an_error_of_the_init_function(self):
        def fail(worker):
            raise OSError(f"worker {worker} cannot begin")

        loader = load(Items(number), worker_init_fn=fail)
        with self.assertRaisesRegex(OSError, "worker 0 cannot begin"):
            list(loader)

    def test_an_error_of_the_init_function_does_not_keep_the_workers(self):
        def fail(worker):
            raise OSError

        loader = load(
            Items(number), worker_init_fn=fail, persistent_workers=True
        )
        iterator = iter(loader)
        reference = weakref.ref(iterator)
        gc.disable()
        self.addCleanup(gc.enable)
        # assertRaises would clear the frames of the traceback.
        with contextlib.suppress(OSError):
            next(iterator)
        del iterator, loader
        # The worker may still be about to drop the error.
        wait_until(lambda: reference() is None, "the iterator is dropped")
        self.wait_until_workers_end()

    def test_the_epoch_after_an_error_of_the_init_function_has_new_workers(
        self,
    ):
        errors = [OSError(), OSError()]

        def fail_twice(worker):
            if errors:
                raise errors.pop()

        loader = load(
            Items(number, 6),
            num_workers=2,
            worker_init_fn=fail_twice,
            persistent_workers=True,
        )
        with self.assertRaises(OSError):
            list(loader)
        wait_until(lambda: not errors, "both workers have failed")
        self.wait_until_workers_end()
        self.assertEqual([batch.item() for batch in loader], [*range(6)])

    def test_exit_or_end_of_an_iterator_in_the_init_function(self):
        def leave(worker):
            sys.exit("no configuration")

        def next_of_nothing(worker):
            next(iter([]))

        for fail, name in (
            (leave, "SystemExit"),
            (next_of_nothing, "StopIteration"),
        ):
            for dataset in (Items(number), Restarting()):
                loader = load(dataset, worker_init_fn=fail)
                with self.assertRaisesRegex(
                    RuntimeError, f"Worker 0 .* worker_init_fn .*{name}"
                ):
                    # On a thread, so that an endless wait fails the test.
                    in_thread(lambda loader=loader: list(iter(loader)))

    def test_stop_iteration_of_iter_does_not_end_the_epoch_silently(self):
        class Stopping(IterableDataset):
            def __iter__(self):
                return iter([next(iter([]))])

        loader = load(Stopping(), persistent_workers=True)
        for _ in range(2):
            with self.assertRaisesRegex(
                RuntimeError, "Worker 0 .* StopIteration"
            ):
                list(iter(loader))

    def test_a_worker_that_has_ended_is_an_error_after_its_batches(self):
        def stop_at_3(i):
            if i == 3:
                threading.current_thread().stop()
            return np.array(i)

        loaded = []

        def read():
            for batch in load(Items(stop_at_3, 9)):
                loaded.append(batch.item())

        with self.assertRaisesRegex(RuntimeError, "worker 0' ended before"):
            in_thread(read)
        self.assertEqual(loaded, [*range(6)])
        self.wait_until_workers_end()

    def test_an_error_of_the_sampler_comes_after_the_batches_before_it(self):
        for count in (0, 1, 9):
            loaded = []
            sampler = Failing(count, LookupError("no more samples"))
            batches = iter(load(Items(number, 20), batch_sampler=sampler))
            with self.assertRaisesRegex(LookupError, "no more samples"):
                for batch in batches:
                    loaded.append(batch.item())
            self.assertEqual(loaded, [*range(count)])
            self.assertEqual(list(batches), [])
            self.wait_until_workers_end()

    def test_persistent_workers_survive_an_error_of_the_sampler(self):
        sampler = Failing(5, LookupError("no more samples"))
        loader = load(
            Items(number, 20), batch_sampler=sampler, persistent_workers=True
        )
        with self.assertRaises(LookupError):
            list(loader)
        sampler.error = None
        self.assertEqual([batch.item() for batch in loader], [*range(5)])

    def test_ctrl_c_in_the_sampler_ends_the_iterator(self):
        for persistent in (False, True):
            sampler = Failing(8, KeyboardInterrupt())
            loader = load(
                Items(number, 20),
                num_workers=2,
                batch_sampler=sampler,
                persistent_workers=persistent,
            )
            loaded, batches = [], iter(loader)
            with self.assertRaises(KeyboardInterrupt):
                for batch in batches:
                    loaded.append(batch.item())
            # Without the batch that the interrupted call was about to return.
            self.assertEqual(loaded, [*range(4)])
            self.assertEqual(list(batches), [])
            self.wait_until_workers_end()
            sampler.error = None
            self.assertEqual([batch.item() for batch in loader], [*range(8)])

    def test_stop_iteration_of_a_dataset_does_not_end_the_epoch_silently(self):
        with self.assertRaisesRegex(RuntimeError, "Worker 2 .* StopIteration"):
            list(load(Raising(StopIteration())))

    def test_a_dataset_that_exits_does_not_end_the_program(self):
        with self.assertRaisesRegex(RuntimeError, r"Worker 2 .* SystemExit\(3"):
            list(load(Raising(SystemExit(3))))

    def test_an_unknown_worker_type(self):
        with self.assertRaisesRegex(
            ValueError, "'process' or 'thread'.*'fibre'"
        ):
            load(Items(number), worker_type="fibre")

    def test_static_mode_is_refused(self):
        paddle.enable_static()
        self.addCleanup(paddle.disable_static)
        with self.assertRaisesRegex(ValueError, "worker_type='process'"):
            iter(load(Items(number), places=paddle.CPUPlace()))

    def test_several_places_are_refused(self):
        places = [paddle.CPUPlace(), paddle.CPUPlace()]
        with self.assertRaisesRegex(ValueError, "received 2"):
            iter(load(Items(number), places=places))


class TestEnd(WorkersTestCase):
    def test_workers_end_with_the_epoch(self):
        for _ in load(Items(number)):
            pass
        self.wait_until_workers_end()

    def test_workers_end_when_the_iterator_is_dropped(self):
        iterator = iter(load(Items(number, 1000)))
        next(iterator)
        dropped = weakref.ref(iterator)
        del iterator
        gc.collect()
        self.assertIsNone(dropped())
        self.wait_until_workers_end()

    def test_persistent_workers_end_with_the_loader(self):
        loader = load(Items(number), persistent_workers=True)
        list(loader)
        self.assertEqual(len(self.workers()), 3)
        del loader
        gc.collect()
        self.wait_until_workers_end()

    def test_a_batch_in_progress_is_abandoned_between_two_samples(self):
        began, go_on, made = threading.Event(), threading.Event(), []

        def slow(i):
            began.set()
            go_on.wait(WAIT_S)
            made.append(i)
            return np.array(i)

        iterator = iter(load(Items(slow, 64), num_workers=1, batch_size=64))
        self.assertTrue(began.wait(WAIT_S))
        del iterator
        gc.collect()
        go_on.set()
        self.wait_until_workers_end()
        self.assertEqual(made, [0])

    def test_an_error_after_the_iterator_is_dropped_is_not_reported(self):
        began, go_on, reported = threading.Event(), threading.Event(), []
        self.addCleanup(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = reported.append

        def fail(i):
            began.set()
            go_on.wait(WAIT_S)
            raise ValueError("too late")

        iterator = iter(load(Items(fail), num_workers=1))
        self.assertTrue(began.wait(WAIT_S))
        del iterator
        gc.collect()
        go_on.set()
        self.wait_until_workers_end()
        gc.collect()
        self.assertEqual(reported, [])

    def test_a_worker_thread_that_waits_for_a_batch_can_be_stopped(self):
        go_on, waits = threading.Event(), threading.Event()
        self.addCleanup(go_on.set)

        def slow(i):
            waits.set()
            go_on.wait(WAIT_S)
            return np.array(i)

        consumer = WorkerThread(lambda: list(load(Items(slow))))
        consumer.start()
        self.assertTrue(waits.wait(WAIT_S))
        consumer.stop()
        consumer.join(WAIT_S)
        self.assertFalse(consumer.is_alive())

    def test_a_program_exits_while_workers_work(self):
        run_forked_script(
            self,
            "import numpy as np, paddle\n"
            "from test_dataloader_threads import *\n"
            "def slow(i):\n"
            "    return paddle.ones([200, 200]) @ paddle.ones([200, 200])\n"
            "iterator = iter(load(Items(slow, 10000), batch_size=8))\n"
            "next(iterator)\n",
        )

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_child_gets_an_error_and_the_parent_goes_on(self):
        run_forked_script(
            self,
            "from test_dataloader_threads import *\n"
            "iterator = iter(load(Items(number, 9)))\n"
            "next(iterator)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try:\n"
            "        next(iterator)\n"
            "    except RuntimeError as error:\n"
            "        os._exit(\n"
            "            f'process {os.getppid()}' in str(error)\n"
            "            and 'over the loader again' in str(error)\n"
            "        )\n"
            "    os._exit(0)\n"
            "status = os.waitpid(child, 0)[1]\n"
            "assert os.waitstatus_to_exitcode(status) == 1\n"
            "assert [b.item() for b in iterator] == [*range(1, 9)]\n",
        )

    @unittest.skipUnless(hasattr(os, "fork"), "this system has no fork")
    def test_a_forked_child_iterates_over_a_loader_with_persistent_workers(
        self,
    ):
        run_forked_script(
            self,
            "from test_dataloader_threads import *\n"
            "loader = load(Items(number, 9), persistent_workers=True)\n"
            "def numbers():\n"
            "    return [batch.item() for batch in loader]\n"
            "for _ in range(2):\n"
            "    assert numbers() == [*range(9)]\n"
            "workers = loader._iterator._workers\n"
            "child = os.fork()\n"
            "for _ in range(2):\n"
            "    assert numbers() == [*range(9)]\n"
            "kept = loader._iterator._workers is workers\n"
            "if child == 0:\n"
            "    os._exit(kept)\n"
            "status = os.waitpid(child, 0)[1]\n"
            "assert os.waitstatus_to_exitcode(status) == 0\n"
            "assert kept\n",
        )


class TestStress(WorkersTestCase):
    def setUp(self):
        super().setUp()
        switch_threads_often(self)

    def test_random_loaders_left_at_random_times(self):
        seed = time.time_ns() % 2**32
        print(f"seed {seed}", file=sys.stderr)

        def loaders(seed):
            random = np.random.default_rng(seed)
            for _ in range(15):
                length = int(random.integers(1, 60))
                batch_size = int(random.integers(1, 5))
                loader = load(
                    Items(number, length),
                    num_workers=int(random.integers(1, 5)),
                    prefetch_factor=int(random.integers(1, 4)),
                    batch_size=batch_size,
                    persistent_workers=bool(random.integers(2)),
                )
                for _ in range(int(random.integers(1, 4))):
                    taken = []
                    stop = int(random.integers(1, 2 * length))
                    for batch in loader:
                        taken += batch.tolist()
                        if len(taken) >= stop:
                            break
                    self.assertEqual(taken, [*range(len(taken))])
                    self.assertGreaterEqual(len(taken), min(stop, length))

        in_threads(*[lambda s=s: loaders([seed, s]) for s in range(3)])
        gc.collect()
        self.wait_until_workers_end()


if __name__ == "__main__":
    unittest.main()
