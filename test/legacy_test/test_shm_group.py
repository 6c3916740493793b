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
"""The operations of the backend shm, compared with gloo and with NumPy."""

from __future__ import annotations

import functools
import time
import unittest

import numpy as np
from shm_group_base import ON_LINUX, Ranks, join_default_group

import paddle
import paddle.distributed as dist

# Types that gloo reduces correctly, and the others. gloo's sum of float16 is
# infinite, or zero.
GLOO_TYPES = (
    "float32",
    "float64",
    "bfloat16",
    "int8",
    "uint8",
    "int32",
    "int64",
)
OWN_TYPES = ("float16", "int16", "complex64", "complex128")
REDUCTIONS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
}
# Empty, smaller than a cache line, inline, in windows, and not divisible by the
# number of ranks.
SIZES = (0, 1, 7, 5003, 100003)


@functools.cache
def shm_group() -> dist.communication.group.Group:
    """Returns a shm group of all ranks. The default group uses gloo."""
    return dist.new_group(backend="shm")


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    """Returns small integers: their sums and products are exact in any type."""
    found = np.random.RandomState(rank + 17 * size).randint(0, 3, size)
    if dtype.startswith("complex"):
        return found + 1j * found[::-1]
    return found


def tensor(rank: int, size: int, dtype: str) -> paddle.Tensor:
    return paddle.to_tensor(values(rank, size, dtype)).astype(dtype)


def array(found: paddle.Tensor) -> np.ndarray:
    if found.dtype == paddle.bfloat16:
        found = found.astype("float32")
    return found.numpy().copy()


def compare_backends(run) -> None:
    """Compares the results of operations in a gloo group and in a shm group."""
    for gloo, shm in zip(run(None), run(shm_group())):
        np.testing.assert_array_equal(shm, gloo)


def all_reduce(dtype: str, sync_op: bool) -> None:
    for count in SIZES[1:]:
        for name in REDUCTIONS:

            def run(used, count=count, name=name):
                x = tensor(dist.get_rank(), count, dtype)
                dist.all_reduce(
                    x, getattr(dist.ReduceOp, name), used, sync_op
                ).wait()
                return [array(x)]

            compare_backends(run)


def reduce(dtype: str) -> None:
    for root in range(dist.get_world_size()):

        def run(used, root=root):
            x = tensor(dist.get_rank(), 1000, dtype)
            dist.reduce(x, root, dist.ReduceOp.SUM, used)
            # gloo uses the other ranks' tensors as scratch memory.
            return [array(x)] if dist.get_rank() == root else []

        compare_backends(run)


def move(dtype: str) -> None:
    """Broadcasts, gathers and scatters from and to each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in SIZES[1:]:
        for root in range(size):

            def run(used, count=count, root=root):
                x = tensor(rank, count, dtype)
                dist.broadcast(x, root, used)
                everything: list = []
                dist.all_gather(everything, tensor(rank, count, dtype), used)
                gathered: list | None = [] if rank == root else None
                dist.gather(tensor(rank, count, dtype), gathered, root, used)
                part = paddle.zeros([count], dtype)
                parts = (
                    [tensor(10 + i, count, dtype) for i in range(size)]
                    if rank == root
                    else None
                )
                dist.scatter(part, parts, root, used)
                return [
                    array(t) for t in [x, *everything, *(gathered or []), part]
                ]

            compare_backends(run)


def send(dtype: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()

    def run(used):
        found = []
        for count in SIZES[1:]:
            x = paddle.zeros([count], dtype)
            # Around the ring: even ranks send first.
            for turn in range(2):
                if (rank + turn) % 2 == 0:
                    dist.send(
                        tensor(rank, count, dtype), (rank + 1) % size, used
                    )
                else:
                    dist.recv(x, (rank - 1) % size, used)
            found.append(array(x))
        return found

    compare_backends(run)


def not_in_gloo(dtype: str) -> None:
    """Compares operations that gloo does not have with NumPy."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    for count in SIZES:
        inputs = [values(r, count * size, dtype) for r in range(size)]
        everyone = sum(inputs[1:], inputs[0])
        mine = slice(rank * count, (rank + 1) * count)
        out = paddle.zeros([count], dtype)
        dist.stream.reduce_scatter(
            out, tensor(rank, count * size, dtype), group=used
        )
        np.testing.assert_array_equal(array(out), everyone[mine])
        out = paddle.zeros([count * size], dtype)
        dist.alltoall_single(out, tensor(rank, count * size, dtype), group=used)
        np.testing.assert_array_equal(
            array(out), np.concatenate([x[mine] for x in inputs])
        )
        outs = [paddle.zeros([count], dtype) for _ in range(size)]
        dist.alltoall(
            outs,
            [
                paddle.to_tensor(x).astype(dtype)
                for x in np.split(inputs[rank], size)
            ],
            used,
        )
        for r in range(size):
            np.testing.assert_array_equal(array(outs[r]), inputs[r][mine])
        whole = paddle.zeros([count * size * size], dtype)
        dist.stream.all_gather(
            whole, tensor(rank, count * size, dtype), group=used
        )
        np.testing.assert_array_equal(array(whole), np.concatenate(inputs))


