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
"""The guides: the code runs, the links have targets, the messages exist."""

from __future__ import annotations

import ast
import functools
import os
import re
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tools.wheel import REPO

if TYPE_CHECKING:
    from pathlib import Path

GUIDES = [REPO / "docs" / "threads.md", REPO / "docs" / "multiprocessing.md"]
GUIDE = GUIDES[1]
DEVICES = REPO / "docs" / "devices.md"
FEATURES = REPO / "docs" / "multiprocessing_features.md"
PAGES = sorted(
    [*REPO.glob("*.md"), *REPO.glob("docs/**/*.md"), *REPO.glob("rfcs/*.md")]
)
LINK = re.compile(r"!?\[([^][]*)\]\(([^()\s]+)\)")
REFERENCE = REPO / "docs" / "reference.md"
# Prints the public names, then each signature as the reference writes it: "..."
# stands for parameters that official Paddle has too.
SHOW_SIGNATURES = """
import inspect, multiprocessing, sys
import paddle
import paddle.incubate.multiprocessing as ours

def words(function):
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in found:
            found.append("*")
        if parameter.name != "self":
            found.append(str(parameter.replace(annotation=parameter.empty)))
    return found

def is_ours(name):
    return getattr(ours, name) is not getattr(multiprocessing, name, None)

print(*sorted(filter(is_ours, ours.__all__)))
for line in sys.argv[1:]:
    name, parenthesis, parameters = line.partition("(")
    found = eval(name)
    if parenthesis:
        shown = words(found)
        if parameters.startswith("..., "):
            shown[: -parameters.count(", ")] = ["..."]
        name += f"({', '.join(shown)})"
    print(name)
"""
# A block of Python, what it needs, and its output if the guide shows it.
BLOCK = re.compile(
    r"^```python(?P<needs>.*)\n(?P<code>(?:.*\n)*?)```\n"
    r"(?:\n```text\n(?P<output>(?:.*\n)*?)```\n)?",
    re.MULTILINE,
)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


class Feature(NamedTuple):
    """A row of the feature table."""

    name: str
    torch: str
    here: str
    tests: str


def rows(text: str) -> list[list[str]]:
    """Returns the cells of all tables in a text, without the header rows."""
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    rules = [at for at, row in enumerate(cells) if set(row[0]) <= set("-: ")]
    return [
        row
        for at, row in enumerate(cells)
        if at not in rules and at + 1 not in rules
    ]


BLOCKS = [
    block.groupdict()
    for guide in [*GUIDES, DEVICES]
    for block in BLOCK.finditer(read(guide))
]


def features() -> list[Feature]:
    return [Feature(*cells) for cells in rows(read(FEATURES))]


def messages() -> list[str]:
    """Returns the fixed parts of the messages in the guides."""
    troubleshooting = [
        read(guide).split("\n## Troubleshooting\n")[1].split("\n## ")[0]
        for guide in GUIDES
    ]
    return [
        words.strip()
        for table in troubleshooting
        for cell, *_ in rows(table)
        for message in re.findall("`([^`]*)`", cell)
        for words in message.split("…")
    ]


