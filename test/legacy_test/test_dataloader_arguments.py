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
"""Arguments that DataLoader does not have."""

from __future__ import annotations

import inspect
import unittest

import numpy as np

from paddle.io import DataLoader


class TestOtherArguments(unittest.TestCase):
    def test_error_for_a_torch_argument_suggests_an_alternative(self):
        for name, instead in (
            ("generator", "numpy.random.seed"),
            ("multiprocessing_context", "set_start_method"),
            ("pin_memory", "use_buffer_reader"),
            ("sampler", "batch_sampler"),
        ):
            with (
                self.subTest(name),
                self.assertRaisesRegex(
                    TypeError, f"no argument '{name}'. {name}: .*{instead}"
                ),
            ):
                DataLoader([0], **{name: None})

    def test_the_alternative_to_a_generator_determines_the_order(self):
        orders = []
        for _ in range(2):
            np.random.seed(7)
            loader = DataLoader(np.arange(100), batch_size=100, shuffle=True)
            orders.append(next(iter(loader)).tolist())
        self.assertEqual(orders[0], orders[1])
        self.assertNotEqual(orders[0], sorted(orders[0]))

    def test_signature_has_no_other_arguments(self):
        # Programs inspect the signature to choose the options to pass.
        parameters = inspect.signature(DataLoader).parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        self.assertNotIn(inspect.Parameter.VAR_KEYWORD, kinds)
        self.assertIn("dataset", inspect.signature(DataLoader).parameters)

    def test_unknown_argument_is_named(self):
        with self.assertRaisesRegex(TypeError, "'batchsize'.*help"):
            DataLoader([0], batchsize=2)


if __name__ == "__main__":
    unittest.main()