def uneven() -> None:
    """Rank r sends 3 * r + s + 1 rows to rank s, of two elements each."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    sent = [3 * rank + s + 1 for s in range(size)]
    received = [3 * r + rank + 1 for r in range(size)]
    x = paddle.concat(
        [paddle.full([n, 2], rank * 100 + s) for s, n in enumerate(sent)]
    )
    out = paddle.zeros([sum(received), 2], x.dtype)
    dist.alltoall_single(out, x, sent, received, used)
    expected = np.concatenate(
        [np.full([n, 2], r * 100 + rank) for r, n in enumerate(received)]
    )
    np.testing.assert_array_equal(out.numpy(), expected)


def reduce_own_type(dtype: str) -> None:
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    inputs = [values(r, 1000, dtype) for r in range(size)]
    names = ("SUM", "PROD") if "complex" in dtype else REDUCTIONS
    for name in names:
        x = tensor(rank, 1000, dtype)
        dist.all_reduce(x, getattr(dist.ReduceOp, name), used)
        np.testing.assert_array_equal(
            array(x), functools.reduce(REDUCTIONS[name], inputs)
        )


def reduce_bool() -> dict[str, list]:
    rank, used = dist.get_rank(), shm_group()
    found = {}
    for name in REDUCTIONS:
        x = paddle.to_tensor([False, rank == 0, True])
        dist.all_reduce(x, getattr(dist.ReduceOp, name), used)
        found[name] = x.tolist()
    return found


def average(dtype: str, backend: str = "shm") -> np.ndarray:
    x = tensor(dist.get_rank(), 1000, dtype)
    group = {"shm": shm_group(), "gloo": None}[backend]
    dist.all_reduce(x, dist.ReduceOp.AVG, group)
    return array(x)


def random_sum(count: int, dtype: str) -> bytes:
    """Returns the bits of a sum that depends on the order of its terms."""
    rank = dist.get_rank()
    data = np.random.RandomState(rank).standard_normal(count)
    x = paddle.to_tensor(data * 10.0**rank).astype(dtype)
    dist.all_reduce(x, group=shm_group())
    return x.astype("float32").numpy().tobytes()


def view_results() -> None:
    """Reduces in the middle of a larger tensor."""
    whole = paddle.zeros([3, 500])
    row = whole[1]
    row[:] = 1.0
    before = whole.numpy()
    dist.all_reduce(row, group=shm_group())
    np.testing.assert_array_equal(row.numpy(), dist.get_world_size())
    after = whole.numpy()
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[2], before[2])


def exchange(batch: bool) -> None:
    """Each rank sends to all others before it receives from them."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    others = [r for r in range(size) if r != rank]
    mine = paddle.full([400001], float(rank))
    theirs = [paddle.zeros([400001]) for _ in others]
    if batch:
        tasks = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, r, used) for r in others]
            + [
                dist.P2POp(dist.irecv, x, r, used)
                for r, x in zip(others, theirs)
            ]
        )
    else:
        tasks = [dist.isend(mine, r, used) for r in others]
        tasks += [dist.irecv(x, r, used) for r, x in zip(others, theirs)]
    # A collective operation while these are in flight.
    dist.barrier(used)
    for task in tasks:
        task.wait()
    for r, x in zip(others, theirs):
        np.testing.assert_array_equal(x.numpy(), r)


