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

import gc
import unittest
import weakref

import numpy as np

from paddle.io.dataloader.flat import _flatten_batch, _restore_batch


class Value:
    """Takes the place of a tensor."""


class TestRestoreBatch(unittest.TestCase):
    def test_a_batch_of_one_tensor_is_freed_without_a_garbage_collection(self):
        gc.disable()
        self.addCleanup(gc.enable)
        _, structure = _flatten_batch(np.ones([3]))
        value = Value()
        reference = weakref.ref(value)
        restored = _restore_batch([value], structure)
        self.assertIs(restored, value)
        del restored, value
        self.assertIsNone(reference())


if __name__ == "__main__":
    unittest.main()
