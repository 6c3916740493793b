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

from __future__ import annotations

import functools
import threading
import unittest

from concurrent_base import WAIT_S, in_thread, in_threads

import paddle
from paddle.nn.attention import SDPBackend, sdpa, sdpa_kernel


def attention():
    query = paddle.ones([1, 4, 2, 8])
    attend = paddle.compat.nn.functional.scaled_dot_product_attention
    return attend(query, query, query)


class TestSdpaKernel(unittest.TestCase):
    def setUp(self):
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def test_each_thread_has_its_own_backends(self):
        before = sdpa._get_enabled_backends()
        both_inside = threading.Barrier(2, timeout=WAIT_S)

        def run(backend):
            with sdpa_kernel(backend):
                both_inside.wait()
                inside = sdpa._get_enabled_backends()
                both_inside.wait()
            return inside, sdpa._get_enabled_backends()

        backends = SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION
        self.assertEqual(
            in_threads(*(functools.partial(run, b) for b in backends)),
            [([backend], before) for backend in backends],
        )
        self.assertEqual(sdpa._get_enabled_backends(), before)

    def test_each_thread_has_its_own_priority(self):
        math, flash, efficient = (
            SDPBackend.MATH,
            SDPBackend.FLASH_ATTENTION,
            SDPBackend.EFFICIENT_ATTENTION,
        )
        inside = threading.Barrier(2, timeout=WAIT_S)

        def with_math_first():
            with sdpa_kernel([math, flash], set_priority=True):
                inside.wait()
                inside.wait()
                return sdpa._get_backend_priority()

        def without():
            inside.wait()
            priority = sdpa._get_backend_priority()
            inside.wait()
            return priority

        self.assertEqual(
            in_threads(with_math_first, without),
            [[math, flash, efficient], [flash, efficient, math]],
        )

    def test_attention_works_while_another_thread_allows_another_backend(self):
        expected = attention().tolist()

        def without_math():
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                return in_thread(lambda: attention().tolist())

        with sdpa_kernel(SDPBackend.MATH):
            self.assertEqual(in_thread(without_math), expected)


if __name__ == "__main__":
    unittest.main()
