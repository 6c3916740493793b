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
"""Tensor.grad_fn without the leak of the official wheel.

The property of official Paddle never releases one of its references to the
node, which keeps the whole graph in memory. A source build has the fix in C++.
`tools/wheel.py` adds this file to a wheel made from the official one.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from . import libpaddle

_read = libpaddle.eager.Tensor.grad_fn.__get__
_leaks: bool | None = None


def _grad_fn(tensor: Any) -> Any:
    """
    The node that computes the tensor's gradient; None for a tensor without one.
    """
    global _leaks
    node = _read(tensor)
    if node is None:
        return None
    unreleased = 1
    if _leaks is None:
        # Counted, not assumed: to release a reference too many would crash.
        # Other threads may change the count, so all three must agree.
        added = set()
        for _ in range(3):
            before = sys.getrefcount(node)
            again = _read(tensor)
            added.add(sys.getrefcount(node) - before if again is node else 0)
            del again
        if added in ({1}, {2}):
            _leaks = added == {2}
        unreleased += 3
    if _leaks:
        for _ in range(unreleased):
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(node))
    return node


libpaddle.eager.Tensor.grad_fn = property(_grad_fn)
