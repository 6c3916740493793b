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
"""Tensors shared between processes: any views, and damaged handles."""

from __future__ import annotations

import os
import random
import unittest
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

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
from shared_tensor_leaks import (
    no_leak,
)

import paddle
import paddle.incubate.multiprocessing as sharing

SEED = int(os.environ.get("PADDLE_SHARED_TENSOR_SEED", 20261121))
MANY = 1 << 20
DTYPES = ("bool", "uint8", "int16", "float32", "bfloat16", "complex128")


def property_of(*arguments, examples: int):
    """Decorator: a test that holds for any arguments, the same in each run."""

    def decorate(test):
        for wrap in (
            given(*arguments),
            seed(SEED),
            settings(
                max_examples=examples * (20 if LONG else 1),
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
    """How to make a tensor and views of it; each view is of an earlier one."""

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
    """Returns a view of a tensor; `numbers` choose which of its kind."""
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


# Functions for `Peer.call`.


def look(kept):
    """Returns what the tensors are, and where, seen from the first."""
    tensors = kept["tensors"]
    begin = tensors[0].data_ptr()
    return (
        [description(tensor) for tensor in tensors],
        [tensor.data_ptr() - begin for tensor in tensors],
    )


def rebuild_and_read(kept, reduced):
    """Returns what came of a handle that may be damaged: a name."""
    function, args = reduced
    try:
        read(function(*args))
    except Exception as error:
        return type(error).__name__
    return "read"


def read(tensor: paddle.Tensor | paddle.base.core.DenseTensor) -> None:
    """Reads every element, also the last of many that repeat a few."""
    if isinstance(tensor, paddle.Tensor):
        if tensor.size > MANY:
            tensor = tensor[tuple(size - 1 for size in tensor.shape)]
        tensor.numpy().tobytes()
    elif tensor._numel() <= MANY:
        np.array(tensor).tobytes()


def reduced(tensor: paddle.Tensor) -> tuple:
    """Returns what is pickled in the place of a tensor."""
    return ForkingPickler._extra_reducers[type(tensor)](tensor)


def damaged(value: Any, rng: random.Random, amount: int) -> Any:
    """Returns a value with some of its bytes and numbers changed."""
    if isinstance(value, tuple):
        where = rng.randrange(len(value)) if value else 0
        return tuple(
            damaged(item, rng, amount) if index == where else item
            for index, item in enumerate(value)
        )
    if isinstance(value, bytes):
        data = bytearray(value)
        for _ in range(amount):
            damage(data, rng)
        return bytes(data)
    if isinstance(value, int) and not isinstance(value, bool):
        return rng.choice((0, -1, value + 1, value - 1, 1 << 31, 1 << 62))
    return value


def damage(data: bytearray, rng: random.Random) -> None:
    kind = rng.choice(("bit", "byte", "number", "cut", "longer", "swap"))
    if not data or kind == "longer":
        data += rng.randbytes(rng.randrange(1, 9))
        return
    place = rng.randrange(len(data))
    if kind == "bit":
        data[place] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[place] = rng.choice((0, 1, 127, 128, 255))
    elif kind == "number":
        # Numbers of a handle begin where their size divides.
        width = rng.choice((2, 4, 8))
        place -= place % width
        number = rng.choice((0, 1, 1 << 20, 2**31 - 1, 2**63 - 1, -1, -8))
        new = (number % (1 << (8 * width))).to_bytes(width, "little")
        data[place : place + width] = new
    elif kind == "cut":
        del data[place:]
    else:
        other = rng.randrange(len(data))
        data[place], data[other] = data[other], data[place]


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
                # One memory, not copies that lie alike.
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

    @property_of(st.integers(0, 2**32), st.integers(1, 4), examples=400)
    def test_damaged_handle_raises_or_can_be_read(self, number, amount):
        rng = random.Random(number)
        tensor = paddle.arange(rng.choice((1, 6, 5000)))
        for kind in (tensor, tensor[::2], tensor.get_tensor()):
            function, args = reduced(kind)
            self.peer.call(
                rebuild_and_read, (function, damaged(args, rng, amount))
            )

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
            # Theirs was not received, for the most part.
            sharing.collect_shared_memory(message_timeout=0)


class TestPropertiesOfDescriptors(TestProperties):
    strategy = "file_descriptor"


if __name__ == "__main__":
    unittest.main()
