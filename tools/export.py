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
"""Turn the series into commits on a checkout of Paddle, and back.

    python -m tools.export CHECKOUT [--branch NAME] [--output DIR]
                                    [--pull-requests]
    python -m tools.export --refresh CHECKOUT [--branch NAME]

The first form creates a branch with one commit per patch, starting at the
version tag that CHECKOUT's HEAD descends from, and writes the same commits to
DIR as mails for ``git am``. It does not touch the working tree of CHECKOUT. The
second form writes the commits of the branch back to patches/ and to our own
files. The trailers of a patch stay in patches/.

With --pull-requests, each pull request in patches/series also gets a branch,
NAME-1, NAME-2, ..., and a text, DIR/pull_request-1.md, ...: its title, an empty
line, and its description in the form of Paddle's template.

Exit status: 0 when done or up to date, otherwise 1.
"""

from __future__ import annotations

import argparse
import itertools
import re
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tools.apply import REPO, fit, write_files
from tools.command_line import reports_errors
from tools.own_files import own_versions
from tools.series import (
    FIELDS,
    TYPE,
    PatchError,
    load_sections,
    load_series,
    parse_patch,
    patch_text,
    split_trailers,
)
from tools.tree import SUPPORTED, git, open_tree, run_git

if TYPE_CHECKING:
    from tools.series import Patch, Section
    from tools.tree import Tree

BRANCH = "thread-and-process-safety"

# Marks our mails; git am skips unknown headers.
_MARK = b"X-Made-By: tools.export"

# The summary of an RFC, once the Paddle community has accepted the RFC.
_SUMMARY = (
    "https://github.com/PaddlePaddle/community/blob/master/rfcs/{}.md"
    "#一概述--overview"
)

# The diff must not depend on the user's git configuration.
_DIFF_TREE = (
    "-c core.attributesFile= -c diff.indentHeuristic=true"
    " -c diff.suppressBlankEmpty=false"
    " diff-tree -r --no-commit-id"
)


def _open_checkout(root: Path, rev: str) -> Tree:
    tree = open_tree(root, rev)
    if tree.kind != "checkout":
        raise PatchError(f"{tree.root} is a {tree.kind}, not a git checkout")
    return tree


def _check_identity(root: Path) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        run = run_git(root, f"-c user.useConfigOnly=true var GIT_{who}_IDENT")
        if run.returncode:
            raise PatchError(
                "git has no name and address for the commits; set them with"
                " git config --global user.name and user.email"
            )


def _commit(repo: Path, series: list[Patch], root: Path, tag: str) -> str:
    """Commit the series in an empty worktree; return the last commit."""
    git(root, "read-tree", tag)
    known = set(git(root, "ls-files -z").split("\0"))
    own = {path for patch in series for path in patch.own_files}
    for path in own & known:
        raise PatchError(f"{path}, an Own-File of a patch, exists in {tag}")
    touched = {part.path for patch in series for part in patch.files} & known
    git(root, "checkout-index -z --stdin", text="\0".join(touched))
    head = git(root, "rev-parse", f"{tag}^{{commit}}").strip()
    for patch, versions in zip(series, own_versions(repo, series)):
        fit(patch, [f for f in patch.files if f.path not in own], root)
        write_files({root / path: file for path, file in versions.items()})
        paths = {*(part.path for part in patch.files), *patch.own_files}
        git(root, "update-index --add -z --stdin", text="\0".join(paths))
        tree = git(root, "write-tree").strip()
        # Not git commit, which would run hooks and ask for a signature.
        command = f"commit-tree {tree} -p {head} -F -"
        head = git(root, command, text=patch.message).strip()
    return head


def _write_mails(root: Path, commits: str, output: Path) -> None:
    """Write the commits as mails, replacing those of an earlier export."""
    output.mkdir(parents=True, exist_ok=True)
    earlier = {
        path.name
        for path in output.glob("*.patch")
        if _MARK in path.read_bytes().partition(b"\n\n")[0].split(b"\n")
    }
    with tempfile.TemporaryDirectory() as folder:
        git(
            root,
            "format-patch --zero-commit --full-index --no-signature"
            " --no-cover-letter --suffix=.patch"
            " --src-prefix=a/ --dst-prefix=b/",
            f"--add-header={_MARK.decode()}",
            f"--output-directory={folder}",
            commits,
        )
        mails = {
            path.name: path.read_bytes() for path in Path(folder).iterdir()
        }
    for name in mails:
        if name not in earlier and (output / name).exists():
            raise PatchError(
                f"{output / name} is not from an earlier export; move it away,"
                " or choose another --output"
            )
    write_files({output / n: (data, 0o644) for n, data in mails.items()})
    for name in earlier - set(mails):
        (output / name).unlink()


