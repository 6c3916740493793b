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
"""Our own files, as the patches of the series add and change them."""

from __future__ import annotations

import hashlib
import io
import re
import stat
from typing import TYPE_CHECKING

from tools.series import PatchError

if TYPE_CHECKING:
    from pathlib import Path

    from tools.series import FileDiff, Hunk, Patch


def own_file(repo: Path, path: str) -> tuple[bytes, int]:
    """Return the content and git mode of one of our files.

    Raises:
        PatchError: it cannot be read.
    """
    try:
        executable = (repo / path).stat().st_mode & stat.S_IXUSR
        return (repo / path).read_bytes(), 0o755 if executable else 0o644
    except OSError as error:
        raise PatchError(
            f"{path}, an Own-File of a patch, cannot be read: {error.strerror}"
        ) from None


def _side(hunk: Hunk, marks: str) -> list[bytes]:
    """Return lines as Hunk.side does, each with the newline that it has."""
    lines = []
    for text, following in zip(hunk.lines, [*hunk.lines[1:], ""]):
        if text[:1] in marks:
            newline = "" if following.startswith("\\") else "\n"
            line = text[1:] + newline
            lines.append(line.encode("utf-8", "surrogateescape"))
    return lines


def leaves(part: FileDiff, data: bytes) -> bool:
    """Return whether a part's index line names this content as its result."""
    blob = hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()
    line = re.search(rf"^index \w+\.\.{blob}\b", part.header, re.MULTILINE)
    return line is not None


def _without(data: bytes, part: FileDiff, patch: Patch) -> bytes:
    """Return a file as it was before a patch changed it.

    Edits in place may have shifted a hunk. Its place is certain if the file is
    exactly as the patch left it, or if its new lines occur only once.
    """
    lines = io.BytesIO(data).readlines()
    end, last = len(lines), len(lines)
    unedited = leaves(part, data)
    for number, hunk in reversed([*enumerate(part.hunks, 1)]):
        new = _side(hunk, " +")
        places = [
            at
            for at in range(end - len(new) + 1)
            if lines[at : at + len(new)] == new
        ]
        if unedited:
            places = [max(hunk.new_start - 1, 0)]
        # Without context after it, a hunk is at the end of the file.
        at_end = hunk.lines[-1][:1] in "+-\\"
        if len(places) != 1 or (at_end and places[0] + len(new) != last):
            raise PatchError(
                f"patches/{patch.name}:{part.line}: {part.hunk_name(number)},"
                f" no longer fits {part.path}: its new lines are in"
                f" {len(places)} places, or no longer at the end; undo your"
                " change, make it on an exported branch, and use --refresh"
            )
        end = places[0]
        lines[end : end + len(new)] = _side(hunk, " -")
    return b"".join(lines)


def own_versions(
    repo: Path, series: list[Patch]
) -> list[dict[str, tuple[bytes, int]]]:
    """Return, for each patch, the own files that it adds or changes.

    The repository has each file as the last patch leaves it; earlier versions
    are that file without the changes of the later patches.

    Args:
        repo: the root of the repository that holds patches/.
        series: all patches.

    Returns:
        For each patch, the path of each file with its content after that patch,
        and its git mode.

    Raises:
        PatchError: a file cannot be read, or does not have the changes of a
            patch.
    """
    files = {
        path: own_file(repo, path)
        for patch in series
        for path in patch.own_files
    }
    adders = {
        path: number
        for number, patch in enumerate(series)
        for path in patch.own_files
    }
    versions = []
    for number, patch in reversed([*enumerate(series)]):
        changes = [part for part in patch.files if part.path in files]
        paths = [*patch.own_files, *(part.path for part in changes)]
        versions.append({path: files[path] for path in paths})
        for part in changes:
            if adders[part.path] >= number:
                raise PatchError(
                    f"patches/{patch.name}:{part.line}: changes {part.path},"
                    " an Own-File of this or a later patch"
                )
            data, mode = files[part.path]
            files[part.path] = _without(data, part, patch), mode
    return versions[::-1]
