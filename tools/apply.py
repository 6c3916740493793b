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
"""Apply the series and its own files to a tree, all or nothing.

    python -m tools.apply TREE

TREE is the folder of an unpacked wheel, or the root of a git checkout of
Paddle. A tree that already has the whole series is left unchanged. A wheel also
needs the bindings in C++, which tools.wheel adds; without them, Paddle cannot
be imported.

Exit status: 0 when the tree has the series, otherwise 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tools.command_line import reports_errors
from tools.own_files import own_file
from tools.series import PatchError, load_series
from tools.tree import SUPPORTED, open_tree, run_git

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.series import FileDiff, Patch
    from tools.tree import Tree

REPO = Path(__file__).resolve().parent.parent

_REMEDY = f"start from an untouched Paddle {' or '.join(SUPPORTED)}"

# The user's git configuration must not change whether a hunk fits.
_GIT_APPLY = (
    "-c core.autocrlf=false -c apply.ignoreWhitespace=no"
    " apply --whitespace=nowarn --verbose"
)


def _check_places(part: FileDiff, name: str, folder: Path, output: str) -> None:
    """Refuse a hunk that git moved if it fits in several places.

    With one line of context, a moved hunk may easily match the wrong place.
    """
    lines = (folder / part.path).read_bytes().split(b"\n")
    for number in map(int, re.findall(r"Hunk #(\d+) succeeded", output)):
        wanted = [
            line.encode("utf-8", "surrogateescape")
            for line in part.hunks[number - 1].side(" -")
        ]
        places = sum(
            lines[at : at + len(wanted)] == wanted for at in range(len(lines))
        )
        if places > 1:
            raise PatchError(
                f"{part.path}: {part.hunk_name(number)}, of {name} is not"
                f" at its line and fits in {places} places; {_REMEDY}"
            )


def fit(
    patch: Patch, parts: Sequence[FileDiff], folder: Path, reverse: bool = False
) -> None:
    """Apply parts of a patch to the files in a folder, all or none.

    Args:
        patch: the patch.
        parts: the parts to apply.
        folder: holds the parts' files at their in-tree paths.
        reverse: remove the patch instead.

    Raises:
        PatchError: a file is absent, or a hunk does not fit exactly or fits
            in more than one place.
    """
    if not parts:
        return
    for part in parts:
        if not (folder / part.path).is_file():
            raise PatchError(
                f"{part.path} does not exist, but {part.hunk_name(1)}, of"
                f" {patch.name} changes it; {_REMEDY}"
            )
    by_path = {part.path: part for part in parts}
    command = _GIT_APPLY + (" --reverse" if reverse else "")
    diff = "".join(part.text for part in parts)
    # In a repository around the folder git would skip every file, silently.
    nowhere = {"GIT_DIR": os.devnull}
    check = run_git(folder, f"{command} --check", text=diff, **nowhere)
    failed = re.search(
        r"^error: patch failed: (.+):(\d+)$", check.stderr, re.MULTILINE
    )
    if failed:
        part = by_path[failed[1]]
        starts = [h.new_start if reverse else h.old_start for h in part.hunks]
        number = starts.index(int(failed[2])) + 1
        raise PatchError(
            f"{part.path}: {part.hunk_name(number)}, of {patch.name} "
            + ("is not applied" if reverse else f"does not fit; {_REMEDY}")
        )
    if not reverse:
        for section in check.stderr.split("Checking patch ")[1:]:
            path, output = section.split("...\n", 1)
            _check_places(by_path[path], patch.name, folder, output)
    run = run_git(folder, command, text=diff, **nowhere)
    if run.returncode:
        raise PatchError(f"{patch.name}: {run.stderr.strip()}")


def write_files(files: dict[Path, tuple[bytes, int]]) -> None:
    """Write files, all of them or none.

    Args:
        files: content and mode of each.

    Raises:
        PatchError: a file could not be written; all files are unchanged.
    """
    try:
        with ExitStack() as folders, ExitStack() as spare, ExitStack() as undo:
            ready = []
            for target, (data, mode) in files.items():
                absent = [f for f in target.parents if not f.exists()]
                for folder in reversed(absent):
                    folder.mkdir()
                    folders.callback(folder.rmdir)
                beside = tempfile.TemporaryDirectory(
                    prefix=".series-", dir=target.parent
                )
                new = Path(spare.enter_context(beside), "new")
                new.write_bytes(data)
                new.chmod(stat.S_IMODE(mode))
                # Copied beforehand: restoring must not need disk space.
                old = new.with_name("old")
                if target.exists():
                    shutil.copy2(target, old, follow_symlinks=False)
                ready.append((new, old, target))
            for new, old, target in ready:
                if old.exists():
                    undo.callback(os.replace, old, target)
                else:
                    undo.callback(target.unlink, missing_ok=True)
                os.replace(new, target)
            undo.pop_all()
            folders.pop_all()
    except OSError as error:
        raise PatchError(
            f"{target}: {error.strerror}; nothing was changed"
        ) from error


def _stage(touched: dict[str, Path], folder: Path) -> None:
    for path, source in touched.items():
        if source.is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / path)


def _find_applied(
    work: list[tuple[Patch, list[FileDiff]]], touched: dict[str, Path]
) -> tuple[bool, list[str]]:
    """Return whether any part of the series is applied, and what is missing."""
    found, lacking = False, []
    with tempfile.TemporaryDirectory() as folder:
        _stage(touched, Path(folder))
        for patch, parts in reversed(work):
            for part in parts:
                try:
                    fit(patch, [part], Path(folder), reverse=True)
                except PatchError as error:
                    lacking.append(str(error))
                else:
                    # The absence of deleted lines proves nothing.
                    found = found or any(hunk.added for hunk in part.hunks)
    return found, lacking


def apply(repo: Path, tree: Tree) -> bool:
    """Apply the series and its own files to a tree, all or nothing.

    Parts and own files that have no place in the tree are skipped.

    Args:
        repo: the root of the repository that holds patches/.
        tree: the tree.

    Returns:
        False if the tree already had the whole series; nothing was written.

    Raises:
        PatchError: a hunk does not fit or a file cannot be written; the tree
            is unchanged.
        OSError: a file of the tree cannot be read.
    """
    series = load_series(repo)
    own = {
        path: own_file(repo, path)
        for patch in series
        for path in patch.own_files
    }
    return apply_patches(series, own, tree)


def apply_patches(
    series: list[Patch], own: dict[str, tuple[bytes, int]], tree: Tree
) -> bool:
    """Do what apply() does, with the given patches and own files."""
    own = {path: file for path, file in own.items() if tree.locate(path)}
    # Skip hunks for own files: our files already contain them.
    work = [
        (p, [f for f in p.files if f.path not in own and tree.locate(f.path)])
        for p in series
    ]
    touched = {f.path: tree.locate(f.path) for _, parts in work for f in parts}
    found, lacking = _find_applied(work, touched)
    foreign = []
    for path, (data, _) in own.items():
        target = tree.locate(path)
        if not target.exists():
            lacking.append(f"{path} does not exist")
        elif not target.is_file() or target.read_bytes() != data:
            foreign.append(f"{path} differs from our file")
    if not lacking and not foreign:
        return False
    if found:
        raise PatchError(
            f"{tree.root} has only a part of the series, or was edited by hand"
            f" afterwards; {_REMEDY}. Differences:"
            + "".join(f"\n  {what}" for what in lacking + foreign)
        )
    if foreign:
        raise PatchError(f"{tree.root}: {'; '.join(foreign)}; {_REMEDY}")
    with tempfile.TemporaryDirectory() as folder:
        _stage(touched, Path(folder))
        for patch, parts in work:
            fit(patch, parts, Path(folder))
        files = {
            target: (Path(folder, path).read_bytes(), target.stat().st_mode)
            for path, target in touched.items()
        }
    for path, file in own.items():
        if not tree.locate(path).exists():
            files[tree.locate(path)] = file
    write_files(files)
    return True


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the module docstring gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.apply",
        description="Apply the patches and our own files to a Paddle tree.",
    )
    parser.add_argument("tree", type=Path, metavar="TREE")
    args = parser.parse_args(argv)
    tree = open_tree(args.tree)
    changed = apply(REPO, tree)
    done = "now has the series" if changed else "already has the series"
    print(f"{tree.root} ({tree.kind}, Paddle {tree.version}) {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