def _read_index(repo: Path) -> dict[str, tuple[str, str]]:
    """Return each pull request's RFC and dependencies, by its title."""
    index = {}
    for line in (repo / "RFC.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        # Only the table of the pull requests has five columns.
        if len(cells) == 7:
            rfc = re.search(r"\(rfcs/(\w+)\.md\)", cells[2])
            index[cells[1]] = rfc[1] if rfc else "", cells[4]
    return index


def _pull_request_text(
    section: Section,
    index: dict[str, tuple[str, str]],
    subjects: dict[str, str],
) -> str:
    rfc, needs = index.get(section.title, ("", ""))
    if not rfc or not section.types:
        raise PatchError(
            f"the pull request {section.title!r} needs a line {TYPE.strip()!r}"
            " in patches/series, and a row with its RFC in RFC.md"
        )
    titles = {name: title for title, (name, _) in index.items()}
    unknown = {*re.findall(r"\w+", needs.replace("tests:", ""))} - {*titles}
    if unknown:
        raise PatchError(
            f"RFC.md: the pull request {section.title!r} depends on"
            f" {', '.join(sorted(unknown))}, which no row names"
        )
    first = "".join(
        f"- {titles[name]}{note}\n"
        for part, note in zip(
            needs.split("tests:"), ("", " (only for the tests)")
        )
        for name in re.findall(r"\w+", part)
    )
    commits = "".join(f"- {subjects[name]}\n" for name in section.names)
    return (
        f"{section.title}\n\n"
        f"### PR Category\n\n{section.category}\n\n"
        f"### PR Types\n\n{section.types}\n\n"
        f"### Description\n\nRFC: {_SUMMARY.format(rfc)}\n\n"
        + (f"To be merged first:\n\n{first}\n" if first else "")
        + f"Commits:\n\n{commits}\n"
        # Whether numerical results change: yes and how, or no.
        "### 是否引起精度变化\n\n"
        + (f"是\n\n{section.precision}\n" if section.precision else "否\n")
    )


def pull_request_texts(repo: Path, series: list[Patch]) -> list[str]:
    """Return the title and description of each pull request.

    Args:
        repo: the root of the repository that holds patches/ and RFC.md.
        series: all patches.

    Raises:
        PatchError: a pull request has no type, or no RFC in RFC.md.
    """
    index = _read_index(repo)
    subjects = {patch.name: patch.subject for patch in series}
    return [
        _pull_request_text(section, index, subjects)
        for section in load_sections(repo)
        if section.title and section.names
    ]


def _pull_request_branches(
    repo: Path, root: Path, branch: str, commits: list[str]
) -> dict[str, str]:
    """Return the pull request branches to create, each with its last commit.

    Raises:
        PatchError: the checkout has such a branch at another commit.
    """
    branches = {}
    done = 0
    numbers = itertools.count(1)
    for section in load_sections(repo):
        done += len(section.names)
        if section.title and section.names:
            branches[f"{branch}-{next(numbers)}"] = commits[done - 1]
    for name, commit in list(branches.items()):
        old = run_git(root, f"rev-parse --verify --quiet refs/heads/{name}")
        if old.stdout.strip() == commit:
            del branches[name]
        elif not old.returncode:
            raise PatchError(
                f"{root} has a branch {name} with commits of another series:"
                " delete it, or choose another --branch"
            )
    return branches


def export(
    repo: Path,
    checkout: Path,
    output: Path,
    branch: str = BRANCH,
    pull_requests: bool = False,
) -> bool:
    """Create a branch of the series on a checkout, and mails for git am.

    Args:
        repo: the root of the repository that holds patches/.
        checkout: the root of a git checkout of Paddle.
        output: folder for the mails and texts.
        branch: name of the branch to create.
        pull_requests: also create branches NAME-1, NAME-2, ... that end at the
            last commit of each pull request in patches/series, and write
            their texts, replacing those of an earlier export.

    Returns:
        False if the branches existed with the same content.

    Raises:
        PatchError: a hunk does not fit, git has no identity, the branch has
            other commits, or a pull request has no type or RFC; the checkout
            is unchanged.
    """
    series = load_series(repo)
    texts = pull_request_texts(repo, series) if pull_requests else []
    tree = _open_checkout(checkout, "HEAD")
    _check_identity(tree.root)
    ref = f"refs/heads/{branch}"
    old = run_git(tree.root, "rev-parse --verify --quiet", ref)
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder, "worktree")
        add = "worktree add --quiet --detach --no-checkout"
        git(tree.root, add, str(worktree), tree.tag)
        try:
            head = _commit(repo, series, worktree, tree.tag)
        finally:
            git(tree.root, "worktree remove --force", str(worktree))
    found = not old.returncode
    if found:
        commits = [f"{tree.tag}..{rev}" for rev in (ref, head)]
        # Not the commit hashes, which differ because of their dates.
        was, now = (
            git(tree.root, "log --reverse --format=%T%n%B", which)
            for which in commits
        )
        if was != now:
            raise PatchError(
                f"{tree.root} has a branch {branch} with other commits than"
                " this series: write them back with --refresh, delete the"
                " branch, or choose another --branch"
            )
        head = old.stdout.strip()
    branches = {} if found else {branch: head}
    if pull_requests:
        commits = git(tree.root, f"rev-list --reverse {tree.tag}..{head}")
        branches |= _pull_request_branches(
            repo, tree.root, branch, commits.split()
        )
    _write_mails(tree.root, f"{tree.tag}..{head}", output)
    for path in output.glob("pull_request-*.md"):
        path.unlink()
    for number, text in enumerate(texts, 1):
        path = output / f"pull_request-{number}.md"
        path.write_text(text, encoding="utf-8")
    for name, commit in branches.items():
        git(tree.root, "branch --no-track", name, commit)
    return bool(branches)


