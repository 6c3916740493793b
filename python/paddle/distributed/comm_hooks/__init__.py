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
"""Communication hooks for ``DataParallel.register_comm_hook(state, hook)``.

A hook gets the state and a bucket of gradients, and returns a tensor with their
averages, or a future of it. The state of the simple hooks is the group, or None
for the group of all ranks.
"""

from paddle.distributed.data_parallel.future import Future

from .compression import allreduce_hook, bf16_compress_hook, fp16_compress_hook
from .power_sgd import PowerSGDState, powerSGD_hook
from .quantization import quantization_8bit_hook

__all__ = [
    "Future",
    "PowerSGDState",
    "allreduce_hook",
    "bf16_compress_hook",
    "fp16_compress_hook",
    "powerSGD_hook",
    "quantization_8bit_hook",
]
