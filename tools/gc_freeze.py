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
"""A pytest plugin: garbage collections leave out objects that stay alive.

Many tests collect garbage, and fork children. Each collection would visit some
100,000 objects that never become garbage: those of Paddle, and those that the
test files so far have imported or cached. In a forked child it would also copy
the memory of all of them.
"""

import gc

import paddle  # noqa: F401

_file = None


def pytest_runtest_logstart(location: tuple[str, int, str]) -> None:
    """Leaves out the objects that exist before the first test of a file."""
    global _file
    if location[0] != _file:
        _file = location[0]
        gc.collect()
        gc.freeze()
