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
"""The report: a line of JSON per finished file, and a table of all files."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tools.upstream.verdict import UNSTABLE, WORSE

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Row:
    """The result of a test file; each rerun adds to `verdicts`.

    Attributes:
        file: its path in the folder of tests.
        made_of: digest of everything that the result depends on.
        stock: summary of the last run on stock.
        ours: summary of the last run on ours.
        verdicts: the verdict of each pair of runs, in order.
        reasons: the reasons for the verdicts, each once.
    """

    file: str
    made_of: str
    stock: str
    ours: str
    verdicts: list[str]
    reasons: list[str]

    @property
    def verdict(self) -> str:
        if len(set(self.verdicts)) == 1:
            return self.verdicts[0]
        return f"{UNSTABLE} ({', '.join(self.verdicts)})"

    @property
    def ever_worse(self) -> bool:
        return WORSE in self.verdicts


def read_rows(file: Path) -> dict[str, Row]:
    """Return the rows of a report by file; remove a truncated last line.

    Raises:
        ValueError: the file is not a report.
    """
    if not file.is_file():
        return {}
    whole, newline, _ = file.read_bytes().rpartition(b"\n")
    os.truncate(file, len(whole + newline))
    try:
        rows = [Row(**json.loads(line)) for line in whole.splitlines()]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} cannot be resumed: it is not a report of this version"
            f" ({error}); run without --resume to replace it"
        ) from None
    return {row.file: row for row in rows}


def append_row(file: Path, row: Row) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(row)) + "\n")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def render(rows: list[Row], heading: list[str], total: int) -> str:
    """Return the report in Markdown.

    Args:
        rows: the finished files, in order.
        heading: one line about each side.
        total: the number of all files.
    """
    lines = ["# Paddle's own tests", "", *(f"- {line}" for line in heading)]
    lines += ["", "| file | stock | ours | verdict |", "|---|---|---|---|"]
    for row in rows:
        cells = (row.file, row.stock, row.ours, row.verdict)
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    for row in rows:
        if row.reasons:
            lines += ["", f"{row.file}: {row.verdict}", ""]
            lines += [f"- {reason}" for reason in row.reasons]
    kinds = Counter(row.verdict.partition(" (")[0] for row in rows)
    counts = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    done = f"{len(rows)} of {total}" if len(rows) < total else f"{total}"
    end = f": {'; '.join(counts)}" if counts else ""
    return "\n".join([*lines, "", f"Files: {done}{end}.", ""])
