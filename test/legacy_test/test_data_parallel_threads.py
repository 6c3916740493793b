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
"""paddle.DataParallel with threads of one process as ranks."""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import random
import threading
import time
import unittest
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S, Worker, in_fork, in_thread
from data_parallel_base import (
    RanksCase,
    gradients,
    loss_of,
    new_layer,
    random_batches,
)
from process_group_methods import (
    call_missing_methods,
    check_refusals,
    check_task,
)
from test_data_parallel_comm_hooks import continue_beside_an_endless_hook
from test_data_parallel_devices import DeviceCases
from test_data_parallel_join import JoinCases
from test_data_parallel_reducer import CoreCases, ReducerCases
from test_data_parallel_sparse_and_amp import SparseAndAmpCases
from thread_device_base import device_lists

import paddle
import paddle.distributed as dist
import paddle.multiprocessing as mp
from paddle.distributed import thread_process_group
from paddle.distributed.data_parallel import reducer

DEVICES = device_lists().get("custom_cpu", ["cpu"])[:-1]


class ThreadsCase(RanksCase):
    """A test case that runs functions on threads that are ranks."""

    devices = "cpu"

    @classmethod
    def setUpClass(cls) -> None:
        cls.ranks = ThreadRanks(cls.size, cls.devices)


class ThreadRanks:
    """Threads that are ranks, with the interface of `Ranks`."""

    def __init__(self, size: int, devices):
        self._size = size
        self._devices = devices

    def call(self, kind, function, *args) -> list:
        answers = [None] * self._size
        groups = dist.new_thread_groups(self._size, timeout=WAIT_S)

        def answer(rank):
            try:
                answers[rank] = function(groups[rank], *args)
            except Exception as error:
                answers[rank] = f"{type(error).__name__}: {error}"

        mp.start_threads(answer, nthreads=self._size, devices=self._devices)
        return answers

    def end(self) -> None:
        pass


class TestReducer(ReducerCases, ThreadsCase):
    pass


class TestReducerOnThreeThreads(ReducerCases, ThreadsCase):
    size = 3


class TestSparseAndAmp(SparseAndAmpCases, ThreadsCase):
    # Paddle's own end-of-backward hooks are process-wide: one thread's pass may
    # run the hook of another thread's unfinished pass.
    test_master_gradients_are_averages = None


class TestJoin(JoinCases, ThreadsCase):
    pass


@unittest.skipUnless(DEVICES, "no device of kind custom_cpu here")
class TestReducerOnDevices(ReducerCases, ThreadsCase):
    devices = DEVICES[:2]

    def test_auto_cast_does_not_round_averages_and_buffers(self):
        found, expected = (
            self.call(average_with_casts, casts) for casts in (True, False)
        )
        for one, other in zip(found, expected):
            self.assert_same_bits(one, other)


@unittest.skipUnless(DEVICES, "no device of kind custom_cpu here")
class TestReducerOnThreeDevices(ReducerCases, ThreadsCase):
    size = 3
    devices = DEVICES[:3]


@unittest.skipUnless(len(DEVICES) >= 4, "fewer than four devices here")
class TestReducerOnFourDevices(CoreCases, ThreadsCase):
    size = 4
    devices = DEVICES[:4]


@unittest.skipUnless(DEVICES, "no device of kind custom_cpu here")
class TestModelsOnTheCpu(DeviceCases, ThreadsCase):
    size = 3


@unittest.skipUnless(DEVICES, "no device of kind custom_cpu here")
class TestModelsOnOtherDevices(DeviceCases, ThreadsCase):
    size = 3
    device = "custom_cpu:{}"
    # The device lacks kernels of the other hooks.
    hooks = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook")


class WithoutCasts(paddle.nn.Layer):
    """A model that turns auto_cast off for its own operators."""

    def __init__(self):
        super().__init__()
        self.inner = new_layer(0)
        self.register_buffer("count", paddle.full([1], 1 + 2**-14))

    def forward(self, x):
        with paddle.amp.auto_cast(False):
            return self.inner(x) ** 2