def _changes(root: Path, commit: str) -> tuple[dict[str, str], list[str]]:
    """Return a commit's added files with their modes, and the modified ones.

    Raises:
        PatchError: the commit deletes, renames or retypes a file.
    """
    added, modified = {}, []
    fields = git(root, f"{_DIFF_TREE} --raw -z", commit).split("\0")
    for what, path in zip(fields[::2], fields[1::2]):
        old_mode, mode, _, _, status = what[1:].split(" ")
        if status == "A" and mode in ("100644", "100755"):
            added[path] = mode
        elif status == "M" and mode == old_mode:
            modified.append(path)
        else:
            raise PatchError(
                f"{path}: commit {commit[:12]} deletes, renames or retypes it;"
                " a patch may only add files and change lines"
            )
    return added, modified


def _differs(path: Path, data: bytes, mode: int) -> bool:
    return (
        not path.is_file()
        or path.read_bytes() != data
        or bool((path.stat().st_mode ^ mode) & stat.S_IXUSR)
    )


def _message_of(
    root: Path, commit: str, known: dict[str, Patch]
) -> tuple[str, dict[str, str], Patch | None]:
    """Return a commit's message, its trailers, and the patch with its subject.

    Raises:
        PatchError: the commit has no trailers, and no patch has its subject.
    """
    whole = git(root, "show --no-patch --format=%B", commit)
    message, trailers = split_trailers(whole)
    subject = message.split("\n", 1)[0]
    if not trailers and subject not in known:
        raise PatchError(
            f"commit {commit[:12]}, {subject!r}, is not in the series yet;"
            f" end its message with the trailers {', '.join(FIELDS)}"
        )
    return message, trailers, known.get(subject)


def _read_commits(
    repo: Path, root: Path, commits: list[str], old: list[Patch]
) -> tuple[list[Patch], dict[str, tuple[bytes, int]]]:
    """Return the patches and the own files of commits.

    A commit with the subject of an existing patch takes that patch's trailers,
    with a new date if it has changed; a new commit has them in its message.

    Args:
        repo: the root of the repository that holds patches/.
        root: the checkout.
        commits: in order, each the child of the previous one.
        old: the previous series; patches with the same subject keep their
            names, and own files their order.

    Raises:
        PatchError: a commit cannot be turned into a patch.
    """
    order = [path for patch in old for path in patch.own_files]
    known = {patch.subject: patch for patch in old}
    try:
        left = dict(zip((p.name for p in old), own_versions(repo, old)))
    except PatchError:
        # Edits in place broke a hunk; this writes the files anew.
        left = {}
    series, own = [], {}
    for number, commit in enumerate(commits, 1):
        added, modified = _changes(root, commit)
        for path in [*added, *(own.keys() & set(modified))]:
            data = git(root, "cat-file blob", f"{commit}:{path}")
            data = data.encode("utf-8", "surrogateescape")
            mode = int(added[path], 8) if path in added else own[path][1]
            own[path] = data, stat.S_IMODE(mode)
        diff = ""
        if modified:
            command = f"{_DIFF_TREE} --unified=1 --full-index {commit} --"
            diff = git(root, command, *modified)
        message, trailers, before = _message_of(root, commit, known)
        subject = message.split("\n", 1)[0]
        slug = re.sub(r"[^a-z0-9]+", "-", subject.lower()).strip("-")
        name = f"{number:04}-{slug}.patch"
        if before is not None and before in old[number - 1 : number]:
            name = before.name
        names = sorted(
            added,
            key=lambda p: (order.index(p) if p in order else len(order), p),
        )
        text = patch_text(message, trailers or before.trailers, names, diff)
        if not trailers and (
            text != before.text
            or any(
                left.get(before.name, {}).get(path) != own[path]
                for path in names
            )
        ):
            date = git(root, "show --no-patch --format=%cs", commit).strip()
            trailers = {**before.trailers, "Last-Update": date}
            text = patch_text(message, trailers, names, diff)
        series.append(parse_patch(name, text))
    return series, own