def move_parts() -> None:
    """Sends, receives and gathers parts of tensors, like pipelines do."""
    rank, size, group = (
        dist.get_rank(),
        dist.get_world_size(),
        shm_group().process_group,
    )
    whole = paddle.arange(6, dtype="float32")
    if rank == 0:
        group.send_partial(whole, 1, 3, 2, True).wait()
    elif rank == 1:
        received = paddle.zeros([6])
        group.recv_partial(received, 0, 3, 1, True).wait()
        assert received.tolist() == [0, 0, 4, 5, 0, 0], received
    gathered = paddle.full([2 * size], -1.0)
    gathered[2 * rank : 2 * rank + 2] = float(rank)
    group.all_gather_partial(gathered, gathered, size, rank).wait()
    np.testing.assert_array_equal(
        gathered.numpy(), np.repeat(np.arange(size), 2)
    )


def call_as_older_code() -> None:
    """Calls methods with argument forms that only some Paddle code uses."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = shm_group().process_group
    whole, mine = paddle.zeros([2 * size]), paddle.full([2], float(rank))
    group.all_gather(mine, whole).wait()
    expected = np.repeat(np.arange(size), 2)
    np.testing.assert_array_equal(whole.numpy(), expected)
    group.scatter(whole + 5, mine, 1).wait()
    np.testing.assert_array_equal(mine.numpy(), rank + 5)


def gather_without_waiting() -> None:
    """Rank 0 calls operations with list results before the others do."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    mine = paddle.full([1000], float(rank))
    for call in (
        lambda out: dist.all_gather(out, mine, used, False),
        lambda out: dist.gather(
            mine, out if rank == 0 else None, 0, used, False
        ),
        lambda out: dist.alltoall(out, [mine] * size, used, False),
    ):
        # Without the barrier, a rank might be late for the previous operation.
        dist.barrier(used)
        if rank != 0:
            time.sleep(0.1)
        found: list = []
        call(found).wait()
        for sender, part in enumerate(found):
            np.testing.assert_array_equal(part.numpy(), float(sender))
        assert len(found) == size or (rank != 0 and not found), found


def reduce_scatter_without_waiting() -> None:
    """Rank 0 begins before the others, which wait for a message from it."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    message = paddle.zeros([1])
    if rank != 0:
        dist.recv(message, 0, used)
    out = paddle.zeros([3])
    task = dist.stream.reduce_scatter(
        out, paddle.arange(3.0 * size), group=used, sync_op=False
    )
    if rank == 0:
        assert not task.is_completed()
        for other in range(1, size):
            dist.send(message, other, used)
    task.wait()
    assert task.is_completed()
    expected = size * np.arange(3.0 * rank, 3.0 * rank + 3)
    np.testing.assert_array_equal(out.numpy(), expected)


def use_lists(dtype: str) -> None:
    """Gathers into lists with and without tensors, and scatters lists."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    for count in SIZES:
        inputs = [values(r, count, dtype) for r in range(size)]
        mine = tensor(rank, count, dtype)
        everything: list = []
        dist.all_gather(everything, mine, used)
        filled = [paddle.zeros([count], dtype) for _ in range(size)]
        filled[rank] = mine
        dist.all_gather(tuple(filled), mine, used)
        gathered: list | None = [] if rank == 1 else None
        dist.gather(mine, gathered, 1, used)
        for found in (everything, filled, gathered or []):
            for part, expected in zip(found, inputs):
                np.testing.assert_array_equal(array(part), expected)
        parts = [tensor(r, count, dtype) for r in range(size)]
        # The tensor of this rank is its own part.
        out = parts[rank] if rank == 1 else paddle.zeros([count], dtype)
        dist.scatter(out, parts if rank == 1 else None, 1, used)
        np.testing.assert_array_equal(array(out), inputs[rank])


def gather_into_wrong_lists() -> list[str]:
    """Returns the errors of lists that do not fit the group or the tensor."""
    size, used, mine = dist.get_world_size(), shm_group(), paddle.zeros([2])
    texts = []
    for parts in (
        [paddle.zeros([2])],
        [paddle.zeros([3]) for _ in range(size)],
        [paddle.zeros([2], "int32") for _ in range(size)],
        [mine] * size,
    ):
        try:
            dist.all_gather(parts, mine, used)
        except ValueError as error:
            texts.append(str(error))
    return texts


