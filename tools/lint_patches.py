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
"""Check the patches and our own files against the rules of the series.

    python -m tools.lint_patches

Prints one line per finding: file, line, the problem and how to fix it.

Exit status: 0 when there is nothing to report, otherwise 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from datetime import date
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tools.apply import REPO
from tools.own_files import leaves, own_versions
from tools.series import (
    CATEGORIES,
    OWN_FOLDERS,
    PRECISION,
    PULL_REQUEST,
    TYPE,
    TYPES,
    PatchError,
    read_patch,
    series_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.series import FileDiff, Hunk, Patch

MAX_SUBJECT = 72
# About as many added lines as can be read in one minute.
MAX_ADDED = 80
# About as many lines as can be reviewed in an hour, own files included.
MAX_LINES = 1500

_INDEX = re.compile(
    r"^index ([0-9a-f]{40})\.\.([0-9a-f]{40}) 100", re.MULTILINE
)
_PREIMAGE = re.compile(r"([0-9a-f]{40}) (\S+) (\S.*)")
_TITLE = re.compile(re.escape(PULL_REQUEST) + r"\[([^]]*)\] [A-Z].*\S")
_CXX = (".c", ".cc", ".cpp", ".cu", ".h", ".hpp")
_INCLUDE = re.compile(r'^ *# *include "([^"]+)"', re.MULTILINE)
# What readers of Paddle's tree do not have.
_OURS = re.compile(
    r"\bnox\b|\b(?:CONTRIBUTING|RFC)\.md\b|\bofficial Paddle\b"
    r"|\b(?:[Aa]|[Tt]he|[Tt]his) wheel\b"
    r"|(?<![\w./-])(?:docs|rfcs|tools)/[\w./-]*\w"
)
# Starts the paragraph that justifies more than MAX_LINES.
_REASON = re.compile(r"^Large because ", re.MULTILINE)


def _header_findings(patch: Patch) -> Iterator[str]:
    where = f"patches/{patch.name}"
    if len(patch.subject) > MAX_SUBJECT:
        yield (
            f"{where}:1: the subject has {len(patch.subject)} characters;"
            f" shorten it to {MAX_SUBJECT}"
        )
    updated = patch.trailers["Last-Update"]
    try:
        if date.fromisoformat(updated).isoformat() == updated:
            return
    except ValueError:
        pass
    line = patch.text[: patch.text.index("\nLast-Update:")].count("\n") + 2
    yield f"{where}:{line}: Last-Update {updated!r}; write it as YYYY-MM-DD"


def _context_is_long(lines: tuple[str, ...]) -> bool:
    """Return whether there is more context than git diff -U1 gives.

    Git joins two changes into one hunk if at most two lines are between them.
    """
    marks = "".join(line[:1] or " " for line in lines).replace("\\", "")
    return bool(re.search(r"^  |  $|   ", marks))


def _place_finding(hunk: Hunk, path: str) -> str | None:
    """Describe what is wrong with a hunk's position, or return None.

    For git, a hunk without context before its first change must be at the first
    line of the file, and a hunk without context after its last change at the
    last line. A diff of an excerpt has such hunks in the middle of a file.
    """
    first = hunk.lines[0]
    if hunk.old_start > 1 and not first.startswith(" "):
        return "begins without context, but not at the first line of the file"
    if hunk.old_start != 1 or first.startswith("+"):
        return None
    line = first[1:]
    is_cxx = PurePosixPath(path).suffix in _CXX
    starts_a_file = (
        line.startswith(("//", "/*")) if is_cxx else line[:1].strip()
    )
    if starts_a_file:
        return None
    return f"claims that the file begins with {line!r}"


def _file_findings(part: FileDiff, where: str) -> Iterator[str]:
    if re.search(r"^(new|deleted) file mode", part.header, re.MULTILINE):
        yield (
            f"{where}:{part.line}: adds or deletes {part.path}; make an added"
            " file an Own-File, and leave Paddle's files in place"
        )
    for hunk in part.hunks:
        if _context_is_long(hunk.lines):
            yield (
                f"{where}:{hunk.line}: more than 1 line of context; make the"
                " diff with git diff -U1 --full-index"
            )
        misplaced = _place_finding(hunk, part.path)
        if misplaced:
            yield (
                f"{where}:{hunk.line}: the hunk {misplaced}; make the diff from"
                " the whole file, not from an excerpt"
            )
        for line, text in hunk.added:
            if text != text.rstrip():
                yield f"{where}:{line}: trailing whitespace; remove it"
            if "\t" in text.rstrip():
                yield f"{where}:{line}: tab character; use spaces"


def _patch_findings(
    patch: Patch, own: set[str], earlier: set[str]
) -> Iterator[str]:
    """Report what is wrong in a patch.

    Args:
        patch: the patch.
        own: all own files.
        earlier: the own files of earlier patches.
    """
    where = f"patches/{patch.name}"
    yield from _header_findings(patch)
    hooks = [part for part in patch.files if part.path not in own]
    added = sum(len(h.added) for part in hooks for h in part.hunks)
    if added > MAX_ADDED:
        yield (
            f"{where}:1: adds {added} lines, more than {MAX_ADDED}; move code"
            " into own files or split the patch"
        )
    for part in patch.files:
        yield from _file_findings(part, where)
        if part.path in own - earlier:
            yield (
                f"{where}:{part.line}: changes {part.path}, an Own-File of"
                " this or a later patch; edit the file itself"
            )


def _read_preimages(repo: Path) -> tuple[set[tuple[str, str]], list[str]]:
    """Return the hash and path of each listed preimage, and findings."""
    listed, found = set(), []
    path = repo / "patches" / "preimages"
    lines = path.read_text(encoding="utf-8") if path.is_file() else ""
    for number, line in enumerate(lines.splitlines(), 1):
        match = _PREIMAGE.fullmatch(line)
        if match:
            listed.add((match[1], match[2]))
        elif line.strip() and not line.startswith("#"):
            found.append(
                f"patches/preimages:{number}: {line!r} does not have the form"
                " 'HASH PATH SOURCE'"
            )
    return listed, found


def _preimage_findings(repo: Path, patches: list[Patch]) -> Iterator[str]:
    """Report parts of patches that were made against an unknown version.

    The preimage must be the file as an earlier patch left it, or a listed
    version, which was taken from a real file.
    """
    known, found = _read_preimages(repo)
    yield from found
    own = {path for patch in patches for path in patch.own_files}
    for patch in patches:
        for part in patch.files:
            if part.path in own:
                continue
            where = f"patches/{patch.name}:{part.line}"
            index = _INDEX.search(part.header)
            if not index:
                yield (
                    f"{where}: the part for {part.path} has no 'index' line"
                    " with full hashes; make the diff with git diff -U1"
                    " --full-index"
                )
                continue
            before, after = ((text, part.path) for text in index.groups())
            if before not in known:
                yield (
                    f"{where}: the preimage of {part.path}, {before[0][:12]},"
                    " is neither the result of an earlier patch nor listed;"
                    " make the diff from the whole file, and add the file's"
                    " hash, path and source to patches/preimages"
                )
            known.add(after)


def _own_findings(repo: Path, patches: list[Patch]) -> Iterator[str]:
    claims: dict[str, list[str]] = {}
    for patch in patches:
        for path in patch.own_files:
            claims.setdefault(path, []).append(patch.name)
    for path, names in claims.items():
        if not (repo / path).is_file():
            yield (
                f"patches/{names[0]}:1: Own-File {path} does not exist; add"
                " the file or remove the line"
            )
        if len(names) > 1:
            yield (
                f"{path}:1: is an Own-File of {', '.join(names)}; keep it in"
                " only one of them"
            )
    for folder in OWN_FOLDERS:
        for file in sorted((repo / folder).rglob("*")):
            path = file.relative_to(repo).as_posix()
            if (
                file.is_file()
                and "__pycache__" not in file.parts
                and path not in claims
            ):
                yield f"{path}:1: no patch lists it as Own-File; add the line"


def _text_findings(repo: Path, patches: list[Patch]) -> Iterator[str]:
    """Report text for upstream that names what only this project has.

    The trailers of a patch are not sent.
    """
    lines = []
    own = {path for patch in patches for path in patch.own_files}
    for patch in patches:
        where = f"patches/{patch.name}"
        message = f"Subject: {patch.message}".splitlines()
        added = [
            line
            for part in patch.files
            if part.path not in own
            for hunk in part.hunks
            for line in hunk.added
        ]
        lines += [(where, *line) for line in [*enumerate(message, 1), *added]]
    for path in sorted(own):
        if (repo / path).is_file():
            text = (repo / path).read_bytes().decode("utf-8", "replace")
            lines += [(path, *line) for line in enumerate(text.split("\n"), 1)]
    for where, number, text in lines:
        for name in _OURS.findall(text):
            # Paddle has a folder of that name, too.
            if not name.startswith("tools/") or (repo / name).exists():
                yield (
                    f"{where}:{number}: {name!r} means nothing in Paddle's"
                    " tree; say it in that tree's terms"
                )


def _size_findings(
    versions: dict[str, tuple[bytes, int]], patch: Patch
) -> Iterator[str]:
    """Report a commit that is too large to review in an hour."""
    added = sum(len(h.added) for part in patch.files for h in part.hunks)
    for path in patch.own_files:
        added += versions[path][0].count(b"\n")
    if added > MAX_LINES and not _REASON.search(patch.body):
        yield (
            f"patches/{patch.name}:1: adds {added} lines with its own files,"
            f" more than {MAX_LINES}; split it, or add a paragraph that begins"
            " with 'Large because'"
        )


def module_name(path: str) -> str | None:
    """Return the module name under which other own files import a file."""
    file = PurePosixPath(path)
    if file.suffix != ".py":
        return None
    if path.startswith("test/"):
        # Tests run with their folder in sys.path.
        return file.stem
    return ".".join(file.with_suffix("").parts[1:])


def imported(path: str, text: str) -> set[str]:
    """Return the names of all modules that a Python file may import."""
    package = PurePosixPath(path).parts[1:-1]
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # One dot is the package itself.
            above = package[: len(package) + 1 - node.level]
            parts = [
                *(above if node.level else ()),
                *(node.module or "").split("."),
            ]
            module = ".".join(part for part in parts if part)
            found |= {module, *(f"{module}.{a.name}" for a in node.names)}
    return found


def used(path: str, text: str) -> set[str]:
    """Return the modules or headers that an own file may use."""
    if path.endswith(".py"):
        return imported(path, text)
    return set(_INCLUDE.findall(text)) if path.endswith(_CXX) else set()


def _order_findings(repo: Path, patches: list[Patch]) -> Iterator[str]:
    """Report own files that import or include a file of a later patch.

    The commits of the branch are tested one by one, each without the later
    ones.
    """
    owners = {
        module_name(path) or path: (number, path)
        for number, patch in enumerate(patches)
        for path in patch.own_files
    }
    try:
        versions = own_versions(repo, patches)
    except PatchError as error:
        yield str(error)
        return
    for number, patch in enumerate(patches):
        yield from _size_findings(versions[number], patch)
        for path, (data, _) in versions[number].items():
            if not path.endswith((".py", *_CXX)):
                continue
            try:
                names = used(path, data.decode())
            except (SyntaxError, ValueError) as error:
                yield f"{path}:1: as {patch.name} leaves it: {error}"
                continue
            for name in sorted(names & owners.keys()):
                owner, needed = owners[name]
                if owner > number:
                    verb = "imports" if path.endswith(".py") else "includes"
                    yield (
                        f"{path}:1: as {patch.name} leaves it, {verb} {needed}"
                        f" of {patches[owner].name}, a later patch; move an"
                        " Own-File line, or move the import (include) into a"
                        " hunk of the later patch"
                    )


def _outdated(repo: Path, patches: list[Patch]) -> Iterator[str]:
    """Report changes of own files that were edited since."""
    for patch, files in zip(patches, own_versions(repo, patches)):
        for part in patch.files:
            file = files.get(part.path)
            if file and not leaves(part, file[0]):
                yield (
                    f"patches/{patch.name}:{part.line}: was made for another"
                    f" version of {part.path}; run tools.export on a checkout"
                    " of Paddle, then again with --refresh"
                )


def _pull_request_findings(lines: list[str]) -> Iterator[str]:
    """Report pull requests without a title or types as in Paddle."""
    for number, line in enumerate(lines, 1):
        if not line.startswith(PULL_REQUEST):
            continue
        title = _TITLE.fullmatch(line)
        if not title or title[1] not in CATEGORIES:
            yield (
                f"patches/series:{number}: {line!r} has no title of the form"
                f" '[Category] Summary' with one of {', '.join(CATEGORIES)}"
            )
        types = (lines[number:] or [""])[0]
        if not types.startswith(TYPE) or not (
            {*types[len(TYPE) :].split(", ")} <= {*TYPES}
        ):
            yield (
                f"patches/series:{number + 1}: {types!r} has to be"
                f" {TYPE.strip()!r} and one or more of {', '.join(TYPES)}"
            )
        other = (lines[number + 1 :] or [""])[0]
        if other.startswith("#") and not (
            other.startswith((PULL_REQUEST, PRECISION))
            and other.partition(": ")[2]
        ):
            yield (
                f"patches/series:{number + 2}: {other!r} has to be"
                f" {PRECISION.strip()!r} and how numerical results change"
            )


def findings(repo: Path) -> list[str]:
    """Return one line for each violation of the rules.

    The order of own files is checked when all else is right, and last whether
    the patches that change them are refreshed.

    Args:
        repo: the root of the repository that holds patches/.

    Raises:
        PatchError: there is no patches/series.
    """
    files = {path.name for path in (repo / "patches").glob("*.patch")}
    patches, listed = [], {}
    lines = series_lines(repo)
    found = [*_pull_request_findings([line for line, _ in lines])]
    for number, (line, is_patch) in enumerate(lines, 1):
        if is_patch:
            listed[line.strip()] = None
            if line.strip() not in files:
                found.append(
                    f"patches/series:{number}: {line.strip()} does not exist;"
                    " add the file or remove the line"
                )
    for name in [
        *(n for n in listed if n in files),
        *sorted(files - {*listed}),
    ]:
        if name not in listed:
            found.append(
                f"patches/{name}:1: is not in patches/series; list or delete it"
            )
        try:
            patches.append(read_patch(repo, name))
        except PatchError as error:
            found.append(str(error))
    own = {path for patch in patches for path in patch.own_files}
    earlier: set[str] = set()
    for patch in patches:
        found += _patch_findings(patch, own, earlier)
        earlier |= set(patch.own_files)
    found += _preimage_findings(repo, patches)
    found += _own_findings(repo, patches)
    found += _text_findings(repo, patches)
    # Needs each file as each patch leaves it, which only correct patches give.
    return (
        found
        or [*_order_findings(repo, patches)]
        or [*_outdated(repo, patches)]
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the module docstring gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.lint_patches",
        description="Check the patches and our own files.",
    )
    parser.parse_args(argv)
    try:
        found = findings(REPO)
    except PatchError as error:
        found = [str(error)]
    for line in found:
        print(line)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
