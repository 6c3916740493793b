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
"""Stands in for pybind/thread_value.cc."""

from __future__ import annotations

import threading
from typing import Any


class ThreadValue:
    """
    The base class of the values that each thread can set for itself, in
    paddle/base/threads/thread_value.py.

    Args:
        process: the process's initial value.
        unset: stands for "not set".
    """

    __slots__ = ("_local", "_unset", "any_thread_has_set", "process")

    def __init__(self, process: Any, unset: Any) -> None:
        self._local = threading.local()
        self._unset = unset
        self.process = process
        # False until a thread sets its own value, and then True forever. While
        # it is False, `get` skips the thread-local lookup.
        self.any_thread_has_set = False

    def get(self) -> Any:
        """Returns the calling thread's own value, else the process's."""
        if self.any_thread_has_set:
            own = self.get_local()
            if own is not self._unset:
                return own
        return self.process

    def get_local(self) -> Any:
        """Returns the calling thread's own value, or the sentinel."""
        return getattr(self._local, "value", self._unset)

    def set_local(self, value: Any) -> None:
        """Sets the calling thread's own value; the sentinel removes it."""
        self._local.value = value
        if not self.any_thread_has_set and value is not self._unset:
            self.any_thread_has_set = True
