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

import stat
from typing import TYPE_CHECKING

from tools.series import PatchError

if TYPE_CHECKING:
    from pathlib import Path

    from tools.series import FileDiff, Patch


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


def _without(data: bytes, part: FileDiff, patch: Patch) -> bytes:
    """Return a file as it was before a patch changed it.

    A hunk may have moved, because own files are edited without a change of the
    patches, but only to a place that is not in doubt.
    """
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    for number, hunk in reversed([*enumerate(part.hunks, 1)]):
        new = hunk.side(" +")
        places = [
            at for at in range(len(lines)) if lines[at : at + len(new)] == new
        ]
        if hunk.new_start - 1 in places:
            places = [hunk.new_start - 1]
        if len(places) != 1:
            raise PatchError(
                f"patches/{patch.name}:{part.line}: {part.hunk_name(number)},"
                f" is in {len(places)} places of {part.path}; change the file"
                " on an exported branch, and write it back with --refresh"
            )
        lines[places[0] : places[0] + len(new)] = hunk.side(" -")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


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
    versions = []
    for patch in reversed(series):
        changes = [part for part in patch.files if part.path in files]
        paths = [*patch.own_files, *(part.path for part in changes)]
        versions.append({path: files[path] for path in paths})
        for part in changes:
            data, mode = files[part.path]
            files[part.path] = _without(data, part, patch), mode
    return versions[::-1]
