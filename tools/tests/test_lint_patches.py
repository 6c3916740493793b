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
"""The rules for patches and own files, each violated on purpose."""

from __future__ import annotations

import hashlib

import pytest

from tools import lint_patches as tool
from tools.lint_patches import MAX_ADDED, MAX_LINES, MAX_SUBJECT, findings
from tools.tests.conftest import (
    CORE,
    DEVICE,
    LISTED,
    LOADER,
    OWN,
    OWN_TEST,
    TRAILERS,
    add_patch,
    diff_text,
    patch_text,
    replace,
    write,
)

NAME = "patches/0004-p.patch"


def assert_found(repo, *starts):
    """Check that each finding is one line with the given start, in order."""
    found = findings(repo)
    assert len(found) == len(starts), found
    for line, start in zip(found, starts):
        assert line.startswith(start)
        assert "\n" not in line


def add(repo, diff="", subject="device: x", own=()):
    add_patch(repo, "0004-p.patch", patch_text(subject, diff, own))


def add_pull_request(repo, title, types):
    comments = f"# Pull request: {title}\n{types}"
    replace(repo / "patches/series", "0001", f"{comments}0001")


@pytest.mark.parametrize(
    "title",
    ["A summary", "[] A summary", "[Base] A summary", "[CINN] a", "[CINN]"],
)
def test_a_pull_request_without_category_or_summary(repo, title):
    add_pull_request(repo, title, "# Type: Docs\n")
    assert_found(repo, "patches/series:2: '# Pull request: ")


@pytest.mark.parametrize(
    "types", ["", "# Type:\n", "# Type: Patch\n", "# Type: Docs, Patch\n"]
)
def test_a_pull_request_without_a_type_of_paddle(repo, types):
    add_pull_request(repo, "[CINN] A summary", types)
    assert_found(repo, "patches/series:3: ")


@pytest.mark.parametrize(
    "comment", ["# Precision:", "# Precision: ", "# precision: a", "# Note: a"]
)
def test_a_pull_request_with_another_comment(repo, comment):
    add_pull_request(repo, "[CINN] A summary", f"# Type: Docs\n{comment}\n")
    assert_found(repo, "patches/series:4: ")


def test_a_pull_request_that_changes_numerical_results_passes(repo):
    comments = "# Type: Docs\n# Precision: sums may differ by rounding\n"
    add_pull_request(repo, "[CINN] A summary", comments)
    assert_found(repo)


@pytest.mark.parametrize("types", ["New features", "Improvements, Bug fixes"])
def test_a_series_of_pull_requests_passes(repo, types):
    add_pull_request(repo, "[User Experience] A summary", f"# Type: {types}\n")
    assert_found(repo)


def test_a_series_in_order_passes(repo):
    assert_found(repo)


def test_a_patch_that_is_not_listed(repo):
    replace(repo / "patches/series", "0003-p.patch\n", "")
    assert_found(repo, "patches/0003-p.patch:1: is not in patches/series")


def test_a_listed_patch_that_is_absent(repo):
    with (repo / "patches/series").open("a") as series:
        series.write("\n0009-p.patch\n")
    assert_found(repo, "patches/series:6: 0009-p.patch does not exist")


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("Subject: device: x\n", "Subject"),
        ("A reason\nof two lines.\n\nAnd # another.\n\n", "the body text"),
        *((line, line.split(":")[0]) for line in TRAILERS.splitlines(True)),
    ],
)
def test_a_header_field_that_is_absent(repo, text, missing):
    add(repo)
    replace(repo / NAME, text, "")
    assert_found(repo, f"{NAME}:1: missing or empty: {missing}")


@pytest.mark.parametrize("line", ["Subject: device: x", *TRAILERS.splitlines()])
def test_a_header_field_that_is_empty(repo, line):
    add(repo)
    field = line.split(":")[0]
    replace(repo / NAME, line, f"{field}: ")
    assert_found(repo, f"{NAME}:1: missing or empty: {field}")


def test_every_missing_field_is_named_at_once(repo):
    add_patch(repo, "0004-p.patch", "Subject: x\n\nBody.\n\nBug: none\n---\n")
    assert_found(
        repo, f"{NAME}:1: missing or empty: Forwarded, Last-Update, Drop-When"
    )


def test_trailers_in_another_order(repo):
    add(repo)
    lines = TRAILERS.splitlines(keepends=True)
    replace(repo / NAME, TRAILERS, "".join(reversed(lines)))
    assert_found(repo, f"{NAME}:1: the last paragraph has to be the trailers")


