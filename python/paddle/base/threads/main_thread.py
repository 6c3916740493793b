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
"""The main thread, whose device is the device of the process."""

from __future__ import annotations

import threading

__all__ = []

ident = threading.main_thread().ident


def is_main_thread() -> bool:
    """Returns whether the calling thread is the main one. Thread-safe."""
    return threading.get_ident() == ident


def become_main_thread() -> None:
    """Makes the calling thread the main one.

    Requires: runs in a child right after a fork: no other thread exists.
    """
    global ident
    ident = threading.get_ident()
