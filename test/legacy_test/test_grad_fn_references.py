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
"""Tensor.grad_fn owns no reference to the node that it returns."""

from __future__ import annotations

import gc
import sys
import unittest
import weakref

import paddle


def product():
    x = paddle.ones([1])
    x.stop_gradient = False
    return x * 1


class TestGradFnReferences(unittest.TestCase):
    def test_reading_adds_no_references(self):
        y = product()
        node = y.grad_fn
        before = sys.getrefcount(node)
        for _ in range(3):
            self.assertIs(y.grad_fn, node)
        self.assertEqual(sys.getrefcount(node), before)

    def test_the_returned_object_is_freed_when_it_is_dropped(self):
        y = product()
        node = weakref.ref(y.grad_fn)
        self.assertIsNone(node())
        node = weakref.ref(y.grad_fn.next_functions[0])
        self.assertIsNone(node())

    def test_the_graph_is_freed_with_its_tensors(self):
        class Hook:
            def __call__(self, gradient):
                return gradient

        y, hook = product(), Hook()
        y.register_hook(hook)
        kept_by_the_graph = weakref.ref(hook)
        z = y * 1
        self.assertIsNotNone(z.grad_fn)
        del hook, y
        self.assertIsNotNone(kept_by_the_graph())
        del z
        gc.collect()
        self.assertIsNone(kept_by_the_graph())


if __name__ == "__main__":
    unittest.main()