def test_text_among_the_trailers(repo):
    add(repo)
    replace(repo / NAME, TRAILERS, f"{TRAILERS}and a word more\n")
    assert_found(repo, f"{NAME}:1: the last paragraph has to be the trailers")


def test_a_trailer_may_go_on_in_the_next_line(repo):
    add(repo)
    replace(repo / NAME, "the issue is closed", "the issue\n is closed")
    assert_found(repo)


def test_a_header_without_an_end(repo):
    add(repo)
    replace(repo / NAME, "\n---\n", "\n")
    assert_found(repo, f"{NAME}:1: needs a line '---'")


def test_a_patch_that_was_cut_off(repo):
    add(repo, diff_text("@@ -1 +1,2 @@\n a\n+b"))
    assert_found(repo, f"{NAME}:1: needs a line '---'")


@pytest.mark.parametrize(
    "date", ["21.11.2026", "2026-13-01", "20261121", "soon"]
)
def test_a_date_that_is_not_iso(repo, date):
    add(repo)
    replace(repo / NAME, "2026-11-21", date)
    assert_found(repo, f"{NAME}:10: Last-Update '{date}'")


def test_a_subject_may_have_this_length_and_no_more(repo):
    add(repo, subject="x" * MAX_SUBJECT)
    assert_found(repo)
    replace(repo / NAME, "Subject: x", "Subject: xx")
    assert_found(repo, f"{NAME}:1: the subject has {MAX_SUBJECT + 1}")


@pytest.mark.parametrize("space", [" ", "\t", "\r"])
def test_an_added_line_with_trailing_whitespace(repo, space):
    add(repo, diff_text(f"@@ -1 +1,3 @@\n a\n+b\n+c{space}\n"))
    assert_found(repo, f"{NAME}:20: trailing whitespace")


def test_an_added_line_with_a_tab(repo):
    add(repo, diff_text("@@ -1 +1,2 @@\n a\n+\tb\n"))
    assert_found(repo, f"{NAME}:19: tab character")


def test_whitespace_in_paddles_lines_is_not_reported(repo):
    add(repo, diff_text("@@ -5,2 +5,2 @@\n \ta \n-b \n+b\n"))
    assert_found(repo)


LATER = "python/paddle/base/later.py"
LATER_BASE = "test/legacy_test/later_base.py"


@pytest.mark.parametrize("owner", ["0004-p.patch", "0005-p.patch"])
def test_a_diff_for_an_own_file_of_this_or_a_later_patch(repo, owner):
    write(repo, {LATER: "a\nb\n"})
    diff = diff_text("@@ -1 +1,2 @@\n a\n+b\n", LATER)
    first = owner == "0004-p.patch"
    add(repo, diff, own=[LATER] if first else [])
    if not first:
        add_patch(repo, owner, patch_text("phi: x", "", [LATER]))
    line = 14 if first else 13
    assert_found(repo, f"{NAME}:{line}: changes {LATER}, an Own-File of this")


def diff_of_own_file(hunk, text):
    """Return the diff that leaves our own file with this text."""
    data = text.encode()
    blob = hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()
    return diff_text(hunk, OWN).replace("1" * 40, blob)


def test_a_patch_may_change_an_own_file_of_an_earlier_patch(repo):
    write(repo, {OWN: "a\nb\n"})
    add(repo, diff_of_own_file("@@ -1 +1,2 @@\n a\n+b\n", "a\nb\n"))
    assert_found(repo)


def test_an_own_file_that_was_edited_around_the_changes_of_a_patch(repo):
    write(repo, {OWN: "new\na\nb\n"})
    add(repo, diff_of_own_file("@@ -1 +1,2 @@\n a\n+b\n", "a\nb\n"))
    assert_found(repo, f"{NAME}:13: was made for another version of {OWN}; run")


# Without the change, with it twice, and with lines after it: it was the end.
@pytest.mark.parametrize(
    "text",
    ["a\nc\n", "c\na\nb\na\nb\n", "a\nb\na\nb\n", "a\nb\nc\n", "a\nb"],
)
def test_an_own_file_that_a_change_of_a_patch_no_longer_fits(repo, text):
    write(repo, {OWN: text})
    add(repo, diff_text("@@ -1 +1,2 @@\n a\n+b\n", OWN))
    assert_found(
        repo, f"{NAME}:13: hunk 1 of 1, @@ -1 +1,2 @@, no longer fits "
    )


def test_an_earlier_version_that_is_not_python_is_named(repo):
    write(repo, {OWN: "def f():\n    pass\n"})
    add(repo, diff_text("@@ -1 +1,2 @@\n def f():\n+    pass\n", OWN))
    assert_found(repo, f"{OWN}:1: as 0001-p.patch leaves it: ")


