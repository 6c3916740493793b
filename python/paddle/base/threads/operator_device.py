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

Threads may build programs concurrently. A guard on the main thread acts on all
threads that are not inside their own guard. A guard on any other thread acts on
that thread only.
"""

from __future__ import annotations

from .thread_value import MainThreadValue

__all__ = []

# None: the executor chooses the device.
operator_device: MainThreadValue[str | None] = MainThreadValue(None)
