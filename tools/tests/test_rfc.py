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
"""RFC.md and rfcs/: one RFC per pull request, with valid references."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.apply import REPO
from tools.lint_patches import module_name, used
from tools.own_files import own_versions
from tools.series import load_sections, load_series
from tools.tests.test_guide import read, rows

INDEX = REPO / "RFC.md"
RFCS = sorted((REPO / "rfcs").glob("*.md"))
# The Chinese headings of the community's template.
CHAPTERS = [
    "一、概述",
    "1、相关背景",
    "2、功能目标",
    "3、意义",
    "二、飞桨现状",
    "三、业内方案调研",
    "四、对比分析",
    "五、设计思路与实现方案",
    "1、主体设计思路与折衷",
    "2、关键技术点与子模块设计",
    "3、主要影响的模块接口变化",
    "六、测试和验收的考量",
    "七、影响面",
    "对用户的影响",
    "对二次开发用户的影响",
    "对框架架构的影响",
    "对性能的影响",
    "对比业内深度学习框架的差距与优势的影响",
    "其他风险",
    "八、排期规划",
    "名词解释",
    "附件及参考资料",
]
# Chapters that contain only sections.
PARENTS = {"一、概述", "五、设计思路与实现方案", "七、影响面"}
# Chapters that may contain only links.
LISTS = {"附件及参考资料"}
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ENGLISH = re.compile(r"\b[A-Za-z][a-z]{3,}\b")
CODE_AND_TARGETS = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)", re.DOTALL)
NUMBER = re.compile(r"(?<![\w.,+-])(00\d\d)(?![\w.%])")
PATH = re.compile(r"`((?:python/paddle|paddle|test|tools|examples)/[^`\s]*)`")
# Paddle's files that no patch changes, but that upstream would change.
UNCHANGED = {"paddle/common/flags.cc", "paddle/fluid/pybind/eager.cc"}


class Row(NamedTuple):
    """A row of the index: a pull request."""

    title: str
    rfcs: list[str]
    patches: str
    needs: list[str]


def index() -> list[Row]:
    table = read(INDEX).split("\n## ")[0]
    return [
        Row(
            title,
            re.findall(r"\((rfcs/[^)]*)\)", rfcs),
            patches,
            re.findall(r"\w+", needs.replace("tests:", "")),
        )
        for title, rfcs, patches, needs, _ in rows(table)
    ]


def chapters(text: str) -> dict[str, str]:
    """Returns the text below each second- and third-level heading."""
    parts = re.split(r"^###? (.*)$", text, flags=re.MULTILINE)[1:]
    return {
        heading.split(" · ")[0]: body
        for heading, body in zip(parts[::2], parts[1::2])
    }


def header(text: str) -> dict[str, str]:
    """Returns the table at the start of an RFC."""
    table = text.split("\n## ")[0]
    return {
        cells[0].split(" · ")[0]: cells[1]
        for line in table.splitlines()
        if line.startswith("| ")
        for cells in [[cell.strip() for cell in line.split("|")[1:-1]]]
    }


def each_rfc(test):
    return pytest.mark.parametrize("rfc", RFCS, ids=lambda rfc: rfc.name)(test)


def numbers(names: tuple[str, ...]) -> str:
    first, last = names[0][:4], names[-1][:4]
    return first if first == last else f"{first} to {last}"


def test_index_lists_the_pull_requests_of_the_series_with_their_patches():
    assert [(row.title, row.patches) for row in index()] == [
        (section.title, numbers(section.names))
        for section in load_sections(REPO)
        if section.title
    ]


def test_each_pull_request_has_an_rfc_and_each_rfc_a_pull_request():
    assert [row.title for row in index() if not row.rfcs] == []
    listed = [rfc for row in index() for rfc in row.rfcs]
    assert sorted(listed) == [f"rfcs/{rfc.name}" for rfc in RFCS]


@each_rfc
def test_header_names_the_pull_request_and_the_file(rfc):
    name = f"rfcs/{rfc.name}"
    named = header(read(rfc))
    assert named["文件名"] == f"`{name}`"
    assert [named["合入请求"]] == [
        row.title for row in index() if name in row.rfcs
    ]


def test_each_pull_request_needs_those_above_it_which_its_rfc_names():
    above = set()
    for row in index():
        assert set(row.needs) <= above, row.title
        for rfc in row.rfcs:
            depends = header(read(REPO / rfc))["依赖"]
            missing = [need for need in row.needs if need not in depends]
            assert missing == [], rfc
            above.add(rfc[len("rfcs/") : -len(".md")])


def test_each_pull_request_names_those_whose_files_it_uses():
    series = load_series(REPO)
    patches = {patch.name: patch for patch in series}
    versions = dict(zip(patches, own_versions(REPO, series)))
    sections = [part.names for part in load_sections(REPO) if part.title]
    owners = {
        module_name(path) or path: number
        for number, names in enumerate(sections)
        for name in names
        for path in patches[name].own_files
    }
    requests = {rfc: n for n, row in enumerate(index()) for rfc in row.rfcs}
    reached: list[set[int]] = []
    for number, row in enumerate(index()):
        needs = {requests[f"rfcs/{need}.md"] for need in row.needs}
        reached.append(needs.union(*(reached[need] for need in needs)))
        used_by = {
            owners[module]
            for name in sections[number]
            for path, (data, _) in versions[name].items()
            for module in used(path, data.decode()) & owners.keys()
        }
        missing = used_by - reached[number] - {number}
        assert not missing, (row.title, [index()[m].title for m in missing])


@each_rfc
def test_chapters_are_those_of_the_template(rfc):
    assert list(chapters(read(rfc))) == CHAPTERS


@each_rfc
def test_each_chapter_is_in_chinese_and_in_english(rfc):
    text = CODE_AND_TARGETS.sub("", read(rfc))
    for language in CHINESE, ENGLISH:
        assert [
            chapter
            for chapter, body in chapters(text).items()
            if chapter not in PARENTS | LISTS and not language.search(body)
        ] == []


def test_the_summary_is_in_chinese_and_in_english():
    summaries = chapters(read(INDEX))
    assert len(CHINESE.findall(summaries["摘要"])) > 300
    assert len(ENGLISH.findall(summaries["Summary"])) > 50


@pytest.mark.parametrize("page", [INDEX, *RFCS], ids=lambda page: page.name)
def test_patch_numbers_exist(page):
    patches = {patch.name[:4] for patch in load_series(REPO)}
    assert sorted(set(NUMBER.findall(read(page))) - patches) == []


@pytest.mark.parametrize("page", [INDEX, *RFCS], ids=lambda page: page.name)
def test_files_are_ours_or_changed_by_a_patch(page):
    changed = {file.path for patch in load_series(REPO) for file in patch.files}
    assert [
        path
        for path in PATH.findall(read(page))
        if path not in changed | UNCHANGED
        and not any(REPO.glob(path.rstrip("/")))
    ] == []


def test_path_mapping_has_every_file_of_ours():
    table = read(INDEX).partition("| 路径 · Path |")[2].partition("\n\n")[0]
    # A header is next to its source; a pattern or a folder has several files.
    mapped = [Path(path).with_suffix("") for path in PATH.findall(table)]
    files = [
        Path(file)
        for patch in load_series(REPO)
        for file in patch.own_files
        if not file.startswith("test/")
    ]
    assert [
        str(file)
        for file in files
        if not any(
            file.is_relative_to(path)
            or fnmatch(str(file.with_suffix("")), str(path))
            for path in mapped
        )
    ] == []