def average_with_casts(group, casts) -> list:
    """Trains with auto_cast on if `casts`; returns the averages of three steps,
    and a buffer."""
    layer, found = WithoutCasts(), []
    parts = [each[group.rank] for each in random_batches(3, group.nranks)]
    with paddle.amp.auto_cast(
        casts, custom_white_list=["concat", "divide", "scale"]
    ):
        wrapped = paddle.DataParallel(
            layer, group=group, comm_buffer_size=0.002, broadcast_buffers=True
        )
        for part in parts:
            layer.clear_gradients()
            wrapped(part).sum().backward()
            found += gradients(layer)
    return [*found, layer.count.numpy()]


def all_reduce(group, tensor, op=dist.ReduceOp.SUM) -> np.ndarray:
    dist.all_reduce(tensor, op, group=group)
    return tensor.numpy()


def all_reduce_many(group, inputs, delays) -> list:
    """Returns sums of tensors whose operations are in flight together."""
    tensors = [paddle.to_tensor(each[group.rank]) for each in inputs]
    tasks = []
    for tensor, delay in zip(tensors, delays[group.rank]):
        time.sleep(delay)
        tasks.append(dist.all_reduce(tensor, group=group, sync_op=False))
    for task in tasks:
        task.wait()
    return [tensor.numpy() for tensor in tensors]


def fail_in_second_step(group) -> None:
    layer = new_layer(0)
    wrapped = paddle.DataParallel(layer, group=group)
    for step in range(3):
        loss = loss_of(wrapped, paddle.ones([2, 6]))
        if step == 1 and group.rank == 1:
            raise KeyError("of rank 1")
        loss.backward()


def fail_before_the_reducer(group) -> None:
    """On rank 0, a hook fails before any gradient of the first step."""
    layer = paddle.nn.Linear(1, 1, bias_attr=False)
    failing = [group.rank == 0]

    def fail_once():
        if failing and failing.pop():
            raise KeyError

    layer.weight._register_backward_hook(fail_once)
    wrapped = paddle.DataParallel(layer, group=group)
    for _ in range(2):
        with contextlib.suppress(KeyError):
            wrapped(paddle.ones([1, 1])).sum().backward()


def start_plain_threads(size, function, *args, timeout=WAIT_S) -> list:
    """Starts a thread per rank, and returns the running workers."""
    groups = dist.new_thread_groups(size, timeout=timeout)
    return [Worker(function, group, *args) for group in groups]