def anchors(text: str) -> set[str]:
    """Returns the link anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in titles
    }


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    file = page.parent / path if path else page
    return file.exists() and (not anchor or anchor in anchors(read(file)))


@functools.lru_cache(None)
def names_of_tests(path: Path) -> set[str]:
    """Returns the names of the tests in a file, or none if it is missing."""
    if not path.exists():
        return set()
    if path.suffix == ".cc":
        test = r"^\w*TEST\w*\(\w+,\s*(\w+)\)"
        return set(re.findall(test, read(path), re.MULTILINE))
    return {
        node.name
        for node in ast.walk(ast.parse(read(path)))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@functools.lru_cache(None)
def sources() -> str:
    """Returns all code of the project, with adjacent literals joined."""
    files = [
        *REPO.glob("paddle/**/*.cc"),
        *REPO.glob("paddle/**/*.h"),
        *REPO.glob("tools/extension/*.cc"),
        *REPO.glob("tools/without_native_parts/_*.py"),
        *REPO.glob("python/**/*.py"),
        *REPO.glob("patches/*.patch"),
    ]
    text = "\n".join(read(file) for file in files)
    return re.sub(r'"\s*\n\+?\s*f?"', "", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert [
        target
        for _, target in LINK.findall(read(page))
        if not re.match("[a-z]+:", target) and not leads_somewhere(page, target)
    ] == []


def test_every_supported_feature_has_a_test():
    assert [
        feature.name
        for feature in features()
        if not LINK.search(feature.tests)
        and not re.match(r"no\b", feature.here)
    ] == []


def test_features_name_tests_that_exist():
    assert [
        (name, target)
        for feature in features()
        for name, target in LINK.findall(feature.tests)
        if name not in names_of_tests(FEATURES.parent / target)
    ] == []


def files_of_diagrams() -> list[str]:
    text = read(REPO / "docs" / "diagrams.md")
    return re.findall(r"`((?:python|paddle|tools)/[^`]*)`", text)


def test_each_step_of_a_diagram_has_a_file():
    text = read(REPO / "docs" / "diagrams.md")
    drawn = re.findall(
        r"^```mermaid\n(.*?)^```(.*?)(?=^## |\Z)",
        text,
        re.MULTILINE | re.DOTALL,
    )
    assert len(drawn) == 3
    for drawing, rest in drawn:
        numbers = set(re.findall(r'"(\d+) ', drawing))
        assert numbers == {number for number, *_ in rows(rest)}


def test_files_of_diagrams_are_ours_or_changed_by_a_patch():
    """Paddle's own files are not in this repository."""
    patches = "".join(map(read, REPO.glob("patches/*.patch")))
    files = files_of_diagrams()
    assert len(files) > 15
    assert [
        file
        for file in files
        if not (REPO / file).is_file()
        and f"\ndiff --git a/{file} b/{file}\n" not in patches
    ] == []


def test_guide_shows_the_tested_operator():
    guide = read(DEVICES)
    (example,) = re.findall(r"```cpp\n(.*?)```", guide, re.DOTALL)
    source = read(REPO / "test/custom_runtime/device_guards_operator.cc")
    for part in example.split("\n\n"):
        assert part in source


def reference_names(section: str) -> list[str]:
    """Returns the first column of the tables of a section of the reference."""
    _, _, text = read(REFERENCE).partition(f"\n## {section}\n")
    tables = text.partition("\n## ")[0]
    return re.findall(r"^\| `([^`]*)` \|", tables, re.MULTILINE)


def test_reference_has_all_public_names_with_their_signatures(run_paddle):
    module = reference_names("`paddle.multiprocessing`")
    names = [
        *(f"paddle.multiprocessing.{name}" for name in module),
        *reference_names("Elsewhere in Paddle"),
    ]
    done = run_paddle("-c", SHOW_SIGNATURES, *names)
    public, *signatures = done.stdout.splitlines()
    assert signatures == names, done.stderr
    assert sorted(name.partition("(")[0] for name in module) == public.split()


def test_settings_of_the_reference_are_in_the_code():
    settings = reference_names("Environment variables and flags")
    names = [setting.partition("=")[0] for setting in settings]
    assert [name for name in names if name not in sources()] == []


def test_quoted_messages_are_in_the_code():
    assert [words for words in messages() if words not in sources()] == []


@pytest.mark.parametrize(
    "block", BLOCKS, ids=lambda block: block["code"].splitlines()[0]
)
def test_code_runs_and_prints_the_shown_output(block, start_paddle, tmp_path):
    needs = block["needs"].strip()
    assert needs in ("", "needs-gpu", "needs-streams")
    if needs == "needs-gpu":
        compile(block["code"], GUIDE.name, "exec")
        pytest.skip("needs a GPU")
    plugin = None
    if needs == "needs-streams":
        # The device of a plugin is the current one unless a program sets one.
        plugin = os.environ.get("CUSTOM_DEVICE_ROOT")
        if not plugin:
            pytest.skip("set CUSTOM_DEVICE_ROOT to the test device's folder")
    script = tmp_path / "script.py"
    script.write_text(block["code"], encoding="utf-8")
    done = start_paddle(script, cwd=tmp_path, CUSTOM_DEVICE_ROOT=plugin)
    assert done.returncode == 0, done.stdout + done.stderr
    if block["output"] is not None:
        assert done.stdout == block["output"]
