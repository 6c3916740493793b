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
"""Property tests of shared tensors: arbitrary views, damaged handles."""

from __future__ import annotations

import os
import random
import unittest
from multiprocessing.reduction import ForkingPickler
from typing import NamedTuple

import numpy as np
from hypothesis import (
    HealthCheck,
    example,
    given,
    seed,
    settings,
    strategies as st,
)
from shared_tensor_base import (  # noqa: F401
    LONG,
    SharingTestCase,
    description,
    keep,
    setUpModule,
    tearDownModule,
)
from shared_tensor_damage import (
    SIZES,
    View,
    damaged,
    extent,
    outcome,
    rebuilt_dense_tensor,
    rebuilt_tensor,
    rebuilt_views,
    with_offset,
)
from shared_tensor_leaks import (
    no_leak,
)

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core
from paddle.base.shared_storage import native

SEED = int(os.environ.get("PADDLE_SHARED_TENSOR_SEED", 20261121))
MANY = 1 << 20
DTYPES = ("bool", "uint8", "int16", "float32", "bfloat16", "complex128")


def property_of(*arguments, examples: int):
    """Decorator: tests a property for random but reproducible arguments."""

    def decorate(test):
        for wrap in (
            given(*arguments),
            seed(SEED),
            settings(
                max_examples=examples * (40 if LONG else 1),
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        ):
            test = wrap(test)
        return test

    return decorate


class Recipe(NamedTuple):
    """Describes a tensor and its views; each view is of an earlier one."""

    shape: list[int]
    dtype: str
    views: list[tuple[int, str, tuple[int, ...]]]

    def make(self) -> list[paddle.Tensor]:
        count = 1
        for size in self.shape:
            count *= size
        made = [paddle.arange(count).cast(self.dtype).reshape(self.shape)]
        for source, kind, numbers in self.views:
            made.append(view_of(made[source % len(made)], kind, numbers))
        return made


def view_of(
    tensor: paddle.Tensor, kind: str, numbers: tuple[int, ...]
) -> paddle.Tensor:
    """Returns a view of a tensor; `numbers` select the view of its kind."""
    axis, first, second, step = numbers
    if not tensor.shape:
        return tensor.reshape([1])
    axis %= len(tensor.shape)
    size = tensor.shape[axis]
    if kind == "transpose":
        order = list(range(len(tensor.shape)))
        order.insert(first % len(order), order.pop(axis))
        return tensor.transpose(order)
    if kind == "index" and size > 0:
        return tensor[(slice(None),) * axis + (first % size,)]
    if kind == "slice":
        begin, end = sorted((first % (size + 1), second % (size + 1)))
        return tensor[(slice(None),) * axis + (slice(begin, end, step),)]
    if kind == "reverse" and size > 0:
        return tensor[(slice(None),) * axis + (slice(None, None, -1),)]
    if kind == "repeat" and min(tensor.shape) > 0:
        shape, strides = list(tensor.shape), list(tensor.strides)
        return paddle.as_strided(
            tensor,
            [*shape, first % 3 + 1],
            [*strides, 0],
            tensor.offset,
        )
    return tensor.flatten() if tensor.is_contiguous() else tensor


recipes = st.builds(
    Recipe,
    st.lists(st.integers(0, 6), max_size=4),
    st.sampled_from(DTYPES),
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(
                ["transpose", "index", "slice", "reverse", "repeat"]
            ),
            st.tuples(*[st.integers(0, 6)] * 3, st.integers(1, 3)),
        ),
        max_size=5,
    ),
)


# Numbers near the ends of a 128-byte block, or of the range of integers.
extremes = [2**64 - 1, 2**64 - 4, 2**64 - 100, 2**63, 2**62, 2**32, -1]
offsets = st.integers(0, 140) | st.integers(90, 130) | st.sampled_from(extremes)
lengths = st.integers(0, 40) | st.sampled_from(
    [-1, 2**20, 2**31, 2**61, 2**62 + 1, 2**63 - 1, -(2**63), 2**64]
)
views = st.lists(
    st.builds(
        View,
        st.sampled_from([*SIZES, core.DataType.UNDEFINED]),
        st.lists(lengths, max_size=2) | st.lists(lengths, max_size=10),
        st.just(0) | offsets,
    ),
    min_size=1,
    max_size=2,
)


# Functions for `Peer.call`.


def keep_block(kept, tensor, size):
    """Keeps a tensor at the start of a block of the given size in bytes."""
    begin = tensor.data_ptr()
    kept.setdefault("tensors", []).append(tensor)
    kept.setdefault("blocks", []).append((begin, begin + size))


def outcome_in_blocks(kept, rebuild, arguments):
    return outcome(rebuild, arguments, kept["blocks"])


def look(kept):
    """Returns the tensors' contents, and their positions from the first."""
    tensors = kept["tensors"]
    begin = tensors[0].data_ptr()
    return (
        [description(tensor) for tensor in tensors],
        [tensor.data_ptr() - begin for tensor in tensors],
    )


def rebuild_and_read(kept, reduced):
    """Returns the name of the outcome of rebuilding a damaged handle."""
    function, args = reduced
    try:
        read(function(*args))
    except Exception as error:
        return type(error).__name__
    return "read"


def read(tensor: paddle.Tensor | paddle.base.core.DenseTensor) -> None:
    """Reads every element, even of a view that repeats a few elements."""
    if isinstance(tensor, paddle.Tensor):
        if tensor.size > MANY:
            tensor = tensor[tuple(size - 1 for size in tensor.shape)]
        tensor.numpy().tobytes()
    elif tensor._numel() <= MANY:
        np.array(tensor).tobytes()