def move_nothing(dtype: str) -> None:
    """Runs the operations that gloo has, on tensors without elements."""
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    x = paddle.zeros([0, 3], dtype)
    for name in REDUCTIONS:
        dist.all_reduce(x, getattr(dist.ReduceOp, name), used)
        dist.reduce(x, 1, getattr(dist.ReduceOp, name), used)
    dist.broadcast(x, 1, used)
    parts = [x.clone() for _ in range(size)]
    dist.scatter(x, parts if rank == 1 else None, 1, used)
    if rank == 0:
        dist.send(x, 1, used)
    elif rank == 1:
        dist.recv(x, 0, used)
    assert x.shape == [0, 3], x.shape


def objects() -> None:
    rank, size, used = dist.get_rank(), dist.get_world_size(), shm_group()
    found: list = []
    dist.all_gather_object(found, {"rank": rank}, used)
    assert found == [{"rank": r} for r in range(size)], found
    one = [rank]
    dist.broadcast_object_list(one, 1, used)
    assert one == [1], one


def scatter_objects() -> None:
    """Scatters objects in a group of ranks 1 and 3."""
    rank = dist.get_rank()
    used = dist.new_group([1, 3], backend="shm")
    if rank in (1, 3):
        found: list = []
        parts = [{"to": 1}, {"to": 3}] if rank == 3 else None
        dist.scatter_object_list(found, parts, 3, used)
        assert found == [{"to": rank}], found


