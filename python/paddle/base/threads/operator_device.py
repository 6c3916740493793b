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
"""The device that `static.device_guard` gives to new operators.

Threads build programs at the same time: a guard on the main thread acts on all
threads that are in no guard of their own, and one on any other thread acts on
that thread alone.
"""

from __future__ import annotations

from .thread_value import MainThreadValue

__all__ = []

# None leaves the choice to the executor.
operator_device: MainThreadValue[str | None] = MainThreadValue(None)