def test_an_own_file_may_use_what_the_patch_that_changes_it_adds(repo):
    text = "a = 1\nfrom .later import b\n"
    write(repo, {OWN: text, LATER: ""})
    hunk = "@@ -1 +1,2 @@\n a = 1\n+from .later import b\n"
    add(repo, diff_of_own_file(hunk, text), own=[LATER])
    assert_found(repo)


def test_a_change_of_an_own_file_that_imports_one_of_a_later_patch(repo):
    write(repo, {OWN: "a = 1\nfrom .later import b\n", LATER: ""})
    hunk = "@@ -1 +1,2 @@\n a = 1\n+from .later import b\n"
    add(repo, diff_text(hunk, OWN))
    add_patch(repo, "0005-p.patch", patch_text("phi: x", "", [LATER]))
    assert_found(repo, f"{OWN}:1: as 0004-p.patch leaves it, imports {LATER}")


@pytest.mark.parametrize(
    "hunk",
    [
        "@@ -1,2 +1,3 @@\n a\n a\n+b\n",
        "@@ -1,2 +1,3 @@\n+b\n a\n\n",
        "@@ -1,3 +1,5 @@\n+b\n a\n a\n a\n+b\n",
        "@@ -1,2 +1,3 @@\n+b\n a\n a\n\\ No newline at end of file\n",
    ],
)
def test_more_than_one_line_of_context(repo, hunk):
    add(repo, diff_text(hunk))
    assert_found(repo, f"{NAME}:17: more than 1 line of context")


def test_two_changes_git_joins_are_no_long_context(repo):
    hunk = "@@ -1,4 +1,6 @@\n a\n+b\n a\n a\n+b\n a\n\\ No newline at end\n"
    add(repo, diff_text(hunk))
    assert_found(repo)


@pytest.mark.parametrize(
    ("path", "hunk"),
    [
        (CORE, "@@ -1,2 +1,3 @@\n // Licence\n+b\n a\n"),
        (CORE, "@@ -1,2 +1,3 @@\n /* Licence\n+b\n a\n"),
        (CORE, "@@ -1 +1,2 @@\n+b\n a\n"),
        (CORE, "@@ -7,2 +7,3 @@\n int a;\n+b\n a\n"),
        (DEVICE, "@@ -1,2 +1,3 @@\n # Licence\n+b\n a\n"),
        (DEVICE, "@@ -1 +1 @@\n-# Licence\n+# License\n"),
    ],
)
def test_a_hunk_at_a_position_that_a_whole_file_has(repo, path, hunk):
    add(repo, diff_text(hunk, path))
    assert_found(repo)


@pytest.mark.parametrize(
    ("path", "hunk"),
    [
        (CORE, '@@ -1,2 +1,3 @@\n #include "a.h"\n+b\n a\n'),
        (CORE, "@@ -1,2 +1,3 @@\n \n+b\n a\n"),
        (DEVICE, "@@ -1,2 +1,3 @@\n     return x\n+b\n a\n"),
        (DEVICE, "@@ -1,2 +1 @@\n-    return x\n a\n"),
    ],
)
def test_a_hunk_of_an_excerpt_that_claims_the_first_line(repo, path, hunk):
    add(repo, diff_text(hunk, path))
    assert_found(repo, f"{NAME}:17: the hunk claims that the file begins with")


def test_a_hunk_without_leading_context_after_the_first_line(repo):
    add(repo, diff_text("@@ -4 +4,2 @@\n+b\n a\n"))
    assert_found(repo, f"{NAME}:17: the hunk begins without context")


def test_a_preimage_that_is_not_listed(repo):
    add(repo, diff_text("@@ -4 +4,2 @@\n a\n+b\n").replace(LISTED, "b" * 40))
    assert_found(repo, f"{NAME}:13: the preimage of {DEVICE}, bbbb")


def test_a_preimage_made_by_an_earlier_patch_needs_no_line(repo):
    add(repo, diff_text("@@ -4 +4,2 @@\n a\n+b\n"))
    later = diff_text("@@ -8 +8,2 @@\n a\n+b\n").replace(LISTED, "1" * 40)
    add_patch(repo, "0005-p.patch", patch_text("device: y", later, []))
    assert_found(repo)


def test_a_preimage_that_is_listed_for_another_file(repo):
    add(repo, diff_text("@@ -4 +4,2 @@\n a\n+b\n", "test/c.py"))
    assert_found(repo, f"{NAME}:13: the preimage of test/c.py, ")