class TestThreads(unittest.TestCase):
    def setUp(self):
        paddle.set_device("cpu")

    def test_values_are_added_as_a_tree_in_any_order_of_arrival(self):
        seed = random.randrange(2**32)
        print(f"seed {seed}")
        chosen = random.Random(seed)
        numbers = np.random.RandomState(seed)
        for size in (2, 3, 4, 5):
            inputs = numbers.randn(20, size, 100).astype("float32")
            delays = [
                [chosen.choice([0, 0, 0.001]) for _ in inputs]
                for _ in range(size)
            ]
            workers = start_plain_threads(size, all_reduce_many, inputs, delays)
            for worker in workers:
                for found, parts in zip(worker.result(), inputs):
                    expected = sum_as_tree(list(parts))
                    self.assertEqual(found.tobytes(), expected.tobytes())

    def test_start_threads_raises_the_error_of_a_rank(self):
        groups = dist.new_thread_groups(3)
        with self.assertRaisesRegex(KeyError, "of rank 1"):
            mp.start_threads(
                lambda rank: fail_in_second_step(groups[rank]), nthreads=3
            )

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_process_forked_while_a_model_is_wrapped_can_wrap_one(self):
        adding, proceed = threading.Event(), threading.Event()

        class Pausing(type(reducer._reducers)):
            def add(self, item):
                super().add(item)
                adding.set()
                assert proceed.wait(WAIT_S)

        def wrap_models() -> None:
            groups = dist.new_thread_groups(2)
            mp.start_threads(
                lambda rank: paddle.DataParallel(
                    paddle.nn.Linear(1, 1), group=groups[rank]
                ),
                nthreads=2,
                devices="cpu",
            )

        def proceed_in_child() -> None:
            proceed.set()
            wrap_models()

        with mock.patch.object(reducer, "_reducers", Pausing()):
            wraps = Worker(wrap_models)
            self.assertTrue(adding.wait(WAIT_S))
            try:
                in_fork(proceed_in_child)
            finally:
                proceed.set()
                wraps.result()

    def test_gradients_of_a_model_with_an_empty_parameter_add_up(self):
        class WithEmpty(paddle.nn.Layer):
            def __init__(self):
                super().__init__()
                self.weight = self.create_parameter([1])
                self.empty = self.create_parameter([0])

            def forward(self, x):
                return (x * self.weight).sum() + (x * self.empty).sum()

        def train(rank, as_view):
            layer = WithEmpty()
            wrapped = paddle.DataParallel(
                layer, group=groups[rank], gradient_as_bucket_view=as_view
            )
            for _ in range(3):
                wrapped(paddle.full([1], rank + 1.0)).backward()
            found[rank] = layer.weight.grad.item(), layer.empty.grad.shape

        for as_view in (False, True):
            with self.subTest(as_view=as_view):
                groups, found = dist.new_thread_groups(2), {}
                mp.start_threads(train, (as_view,), nthreads=2)
                self.assertEqual(found, {0: (4.5, [0]), 1: (4.5, [0])})

    def test_an_error_names_the_rank_whose_model_another_rank_got(self):
        groups = dist.new_thread_groups(2)
        layer = new_layer(0)

        def train(rank):
            loss_of(
                paddle.DataParallel(layer, group=groups[rank]),
                paddle.ones([2, 6]),
            ).backward()

        with self.assertRaisesRegex(
            ValueError,
            r"Rank (0 got the model of rank 1|1 got the model of rank 0): .* "
            r"'0.weight' \(of a Linear\). Build one model per thread",
        ):
            mp.start_threads(train, nthreads=2)

    def test_a_model_may_be_trained_by_another_rank_of_a_later_group(self):
        layers = [new_layer(0), new_layer(0)]
        kept = []

        def train(rank, groups, layers):
            wrapped = paddle.DataParallel(layers[rank], group=groups[rank])
            kept.append(wrapped)
            loss_of(wrapped, paddle.ones([2, 6])).backward()

        for order in (layers, layers[::-1]):
            groups = dist.new_thread_groups(2)
            mp.start_threads(train, (groups, order), nthreads=2)
        self.assertEqual(len(kept), 4)

    def test_the_other_ranks_name_a_rank_that_has_ended(self):
        first, second, third = start_plain_threads(3, fail_in_second_step)
        for worker in (first, third):
            with self.assertRaisesRegex(
                RuntimeError, rf"Rank 1 \(thread '{second.name}'\) has ended"
            ):
                worker.result()
        with self.assertRaises(KeyError):
            second.result()

    def test_a_step_does_not_mix_with_one_that_failed_on_a_rank(self):
        for worker in start_plain_threads(2, fail_before_the_reducer):
            with self.assertRaisesRegex(RuntimeError, "the same operations"):
                worker.result()

    def test_a_missing_rank_is_named_after_the_timeout(self):
        groups = dist.new_thread_groups(2, timeout=0.1)
        with self.assertRaisesRegex(
            RuntimeError,
            r"Ranks \[1\] did not call all_reduce \(SUM\) of "
            r"paddle.float32 of shape \[2\] within 0.1 s",
        ):
            all_reduce(groups[0], paddle.ones([2]))

    def test_an_endless_hook_is_an_error_after_the_timeout_of_its_group(self):
        groups = dist.new_thread_groups(2, timeout=3)
        found = []
        mp.start_threads(
            lambda rank: found.append(
                continue_beside_an_endless_hook(groups[rank])
            ),
            nthreads=2,
            devices="cpu",
        )
        for error, gradient in found:
            self.assertIn("waited 3 s", error)
            self.assertEqual(gradient, 1.5)

    def test_an_error_names_ranks_that_call_different_operations(self):
        groups = dist.new_thread_groups(2)
        workers = [
            Worker(all_reduce, group, paddle.ones([2 + group.rank]))
            for group in groups
        ]
        for worker in workers:
            with self.assertRaisesRegex(
                RuntimeError,
                r"Rank . called .*\[.\], but rank . called .*",
            ):
                worker.result()

    def test_a_worker_that_is_asked_to_stop_stops_waiting(self):
        group, _ = dist.new_thread_groups(2)
        worker = mp.WorkerThread(all_reduce, [group, paddle.ones([1])])
        worker.start()
        worker.stop()
        worker.join(WAIT_S)
        self.assertFalse(worker.is_alive())

    def test_a_rank_that_is_interrupted_fails_the_group(self):
        groups = dist.new_thread_groups(2, timeout=WAIT_S)
        begin = thread_process_group._Exchange.begin

        def interrupted(*args):
            begin(*args)
            raise KeyboardInterrupt

        with (
            mock.patch.object(
                thread_process_group._Exchange, "begin", interrupted
            ),
            self.assertRaises(KeyboardInterrupt),
        ):
            dist.all_reduce(paddle.ones([1]), group=groups[1])
        with self.assertRaisesRegex(RuntimeError, "Rank 1 .*KeyboardInterrupt"):
            task = dist.all_reduce(
                paddle.ones([1]), group=groups[0], sync_op=False
            )
            task.wait(0.1)

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_process_is_no_rank(self):
        group, _ = dist.new_thread_groups(2, timeout=0.1)
        task = dist.all_reduce(paddle.ones([1]), group=group, sync_op=False)

        def call_in_child():
            for call in (lambda: dist.barrier(group), task.wait):
                with self.assertRaisesRegex(RuntimeError, "was forked from"):
                    call()

        in_fork(call_in_child)

    @unittest.skipUnless(DEVICES, "no device of kind custom_cpu here")
    def test_operations_keep_the_data_type_inside_auto_cast(self):
        paddle.set_device(DEVICES[0])
        (group,) = dist.new_thread_groups(1)

        @in_thread
        def call():
            x = paddle.full([1], 1 + 2**-14)
            gathered = paddle.zeros([1])
            with paddle.amp.auto_cast(
                level="O2", custom_white_list=["assign", "stack"]
            ):
                self.assertEqual(paddle.stack([x]).dtype, paddle.float16)
                dist.broadcast(x, 0, group=group)
                dist.all_reduce(x, group=group)
                dist.stream.all_gather(gathered, x, group=group)
            self.assertEqual((x.item(), gathered.item()), (1 + 2**-14,) * 2)

    def test_unsupported_arguments_are_named(self):
        group, _ = dist.new_thread_groups(2)
        with self.assertRaisesRegex(ValueError, "PRODUCT. Use SUM, MAX or MIN"):
            all_reduce(group, paddle.ones([1]), dist.ReduceOp.PROD)

    def test_a_sparse_tensor_is_refused_by_each_operation(self):
        group, _ = dist.new_thread_groups(2)
        dense = paddle.ones([2, 2])
        embedding = paddle.nn.Embedding(2, 2, sparse=True)
        embedding(paddle.to_tensor([0])).sum().backward()
        for x, cure in (
            (dense.to_sparse_coo(2), "to_dense"),
            (dense.to_sparse_csr(), "to_dense"),
            (embedding.weight.grad, "sparse=False"),
        ):
            for call in (
                lambda x=x: all_reduce(group, x),
                lambda x=x: dist.broadcast(x, 0, group=group),
                lambda x=x: dist.gather(x, [], 0, group=group),
                lambda x=x: dist.gather(dense, [x, dense], 0, group=group),
                lambda x=x: group.process_group.all_gather(
                    [x, dense], dense, True
                ),
                lambda x=x: group.process_group.all_gather_into_tensor(
                    x, dense, True
                ),
                lambda x=x: dist.scatter(dense, [dense, x], 0, group=group),
                lambda x=x: group.process_group.all_gather(
                    [dense] * 2, x, True
                ),
            ):
                with self.assertRaisesRegex(ValueError, cure):
                    call()

    def test_a_distributed_tensor_is_refused(self):
        group, _ = dist.new_thread_groups(2)
        mesh = dist.ProcessMesh([0], dim_names=["x"])
        x = dist.shard_tensor(paddle.ones([2]), mesh, [dist.Replicate()])
        with self.assertRaisesRegex(ValueError, "unshard_dtensor"):
            all_reduce(group, x)

    def test_the_number_of_ranks_must_be_a_positive_integer(self):
        for nranks in (0, -1, 2.5, "2", None, True):
            with (
                self.subTest(nranks=nranks),
                self.assertRaisesRegex(
                    ValueError, f"integer of 1 or more, .* {nranks!r}\\. "
                ),
            ):
                dist.new_thread_groups(nranks)

    def test_integers_of_numpy_are_accepted(self):
        groups = dist.new_thread_groups(np.int64(2), timeout=np.int32(WAIT_S))
        self.assertEqual([group.rank for group in groups], [0, 1])
        self.assertEqual({group.nranks for group in groups}, {2})

    def test_the_timeout_must_be_a_positive_number(self):
        for timeout in (0, -1, float("nan"), None, "x"):
            with (
                self.subTest(timeout=timeout),
                self.assertRaisesRegex(
                    ValueError, f"positive number, .* {timeout!r}\\. "
                ),
            ):
                dist.new_thread_groups(2, timeout)

    def test_the_timeout_may_be_infinite(self):
        for worker in start_plain_threads(
            2, lambda group: all_reduce(group, paddle.ones([1])), timeout=np.inf
        ):
            self.assertEqual(worker.result().tolist(), [2.0])

    def test_unsupported_methods_raise_an_error_that_names_them(self):
        group = dist.new_thread_groups(2)[0].process_group
        check_refusals(
            self, call_missing_methods(group), "thread group", "all_gather"
        )

    def test_tasks_have_the_methods_of_paddle_tasks(self):
        check_task(self, thread_process_group._Task)

    def test_barrier_waits_for_all_threads(self):
        groups = dist.new_thread_groups(2)
        task = groups[0].process_group.barrier()
        self.assertFalse(task.is_completed())
        Worker(dist.barrier, groups[1]).result()
        self.assertTrue(task.is_completed())

    def test_tensors_are_gathered_into_one(self):
        def gather(group):
            gathered = [paddle.zeros([4]) for _ in range(2)]
            x = paddle.full([2], group.rank + 1.0)
            dist.stream.all_gather(gathered[0], x, group=group)
            group.process_group.all_gather(x, gathered[1]).wait()
            return [each.tolist() for each in gathered]

        for worker in start_plain_threads(2, gather):
            self.assertEqual(worker.result(), [[1.0, 1.0, 2.0, 2.0]] * 2)

    def test_tensors_are_gathered_to_any_rank(self):
        def gather(group):
            found = []
            for destination in range(3):
                x = paddle.full([2], group.rank + 1.0)
                mine = [] if group.rank == destination else None
                dist.gather(x, mine, destination, group=group)
                found.append(mine and [each.tolist() for each in mine])
                self.assertEqual(x.tolist(), [group.rank + 1.0] * 2)
            return found

        everything = [[1.0] * 2, [2.0] * 2, [3.0] * 2]
        for rank, worker in enumerate(start_plain_threads(3, gather)):
            expected = [None] * 3
            expected[rank] = everything
            self.assertEqual(worker.result(), expected)

    def test_tensors_are_scattered_from_any_rank(self):
        def scatter(group):
            found = []
            for source in range(3):
                x = paddle.zeros([2])
                parts = [paddle.full([2], 10.0 * source + r) for r in range(3)]
                dist.scatter(
                    x,
                    parts if group.rank == source else None,
                    source,
                    group=group,
                )
                found.append(x.tolist())
            return found

        for rank, worker in enumerate(start_plain_threads(3, scatter)):
            self.assertEqual(
                worker.result(),
                [[10.0 * source + rank] * 2 for source in range(3)],
            )

    def test_an_error_names_mismatched_parts_to_scatter(self):
        group, _ = dist.new_thread_groups(2)
        for parts, text in (
            ([paddle.ones([2])], r"\[2\] got the tensors \['paddle.float32"),
            ([paddle.ones([2]), paddle.ones([3])], r"of shape \[3\]"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                dist.scatter(paddle.zeros([2]), parts, 0, group=group)

    def test_an_error_names_mismatched_outputs_of_gathers(self):
        group, _ = dist.new_thread_groups(2, timeout=1)
        x = paddle.ones([2])
        wrong_lists = [
            [paddle.zeros([2]), paddle.zeros([3])],
            [paddle.zeros([2]), paddle.zeros([2], "int64")],
        ]
        for outputs in [[paddle.zeros([2])], [paddle.zeros([2])] * 3]:
            with self.assertRaisesRegex(ValueError, "each of the 2 ranks"):
                dist.all_gather(outputs, x, group=group)
        for outputs in wrong_lists:
            with self.assertRaisesRegex(ValueError, "^all_gather of .* got"):
                dist.all_gather(outputs, x, group=group)
            with self.assertRaisesRegex(ValueError, "^gather to rank 0 .* got"):
                dist.gather(x, outputs, 0, group=group)
        for output in (paddle.zeros([3]), paddle.zeros([4], "int64")):
            with self.assertRaisesRegex(ValueError, "type with 4 elements"):
                dist.stream.all_gather(output, x, group=group)

    def test_objects_reach_all_threads_from_any_rank(self):
        def exchange(group):
            found = []
            for source in range(3):
                sent = [{"of": group.rank}, "x" * group.rank]
                dist.broadcast_object_list(sent, source, group)
                parts = [f"{source} to {r}" for r in range(3)]
                received = []
                dist.scatter_object_list(
                    received,
                    parts if group.rank == source else None,
                    source,
                    group,
                )
                found.append([sent, received])
            everyone = []
            dist.all_gather_object(everyone, f"of {group.rank}", group)
            return found, everyone

        for rank, worker in enumerate(start_plain_threads(3, exchange)):
            found, everyone = worker.result()
            self.assertEqual(
                found,
                [
                    [[{"of": source}, "x" * source], [f"{source} to {rank}"]]
                    for source in range(3)
                ],
            )
            self.assertEqual(everyone, ["of 0", "of 1", "of 2"])

    def test_a_group_of_one_thread_has_all_operations(self):
        (group,) = dist.new_thread_groups(1, timeout=WAIT_S)
        x = paddle.ones([2])
        dist.all_reduce(x, group=group, sync_op=False).wait()
        dist.broadcast(x, 0, group=group, sync_op=False).wait()
        dist.barrier(group)
        into_tensor = paddle.zeros([2])
        dist.stream.all_gather(into_tensor, x, group=group)
        all_gathered, gathered = [], []
        dist.all_gather(all_gathered, x, group=group)
        dist.gather(x, gathered, 0, group=group)
        scattered = paddle.zeros([2])
        dist.scatter(scattered, [x], 0, group=group)
        found = [x, into_tensor, *all_gathered, *gathered, scattered]
        self.assertEqual([each.tolist() for each in found], [[1.0, 1.0]] * 5)
        objects, broadcast, one_object = [], ["a"], []
        dist.all_gather_object(objects, "a", group)
        dist.broadcast_object_list(broadcast, 0, group)
        dist.scatter_object_list(one_object, ["a"], 0, group)
        self.assertEqual([objects, broadcast, one_object], [["a"]] * 3)

    def test_an_operation_continues_after_a_wait_times_out(self):
        groups = dist.new_thread_groups(2)
        x = paddle.ones([1])
        task = dist.all_reduce(x, group=groups[0], sync_op=False)
        self.assertFalse(task.is_completed())
        for timeout in (datetime.timedelta(milliseconds=1), 0.001, -1, np.nan):
            self.assertFalse(task.wait(timeout))
        self.assertEqual(x.item(), 1.0)
        Worker(all_reduce, groups[1], paddle.ones([1])).result()
        self.assertTrue(task.is_completed())
        self.assertEqual(x.item(), 2.0)
        self.assertTrue(task.wait())
        self.assertEqual(x.item(), 2.0)

    def test_the_timeout_of_a_wait_must_be_a_time(self):
        (group,) = dist.new_thread_groups(1)
        task = dist.all_reduce(paddle.ones([1]), group=group, sync_op=False)
        with self.assertRaisesRegex(TypeError, "number of seconds, .* 'x'"):
            task.wait("x")

    def test_is_completed_names_a_rank_that_has_ended(self):
        groups = dist.new_thread_groups(2)
        ended = Worker(
            lambda: groups[1].process_group.allreduce(paddle.ones([1]))
        )
        task = dist.all_reduce(paddle.ones([1]), group=groups[0], sync_op=False)
        ended.result()
        task.wait()
        task = dist.all_reduce(paddle.ones([1]), group=groups[0], sync_op=False)
        with self.assertRaisesRegex(RuntimeError, "Rank 1 .* has ended"):
            task.is_completed()

    def test_new_threads_need_new_groups(self):
        groups = dist.new_thread_groups(2)

        def reduce(rank):
            dist.all_reduce(paddle.ones([1]), group=groups[rank])

        mp.start_threads(reduce, nthreads=2)
        with self.assertRaisesRegex(RuntimeError, "new groups for new threads"):
            mp.start_threads(reduce, nthreads=2)

    def test_a_rank_continues_after_a_thread_of_its_hook_has_ended(self):
        groups = dist.new_thread_groups(2)
        sums = {}

        def train(rank):
            layer = paddle.nn.Linear(1, 1, bias_attr=False)
            wrapped = paddle.DataParallel(layer, group=groups[rank])

            def reduce(bucket):
                dist.all_reduce(bucket.buffer(), group=bucket.group)
                return bucket.buffer()

            with ThreadPoolExecutor(1) as executor:
                wrapped.register_comm_hook(
                    None, lambda _, bucket: executor.submit(reduce, bucket)
                )
                # The second step ends with an operation of the hook.
                for _ in range(2):
                    wrapped(paddle.ones([1, 1])).sum().backward()
                    layer.clear_gradients()
            x = paddle.ones([1])
            dist.all_reduce(x, group=groups[rank])
            sums[rank] = x.item()

        mp.start_threads(train, nthreads=2)
        self.assertEqual(sums, {0: 2.0, 1: 2.0})

    def test_an_unsupported_data_type_does_not_fail_the_group(self):
        groups = dist.new_thread_groups(2)

        def reduce(rank):
            for dtype in ("uint8", "bool", "int16"):
                with self.assertRaisesRegex(ValueError, f"{dtype} with MAX"):
                    dist.all_reduce(
                        paddle.ones([1]).astype(dtype),
                        dist.ReduceOp.MAX,
                        group=groups[rank],
                    )
            x = paddle.ones([1])
            dist.all_reduce(x, group=groups[rank])
            self.assertEqual(x.item(), 2.0)

        mp.start_threads(reduce, nthreads=2)

    def test_models_are_freed_when_their_threads_end(self):
        layers = []

        def train(group):
            layer = new_layer(0)
            layers.append(weakref.ref(layer))
            loss_of(
                paddle.DataParallel(layer, group=group), paddle.ones([2, 6])
            ).backward()

        for worker in start_plain_threads(2, train):
            worker.result()
        del worker
        gc.collect()
        self.assertEqual([each() for each in layers], [None, None])


def sum_as_tree(parts: list) -> np.ndarray:
    while len(parts) > 1:
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0] + pair[1] if pair[1:] else pair[0] for pair in pairs]
    return parts[0]


if __name__ == "__main__":
    unittest.main()