def reduced(tensor: paddle.Tensor) -> tuple:
    """Returns the reduction of a tensor."""
    return ForkingPickler._extra_reducers[type(tensor)](tensor)


class TestProperties(SharingTestCase):
    method = "fork"

    def setUp(self):
        super().setUp()
        print(f"PADDLE_SHARED_TENSOR_SEED={SEED}", flush=True)

    def check_arrival(self, groups: list[Recipe]) -> None:
        for recipe in groups:
            made = recipe.make()
            expected = [description(tensor) for tensor in made]
            self.peer.call(keep, "tensors", made)
            seen, places = self.peer.call(look)
            self.assertEqual(seen, expected)
            self.assertEqual([description(tensor) for tensor in made], expected)
            if made[0].size:
                begin = made[0].data_ptr()
                self.assertEqual(
                    places,
                    [
                        tensor.data_ptr() - begin if tensor.size else place
                        for tensor, place in zip(made, places)
                    ],
                )
                # They share memory; they are not copies with the same layout.
                made[0].fill_(1)
                self.assertEqual(
                    self.peer.call(look)[0],
                    [description(tensor) for tensor in made],
                )

    @property_of(st.lists(recipes, min_size=1, max_size=2), examples=100)
    @example([Recipe([6, 4], "float32", [(0, "transpose", (0, 1, 0, 1))])])
    @example([Recipe([0, 3], "int16", [(0, "slice", (1, 0, 2, 1))])])
    def test_any_views_arrive_equal_and_with_their_aliases(self, groups):
        self.check_arrival(groups)

    @property_of(st.integers(0, 2**32), st.integers(1, 4), examples=200)
    def test_damaged_handle_raises_or_can_be_read(self, number, amount):
        rng = random.Random(number)
        tensor = paddle.arange(rng.choice((1, 6, 5000)))
        for kind in (tensor, tensor[::2], tensor.get_tensor()):
            function, args = reduced(kind)
            self.peer.call(
                rebuild_and_read, (function, damaged(args, rng, amount))
            )

    def share_blocks(self) -> list[paddle.Tensor]:
        """Returns tensors in all blocks, each of which the peer knows."""
        tensors = []
        for size in (25, 6, 5000):
            before = self.used()
            tensors.append(paddle.arange(size, dtype="float32"))
            native.share_tensor(tensors[-1], lambda _: None)
            size = self.used() - before
            self.peer.call(keep_block, tensors[-1], size)
        return tensors

    def check_any_handle(
        self, rebuild, number, tensor, amount, start, *arguments
    ):
        rng = random.Random(number)
        handle = native.share_tensor(self.tensors[tensor], lambda _: None)
        if start is not None:
            handle = with_offset(handle, start % 2**64)
        arguments = (damaged(handle, rng, amount), *arguments)
        got = self.peer.call(outcome_in_blocks, rebuild, arguments)
        own = [extent(tensor) for tensor in self.tensors]
        # Here the storage of a tensor may end before its block ends.
        here = outcome(rebuild, arguments, own)
        return {got, here}

    def check_any_handles(self, rebuild, *arguments, examples: int) -> None:
        """Checks that any handle for `rebuild` reaches only sent memory."""
        self.tensors = self.share_blocks()
        seen = set()

        drawn = st.tuples(
            st.integers(0, 2**32),
            st.sampled_from([0, 0, 1, 2]),
            st.sampled_from([0, 0, 1, 3]),
            st.none() | offsets,
            *arguments,
        )

        @property_of(drawn, examples=examples)
        def check(drawn):
            seen.update(self.check_any_handle(rebuild, *drawn))

        check()
        self.assertIn("inside", seen)
        self.assertIn("ValueError", seen)
        sharing.collect_shared_memory(message_timeout=0)

    def test_any_handle_of_a_tensor_reaches_nothing_outside_a_block(self):
        self.check_any_handles(rebuilt_tensor, examples=200)

    def test_any_handle_of_a_dense_tensor_reaches_nothing_outside_a_block(self):
        self.check_any_handles(rebuilt_dense_tensor, examples=200)

    def test_any_views_reach_nothing_outside_a_block(self):
        self.check_any_handles(rebuilt_views, views, examples=300)

    def test_handle_that_is_not_damaged_is_read(self):
        tensor = paddle.arange(5000)
        with no_leak(self.peer):
            for kind in (tensor, tensor[::2], tensor.get_tensor()):
                self.assertEqual(
                    self.peer.call(rebuild_and_read, reduced(kind)), "read"
                )
            del tensor, kind

    def test_most_damage_is_noticed(self):
        rng = random.Random(SEED)
        tensor = paddle.arange(5000)
        outcomes = []
        for _ in range(200):
            function, args = reduced(tensor)
            outcomes.append(
                self.peer.call(
                    rebuild_and_read, (function, damaged(args, rng, 2))
                )
            )
        self.assertLess(outcomes.count("read"), 150, outcomes)

    def test_damaged_handles_leave_nothing_behind(self):
        rng = random.Random(SEED)
        with no_leak(self.peer):
            for _ in range(200):
                function, args = reduced(paddle.arange(5000))
                self.peer.call(
                    rebuild_and_read, (function, damaged(args, rng, 1))
                )
            # Expire the damaged messages, most of which were not received.
            sharing.collect_shared_memory(message_timeout=0)


class TestPropertiesOfDescriptors(TestProperties):
    strategy = "file_descriptor"


if __name__ == "__main__":
    unittest.main()
