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
"""Sparse tensors shared between processes."""

from __future__ import annotations

import unittest
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

import numpy as np
from cuda_ipc_base import GpuTestCase, gpu
from shared_tensor_base import (  # noqa: F401
    SharingTestCase,
    echo,
    over_every_way_to_send,
    setUpModule,
    tearDownModule,
)

import paddle
from paddle.base.tensor_sharing import dense_parts
from paddle.incubate.multiprocessing.tensor_reductions import reduce_tensor


def coordinates() -> paddle.Tensor:
    # Out of order, with one duplicate index.
    return paddle.sparse.sparse_coo_tensor(
        [[1, 0, 1], [2, 1, 2]], [1.0, 2.0, 3.0], [2, 3]
    )


def sparse_tensors() -> dict[str, paddle.Tensor]:
    hybrid = paddle.arange(6, dtype="float64").reshape([2, 3])
    return {
        "coordinates": coordinates(),
        "coalesced": coordinates().coalesce(),
        "hybrid": paddle.sparse.sparse_coo_tensor([[3, 0]], hybrid, [5, 3]),
        "three dimensions": paddle.sparse.sparse_coo_tensor(
            [[0, 1], [1, 0], [2, 2]], [1, 2], [2, 2, 3], dtype="int64"
        ),
        "coordinates without values": paddle.base.core.eager.sparse_coo_tensor(
            paddle.zeros([2, 0], "int64"), paddle.zeros([0]), [2, 3], True
        ),
        "rows": paddle.sparse.sparse_csr_tensor(
            [0, 2, 3], [0, 2, 1], [1.0, 2.0, 3.0], [2, 3]
        ),
        "batch of rows": paddle.sparse.sparse_csr_tensor(
            [0, 1, 2, 0, 1, 1], [1, 0, 2], [1.0, 2.0, 3.0], [2, 2, 3]
        ),
        "rows without values": paddle.base.core.eager.sparse_csr_tensor(
            paddle.zeros([3], "int64"),
            paddle.zeros([0], "int64"),
            paddle.zeros([0]),
            [2, 3],
            True,
        ),
    }


class Description(NamedTuple):
    """The properties and content of a sparse tensor, in plain values."""

    is_coo: bool
    is_csr: bool
    shape: list[int]
    dtype: str
    coalesced: bool | None
    stop_gradient: bool
    parts: list[tuple[str, list]]


def description(tensor: paddle.Tensor) -> Description:
    return Description(
        tensor.is_sparse_coo(),
        tensor.is_sparse_csr(),
        list(tensor.shape),
        str(tensor.dtype),
        tensor.is_coalesced() if tensor.is_sparse_coo() else None,
        tensor.stop_gradient,
        [(str(part.dtype), part.tolist()) for part in dense_parts(tensor)],
    )


# Functions for `Peer.call`.


def describe(kept, tensor):
    return description(tensor)


def fill_values(kept, tensor, value):
    dense_parts(tensor)[-1].fill_(value)


def describe_in_containers(kept, containers):
    return [description(each["x"]) for each in containers[0]]


def doubled(kept, tensor):
    return paddle.sparse.add(tensor, tensor).to_dense().numpy()


def read_and_write_on_gpu(kept, tensor, values):
    parts = dense_parts(tensor)
    seen = [(str(part.place), gpu.to_cpu(part).tolist()) for part in parts]
    gpu.write(parts[-1], paddle.to_tensor(values))
    return seen


@over_every_way_to_send()
class TestSparse(SharingTestCase):
    def test_sparse_tensor_arrives(self):
        for name, tensor in sparse_tensors().items():
            with self.subTest(name):
                expected = description(tensor)
                self.assertEqual(self.peer.call(describe, tensor), expected)
                self.assertEqual(description(tensor), expected)

    def test_received_tensor_can_require_grad(self):
        tensor = coordinates()
        tensor.stop_gradient = False
        self.assertFalse(self.peer.call(describe, tensor).stop_gradient)

    def test_sender_sees_what_the_receiver_writes(self):
        for name, tensor in sparse_tensors().items():
            with self.subTest(name):
                self.peer.call(fill_values, tensor, 7)
                values = tensor.values().numpy()
                np.testing.assert_array_equal(values, np.full_like(values, 7))

    def test_sparse_tensor_sent_back_is_the_senders_own_memory(self):
        for name, tensor in sparse_tensors().items():
            with self.subTest(name):
                back = self.peer.call(echo, tensor)
                for mine, theirs in zip(dense_parts(tensor), dense_parts(back)):
                    self.assertEqual(mine.data_ptr(), theirs.data_ptr())

    def test_sparse_tensors_in_containers_arrive(self):
        tensors = list(sparse_tensors().values())
        self.assertEqual(
            self.peer.call(
                describe_in_containers, ([{"x": each} for each in tensors],)
            ),
            [description(each) for each in tensors],
        )

    def test_receiver_computes_with_received_tensors(self):
        for name in ("coalesced", "rows"):
            tensor = sparse_tensors()[name]
            np.testing.assert_array_equal(
                self.peer.call(doubled, tensor), 2 * tensor.to_dense().numpy()
            )

    def test_values_stay_shared_with_a_dense_tensor(self):
        values = paddle.ones([2])
        tensor = paddle.sparse.sparse_coo_tensor([[0, 1]], values, [2])
        back, values_back = self.peer.call(echo, [tensor, values])
        self.assertEqual(back.values().data_ptr(), values_back.data_ptr())