@pytest.mark.parametrize("index", ["", "index aaaaaaa..1111111 100644\n"])
def test_a_diff_without_whole_hashes(repo, index):
    diff = diff_text("@@ -4 +4,2 @@\n a\n+b\n")
    line = diff.splitlines(keepends=True)[1]
    add(repo, diff.replace(line, index))
    assert_found(repo, f"{NAME}:13: the part for {DEVICE} has no 'index' line")


def test_a_malformed_line_in_preimages(repo):
    with (repo / "patches/preimages").open("a") as preimages:
        preimages.write(f"\n# a remark\n{LISTED} {DEVICE}\n")
    lines = (repo / "patches/preimages").read_text().count("\n")
    assert_found(repo, f"patches/preimages:{lines}: '{LISTED}")


def test_a_patch_may_add_this_many_lines_and_no_more(repo):
    half = MAX_ADDED // 2
    one = diff_text(f"@@ -1 +1,{half + 1} @@\n a\n" + "+b\n" * half)
    two = diff_text(f"@@ -0,0 +1,{half} @@\n" + "+b\n" * half, "test/b.py")
    add(repo, one + two)
    assert_found(repo)
    more = f"{two[:-3]}+b\n+b\n".replace(f"+1,{half}", f"+1,{half + 1}")
    replace(repo / NAME, two, more)
    assert_found(repo, f"{NAME}:1: adds {MAX_ADDED + 1} lines")


def test_an_own_file_that_no_patch_lists(repo):
    write(repo, {"paddle/phi/a.h": "", "test/__pycache__/a.pyc": ""})
    assert_found(repo, "paddle/phi/a.h:1: no patch lists it")


def test_an_own_file_of_two_patches(repo):
    add(repo, own=[OWN])
    assert_found(repo, f"{OWN}:1: is an Own-File of 0001-p.patch, 0004-p.patch")


def test_an_own_file_that_does_not_exist(repo):
    add(repo, own=["test/a.py"])
    assert_found(repo, f"{NAME}:1: Own-File test/a.py does not exist")


def test_an_own_file_outside_our_folders(repo):
    add(repo, own=["tools/a.py"])
    assert_found(repo, f"{NAME}:1: Own-File tools/a.py is not below")


# One for each thing that only readers of this project have.
FORK_TEXTS = [
    "run nox -s tests",
    "see CONTRIBUTING.md",
    "(RFC.md)",
    "as in official Paddle",
    "in the wheel",
    "This wheel has none",
    "(docs/limits.md)",
    "of rfcs/thread_devices.md",
    f"made by {LOADER}",
]


@pytest.mark.parametrize("text", FORK_TEXTS)
def test_an_own_file_that_names_what_paddles_tree_does_not_have(repo, text):
    write(repo, {OWN: f"a = 1\n# {text}\n"})
    assert_found(repo, f"{OWN}:2: '")


@pytest.mark.parametrize("text", FORK_TEXTS)
def test_an_added_line_that_names_what_paddles_tree_does_not_have(repo, text):
    add(repo, diff_text(f"@@ -1 +1,2 @@\n a\n+# {text}\n"))
    assert_found(repo, f"{NAME}:19: '")


@pytest.mark.parametrize("text", FORK_TEXTS)
def test_a_message_that_names_what_paddles_tree_does_not_have(repo, text):
    add(repo)
    replace(repo / NAME, "And # another.", f"And {text}.")
    assert_found(repo, f"{NAME}:6: '")


def test_texts_that_a_reader_of_paddles_tree_understands_pass(repo):
    text = "# equinox, https://example.com/docs/a.md, tools/test_runner.py\n"
    write(repo, {OWN: text})
    removed = "-# docs/a.md\n+# none\n"
    add(repo, diff_text(f"@@ -1,2 +1,2 @@\n // nox\n{removed}", CORE))
    replace(repo / NAME, "the issue is closed", "RFC.md, in the wheel")
    assert_found(repo)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (OWN, "import paddle.base.later"),
        (OWN, "import os, paddle.base.later as module"),
        (OWN, "from paddle.base import later"),
        (OWN, "from paddle.base.later import name"),
        (OWN, "from . import later"),
        (OWN, "from .later import name"),
        (OWN, "from ..base import later"),
        (OWN, "from ..base.later import name"),
        (OWN, "def function():\n    from .later import name"),
        (OWN_TEST, "from later_base import (  # noqa: F401\n    name,\n)"),
        (OWN_TEST, "import later_base"),
    ],
)
def test_an_own_file_that_imports_one_of_a_later_patch(repo, path, text):
    write(repo, {path: f"{text}\n", LATER: "", LATER_BASE: ""})
    add(repo, own=[LATER, LATER_BASE])
    assert_found(repo, f"{path}:1: as 000")
    assert "of 0004-p.patch, a later patch" in findings(repo)[0]


