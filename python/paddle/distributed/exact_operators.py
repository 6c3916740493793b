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
"""A context for operators that prepare or combine communicated tensors.

Their data types and values must not depend on the caller's auto_cast.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import paddle

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []

_NO_CHANGE = contextlib.nullcontext()


@contextlib.contextmanager
def exact_operators() -> Iterator[None]:
    """A context or decorator: turns auto_cast off, and records no gradients.

    Thread-safe: it acts on the calling thread.
    """
    # Not always: auto_cast(enable=False) takes as long as a small operation.
    is_on = paddle.amp.is_autocast_enabled()
    exact = paddle.amp.auto_cast(enable=False) if is_on else _NO_CHANGE
    with paddle.no_grad(), exact:
        yield
