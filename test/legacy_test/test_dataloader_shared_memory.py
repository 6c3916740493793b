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
"""Batches that worker processes of a DataLoader send in shared memory."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import os
import pickle
import threading
import unittest
from multiprocessing.reduction import ForkingPickler

import numpy as np
from concurrent_base import wait_until
from shared_tensor_base import (  # noqa: F401
    STRATEGIES,
    run_new_sharing_script,
    run_sharing_script,
    setUpModule,
    tearDownModule,
)
from shared_tensor_leaks import no_leak, shared_files_of
from test_shared_tensor_memory import private_shm

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core
from paddle.base.shared_storage import native
from paddle.io import DataLoader, Dataset, IterableDataset, get_worker_info
from paddle.io.dataloader import shared_batch
from paddle.io.dataloader.collate import default_collate_fn
from paddle.io.dataloader.shared_batch import BatchSharer

DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
SWITCH = "PADDLE_DATALOADER_SHARED_BATCH"
Pair = collections.namedtuple("Pair", ("first", "second"))


class Items(Dataset):
    """A dataset of the results of a function, by sample number."""

    def __init__(self, item, length=8):
        self.item, self.length = item, length

    def __getitem__(self, i):
        return self.item(i)

    def __len__(self):
        return self.length


class Stored(Dataset):
    """A dataset that returns the tensors that it keeps."""

    def __init__(self):
        self.tensors = [paddle.full([8], i, "float32") for i in range(4)]

    def __getitem__(self, i):
        return self.tensors[i]

    def __len__(self):
        return len(self.tensors)


class Transposed(Dataset):
    """A dataset that returns one view of a tensor, which it changes."""

    def __init__(self):
        self.tensor = paddle.zeros([2, 3])
        self.view = self.tensor.T

    def __getitem__(self, i):
        self.tensor.fill_(float(i))
        return self.view

    def __len__(self):
        return 4


def check_writes_stay_in_the_batch(dataset):
    """Checks that a reader's writes to batches that are the tensors of a
    `Stored` do not change the dataset, in any process."""
    for _ in range(2):
        values = []
        for batch in DataLoader(dataset, batch_size=None, num_workers=1):
            values.append(batch.tolist())
            batch.fill_(-1)
        expected = [[float(i)] * 8 for i in range(4)]
        assert values == expected, values
    kept = [tensor.tolist() for tensor in dataset.tensors]
    assert kept == expected, kept


def allocate_in_context():
    with sharing.shared_allocation():
        return paddle.zeros([8])


class Numbers(IterableDataset):
    """A dataset of which each worker has its own numbers."""

    def __iter__(self):
        worker = get_worker_info()
        first = worker.id if worker else 0
        step = worker.num_workers if worker else 1
        for i in range(first, 10, step):
            yield np.full([3], i, "int64")


def image(i):
    return np.full([3, 64, 64], i, "float32")


def objects(i):
    return np.array([object()])


def locks(i):
    return [threading.Lock(), np.ones(3)]


def fields(i):
    return [np.full([16], i * 10 + field, "float32") for field in range(8)]


def blocks_in_use(i):
    return [*fields(i), sharing.shared_memory_stats()["blocks"]]


def image_of_every_type(i):
    """Returns a large image, small arrays of every data type, and a medium
    one."""
    values = [np.full([2], i).astype(dtype) for dtype in DTYPES]
    values.append(np.full([3], i, "uint16"))
    return [
        np.full([1 << 17], i, "float32"),
        np.empty([0], "float32"),
        *values,
        np.full([1 << 13], i, "float32"),
    ]


def reserved_so_far(i):
    return image(i), sharing.shared_memory_stats()["reserved"]


def only_reserved_so_far(i):
    return np.full([1 << 16], sharing.shared_memory_stats()["reserved"])


def plain(batch):
    """Returns a batch with plain values instead of tensors."""
    if isinstance(batch, paddle.Tensor):
        array = batch.numpy()
        return str(batch.dtype), array.shape, array.tobytes()
    if isinstance(batch, dict):
        return {key: plain(field) for key, field in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [plain(field) for field in batch]
    return batch


class LoaderTestCase(unittest.TestCase):
    def batches(self, dataset, **options):
        return [plain(batch) for batch in DataLoader(dataset, **options)]

    def assert_as_without_workers(self, dataset, num_workers=2, **options):
        """Asserts that batches are the same with and without workers."""
        expected = self.batches(dataset, **options)
        with no_leak():
            # After the last batch, the reader thread ends after `timeout` s.
            loaded = self.batches(
                dataset, num_workers=num_workers, timeout=1, **options
            )
            self.assertEqual(loaded, expected)
        self.assertTrue(expected)

    @contextlib.contextmanager
    def environment(self, name, value):
        before = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before


class OverStrategies(LoaderTestCase):
    strategy = ""

    def setUp(self):
        before = sharing.get_sharing_strategy()
        self.addCleanup(sharing.set_sharing_strategy, before)
        sharing.set_sharing_strategy(self.strategy)


def over_strategies(case):
    """Class decorator: replaces a test case with one per sharing strategy."""
    for strategy in STRATEGIES:
        name = f"{case.__name__}_{strategy}"
        members = {"strategy": strategy, "__module__": case.__module__}
        globals()[name] = type(name, (case, OverStrategies), members)


@over_strategies
class TestBatches:
    def test_arrays_of_every_data_type(self):
        self.assert_as_without_workers(
            Items(lambda i: [np.full([2, 3], i, dtype) for dtype in DTYPES]),
            batch_size=3,
        )

    def test_array_of_uint16_becomes_bfloat16(self):
        item = Items(lambda i: np.full([3], 0x3F80, "uint16"))
        (batch, _) = DataLoader(item, batch_size=4, num_workers=1)
        self.assertEqual(batch.dtype, paddle.bfloat16)
        self.assertEqual(batch.cast("float32").tolist(), [[1.0] * 3] * 4)

    def test_arrays_of_every_shape_and_layout(self):
        self.assert_as_without_workers(
            Items(
                lambda i: [
                    np.array(i),
                    np.zeros([0, 3], "int64"),
                    np.zeros([3, 0], "int64"),
                    np.arange(12).reshape(3, 4).T[::-1] + i,
                    np.broadcast_to(np.float32(i), [4, 5]),
                    np.asfortranarray(np.full([3, 2], i)),
                ]
            )
        )

    def test_large_arrays_arrive_as_without_workers(self):
        self.assert_as_without_workers(
            Items(lambda i: np.full([1 << 18], i, "float64")), batch_size=2
        )

    def test_arrays_of_different_data_types_get_their_common_type(self):
        self.assert_as_without_workers(
            Items(lambda i: np.ones([2], "float32" if i % 2 else "int64")),
            batch_size=4,
        )

    def test_numbers_strings_and_other_objects(self):
        self.assert_as_without_workers(
            Items(lambda i: {"n": i, "x": i / 2, "s": str(i), "b": b"ab"}),
            batch_size=3,
        )
        self.assert_as_without_workers(
            Items(lambda i: [None, {i}, (i, "s"), np.ones(i)]), batch_size=None
        )

    def test_nested_containers(self):
        self.assert_as_without_workers(
            Items(
                lambda i: {
                    "pair": Pair(image(i), [np.full([2], i), str(i)]),
                    "deep": [{"a": [image(i)[0], {"b": np.array(i)}]}],
                }
            ),
            batch_size=3,
        )

    def test_tensors_of_every_data_type(self):
        dtypes = (*DTYPES, "bfloat16")
        self.assert_as_without_workers(
            Items(lambda i: [paddle.full([2], i).cast(d) for d in dtypes]),
            batch_size=3,
        )

    def test_tensors_of_every_shape_and_layout(self):
        self.assert_as_without_workers(
            Items(
                lambda i: {
                    "scalar": paddle.full([], i),
                    "empty": paddle.zeros([0, 3]),
                    "strided": paddle.arange(12).reshape([3, 4]).T + i,
                    "row": paddle.arange(12).reshape([3, 4])[1] + i,
                }
            ),
            batch_size=None,
        )

    def test_row_and_whole_tensor_are_sent_separately(self):
        rows = paddle.arange(8, dtype="float32").reshape([8, 1])
        loader = DataLoader(
            Items(lambda i: (rows[i], rows.clone())),
            batch_size=None,
            num_workers=1,
        )
        for i, (row, whole) in enumerate(loader):
            self.assertEqual(row.tolist(), [i])
            self.assertEqual(whole.flatten().tolist(), list(range(8)))
            row.fill_(99)

    def test_writes_to_a_batch_do_not_change_tensors_that_were_sent_before(
        self,
    ):
        dataset = Stored()
        for tensor in dataset.tensors:
            ForkingPickler.loads(ForkingPickler.dumps(tensor))
            self.assertTrue(tensor.is_shared())
        check_writes_stay_in_the_batch(dataset)

    def test_writes_to_a_batch_do_not_change_views_of_shared_memory(self):
        dataset = Stored()
        whole = paddle.stack(dataset.tensors).share_memory_()
        dataset.tensors = [*whole]
        check_writes_stay_in_the_batch(dataset)

    def test_sending_a_view_does_not_detach_it_from_its_tensor(self):
        loader = DataLoader(Transposed(), batch_size=None, num_workers=1)
        first = [batch.tolist()[0][0] for batch in loader]
        self.assertEqual(first, [0.0, 1.0, 2.0, 3.0])

    def test_writes_to_a_batch_do_not_change_what_a_worker_keeps(self):
        for allocate in (
            lambda: sharing.empty_shared([8], "float32"),
            allocate_in_context,
        ):
            kept = []

            def item(i, kept=kept, allocate=allocate):
                if not kept:
                    kept.append(allocate().fill_(7))
                    assert kept[0].is_shared()
                return kept[0]

            values = []
            for batch in DataLoader(
                Items(item), batch_size=None, num_workers=1
            ):
                values.append(batch.tolist())
                batch.fill_(-1)
            self.assertEqual(values, [[7.0] * 8] * 8)

    def test_iterable_dataset(self):
        with no_leak():
            loader = DataLoader(
                Numbers(), batch_size=2, num_workers=2, timeout=1
            )
            values = [x for batch in loader for x in batch[:, 0].tolist()]
            self.assertEqual(sorted(values), list(range(10)))

    def test_epochs_of_persistent_workers(self):
        loader = DataLoader(
            Items(image), batch_size=3, num_workers=2, persistent_workers=True
        )
        for _ in range(3):
            values = [x for batch in loader for x in batch[:, 0, 0, 0].tolist()]
            self.assertEqual(values, [float(i) for i in range(8)])
        # The workers would stay until this process ends.
        loader._iterator._try_shutdown_all()

    def test_all_batches_may_be_kept(self):
        loader = DataLoader(Items(image, 40), batch_size=2, num_workers=2)
        for i, batch in enumerate(list(loader)):
            self.assertEqual(batch[:, 2, 63, 63].tolist(), [2 * i, 2 * i + 1])

    def test_one_tensor_keeps_its_whole_batch(self):
        kept = None
        loader = DataLoader(Items(fields, 64), batch_size=2, num_workers=1)
        for batch in loader:
            kept = batch[3] if kept is None else kept
        self.assertEqual(kept[:, 5].tolist(), [3.0, 13.0])

    def test_small_tensors_next_to_a_large_one_arrive(self):
        self.assert_as_without_workers(Items(image_of_every_type), batch_size=4)

    def test_kept_labels_do_not_keep_the_images(self):
        # The images of a batch have 1.5 MiB. The labels are the amounts of
        # shared memory that the worker has reserved.
        loader = DataLoader(
            Items(reserved_so_far, 32 * 40), batch_size=32, num_workers=1
        )
        labels, size = [], 0
        for images, label in loader:
            labels.append(label)
            size = images.numel().item() * images.element_size()
        self.assertLess(max(label.max().item() for label in labels), 12 * size)

    def test_collate_fn_may_reuse_its_result(self):
        # It fills the same array for every batch.
        buffer = np.zeros([4, 3, 64, 64], "float32")

        def collate(samples):
            return np.stack(samples, out=buffer)

        loader = DataLoader(
            Items(image, 32), batch_size=4, num_workers=1, collate_fn=collate
        )
        values = [batch[:, 0, 0, 0].tolist() for batch in loader]
        self.assertEqual(
            values, np.arange(32, dtype="float32").reshape([8, 4]).tolist()
        )

    def test_writes_to_a_batch_do_not_affect_other_batches(self):
        loader = DataLoader(Items(image, 32), batch_size=2, num_workers=2)
        for i, batch in enumerate(loader):
            self.assertEqual(batch[:, 1, 5, 5].tolist(), [2 * i, 2 * i + 1])
            batch.fill_(-1)

    def test_memory_of_a_batch_is_used_again(self):
        for item, where in (
            (reserved_so_far, lambda batch: batch[1]),
            (only_reserved_so_far, lambda batch: batch[:, 0]),
        ):
            with self.subTest(item.__name__):
                loader = DataLoader(
                    Items(item, 400), batch_size=4, num_workers=1
                )
                for batch in loader:
                    reserved = int(where(batch).max())
                size = sum(
                    field.numel().item() * field.element_size()
                    for field in (batch if isinstance(batch, list) else [batch])
                )
                # Two are prefetched, two are read ahead, one is in use, and one
                # more of each is in flight.
                self.assertLess(reserved, 12 * size)

    def test_end_of_an_epoch_removes_the_files_of_its_workers(self):
        sharing.shared_memory_stats()  # joins the process tree if necessary

        def files():
            tree = os.environ["PADDLE_SHARED_MEMORY_TREE"]
            return shared_files_of(tree)

        before = files()
        loader = iter(DataLoader(Items(image, 16), batch_size=2, num_workers=2))
        with contextlib.suppress(StopIteration):
            while True:
                self.assertIsNotNone(next(loader))
        # The reader thread keeps the last batch until it ends.
        wait_until(lambda: files() <= before, "end of the files")

    def test_batch_outlives_loader_and_workers(self):
        before = multiprocessing.active_children()
        (batch, *_) = DataLoader(Items(image), batch_size=2, num_workers=1)
        after = multiprocessing.active_children()
        self.assertLessEqual({*after}, {*before})
        self.assertEqual(batch[1, 0, 0].tolist(), [1.0] * 64)

    def test_batches_go_to_the_device_asked_for(self):
        if "custom_cpu" not in paddle.device.get_all_custom_device_type():
            self.skipTest("no test device, see test/custom_runtime")
        place = paddle.CustomPlace("custom_cpu", 1)
        loader = DataLoader(
            Items(image, 32), batch_size=2, num_workers=2, places=[place]
        )
        for i, batch in enumerate(loader):
            self.assertEqual(str(batch.place), "Place(custom_cpu:1)")
            self.assertEqual(batch[:, 0, 0, 0].tolist(), [2 * i, 2 * i + 1])


class TestStartMethods(LoaderTestCase):
    def test_spawned_workers(self):
        self.load("spawn")

    def test_workers_of_a_fork_server(self):
        self.load("forkserver")

    def test_writes_to_a_batch_of_spawned_workers_stay_there(self):
        # Pickling the dataset moves its tensors into shared memory.
        run_sharing_script(
            self,
            """
            import test_dataloader_shared_memory as module
            multiprocessing.set_start_method("spawn")
            module.check_writes_stay_in_the_batch(module.Stored())
            """,
        )

    def load(self, method):
        run_sharing_script(
            self,
            f"""
            import test_dataloader_shared_memory as module
            multiprocessing.set_start_method({method!r})
            loader = paddle.io.DataLoader(
                module.Items(module.image), batch_size=2, num_workers=2
            )
            values = [x for b in loader for x in b[:, 0, 0, 0].tolist()]
            assert values == [float(i) for i in range(8)], values
            """,
        )


class TestFlags(LoaderTestCase):
    def test_tensors_arrive_without_pir(self):
        # The data types of tensors then belong to another enumeration.
        with self.environment("FLAGS_enable_pir_api", "0"):
            run_new_sharing_script(
                self,
                """
                import test_dataloader_shared_memory as module
                assert isinstance(
                    paddle.ones([1]).dtype, paddle.base.core.VarDesc.VarType
                )
                module.check_writes_stay_in_the_batch(module.Stored())
                loader = paddle.io.DataLoader(
                    module.Items(lambda i: paddle.full([2], i)),
                    batch_size=4,
                    num_workers=1,
                )
                values = [batch[:, 1].tolist() for batch in loader]
                assert values == [[0, 1, 2, 3], [4, 5, 6, 7]], values
                """,
                variables=("FLAGS_enable_pir_api",),
            )


class TestSharer(LoaderTestCase):
    """Tests the steps of a worker for a batch, in one process."""

    def message(self, sharer, samples):
        message = sharer.message(0, sharer.collate_fn(samples))
        return pickle.dumps(message)

    def fields(self, message):
        number, fields, _ = pickle.loads(message)
        self.assertEqual(number, 0)
        return fields

    def test_batch_of_many_fields_is_one_block_and_a_short_message(self):
        sharer = BatchSharer(default_collate_fn)
        samples = [[*fields(i), i] for i in range(32)]
        self.message(sharer, samples)
        before = sharing.shared_memory_stats()["blocks"]
        message = self.message(sharer, samples)
        self.assertEqual(sharing.shared_memory_stats()["blocks"], before + 1)
        self.assertLess(len(message), 1000)

    def test_batch_larger_than_the_one_before_arrives_whole(self):
        sharer = BatchSharer(default_collate_fn)
        for size in (1, 70_000, 10, 300_000, 299_999):
            samples = [[np.full([size], i), np.array(i)] for i in range(3)]
            large, small = self.fields(self.message(sharer, samples))
            self.assertEqual(np.array(small).tolist(), [0, 1, 2])
            self.assertEqual(
                np.array(large).tolist(), [[i] * size for i in range(3)]
            )

    def test_failed_collation_leaves_the_next_batch_alone(self):
        sharer = BatchSharer(default_collate_fn)
        with self.assertRaises(ValueError):
            sharer.collate_fn([[np.ones(2), np.ones(i)] for i in (2, 3)])
        message = self.message(sharer, [[np.zeros(2)], [np.ones(2)]])
        (field,) = self.fields(message)
        self.assertEqual(np.array(field).tolist(), [[0.0] * 2, [1.0] * 2])

    def test_samples_of_equal_size_but_different_shapes_are_refused(self):
        sharer = BatchSharer(default_collate_fn)
        for shapes in ([[3], [2], [4]], [[2, 3], [3, 2]], [[4], []]):
            samples = [np.ones(shape) for shape in shapes]
            with self.subTest(shapes), self.assertRaises(ValueError):
                sharer.collate_fn(samples)
            with self.subTest(shapes), self.assertRaises(ValueError):
                default_collate_fn(samples)


class TestSwitch(LoaderTestCase):
    def most_blocks(self):
        loader = DataLoader(
            Items(blocks_in_use, 64), batch_size=2, num_workers=1
        )
        return max(int(batch[-1].max()) for batch in loader)

    def test_shared_batches_are_on_by_default(self):
        # A few batches of one block each.
        self.assertLess(self.most_blocks(), 8)

    def test_each_tensor_is_sent_separately_when_switched_off(self):
        for value in ("0", "false", "OFF"):
            with self.subTest(value), self.environment(SWITCH, value):
                self.assertGreaterEqual(self.most_blocks(), 8)

    def test_batches_are_the_same_when_switched_off(self):
        with self.environment(SWITCH, "0"):
            self.assert_as_without_workers(Items(fields), batch_size=3)


class TestErrors(LoaderTestCase):
    def report(self, item, before=""):
        """Returns the standard error of a script whose load fails."""
        return run_sharing_script(
            self,
            f"""
            import traceback
            import test_dataloader_shared_memory as module
            {before}
            loader = paddle.io.DataLoader(
                module.Items(module.{item}), batch_size=None, num_workers=1
            )
            try:
                for _ in loader:
                    pass
            except Exception:
                traceback.print_exc()
            else:
                raise AssertionError("no error")
            """,
        ).stderr

    def test_array_of_objects_is_refused(self):
        report = self.report("objects")
        self.assertIn("DataLoader worker(0) caught ValueError", report)
        self.assertIn("incompatible array data type", report)

    def test_object_that_cannot_be_pickled_raises_instead_of_hanging(self):
        report = self.report("locks")
        self.assertIn("DataLoader worker(0) caught TypeError", report)
        self.assertIn("cannot pickle '_thread.lock' object", report)

    def test_error_for_exhausted_memory_says_how_to_fix_it(self):
        report = self.report("image", "sharing.set_shared_memory_limit(1000)")
        self.assertIn("DataLoader worker(0) caught MemoryError", report)
        self.assertIn("the limit is 1000 B", report)
        self.assertIn("set_shared_memory_limit", report)

    def test_batches_larger_than_dev_shm_arrive(self):
        # With one file per tensor, a worker would die of SIGBUS here.
        run_new_sharing_script(
            self,
            """
            import test_dataloader_shared_memory as module
            loader = paddle.io.DataLoader(
                module.Items(module.image, 256), batch_size=64, num_workers=2
            )
            for n, batch in enumerate(loader):
                assert batch.numel() * 4 >= 3 << 20, batch.shape
                values = batch[:, 2, 63, 63].tolist()
                assert values == list(range(64 * n, 64 * n + 64)), values
            assert n == 3, n
            """,
            private_shm("size=1m"),
        )

    def test_full_dev_shm_does_not_change_the_sharing_strategy(self):
        run_new_sharing_script(
            self,
            """
            import numpy as np
            from paddle.io.dataloader.collate import default_collate_fn
            from paddle.io.dataloader.shared_batch import BatchSharer
            sharer = BatchSharer(default_collate_fn)
            for _ in range(2):
                batch = sharer.collate_fn([np.ones([4 << 20], "uint8")])
                message = sharer.message(0, batch)
                assert sharing.get_sharing_strategy() == "file_system"
            """,
            private_shm("size=1m"),
        )


class TestOrders(unittest.TestCase):
    """Orders in messages, which may be damaged or forged."""

    def rebuild(self, order: list[int]) -> list[core.DenseTensor]:
        tensor = paddle.arange(4, dtype="float32")
        handle = native.share_while_alive(tensor)
        sources = [(handle, [(core.DataType.FLOAT32, [4], 0)])]
        return shared_batch._rebuild(sources, [], order)

    def test_batch_has_the_tensors_of_its_sources(self):
        self.assertEqual(len(self.rebuild([0])), 1)

    def test_order_that_refers_to_missing_tensors_is_refused(self):
        # StopIteration would silently end the epoch.
        for order in ([0, 0], [-1], [0, 5], [-9], [2**70]):
            with self.assertRaisesRegex(ValueError, "order"):
                self.rebuild(order)


if __name__ == "__main__":
    unittest.main()
