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
"""Checks of arguments that several functions and classes take."""

from __future__ import annotations

from numbers import Integral, Real

__all__ = []


def check_count(name: str, count: int, least: int) -> None:
    """
    Raises TypeError if an argument is not an integer, and ValueError if it is
    less than `least`.
    """
    if not isinstance(count, Integral) or isinstance(count, bool):
        raise TypeError(f"`{name}` must be an integer, but received {count!r}.")
    if count < least:
        raise ValueError(
            f"`{name}` must be at least {least}, but received {count}."
        )


def check_seconds(
    name: str, seconds: float | None, optional: bool = True
) -> None:
    """
    Raises TypeError if an argument is not a number, nor None if it is
    `optional`, and ValueError if it is NaN.
    """
    if seconds is None and optional:
        return
    is_number = isinstance(seconds, Real)
    if not is_number or seconds != seconds:
        raise (ValueError if is_number else TypeError)(
            f"`{name}` must be {'None or ' if optional else ''}a number of "
            f"seconds, but received {seconds!r}."
        )
