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
"""The patch series: ``patches/series`` and the patch files it lists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# A comment in patches/series that starts the patches of a pull request.
PULL_REQUEST = "# Pull request: "

# The comment after it, with the types of the pull request.
TYPE = "# Type: "
# An optional comment that says how the pull request changes numerical results.
PRECISION = "# Precision: "
# The values that Paddle's check of pull requests accepts.
CATEGORIES = (
    "User Experience",
    "Execute Infrastructure",
    "Operator Mechanism",
    "CINN",
    "Custom Device",
    "Performance Optimization",
    "Distributed Strategy",
    "Parameter Server",
    "Communication Library",
    "Auto Parallel",
    "Inference",
    "Environment Adaptation",
)
TYPES = (
    "New features",
    "Bug fixes",
    "Improvements",
    "Performance",
    "BC Breaking",
    "Deprecations",
    "Docs",
    "Devs",
    "Not User Facing",
    "Security",
    "Others",
)

# The trailers of every patch, in this order; Own-File follows.
FIELDS = ("Bug", "Forwarded", "Last-Update", "Drop-When")
OWN_FOLDERS = ("python/", "paddle/", "test/")

_TRAILER = re.compile(
    r"^([A-Z][A-Za-z-]*):[ \t]*(.*(?:\n[ \t].*)*)$", re.MULTILINE
)
_FILE = re.compile(r"diff --git a/(.+) b/\1")
_HUNK = re.compile(r"(@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@).*")


class PatchError(Exception):
    """The series cannot be read or applied; the message says how to fix it."""


@dataclass(frozen=True)
class Hunk:
    """One hunk; ``line`` is where its header is in the patch file."""

    header: str
    old_start: int
    new_start: int
    lines: tuple[str, ...]
    line: int

    def side(self, marks: str) -> list[str]:
        """Return the lines that have one of the marks, without the mark.

        ``side(" -")`` is the text that the hunk replaces, ``side(" +")`` the
        text that replaces it.
        """
        return [text[1:] for text in self.lines if text[:1] in marks]

    @property
    def added(self) -> list[tuple[int, str]]:
        """The added lines, each with its line in the patch file."""
        return [
            (number, text[1:])
            for number, text in enumerate(self.lines, self.line + 1)
            if text.startswith("+")
        ]


@dataclass(frozen=True)
class FileDiff:
    """The part of a patch for one file; ``header`` ends at the first hunk."""

    path: str
    header: str
    hunks: tuple[Hunk, ...]
    text: str
    line: int

    def hunk_name(self, number: int) -> str:
        """Name a hunk, counted from 1, in a message."""
        hunk = self.hunks[number - 1]
        return f"hunk {number} of {len(self.hunks)}, {hunk.header}"


@dataclass(frozen=True)
class Patch:
    """One patch; ``trailers`` has the fields FIELDS, in that order."""

    name: str
    subject: str
    body: str
    trailers: dict[str, str]
    own_files: tuple[str, ...]
    files: tuple[FileDiff, ...]
    text: str

    @property
    def message(self) -> str:
        """The message of the commit made from the patch.

        It has no trailers: they are for the series only.
        """
        return f"{self.subject}\n\n{self.body}\n"


def _parse_hunk(text: str, where: str, line: int) -> Hunk:
    lines = text.split("\n")[:-1]
    match = _HUNK.fullmatch(lines[0])
    if not match:
        raise PatchError(f"{where}:{line}: {lines[0]!r} is not a hunk header")
    header, old_start, old_count, new_start, new_count = match.groups()
    hunk = Hunk(header, int(old_start), int(new_start), tuple(lines[1:]), line)
    counts = [int(count or 1) for count in (old_count, new_count)]
    if [len(hunk.side(" -")), len(hunk.side(" +"))] != counts:
        raise PatchError(
            f"{where}:{line}: the hunk {header} has other line counts than"
            " its header says; make the patch anew with git diff"
        )
    return hunk


def _parse_file(text: str, where: str, line: int) -> FileDiff:
    match = _FILE.fullmatch(text.split("\n", 1)[0])
    if not match:
        raise PatchError(
            f"{where}:{line}: expected 'diff --git a/PATH b/PATH' with the"
            " same PATH twice; a patch renames nothing"
        )
    header, *parts = re.split(r"^(?=@@ )", text, flags=re.MULTILINE)
    if not parts:
        raise PatchError(
            f"{where}:{line}: the part for {match[1]} has no hunk; a patch"
            " changes lines of text files only"
        )
    hunks = []
    at = line + header.count("\n")
    for part in parts:
        hunks.append(_parse_hunk(part, where, at))
        at += part.count("\n")
    return FileDiff(match[1], header, tuple(hunks), text, line)


def patch_text(
    message: str, trailers: dict[str, str], own_files: list[str], diff: str
) -> str:
    """Return the text of a patch, which parse_patch can read."""
    lines = [*trailers.items(), *(("Own-File", path) for path in own_files)]
    paragraph = "".join(f"{key}: {value}\n" for key, value in lines)
    return f"Subject: {message.strip()}\n\n{paragraph}---\n{diff}"


def split_trailers(message: str) -> tuple[str, dict[str, str]]:
    """Split the trailers of a patch from the end of a commit message.

    Returns:
        The rest of the message, and the trailers, which may be empty.
    """
    body, _, last = message.strip().rpartition("\n\n")
    trailers = dict(_TRAILER.findall(last))
    if not trailers.keys() & set(FIELDS):
        return message, {}
    return body, trailers


def parse_patch(name: str, text: str) -> Patch:
    """Read one patch.

    Args:
        name: file name below patches/, for messages.
        text: the content of the file.

    Raises:
        PatchError: the text is not in the patch format.
    """
    where = f"patches/{name}"
    header, line, diff = text.partition("\n---\n")
    if not line or not text.endswith("\n"):
        raise PatchError(
            f"{where}:1: needs a line '---' after the trailers and a newline"
            " at the end"
        )
    subject, *paragraphs = header.split("\n\n")
    match = re.fullmatch(r"Subject: (\S.*)", subject)
    trailers = _TRAILER.findall(paragraphs[-1]) if paragraphs else []
    if trailers:
        paragraphs.pop()
    body = "\n\n".join(paragraphs)
    given = {key for key, value in trailers if value.strip()}
    missing = [field for field in FIELDS if field not in given]
    if not body.strip():
        missing.insert(0, "the body text")
    if not match:
        missing.insert(0, "Subject")
    if missing:
        raise PatchError(f"{where}:1: missing or empty: {', '.join(missing)}")
    own_files = tuple(value for key, value in trailers[len(FIELDS) :])
    canonical = [*FIELDS, *["Own-File"] * len(own_files)]
    written = "\n".join(f"{key}: {value}" for key, value in trailers)
    if [key for key, _ in trailers] != canonical or not header.endswith(
        f"\n\n{written}"
    ):
        raise PatchError(
            f"{where}:1: the last paragraph has to be the trailers"
            f" {', '.join(FIELDS)} in this order, then any Own-File, and"
            " nothing else"
        )
    for path in own_files:
        if not path.startswith(OWN_FOLDERS):
            raise PatchError(
                f"{where}:1: Own-File {path} is not below"
                f" {', '.join(OWN_FOLDERS)}"
            )
    files = []
    at = header.count("\n") + 3
    for part in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE):
        if part:
            files.append(_parse_file(part, where, at))
            at += part.count("\n")
    return Patch(
        name,
        match[1],
        body,
        dict(trailers[: len(FIELDS)]),
        own_files,
        tuple(files),
        text,
    )


def read_patch(repo: Path, name: str) -> Patch:
    """Read the patch with that name from a repository of the series.

    Bytes that are not UTF-8 are kept as surrogates.

    Raises:
        PatchError: the file is absent or not in the patch format.
    """
    try:
        data = (repo / "patches" / name).read_bytes()
    except OSError as error:
        raise PatchError(
            f"patches/{name}:1: cannot be read: {error.strerror}"
        ) from None
    return parse_patch(name, data.decode("utf-8", "surrogateescape"))


def series_lines(repo: Path) -> list[tuple[str, bool]]:
    """Return each line of patches/series and whether it names a patch.

    Raises:
        PatchError: there is no such file.
    """
    path = repo / "patches" / "series"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise PatchError(f"{path} cannot be read: {error.strerror}") from None
    return [
        (line, bool(line.strip()) and not line.startswith("#"))
        for line in lines
    ]


@dataclass(frozen=True)
class Section:
    """Patches that go upstream together, and the comments above them."""

    comments: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def title(self) -> str:
        """The title of the pull request, or "" before the first one."""
        first = self.comments[0] if self.comments else ""
        named = first.startswith(PULL_REQUEST)
        return first[len(PULL_REQUEST) :].strip() if named else ""

    @property
    def category(self) -> str:
        """The category of the pull request, which its title begins with."""
        return self.title.partition("[")[2].partition("]")[0]

    @property
    def types(self) -> str:
        """The types of the pull request, separated by commas, or ""."""
        return self._comment(TYPE)

    @property
    def precision(self) -> str:
        """How the pull request changes numerical results, or ""."""
        return self._comment(PRECISION)

    def _comment(self, mark: str) -> str:
        found = [line for line in self.comments if line.startswith(mark)]
        return found[0][len(mark) :] if found else ""


def load_sections(repo: Path) -> list[Section]:
    """Read patches/series as its pull requests, in their order.

    The first section is the part before the first pull request.

    Raises:
        PatchError: there is no such file.
    """
    parts: list[tuple[list[str], list[str]]] = [([], [])]
    for line, is_patch in series_lines(repo):
        if line.startswith(PULL_REQUEST):
            parts.append(([], []))
        comments, names = parts[-1]
        (names if is_patch else comments).append(line.strip())
    return [Section(tuple(c), tuple(n)) for c, n in parts]


def load_series(repo: Path) -> list[Patch]:
    """Read the patches in the order in which they are applied.

    Args:
        repo: the root of the repository that holds patches/.

    Raises:
        PatchError: a file is absent or not in the patch format.
    """
    return [
        read_patch(repo, line.strip())
        for line, is_patch in series_lines(repo)
        if is_patch
    ]