HEADER = "paddle/phi/later.h"


@pytest.mark.parametrize("directive", ["#include", "  # include"])
def test_an_own_file_that_includes_one_of_a_later_patch(repo, directive):
    source = "paddle/phi/early.cc"
    write(repo, {source: f'{directive} "{HEADER}"\n', HEADER: ""})
    add(repo, own=[source])
    add_patch(repo, "0005-p.patch", patch_text("phi: x", "", [HEADER]))
    assert_found(repo, f"{source}:1: as 0004-p.patch leaves it, includes")


def test_an_own_file_may_include_others(repo):
    source, earlier = "paddle/phi/early.cc", "paddle/phi/earlier.h"
    includes = f'#include "{HEADER}"\n#include "paddle/phi/core.h"\n'
    write(repo, {source: includes, HEADER: "", earlier: ""})
    write(repo, {HEADER: f'// not #include "{source}"\n'})
    add(repo, own=[HEADER])
    add_patch(repo, "0005-p.patch", patch_text("phi: x", "", [source, earlier]))
    assert_found(repo)


def test_a_patch_that_is_too_large_to_review(repo):
    large = "test/large.cc"
    write(repo, {large: "\n" * (MAX_LINES + 1)})
    add(repo, own=[large])
    assert_found(repo, f"{NAME}:1: adds {MAX_LINES + 1} lines with its own")
    patch = repo / NAME
    replace(patch, "And # another.", "Large because it is one table.")
    assert_found(repo)


def test_a_patch_that_is_just_not_too_large_to_review(repo):
    large = "test/large.cc"
    write(repo, {large: "\n" * MAX_LINES})
    add(repo, own=[large])
    assert_found(repo)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (OWN, "import later"),
        (OWN, "from .elsewhere import later"),
        (OWN, "from paddle.base.latest import name"),
        (LATER, "from .thread_device import name"),
        (LATER, "from . import later_still"),
    ],
)
def test_an_own_file_may_import_others(repo, path, text):
    write(repo, {LATER: "", "python/paddle/base/later_still.py": ""})
    write(repo, {path: f"{text}\n"})
    add(repo, own=[LATER, "python/paddle/base/later_still.py"])
    assert_found(repo)


@pytest.mark.parametrize(
    ("mode", "hunk"),
    [
        ("new file mode 100644", "@@ -0,0 +1 @@\n+b\n"),
        ("deleted file mode 100644", "@@ -1 +0,0 @@\n-b\n"),
    ],
)
def test_a_diff_that_adds_or_deletes_a_file(repo, mode, hunk):
    add(repo, diff_text(hunk).replace("\n---", f"\n{mode}\n---", 1))
    assert_found(repo, f"{NAME}:13: adds or deletes {DEVICE}")


def test_a_diff_that_renames(repo):
    add(repo, f"diff --git a/{DEVICE} b/{OWN}\nsimilarity index 100%\n")
    assert_found(repo, f"{NAME}:13: expected 'diff --git a/PATH b/PATH'")


def test_a_diff_without_a_hunk(repo):
    add(repo, f"diff --git a/{DEVICE} b/{DEVICE}\nold mode 100644\n")
    assert_found(repo, f"{NAME}:13: the part for {DEVICE} has no hunk")


def test_a_hunk_with_other_line_counts_than_it_says(repo):
    add(repo, diff_text("@@ -1 +1,3 @@\n a\n+b\n"))
    assert_found(repo, f"{NAME}:17: the hunk @@ -1 +1,3 @@ has other")


def test_a_hunk_without_a_proper_header(repo):
    add(repo, diff_text("@@ -1 @@\n a\n+b\n"))
    assert_found(repo, f"{NAME}:17: '@@ -1 @@' is not a hunk header")


def test_the_command_line_prints_the_findings_and_fails(
    repo, monkeypatch, capsys
):
    monkeypatch.setattr(tool, "REPO", repo)
    assert tool.main([]) == 0
    assert capsys.readouterr().out == ""
    write(repo, {"test/a.py": "", "test/b.py": ""})
    assert tool.main([]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    (repo / "patches/series").unlink()
    assert tool.main([]) == 1
    assert "patches/series" in capsys.readouterr().out