def reduce_scatter_unequally(sizes: list[int]) -> str:
    """Returns the error for parts of these sizes, with their mean as the size
    of the result."""
    used = shm_group()
    out = paddle.zeros([sum(sizes) // dist.get_world_size()])
    try:
        dist.reduce_scatter(out, [paddle.ones([n]) for n in sizes], group=used)
    except ValueError as error:
        return str(error)
    return f"nothing; the result is {out.tolist()}"


def reduce_scatter_in_one_part(missing: int) -> list[float] | str:
    """Returns the result for one part that joins the parts of all ranks, or the
    error if elements are missing."""
    size = dist.get_world_size()
    part = paddle.arange(2 * size - missing, dtype="float32")
    out = paddle.zeros([2])
    try:
        dist.reduce_scatter(out, [part], group=shm_group())
    except ValueError as error:
        return str(error)
    return out.tolist()


def reduce_scatter_ones() -> list[float]:
    out = paddle.zeros([2])
    parts = [paddle.ones([2])] * dist.get_world_size()
    dist.reduce_scatter(out, parts, group=shm_group())
    return out.tolist()


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestShmGroup(unittest.TestCase):
    """Two jobs, of 2 and 4 ranks, have a group of each backend."""

    @classmethod
    def setUpClass(cls):
        cls.jobs = [Ranks(size, backend="gloo") for size in (2, 4)]
        for ranks in cls.jobs:
            cls.addClassCleanup(ranks.end)
            ranks.call(join_default_group)
        cls.four = cls.jobs[1]

    def over_types(self, types, *calls):
        for ranks in self.jobs:
            for dtype in types:
                for function, *args in calls:
                    with self.subTest(
                        size=len(ranks.pids),
                        dtype=dtype,
                        call=function.__name__,
                    ):
                        ranks.call(function, dtype, *args)

    def test_reductions_equal_those_of_gloo(self):
        self.over_types(
            GLOO_TYPES, (all_reduce, True), (all_reduce, False), (reduce,)
        )

    def test_operations_that_move_data_equal_those_of_gloo(self):
        self.over_types((*GLOO_TYPES, "float16", "bool"), (move,), (send,))

    def test_operations_that_gloo_does_not_have(self):
        self.over_types((*GLOO_TYPES, *OWN_TYPES), (not_in_gloo,))

    def test_lists_of_all_types_are_gathered_and_scattered(self):
        self.over_types((*GLOO_TYPES, *OWN_TYPES), (use_lists,))

    def test_lists_that_do_not_fit_are_refused(self):
        for texts in self.four.call(gather_into_wrong_lists):
            self.assertEqual(len(texts), 4)
            self.assertIn("list of 1 tensors", texts[0])
            self.assertIn("output of 3 elements", texts[1])
            self.assertIn("type int32", texts[2])
            self.assertIn("overlaps this rank's tensor", texts[3])
        self.four.call(objects)

    def test_tensors_without_elements(self):
        self.over_types(("float32", "float16", "int8"), (move_nothing,))

    def test_asynchronous_reduce_scatter(self):
        for ranks in self.jobs:
            ranks.call(reduce_scatter_without_waiting)

    def test_all_to_all_with_unequal_sizes(self):
        for ranks in self.jobs:
            ranks.call(uneven)

    def test_types_that_gloo_does_not_have(self):
        self.over_types(OWN_TYPES, (reduce_own_type,))

    def test_sum_of_booleans_is_or_and_product_is_and(self):
        for found in self.four.call(reduce_bool):
            self.assertEqual(
                found,
                {
                    "SUM": [False, True, True],
                    "PROD": [False, False, True],
                    "MIN": [False, False, True],
                    "MAX": [False, True, True],
                },
            )

    def test_average_divides_the_sum(self):
        expected = sum(values(r, 1000, "float32") for r in range(4)) / 4
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            for found in self.four.call(average, dtype):
                np.testing.assert_array_equal(found, expected)

    def test_average_over_gloo(self):
        expected = sum(values(r, 1000, "float32") for r in range(4)) / 4
        for dtype in ("float32", "float64"):
            for found in self.four.call(average, dtype, "gloo"):
                np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_all_ranks_get_the_same_bits_in_every_run(self):
        for dtype in ("float32", "float16", "bfloat16"):
            for count in (5, 4000, 300001):
                found = {
                    bits
                    for _ in range(3)
                    for bits in self.four.call(random_sum, count, dtype)
                }
                self.assertEqual(len(found), 1, (dtype, count))

    def test_half_types_are_summed_as_float32(self):
        data = [
            paddle.to_tensor(
                np.random.RandomState(r).standard_normal(100) * 10.0**r
            )
            .astype("float16")
            .astype("float32")
            for r in range(4)
        ]
        expected = functools.reduce(paddle.add, data).astype("float16")
        found = self.four.call(random_sum, 100, "float16")[0]
        self.assertEqual(found, expected.astype("float32").numpy().tobytes())

    def test_part_of_a_larger_tensor(self):
        self.four.call(view_results)

    def test_all_ranks_may_send_before_they_receive(self):
        for ranks in self.jobs:
            for batch in (False, True):
                ranks.call(exchange, batch)

    def test_operations_on_parts_of_tensors(self):
        for ranks in self.jobs:
            ranks.call(move_parts)

    def test_methods_accept_the_arguments_of_older_code(self):
        for ranks in self.jobs:
            ranks.call(call_as_older_code)

    def test_lists_that_asynchronous_operations_fill(self):
        for ranks in self.jobs:
            ranks.call(gather_without_waiting)

    def test_objects_are_gathered_and_broadcast(self):
        self.four.call(objects)

    def test_objects_are_scattered_in_a_group_of_some_ranks(self):
        self.four.call(scatter_objects)

    def test_reduce_scatter_takes_the_parts_of_all_ranks_joined(self):
        for ranks in self.jobs:
            size = len(ranks.pids)
            self.assertEqual(
                ranks.call(reduce_scatter_in_one_part, 0),
                [
                    [size * 2.0 * rank, size * (2.0 * rank + 1)]
                    for rank in range(size)
                ],
            )
            for text in ranks.call(reduce_scatter_in_one_part, 1):
                self.assertIn(f"parts of [{2 * size - 1}] elements", text)

    def test_unequal_parts_of_reduce_scatter_are_refused_on_all_ranks(self):
        for ranks in self.jobs:
            size = len(ranks.pids)
            for sizes in ([1, 3] * (size // 2), [3, 1] * (size // 2)):
                with self.subTest(sizes=sizes):
                    for text in ranks.call(reduce_scatter_unequally, sizes):
                        self.assertIn(f"parts of {sizes} elements", text)
            self.assertEqual(
                ranks.call(reduce_scatter_ones), [[float(size)] * 2] * size
            )


if __name__ == "__main__":
    unittest.main()
