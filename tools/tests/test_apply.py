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
"""Applying the series to a tree: all of it, once, or nothing."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from tools import apply as tool
from tools.apply import apply
from tools.series import PatchError
from tools.tests.conftest import (
    CORE,
    DEVICE,
    FRAMEWORK,
    OWN,
    OWN_TEST,
    PADDLE,
    VERSION,
    add_patch,
    diff_text,
    new_checkout,
    new_repo,
    patch_text,
    replace,
    snapshot,
    write,
)
from tools.tree import git, open_tree


@pytest.fixture(params=["wheel", "checkout"])
def tree(request):
    """A tree of either kind."""
    return open_tree(request.getfixturevalue(request.param))


def assert_refused(repo, tree, *fragments):
    before = snapshot(tree.root)
    with pytest.raises(PatchError) as error:
        apply(repo, tree)
    for text in fragments:
        assert text in str(error.value)
    assert snapshot(tree.root) == before


def test_the_series_is_applied(repo, tree):
    assert apply(repo, tree)
    framework = tree.locate(FRAMEWORK).read_text()
    assert "y = x + 3 + 0.5\n    y = -y\n    return y\n" in framework
    assert framework.count("return -y") == 1
    assert "def f2(x, w=1):" in tree.locate(DEVICE).read_text()
    assert tree.locate(OWN).read_bytes() == (repo / OWN).read_bytes()


def test_a_checkout_gets_the_sources_and_tests_too(repo, checkout):
    apply(repo, open_tree(checkout))
    assert "return -1;" in (checkout / CORE).read_text()
    assert (checkout / OWN_TEST).is_file()


def test_a_wheel_gets_only_what_is_below_paddle(repo, wheel):
    before = set(snapshot(wheel))
    apply(repo, open_tree(wheel))
    assert set(snapshot(wheel)) - before == {OWN[len("python/") :]}


def test_a_second_time_changes_nothing(repo, tree):
    apply(repo, tree)
    before = snapshot(tree.root)
    times = {p: p.stat().st_mtime_ns for p in tree.root.rglob("*")}
    assert not apply(repo, tree)
    assert snapshot(tree.root) == before
    assert times == {p: p.stat().st_mtime_ns for p in tree.root.rglob("*")}


def test_a_patched_file_keeps_its_mode(repo, tree):
    tree.locate(FRAMEWORK).chmod(0o751)
    apply(repo, tree)
    assert stat.S_IMODE(tree.locate(FRAMEWORK).stat().st_mode) == 0o751


def test_an_own_file_is_executable_where_ours_is(repo, tree):
    (repo / OWN).chmod(0o755)
    apply(repo, tree)
    assert os.access(tree.locate(OWN), os.X_OK)


def test_a_file_shared_with_a_cache_is_changed_in_the_tree_only(
    repo, tree, tmp_path
):
    cached = tmp_path / "cached"
    os.link(tree.locate(FRAMEWORK), cached)
    apply(repo, tree)
    assert cached.read_text() == PADDLE[FRAMEWORK]


def test_a_file_with_windows_line_ends_keeps_them(tmp_path, git_home):
    paddle = {**PADDLE, FRAMEWORK: PADDLE[FRAMEWORK].replace("\n", "\r\n")}
    edit = (FRAMEWORK, "x + 3\r\n", "x + 3.5\r\n")
    source = new_checkout(tmp_path / "source", paddle)
    repo = new_repo(tmp_path / "repo", source, [("base: x", [edit], [])])
    write(git_home, {".gitconfig": "[core]\nautocrlf = true\n"})
    wheel = tmp_path / "wheel"
    write(wheel, {p[len("python/") :]: t for p, t in paddle.items()})
    (wheel / "a.dist-info").mkdir()
    apply(repo, open_tree(wheel))
    written = (wheel / "paddle/base/framework.py").read_bytes().decode()
    assert written == paddle[FRAMEWORK].replace("x + 3\r", "x + 3.5\r")


def test_a_file_that_is_not_utf_8_is_patched(repo, tree):
    hunk = "@@ -5,2 +5,3 @@\n # \udce9\n+# More.\n def f0(x):\n"
    patch = patch_text("device: x", diff_text(hunk), []).encode(
        "utf-8", "surrogateescape"
    )
    (repo / "patches/0004-p.patch").write_bytes(patch)
    (repo / "patches/series").write_text("0004-p.patch\n")
    tree.locate(DEVICE).write_bytes(b"\n# \xe9\ndef f0(x):\n")
    assert apply(repo, tree)
    written = tree.locate(DEVICE).read_bytes()
    assert written == b"\n# \xe9\n# More.\ndef f0(x):\n"


def test_an_identical_own_file_may_be_there(repo, tree):
    tree.locate(OWN).write_bytes((repo / OWN).read_bytes())
    before = tree.locate(OWN).stat().st_ino
    assert apply(repo, tree)
    assert "0.5" in tree.locate(FRAMEWORK).read_text()
    assert tree.locate(OWN).stat().st_ino == before


def test_the_other_supported_version_is_patched(repo, tree):
    replace(tree.locate(VERSION), "3.3.0", "3.3.1")
    if tree.kind == "checkout":
        git(tree.root, "commit --quiet --all --message=release")
        git(tree.root, "tag v3.3.1")
    tree = open_tree(tree.root)
    assert tree.version == "3.3.1"
    assert apply(repo, tree)


@pytest.mark.parametrize("found", ["3.2.2", "3.4.0"])
def test_another_version_of_a_wheel_is_refused(wheel, found):
    replace(wheel / "paddle/version/__init__.py", "3.3.0", found)
    with pytest.raises(PatchError, match=rf"{found}.*3\.3\.0 and 3\.3\.1"):
        open_tree(wheel)


def test_another_version_of_a_checkout_is_refused(checkout):
    git(checkout, "tag --delete v3.3.0")
    git(checkout, "tag v3.4.0-rc0")
    with pytest.raises(PatchError, match=r"3\.4\.0-rc0.*3\.3\.0 and 3\.3\.1"):
        open_tree(checkout)


def test_the_error_for_a_checkout_without_tags_says_to_fetch_them(checkout):
    git(checkout, "tag --delete v3.3.0")
    with pytest.raises(PatchError, match="git fetch --tags"):
        open_tree(checkout)


def test_a_nearer_tag_that_is_not_a_version_does_not_matter(checkout):
    git(checkout, "commit --quiet --allow-empty --message=more")
    git(checkout, "tag nightly")
    assert open_tree(checkout).version == "3.3.0"


def test_a_wheel_is_not_imported_to_learn_its_version(wheel):
    with (wheel / "paddle/version/__init__.py").open("a") as file:
        file.write("raise SystemExit\n")
    assert open_tree(wheel).version == "3.3.0"


@pytest.mark.parametrize("lost", ["paddle/version", "a.dist-info"])
def test_a_folder_that_is_not_a_tree_is_refused(wheel, lost):
    (wheel / "paddlepaddle-3.3.0.dist-info").rename(wheel / "a.dist-info")
    shutil.rmtree(wheel / lost)
    with pytest.raises(PatchError, match="not a Paddle tree"):
        open_tree(wheel)


def test_a_missing_file_is_named(repo, tree):
    tree.locate(DEVICE).unlink()
    assert_refused(repo, tree, DEVICE, "hunk 1 of 2, @@ -10,3 +10,3 @@")


def test_a_hunk_that_does_not_fit_is_named(repo, tree):
    replace(
        tree.locate(FRAMEWORK), "return y\n\n\ndef f20", "pass\n\n\ndef f20"
    )
    assert_refused(
        repo,
        tree,
        FRAMEWORK,
        "hunk 2 of 2, @@ -97,3 +97,3 @@",
        "0001-p.patch",
        "untouched Paddle 3.3.0",
    )


def test_a_later_patch_that_does_not_fit_leaves_nothing_behind(repo, tree):
    replace(tree.locate(DEVICE), "def f2(x)", "def f2(z)")
    assert_refused(repo, tree, DEVICE, "hunk 1 of 2", "0002-p.patch")


def test_context_that_differs_in_white_space_does_not_fit(repo, tree, git_home):
    write(git_home, {".gitconfig": "[apply]\nignoreWhitespace = change\n"})
    replace(tree.locate(FRAMEWORK), "def f3(x):", "def  f3(x):")
    assert_refused(repo, tree, FRAMEWORK, "hunk 1 of 2")


def test_a_moved_hunk_that_fits_in_one_place_is_applied(repo, tree):
    start = tree.locate(FRAMEWORK)
    start.write_text("# One line more.\n" + start.read_text())
    assert apply(repo, tree)
    assert "y = x + 3 + 0.5\n    y = -y\n" in start.read_text()


def test_a_moved_hunk_that_fits_in_several_places_is_refused(repo, tree):
    between = diff_text("@@ -14,2 +14,3 @@\n \n+# Here.\n \n")
    add_patch(repo, "0004-p.patch", patch_text("device: x", between, []))
    start = tree.locate(DEVICE)
    start.write_text("# One line more.\n" + start.read_text())
    assert_refused(repo, tree, DEVICE, "hunk 1 of 1", "fits in 7 places")


def test_a_patch_that_only_deletes_is_not_taken_for_applied(repo, tree):
    hunk = "@@ -13,3 +13,2 @@\n     return y\n-\n \n"
    patch = patch_text("device: x", diff_text(hunk), [])
    add_patch(repo, "0004-p.patch", patch)
    assert apply(repo, tree)
    assert "return y\n\ndef f3" in tree.locate(DEVICE).read_text()


def test_a_tree_gets_own_files_with_the_changes_of_later_patches(repo, tree):
    write(repo, {OWN: "# ours\n# later\n"})
    diff = diff_text("@@ -1 +1,2 @@\n # ours\n+# later\n", OWN)
    add_patch(repo, "0004-p.patch", patch_text("device: x", diff, []))
    assert apply(repo, tree)
    assert tree.locate(OWN).read_text() == "# ours\n# later\n"
    assert not apply(repo, tree)


def test_an_own_file_with_other_content_is_not_overwritten(repo, tree):
    tree.locate(OWN).write_text("mine\n")
    assert_refused(repo, tree, OWN)


def test_a_patched_tree_edited_by_hand_is_refused(repo, tree):
    apply(repo, tree)
    replace(tree.locate(DEVICE), "w=1", "w=2")
    assert_refused(
        repo, tree, DEVICE, "hunk 1 of 2, @@ -10,3 +10,3 @@", "by hand"
    )


def test_a_hunk_below_inserted_lines_is_named_when_it_was_changed(repo, tree):
    hunks = (
        "@@ -2,2 +2,3 @@\n     y = x + 0\n+    # More.\n     return y\n"
        "@@ -27,2 +28,3 @@\n     y = x + 5\n+    # Less.\n     return y\n"
    )
    add_patch(repo, "0004-p.patch", patch_text("x", diff_text(hunks), []))
    apply(repo, tree)
    replace(tree.locate(DEVICE), "# Less.", "# Changed.")
    assert_refused(repo, tree, "hunk 2 of 2, @@ -27,2 +28,3 @@")


def test_an_own_file_edited_by_hand_is_refused(repo, tree):
    apply(repo, tree)
    tree.locate(OWN).write_text("mine\n")
    assert_refused(repo, tree, OWN, "by hand")


def test_a_patched_tree_that_lacks_an_own_file_is_refused(repo, tree):
    apply(repo, tree)
    tree.locate(OWN).unlink()
    assert_refused(repo, tree, f"{OWN} does not exist", "only a part")


def test_a_partially_applied_tree_is_refused(repo, tree):
    series = repo / "patches" / "series"
    whole = series.read_text()
    series.write_text("0001-p.patch\n")
    apply(repo, tree)
    series.write_text(whole)
    assert_refused(repo, tree, "only a part", "0002-p.patch", DEVICE, "hunk 1")


def test_a_hunk_that_would_fit_a_second_time_is_not_applied_twice(repo, tree):
    hunk = (
        "@@ -2,2 +2,4 @@\n     y = x + 0\n"
        "+    return y\n+    y = 1\n     return y\n"
    )
    patch = patch_text("device: x", diff_text(hunk), [])
    write(repo, {"patches/0000-p.patch": patch})
    series = repo / "patches" / "series"
    whole = "0000-p.patch\n" + series.read_text()
    series.write_text("0000-p.patch\n")
    apply(repo, tree)
    series.write_text(whole)
    assert_refused(repo, tree, "only a part")


def test_a_repository_around_the_temporary_folder_does_not_matter(
    repo, tree, tmp_path, monkeypatch
):
    new_checkout(tmp_path / "around")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "around"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "around" / ".git"))
    assert apply(repo, tree)
    assert "0.5" in tree.locate(FRAMEWORK).read_text()


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("step", ["write_bytes", "replace"])
def test_a_failing_write_puts_back_what_was_there(
    repo, checkout, monkeypatch, step, which
):
    owner = {"write_bytes": Path, "replace": os}[step]
    real = getattr(owner, step)
    calls = []

    def full(*args):
        calls.append(args)
        if len(calls) == which + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    monkeypatch.setattr(owner, step, full)
    assert_refused(repo, open_tree(checkout), "No space left", "nothing was")


def test_a_failing_write_takes_new_folders_away(repo, checkout, monkeypatch):
    def refuse(*args):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "replace", refuse)
    assert not (checkout / OWN_TEST).parent.exists()
    assert_refused(repo, open_tree(checkout), "Permission denied")


def test_an_interruption_puts_back_what_was_there(repo, tree, monkeypatch):
    real = os.replace
    before = snapshot(tree.root)

    def interrupt(*args):
        real(*args)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        apply(repo, tree)
    assert snapshot(tree.root) == before


def test_a_patch_file_that_is_listed_but_absent_is_named(repo, tree):
    (repo / "patches" / "0002-p.patch").unlink()
    assert_refused(repo, tree, "patches/0002-p.patch")


def test_the_command_line_prints_what_it_did(repo, wheel, monkeypatch, capsys):
    monkeypatch.setattr(tool, "REPO", repo)
    assert tool.main([str(wheel)]) == 0
    assert "now has the series" in capsys.readouterr().out
    assert tool.main([str(wheel)]) == 0
    assert "already has the series" in capsys.readouterr().out


def test_the_command_line_fails_with_one_clear_error(tmp_path, capsys):
    assert tool.main([str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path} is not a Paddle tree")
