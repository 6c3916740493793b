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
"""Passes the modes of a thread on to the threads and processes it starts."""

from __future__ import annotations

from typing import Callable

import paddle
from paddle.amp.auto_cast import amp_global_state
from paddle.base import core


def modes_of_caller() -> Callable[[], None]:
    """
    Captures the `no_grad` mode and the state of `auto_cast` of the calling
    thread. Returns a function that sets them on the thread that calls it.
    """
    has_grad = paddle.is_grad_enabled()
    # Entering auto_cast would repeat its warnings.
    amp = core._get_amp_attrs()
    level, dtype, promote = amp._amp_level, amp._amp_dtype, amp._use_promote
    op_lists = core._get_amp_op_list()

    def set_modes() -> None:
        paddle.set_grad_enabled(has_grad)
        amp = core._get_amp_attrs()
        amp._amp_level, amp._amp_dtype = level, dtype
        amp._use_promote = promote
        if level == core.AmpLevel.O0:
            return
        # For GradScaler.
        amp_global_state().amp_dtype = dtype
        # A new thread has none, unless all threads share them.
        if not any(core._get_amp_op_list()):
            core._set_amp_op_list(*op_lists)

    return set_modes
