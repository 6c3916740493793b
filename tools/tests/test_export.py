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
"""Exporting the series as commits and mails, and refreshing it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from tools import export as tool
from tools.apply import REPO, apply
from tools.export import BRANCH, export, pull_request_texts, refresh
from tools.series import (
    CATEGORIES,
    TYPES,
    PatchError,
    load_sections,
    load_series,
)
from tools.tests.conftest import (
    CORE,
    DEVICE,
    FRAMEWORK,
    OWN,
    OWN_TEST,
    PATCHES,
    TRAILERS,
    add_patch,
    commit,
    new_checkout,
    patch_text,
    replace,
    snapshot,
    write,
)
from tools.tree import git, open_tree

SUBJECTS = [subject for subject, _, _ in PATCHES]


@pytest.fixture
def output(tmp_path):
    return tmp_path / "mails"


@pytest.fixture
def exported(repo, checkout, output):
    """A checkout with the exported branch checked out."""
    export(repo, checkout, output)
    git(checkout, f"checkout --quiet {BRANCH}")
    return checkout


def state(checkout):
    """Return everything that an export must not change."""
    return (
        snapshot(checkout),
        git(checkout, "symbolic-ref HEAD"),
        git(checkout, "status --porcelain"),
        git(checkout, "worktree list --porcelain"),
    )


def assert_not_exported(repo, checkout, output, *fragments):
    before = state(checkout), git(checkout, "for-each-ref")
    with pytest.raises(PatchError) as error:
        export(repo, checkout, output)
    for text in fragments:
        assert text in str(error.value)
    assert (state(checkout), git(checkout, "for-each-ref")) == before
    assert not output.exists()


def assert_not_refreshed(repo, checkout, *fragments):
    before = snapshot(repo)
    with pytest.raises(PatchError) as error:
        refresh(repo, checkout)
    for text in fragments:
        assert text in str(error.value)
    assert snapshot(repo) == before


def amend(checkout, message=None):
    """Amend the last commit with the working tree."""
    git(checkout, "add --all")
    keep = "--no-edit" if message is None else "--file=-"
    git(checkout, f"commit --quiet --amend {keep}", text=message or "")


def test_a_branch_has_one_commit_per_patch(repo, checkout, output):
    assert export(repo, checkout, output)
    log = git(checkout, f"log --reverse --format=%s v3.3.0..{BRANCH}")
    assert log.splitlines() == SUBJECTS
    assert git(checkout, f"merge-base v3.3.0 {BRANCH}") == git(
        checkout, "rev-parse v3.3.0"
    )


def test_a_commit_has_the_message_of_its_patch(repo, checkout, output):
    export(repo, checkout, output)
    assert git(checkout, f"log -1 --format=%an,%ce%n%B {BRANCH}~1") == (
        f"Ada,ada@example.com\n{SUBJECTS[1]}\n\n"
        "A reason\nof two lines.\n\nAnd # another.\n\n"
    )


def test_a_commit_holds_the_hunks_and_own_files_of_its_patch(
    repo, checkout, output
):
    export(repo, checkout, output)
    changed = [
        git(checkout, f"diff --name-only {BRANCH}~{n + 1} {BRANCH}~{n}").split()
        for n in (2, 1, 0)
    ]
    assert changed == [[FRAMEWORK, OWN], [CORE, FRAMEWORK, DEVICE], [OWN_TEST]]


def test_the_branch_equals_the_result_of_apply(repo, exported, tmp_path):
    applied = new_checkout(tmp_path / "applied")
    apply(repo, open_tree(applied))
    assert snapshot(exported) == snapshot(applied)


def test_an_executable_own_file_stays_executable(repo, checkout, output):
    (repo / OWN).chmod(0o755)
    export(repo, checkout, output)
    assert git(checkout, f"ls-tree {BRANCH} {OWN}").startswith("100755")


def test_an_own_file_that_git_ignores_is_committed(repo, checkout, output):
    write(checkout, {".gitignore": "test/\n"})
    export(repo, checkout, output)
    assert git(checkout, f"ls-tree {BRANCH} {OWN_TEST}")


def test_uncommitted_work_is_not_disturbed(repo, checkout, output):
    write(checkout, {DEVICE: "half done\n", "new.txt": "not added\n"})
    write(checkout, {FRAMEWORK: "staged\n"})
    git(checkout, f"add {FRAMEWORK}")
    before = state(checkout)
    export(repo, checkout, output)
    assert state(checkout) == before


def test_later_commits_of_the_user_stay_out_of_the_branch(
    repo, checkout, output
):
    write(checkout, {"mine.txt": ""})
    commit(checkout, "Mine")
    export(repo, checkout, output)
    assert not git(checkout, f"ls-tree {BRANCH} mine.txt")


def test_hooks_of_the_user_are_not_run(repo, checkout, output):
    for hook in ("pre-commit", "commit-msg", "post-checkout", "post-commit"):
        write(checkout / ".git/hooks", {hook: "#!/bin/sh\nexit 1\n"})
        (checkout / ".git/hooks" / hook).chmod(0o755)
    assert export(repo, checkout, output)


def test_a_repository_named_by_a_hook_is_not_taken_for_the_checkout(
    repo, checkout, output, tmp_path, monkeypatch
):
    other = new_checkout(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert export(repo, checkout, output)
    monkeypatch.delenv("GIT_DIR")
    assert git(checkout, f"branch --list {BRANCH}")


def test_a_sparse_checkout_is_enough(repo, checkout, output):
    git(checkout, "sparse-checkout set python/paddle/base")
    assert not (checkout / CORE).exists()
    export(repo, checkout, output)
    assert "return -1;" in git(checkout, f"show {BRANCH}:{CORE}")


def test_git_am_takes_the_mails(repo, checkout, output, tmp_path, git_home):
    write(
        git_home,
        {
            ".gitconfig": (git_home / ".gitconfig").read_text()
            + "[diff]\nnoprefix = true\n[format]\ncoverLetter = true\n"
            "suffix = .txt\n"
        },
    )
    export(repo, checkout, output)
    git(checkout, "checkout --quiet --detach v3.3.0")
    git(checkout, "am --quiet", *map(str, sorted(output.glob("*.patch"))))
    assert git(checkout, "log --format=%T%n%B v3.3.0..") == git(
        checkout, f"log --format=%T%n%B v3.3.0..{BRANCH}"
    )


def test_a_second_export_is_up_to_date(repo, exported, output, monkeypatch):
    refs = git(exported, "for-each-ref")
    mails = snapshot(output)
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-02-03T04:05:06")
    assert not export(repo, exported, output)
    assert git(exported, "for-each-ref") == refs
    assert snapshot(output) == mails


def test_a_branch_that_holds_something_else_is_kept(repo, checkout, output):
    git(checkout, f"branch {BRANCH}")
    assert_not_exported(repo, checkout, output, BRANCH, "--refresh")


def test_a_branch_with_another_message_is_kept(repo, exported, output):
    amend(exported, "Reworded\n")
    shutil.rmtree(output)
    assert_not_exported(repo, exported, output, BRANCH)


def test_another_name_makes_another_branch(repo, exported, output):
    assert export(repo, exported, output, "other")
    assert git(exported, "rev-parse other^{tree}") == git(
        exported, "rev-parse HEAD^{tree}"
    )


@pytest.fixture
def grouped(repo):
    """The repository with its patches in two pull requests."""
    write(
        repo,
        {
            "patches/series": "# applied in this order\n"
            "# Pull request: [A] Devices\n# Type: New features\n"
            "0001-p.patch\n0002-p.patch\n"
            "# Pull request: [B] Tests\n# Type: Devs\n"
            "# Precision: sums may differ by rounding\n0003-p.patch\n",
            "RFC.md": "| Pull request | RFC | Patches | Depends on | Status |\n"
            "|---|---|---|---|---|\n"
            "| [A] Devices | [a.md](rfcs/a.md) | 0001 to 0002 | | run |\n"
            "| [B] Tests | [b.md](rfcs/b.md) | 0003 | tests: a | run |\n",
        },
    )
    return repo


def test_each_pull_request_gets_a_branch(grouped, checkout, output):
    assert export(grouped, checkout, output, pull_requests=True)
    tips = [git(checkout, f"rev-parse {BRANCH}{n}") for n in ("-1", "-2")]
    assert tips == [git(checkout, f"rev-parse {BRANCH}{n}") for n in ("~1", "")]
    assert not export(grouped, checkout, output, pull_requests=True)


def test_each_pull_request_gets_a_text(grouped, checkout, output):
    export(grouped, checkout, output, pull_requests=True)
    texts = [output / f"pull_request-{number}.md" for number in (1, 2)]
    assert sorted(output.glob("*.md")) == texts
    first = texts[0].read_text("utf-8")
    assert "To be merged first" not in first
    assert first.endswith("### 是否引起精度变化\n\n否\n")
    assert texts[1].read_text("utf-8") == (
        "[B] Tests\n\n"
        "### PR Category\n\nB\n\n"
        "### PR Types\n\nDevs\n\n"
        "### Description\n\n"
        "RFC: https://github.com/PaddlePaddle/community/blob/master/rfcs/b.md"
        "#一概述--overview\n\n"
        "To be merged first:\n\n- [A] Devices (only for the tests)\n\n"
        f"Commits:\n\n- {SUBJECTS[2]}\n\n"
        "### 是否引起精度变化\n\n是\n\nsums may differ by rounding\n"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [("patches/series", "# Type: Devs\n"), ("RFC.md", "[b.md](rfcs/b.md)")],
)
def test_a_pull_request_without_a_type_or_an_rfc_is_refused(
    grouped, checkout, output, path, text
):
    replace(grouped / path, text, "")
    before = git(checkout, "for-each-ref")
    with pytest.raises(PatchError, match="the pull request '.B. Tests' needs"):
        export(grouped, checkout, output, pull_requests=True)
    assert git(checkout, "for-each-ref") == before
    assert not output.exists()


def test_each_pull_request_of_the_real_series_has_a_text_in_paddles_form():
    series = load_series(REPO)
    sections = [part for part in load_sections(REPO) if part.title]
    subjects = {patch.name: patch.subject for patch in series}
    texts = pull_request_texts(REPO, series)
    assert [text.split("\n")[0] for text in texts] == [
        section.title for section in sections
    ]
    above = set()
    for text, section in zip(texts, sections):
        title, body = text.split("\n\n", 1)
        # Paddle's check of descriptions demands these headings in this order.
        start, *parts = re.split("^### (.*)$", body, flags=re.MULTILINE)
        assert [start, *parts[::2]] == [
            "",
            "PR Category",
            "PR Types",
            "Description",
            "是否引起精度变化",
        ]
        category, types, description, changes = map(str.strip, parts[1::2])
        assert category in CATEGORIES
        assert {*types.split(", ")} <= {*TYPES}
        averages = "Average DataParallel gradients" in title
        assert changes.startswith("是\n\n") if averages else changes == "否"
        (rfc,) = re.findall(r"/(rfcs/\w+\.md)#一概述--overview", description)
        assert "\n## 一、概述 · Overview\n" in (REPO / rfc).read_text("utf-8")
        items = re.findall("^- (.*)$", description, re.MULTILINE)
        commits = [subjects[name] for name in section.names]
        first, last = items[: -len(commits)], items[-len(commits) :]
        assert last == commits
        assert {f.replace(" (only for the tests)", "") for f in first} <= above
        above.add(title)


def test_a_foreign_branch_of_a_pull_requests_name_is_kept(
    grouped, checkout, output
):
    git(checkout, f"branch {BRANCH}-2")
    before = git(checkout, "for-each-ref")
    with pytest.raises(PatchError, match=f"{BRANCH}-2"):
        export(grouped, checkout, output, pull_requests=True)
    assert git(checkout, "for-each-ref") == before
    assert not output.exists()


def test_pull_requests_come_back(grouped, checkout, output):
    export(grouped, checkout, output)
    before = snapshot(grouped)
    assert not refresh(grouped, checkout)
    assert snapshot(grouped) == before


def test_a_new_patch_joins_the_pull_request_before_it(
    grouped, checkout, output
):
    export(grouped, checkout, output)
    git(checkout, f"checkout --quiet --detach {BRANCH}~1")
    replace(checkout / DEVICE, "def f4(x)", "def f4(z)")
    commit(checkout, f"device: z\n\nA body.\n\n{TRAILERS}")
    git(checkout, f"cherry-pick --quiet --keep-redundant-commits {BRANCH}")
    git(checkout, f"branch --force {BRANCH}")
    assert refresh(grouped, checkout)
    assert (grouped / "patches/series").read_text() == (
        "# applied in this order\n"
        "# Pull request: [A] Devices\n# Type: New features\n"
        "0001-p.patch\n0002-p.patch\n0003-device-z.patch\n"
        "# Pull request: [B] Tests\n# Type: Devs\n"
        "# Precision: sums may differ by rounding\n"
        "0004-test-the-current-device-of-a-thread.patch\n"
    )


def test_mixed_pull_requests_are_refused(grouped, checkout, output):
    export(grouped, checkout, output)
    git(checkout, f"checkout --quiet --detach {BRANCH}~3")
    git(checkout, f"cherry-pick {BRANCH} {BRANCH}~2 {BRANCH}~1")
    git(checkout, f"branch --force {BRANCH}")
    assert_not_refreshed(grouped, checkout, "[A] Devices", "[B] Tests")


def test_without_an_identity_nothing_is_exported(
    repo, checkout, output, git_home, monkeypatch
):
    (git_home / ".gitconfig").unlink()
    # With an email address, git would make up the name.
    monkeypatch.setenv("EMAIL", "ada@example.com")
    assert_not_exported(repo, checkout, output, "user.name")


def test_a_hunk_that_does_not_fit_is_named(repo, checkout, output):
    replace(checkout / DEVICE, "def f2(x)", "def f2(z)")
    amend(checkout)
    git(checkout, "tag --force v3.3.0")
    assert_not_exported(
        repo, checkout, output, DEVICE, "hunk 1 of 2, @@ -10,3 +10,3 @@"
    )


def test_a_missing_file_is_named(repo, checkout, output):
    (checkout / DEVICE).unlink()
    amend(checkout)
    git(checkout, "tag --force v3.3.0")
    assert_not_exported(repo, checkout, output, DEVICE, "hunk 1 of 2")


def test_an_own_file_that_paddle_has_is_refused(repo, checkout, output):
    write(checkout, {OWN: "theirs\n"})
    amend(checkout)
    git(checkout, "tag --force v3.3.0")
    assert_not_exported(repo, checkout, output, OWN, "v3.3.0")


def test_a_newer_tree_is_refused(repo, checkout, output):
    replace(checkout / CORE, "// Core\n", "// Core, much later\n")
    commit(checkout, "Later")
    git(checkout, "tag v3.4.0")
    assert_not_exported(
        repo, checkout, output, "is Paddle 3.4.0", "check out the tag v3.3.0"
    )


def test_a_wheel_is_refused(repo, wheel, output):
    with pytest.raises(PatchError, match="not a git checkout"):
        export(repo, wheel, output)


def test_mails_of_an_earlier_export_are_replaced(repo, checkout, output):
    export(repo, checkout, output)
    write(output, {"notes.patch": "Mine\n\nX-Made-By: tools.export\n"})
    series = repo / "patches" / "series"
    series.write_text("0003-p.patch\n")
    export(repo, checkout, output, "other")
    assert sorted(os.listdir(output)) == [
        "0001-test-the-current-device-of-a-thread.patch",
        "notes.patch",
    ]


def test_a_foreign_file_is_not_replaced_by_a_mail(repo, checkout, output):
    name = "0001-base-one-current-device-per-thread.patch"
    write(output, {name: "mine\n"})
    with pytest.raises(PatchError, match=name):
        export(repo, checkout, output)
    assert snapshot(output) == {name: ("-rw-r--r--", b"mine\n")}
    assert not git(checkout, f"branch --list {BRANCH}")


def test_export_and_refresh_change_nothing(repo, exported):
    before = snapshot(repo)
    assert not refresh(repo, exported)
    assert snapshot(repo) == before


def test_git_configuration_does_not_change_the_patches(
    repo, exported, git_home
):
    write(git_home, {"attributes": "*.py -diff\n"})
    write(
        git_home,
        {
            ".gitconfig": "[diff]\nnoprefix = true\nindentHeuristic = false\n"
            "suppressBlankEmpty = true\ncontext = 9\nalgorithm = patience\n"
            f"[core]\nattributesFile = {git_home}/attributes\n"
        },
    )
    assert not refresh(repo, exported)


def test_edited_commits_come_back(repo, exported):
    git(exported, "checkout --quiet --detach HEAD~1")
    replace(exported / DEVICE, "w=1", "w=2")
    amend(exported)
    git(exported, f"branch --force {BRANCH}")
    assert refresh(repo, exported)
    assert "+def f2(x, w=2):" in (repo / "patches/0002-p.patch").read_text()
    assert not refresh(repo, exported)


def test_an_edited_own_file_comes_back(repo, exported):
    write(exported, {OWN_TEST: "# edited\n"})
    (exported / OWN_TEST).chmod(0o755)
    amend(exported)
    assert refresh(repo, exported)
    assert (repo / OWN_TEST).read_text() == "# edited\n"
    assert os.access(repo / OWN_TEST, os.X_OK)
    assert not refresh(repo, exported)


def test_a_changed_patch_gets_the_date_of_its_commit(
    repo, exported, monkeypatch
):
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2027-01-02T03:04:05")
    write(exported, {OWN_TEST: "# edited\n"})
    amend(exported)
    assert refresh(repo, exported)
    dates = [patch.trailers["Last-Update"] for patch in load_series(repo)]
    assert dates == ["2026-11-21", "2026-11-21", "2027-01-02"]


def test_an_own_file_that_became_executable_comes_back(repo, exported):
    (exported / OWN_TEST).chmod(0o755)
    amend(exported)
    assert refresh(repo, exported)
    assert os.access(repo / OWN_TEST, os.X_OK)


def test_a_new_subject_renames_the_patch(repo, exported):
    amend(exported, f"test: Two threads, one device!\n\nA body.\n\n{TRAILERS}")
    assert refresh(repo, exported)
    name = "0003-test-two-threads-one-device.patch"
    assert (repo / "patches/series").read_text() == (
        f"# applied in this order\n0001-p.patch\n0002-p.patch\n{name}\n"
    )
    assert not (repo / "patches/0003-p.patch").exists()
    assert [patch.body for patch in load_series(repo)][2] == "A body."


def test_a_new_commit_becomes_a_patch(repo, exported):
    replace(exported / DEVICE, "def f4(x)", "def f4(z)")
    write(exported, {"test/b.py": "# b\n", "test/a.py": "# a\n"})
    commit(exported, f"device: z\n\nA body.\n\n{TRAILERS}")
    assert refresh(repo, exported)
    patch = load_series(repo)[3]
    assert patch.name == "0004-device-z.patch"
    assert patch.own_files == ("test/a.py", "test/b.py")
    assert (repo / "test/a.py").read_text() == "# a\n"
    assert [part.path for part in patch.files] == [DEVICE]


def test_a_dropped_commit_takes_its_patch_and_own_files_along(repo, exported):
    git(exported, "reset --quiet --hard HEAD~1")
    assert refresh(repo, exported)
    assert len(load_series(repo)) == 2
    assert not (repo / "patches/0003-p.patch").exists()
    assert not (repo / OWN_TEST).exists()
    assert (repo / OWN).exists()


def test_own_files_stay_in_the_order_of_the_patch(repo, checkout, output):
    claims = ["test/b.py", "test/a.py"]
    write(repo, dict.fromkeys(claims, "# ours\n"))
    add_patch(repo, "0004-p.patch", patch_text("test: more", "", claims))
    export(repo, checkout, output)
    assert not refresh(repo, checkout)


@pytest.mark.parametrize("change", [f"rm {CORE}", f"mv {CORE} paddle/phi/b.cc"])
def test_a_commit_that_deletes_or_renames_is_refused(repo, exported, change):
    git(exported, change)
    amend(exported)
    assert_not_refreshed(repo, exported, CORE, "deletes, renames")


def test_a_commit_that_changes_a_mode_is_refused(repo, exported):
    (exported / CORE).chmod(0o755)
    write(exported, {CORE: "int first();\n"})
    amend(exported)
    assert_not_refreshed(repo, exported, CORE)


def test_a_link_is_refused(repo, exported):
    (exported / "test/link.py").symlink_to(FRAMEWORK)
    amend(exported)
    assert_not_refreshed(repo, exported, "test/link.py")


def test_a_file_added_outside_our_folders_is_refused(repo, exported):
    write(exported, {"tools/apply.py": ""})
    amend(exported)
    assert_not_refreshed(repo, exported, "tools/apply.py", "0003")


@pytest.fixture
def changed_later(repo, exported):
    """The repository after the third commit has changed a file of the first."""
    first = (exported / OWN).read_text()
    write(exported, {OWN: f"{first}# later\n"})
    amend(exported)
    assert refresh(repo, exported)
    return repo


def test_an_own_file_that_a_later_commit_changes_comes_back(
    changed_later, exported
):
    assert (changed_later / OWN).read_text().endswith("\n# later\n")
    patch = load_series(changed_later)[2]
    assert [part.path for part in patch.files] == [OWN]
    assert not refresh(changed_later, exported)


def test_each_commit_has_its_version_of_an_own_file(
    changed_later, exported, output
):
    final = (changed_later / OWN).read_text()
    git(exported, "checkout --quiet --detach v3.3.0")
    git(exported, f"branch -D {BRANCH}")
    export(changed_later, exported, output)
    for commit_, text in (
        ("~2", final.replace("# later\n", "")),
        ("~1", final.replace("# later\n", "")),
        ("", final),
    ):
        assert git(exported, f"show {BRANCH}{commit_}:{OWN}") == text


def test_a_message_without_the_trailers_is_refused(repo, exported):
    amend(exported, "test: x\n\nA body.\n\nBug: none\n")
    assert_not_refreshed(
        repo, exported, "0003-test-x.patch", "Forwarded, Last-Update, Drop-When"
    )


def test_a_new_commit_without_trailers_is_named(repo, exported):
    commit(exported, "device: z\n\nA body.\n")
    assert_not_refreshed(
        repo, exported, "'device: z'", "Bug, Forwarded, Last-Update, Drop-When"
    )


def test_a_merge_is_refused(repo, exported):
    git(exported, "checkout --quiet -b side HEAD~1")
    commit(exported, "Side")
    git(exported, f"checkout --quiet {BRANCH}")
    git(exported, "merge --quiet --no-edit side")
    assert_not_refreshed(repo, exported, "merges")


def test_a_branch_without_commits_is_refused(repo, checkout):
    git(checkout, f"branch {BRANCH}")
    assert_not_refreshed(repo, checkout, "no commit after v3.3.0")


def test_an_absent_branch_is_named(repo, checkout):
    assert_not_refreshed(repo, checkout, BRANCH)


def test_a_branch_based_on_another_version_is_refused(repo, checkout, output):
    commit(checkout, "Release")
    git(checkout, "tag v3.3.1")
    export(repo, checkout, output)
    assert_not_refreshed(repo, checkout, "v3.3.1", "on v3.3.0")


def test_two_patches_never_share_a_name(repo, exported):
    series = repo / "patches" / "series"
    name = "0003-device-z.patch"
    (repo / "patches" / "0002-p.patch").rename(repo / "patches" / name)
    replace(series, "0002-p.patch", name)
    amend(exported, f"device: z\n\nA body.\n\n{TRAILERS}")
    assert_not_refreshed(repo, exported, name)


def test_the_command_line_exports_and_refreshes(
    repo, checkout, output, monkeypatch, capsys
):
    monkeypatch.setattr(tool, "REPO", repo)
    there = [str(checkout), "--output", str(output), "--branch", "mine"]
    assert tool.main(there) == 0
    assert "done: mine holds" in capsys.readouterr().out
    assert tool.main(["--refresh", str(checkout), "--branch", "mine"]) == 0
    assert "up to date" in capsys.readouterr().out
    assert tool.main(["--refresh", str(checkout)]) == 1
    assert BRANCH in capsys.readouterr().err


@pytest.fixture
def real(tmp_path, git_home, wheel_tree):
    """The real series and, as a checkout, the Python files of a real wheel.

    Changes of the series to files that no wheel contains are left out.
    """
    checkout, repo = tmp_path / "checkout", tmp_path / "repo"
    shutil.copytree(
        wheel_tree / "paddle",
        checkout / "python" / "paddle",
        ignore=lambda folder, names: [
            name
            for name in names
            if not name.endswith(".py") and not Path(folder, name).is_dir()
        ],
    )
    git(checkout, "init --quiet")
    commit(checkout, "Paddle")
    git(checkout, f"tag {open_tree(wheel_tree).tag}")
    shutil.copytree(REPO / "patches", repo / "patches")
    own = {path for patch in load_series(REPO) for path in patch.own_files}
    for patch in load_series(REPO):
        text = patch.text
        for part in patch.files:
            if part.path not in own and not (checkout / part.path).exists():
                text = text.replace(part.text, "")
        write(repo, {f"patches/{patch.name}": text})
        for path in patch.own_files:
            (repo / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPO / path, repo / path)
    return repo, checkout


def test_real_series_applies_once(real):
    repo, checkout = real
    assert apply(repo, open_tree(checkout))
    assert not apply(repo, open_tree(checkout))


def test_real_series_survives_export_refresh_and_git_am(real, output):
    repo, checkout = real
    if open_tree(checkout).version != "3.3.0":
        pytest.skip("the patches are kept against 3.3.0 only")
    export(repo, checkout, output)
    before = snapshot(repo)
    assert not refresh(repo, checkout)
    assert snapshot(repo) == before
    git(checkout, "checkout --quiet --detach v3.3.0")
    # A commit that changes only Paddle's C++ is empty here.
    mails = [m for m in sorted(output.glob("*.patch")) if m.stat().st_size]
    git(checkout, "am --quiet", *map(str, mails))
    assert git(checkout, "rev-parse HEAD^{tree}") == git(
        checkout, f"rev-parse {BRANCH}^{{tree}}"
    )


def test_preimages_of_python_files_match_the_wheel(real):
    _, checkout = real
    if open_tree(checkout).version != "3.3.0":
        pytest.skip("the patches are kept against 3.3.0 only")
    lines = (REPO / "patches" / "preimages").read_text().splitlines()
    listed = dict(line.split(" ")[1::-1] for line in lines if line[0] != "#")
    in_wheel = {p for p in listed if p.startswith("python/paddle/")}
    of_python = {path: listed[path] for path in sorted(in_wheel)}
    hashes = git(checkout, "hash-object", *of_python).split()
    assert hashes == list(of_python.values())


def test_git_am_applies_the_series_to_a_clone_of_a_whole_checkout(
    tmp_path, git_home, output
):
    paddle = os.environ.get("PADDLE_CHECKOUT")
    if not paddle:
        pytest.skip("set PADDLE_CHECKOUT to a clone of Paddle at tag v3.3.0")
    made, mailed = tmp_path / "made", tmp_path / "mailed"
    for clone in (made, mailed):
        git(tmp_path, "clone --quiet --shared", paddle, str(clone))
    export(REPO, made, output)
    git(mailed, "am --quiet", *map(str, sorted(output.glob("*.patch"))))
    assert git(mailed, "rev-parse HEAD^{tree}") == git(
        made, f"rev-parse {BRANCH}^{{tree}}"
    )
