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
"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = []


@contextlib.contextmanager
def open_whole(path: str) -> Iterator[BinaryIO]:
    """
    Opens a new file in the folder of `path` for writing. It replaces `path`, or
    the file that this links to, when the context is left, and is removed if
    that is by an error. Safe on several threads and in several processes that
    write the same `path`. A killed process leaves the new file behind.
    """
    path = os.path.realpath(path)
    # Not by tempfile, whose files only their owner may read. Machines may share
    # the folder, so the process and the thread do not suffice.
    unfinished = f"{path}_{uuid.uuid4().hex[:8]}_tmp"
    try:
        with open(unfinished, "wb") as file:
            yield file
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)
        raise
