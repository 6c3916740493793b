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
"""Error reporting that all command-line tools share."""

from __future__ import annotations

import functools
import signal
import sys
from typing import Callable, Optional

from tools.series import PatchError

Main = Callable[[Optional[list]], int]


def reports_errors(main: Main) -> Main:
    """Decorates a `main`: prints expected errors as one-line messages."""

    @functools.wraps(main)
    def reporting(argv: list[str] | None = None) -> int:
        try:
            return main(argv)
        except (PatchError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1

    return reporting


def let_tests_interrupt_processes() -> None:
    """
    Makes this process and its children handle SIGINT, which programs ignore
    that a shell has started in the background.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
