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
"""A pytest plugin: garbage collections leave out the objects of Paddle itself.

Many tests collect garbage, and fork children. Each collection would visit some
100,000 objects that never become garbage, and in a forked child copy the memory
of all of them.
"""

import gc

import paddle  # noqa: F401

gc.collect()
gc.freeze()