class TestSharingSparse(SharingTestCase):
    def test_result_that_requires_grad_is_refused(self):
        values = paddle.ones([2])
        tensor = paddle.sparse.sparse_coo_tensor(
            [[0, 1]], values, [2], stop_gradient=False
        )
        with self.assertRaisesRegex(RuntimeError, "must be a leaf"):
            ForkingPickler.dumps(tensor)
        ForkingPickler.loads(ForkingPickler.dumps(tensor.detach()))

    def test_share_memory_moves_all_parts(self):
        for name, tensor in sparse_tensors().items():
            with self.subTest(name):
                expected = description(tensor)
                if tensor.nnz() > 0:
                    self.assertFalse(tensor.is_shared())
                self.assertIs(tensor.share_memory_(), tensor)
                self.assertTrue(tensor.is_shared())
                self.assertEqual(description(tensor), expected)

    def test_sparse_tensor_is_not_shared_when_a_part_is_not(self):
        for name in ("coordinates", "rows"):
            for part in range(len(dense_parts(sparse_tensors()[name]))):
                with self.subTest(name, part=part):
                    tensor = sparse_tensors()[name]
                    dense_parts(tensor)[part].share_memory_()
                    self.assertFalse(tensor.is_shared())

    def test_parts_that_do_not_fit_are_refused(self):
        one, two, line = paddle.ones([1]), paddle.ones([2]), paddle.ones([2, 1])
        rebuild, (_, _, rest, _) = reduce_tensor(coordinates())
        bad = {
            "indices of another number": ([line, two], "coo", rest),
            "indices that are no matrix": ([two, two], "coo", rest),
            "values without dimensions": ([line, two.sum()], "coo", rest),
            "values of other sizes": ([line, line], "coo", ([2, 3, 9], True)),
            "columns of another number": ([two, one, two], "csr", ([2, 3],)),
            "rows of another number": ([line], "rows", ([1, 2, 3], 5)),
        }
        for name, (parts, kind, rest) in bad.items():
            with (
                self.subTest(name),
                self.assertRaisesRegex(ValueError, "fit each other"),
            ):
                rebuild(parts, kind, rest, True)


class TestSparseOnGpu(GpuTestCase):
    def made(self) -> paddle.Tensor:
        parts = [paddle.to_tensor([[2, 0]]), paddle.to_tensor([1.0, 2.0])]
        return paddle.base.core.eager.sparse_coo_tensor(
            *[gpu.to_gpu(part, 0) for part in parts], [3], True
        )

    def test_parts_on_a_gpu_are_one_memory(self):
        tensor = self.made()
        self.assertEqual(
            self.peer.call(read_and_write_on_gpu, tensor, [5.0, 6.0]),
            [("Place(gpu:0)", [[2, 0]]), ("Place(gpu:0)", [1.0, 2.0])],
        )
        values = gpu.to_cpu(dense_parts(tensor)[-1])
        self.assertEqual(values.tolist(), [5.0, 6.0])

    def test_tensor_on_a_gpu_is_shared_as_it_is(self):
        tensor = self.made()
        places = [gpu.address(part) for part in dense_parts(tensor)]
        self.assertTrue(tensor.is_shared())
        self.assertIs(tensor.share_memory_(), tensor)
        self.assertEqual(
            [gpu.address(part) for part in dense_parts(tensor)], places
        )


class TestSharingSparseByDescriptors(TestSharingSparse):
    strategy = "file_descriptor"


if __name__ == "__main__":
    unittest.main()
