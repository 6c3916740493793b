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
"""The path of a tensor through the reducer files, on both sides."""

from __future__ import annotations

import pickle
import sys
import unittest
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from shared_tensor_base import (  # noqa: F401
    setUpModule,
    tearDownModule,
)
from test_shared_sparse import coordinates, sparse_tensors

import paddle
from paddle import nn
from paddle.base import core
from paddle.incubate.multiprocessing.tensor_reductions import by_value

if TYPE_CHECKING:
    from types import FrameType

PADDLE = Path(paddle.__file__).parent
# In the order in which a tensor passes through them.
FILES = [
    "reductions.py",
    "tensor_reductions.py",
    "shared_allocator.py",
    "device_names.py",
    "tensor_sharing.py",
    "shared_storage.py",
]


class UsersTensor(paddle.Tensor):
    pass


class CallPath:
    """Records the path of a call through `FILES`."""

    def __init__(self, call: Callable[[Any], Any], argument: Any):
        self._stack: list[str | None] = []
        self.files: list[str] = []
        # The number of calls from pickle.
        self.entries = 0
        # Calls from a file to an earlier file.
        self.back: list[tuple[str, str]] = []
        profiler = sys.getprofile()
        sys.setprofile(self._note)
        try:
            self.result = call(argument)
        finally:
            sys.setprofile(profiler)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            path = Path(frame.f_code.co_filename)
            ours = PADDLE in path.parents and path.name in FILES
            if ours:
                self._enter(path.name)
            self._stack.append(path.name if ours else None)
        elif event == "return" and self._stack:
            self._stack.pop()

    def _enter(self, file: str) -> None:
        callers = [each for each in self._stack if each]
        if not callers:
            self.entries += 1
        elif FILES.index(file) < FILES.index(callers[-1]):
            self.back.append((callers[-1], file))
        if file not in self.files:
            self.files.append(file)


def tensors() -> dict[str, Any]:
    found = {
        "dense": paddle.ones([2]),
        "parameter": nn.Linear(2, 2).weight,
        "subclass": UsersTensor(paddle.ones([2])),
        "inside of a tensor": paddle.ones([2]).get_tensor(),
        "dense by value": by_value(paddle.ones([2]), "cpu"),
        "parameter by value": by_value(nn.Linear(2, 2).weight, "cpu"),
        "sparse by value": by_value(coordinates(), "cpu"),
        **sparse_tensors(),
    }
    if "custom_cpu" in core.get_all_custom_device_type():
        place = core.CustomPlace("custom_cpu", 1)
        parts = [paddle.to_tensor([[1, 0]]), paddle.to_tensor([1.0, 2.0])]
        found["on a device"] = paddle.ones([2])._copy_to(place, True)
        found["sparse on a device"] = core.eager.sparse_coo_tensor(
            *[part._copy_to(place, True) for part in parts], [2], True
        )
    return found


class TestCallPath(unittest.TestCase):
    def setUp(self):
        # After the first use, the binding's functions are called directly.
        pickle.loads(ForkingPickler.dumps(paddle.ones([2])))

    def assert_goes_down_once(self, way: CallPath) -> None:
        self.assertIn("tensor_reductions.py", way.files)
        self.assertEqual(way.entries, 1)
        self.assertEqual(way.back, [])

    def test_a_tensor_goes_through_the_reducers_once_and_never_back(self):
        for name, tensor in tensors().items():
            with self.subTest(name):
                sent = CallPath(ForkingPickler.dumps, tensor)
                self.assert_goes_down_once(sent)
                self.assert_goes_down_once(CallPath(pickle.loads, sent.result))


if __name__ == "__main__":
    unittest.main()