def _listing(repo: Path, old: list[Patch], series: list[Patch]) -> list[str]:
    """Return the lines of patches/series for a new series.

    A patch stays in its pull request; a new patch joins the pull request of the
    patch before it.

    Raises:
        PatchError: commits of one pull request are between those of another.
    """
    sections = load_sections(repo)
    section_of = {
        name: i for i, section in enumerate(sections) for name in section.names
    }
    subjects = {patch.subject: section_of[patch.name] for patch in old}
    first = min(subjects.values(), default=0)
    places = []
    for patch in series:
        before = places[-1] if places else first
        place = subjects.get(patch.subject, before)
        if place < before:
            raise PatchError(
                f"{patch.subject!r} belongs to the pull request"
                f" {sections[place].title!r} but comes after a commit of"
                f" {sections[before].title!r}; move the commit, or the patch"
                " in patches/series"
            )
        places.append(place)
    lines = []
    for i, section in enumerate(sections):
        lines += section.comments
        lines += [p.name for p, place in zip(series, places) if place == i]
    return lines


def refresh(repo: Path, checkout: Path, branch: str = BRANCH) -> bool:
    """Write the commits of an exported branch back to the repository.

    Args:
        repo: the root of the repository that holds patches/.
        checkout: the root of a git checkout of Paddle.
        branch: the branch; its commits become the series.

    Returns:
        False if the repository already had the same content.

    Raises:
        PatchError: the commits cannot be turned into patches; nothing was
            written.
    """
    tree = _open_checkout(checkout, f"refs/heads/{branch}")
    if tree.version != SUPPORTED[0]:
        raise PatchError(
            f"{branch} is based on {tree.tag}, but the patches are based on"
            f" v{SUPPORTED[0]}; rebase the branch onto v{SUPPORTED[0]}"
        )
    commits = f"{tree.tag}..refs/heads/{branch}"
    if git(tree.root, "rev-list --merges", commits):
        raise PatchError(f"{branch} has merges; rebase it onto {tree.tag}")
    hashes = git(tree.root, "rev-list --reverse", commits).split()
    if not hashes:
        raise PatchError(f"{branch} has no commit after {tree.tag}")
    old = load_series(repo)
    series, own = _read_commits(repo, tree.root, hashes, old)
    names = [patch.name for patch in series]
    if len(set(names)) < len(names):
        raise PatchError(
            f"two patches would get the same name, from their subjects:"
            f" {', '.join(names)}"
        )
    listing = "".join(f"{line}\n" for line in _listing(repo, old, series))
    files = {repo / path: file for path, file in own.items()}
    files[repo / "patches" / "series"] = listing.encode("utf-8"), 0o644
    for patch in series:
        path = repo / "patches" / patch.name
        files[path] = patch.text.encode("utf-8", "surrogateescape"), 0o644
    stale = {repo / "patches" / patch.name for patch in old}
    stale |= {repo / path for patch in old for path in patch.own_files}
    stale -= set(files)
    changed = {
        path: file for path, file in files.items() if _differs(path, *file)
    }
    write_files(changed)
    for path in stale:
        path.unlink(missing_ok=True)
    return bool(changed or stale)


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command line; the module docstring gives the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.export",
        description="Turn the patches into commits on a checkout of Paddle,"
        " and back.",
    )
    add = parser.add_argument
    add("checkout", type=Path, metavar="CHECKOUT")
    add("--branch", default=BRANCH, metavar="NAME", help="default: %(default)s")
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "--output",
        type=Path,
        default=REPO / "build" / "export",
        metavar="DIR",
        help="folder for the mails (default: build/export here)",
    )
    add(
        "--pull-requests",
        action="store_true",
        help="also create a branch per pull request, NAME-1, NAME-2, ...,"
        " and write its text to DIR/pull_request-1.md, ...",
    )
    way.add_argument(
        "--refresh",
        action="store_true",
        help="write the branch's commits back to patches/",
    )
    args = parser.parse_args(argv)
    if args.refresh:
        changed = refresh(REPO, args.checkout, args.branch)
        done = f"patches/ matches the branch {args.branch}"
    else:
        changed = export(
            REPO, args.checkout, args.output, args.branch, args.pull_requests
        )
        done = f"{args.branch} holds the series; mails: {args.output}"
    print(f"{'done' if changed else 'up to date'}: {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
