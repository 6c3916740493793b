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
"""The gradient mode of a generator, which differs from that of its caller."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = []


class GeneratorInMode(Generator):
    """
    Runs a generator inside a context that sets a gradient mode. Between two
    items the caller has its own mode. The generator then goes on in the mode in
    which it yielded, which a context of its own may have set.

    Args:
        generator: the generator.
        context: returns the context, which is entered for each item.
    """

    def __init__(
        self,
        generator: Generator,
        context: Callable[[], AbstractContextManager],
    ) -> None:
        self._generator = generator
        self._context = context
        self._mode: bool | None = None

    def _run(self, resume: Callable, *args: Any) -> Any:
        try:
            with self._context():
                if self._mode is not None:
                    core._set_has_grad(self._mode)
                try:
                    return resume(*args)
                finally:
                    self._mode = core._has_grad()
        finally:
            # Avoids a cycle: the traceback of an error refers to this frame.
            del args

    def send(self, value: Any) -> Any:
        return self._run(self._generator.send, value)

    def throw(self, *error: Any) -> Any:
        try:
            return self._run(self._generator.throw, *error)
        finally:
            del error

    def close(self) -> None:
        self._run(self._generator.close)
