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
"""Finds leaks of shared tensors, in processes and in /dev/shm."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import struct
import sys
import time
from collections import Counter
from typing import Any, NamedTuple

from concurrent_base import descriptors

from paddle.base.shared_storage import native

SETTLE_S = 60
SHM = "/dev/shm"

# Later collections then skip the objects that exist now, which saves time in
# the many collections: Paddle's objects stay alive anyway. No collection first:
# each of the many processes that import this module would take 0.1 s for it.
gc.freeze()


class Resources(NamedTuple):
    """Resources of shared tensors, in one process and in /dev/shm."""

    files: frozenset[str]
    descriptors: Counter[str]
    mapped: Counter[str]
    own: frozenset[str]
    used: int


def resources(kept: dict[str, Any] | None = None) -> Resources:
    """Returns the resources of this process, after freeing what it can."""
    gc.collect()
    native.collect(None)
    native.collect_cuda()
    return Resources(
        frozenset(shared_files()),
        Counter(descriptors().values()),
        Counter(mapped_bytes(os.getpid())),
        frozenset(_own_segments()),
        native.stats()["used"],
    )


def shared_files() -> set[str]:
    """Returns the files that Paddle has in /dev/shm, of all processes."""
    return {name for name in os.listdir(SHM) if name.startswith("paddle-")}


def shared_files_of(tree: str) -> set[str]:
    """Returns the files of one process tree."""
    return {name for name in shared_files() if tree in name}


@contextlib.contextmanager
def kept_files(tree: str):
    """
    Prevents other programs from removing the files of a process tree that ends
    within the context. A program removes them when it shares a tensor.
    """
    # The lock that shows that a tree has live members: a struct flock for the
    # byte of /dev/shm that the tree's number selects.
    byte = int(tree, 16) >> 2
    lock = struct.pack("hhqqi0q", fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0)
    folder = os.open(SHM, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.fcntl(folder, fcntl.F_OFD_SETLK, lock)
        yield
    finally:
        os.close(folder)


def _own_segments() -> set[str]:
    """Returns the segments that this process owns, by their names."""
    # The offset of the owner's process id in the ledger.
    owner = 140
    # The owner of a file has it without its name.
    names = {entry.inode(): entry.path for entry in os.scandir(SHM)}
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if is_shared_memory(target):
                pid = os.pread(int(number), 4, owner)
                if int.from_bytes(pid, sys.byteorder) == os.getpid():
                    inode = os.fstat(int(number)).st_ino
                    found |= {target, names.get(inode, target)}
    return found


def is_shared_memory(target: str) -> bool:
    """Returns whether a link in /proc points to a segment."""
    semaphore = target.startswith(f"{SHM}/sem.")
    return target.startswith((f"{SHM}/", "/memfd:paddle-")) and not semaphore


def mapped_bytes(pid: int) -> dict[str, int]:
    """Returns the bytes of address space of each shared object."""
    # The owner of a file has it without its name.
    names = {entry.inode(): entry.path for entry in os.scandir(SHM)}
    found: dict[str, int] = {}
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            span, _, _, _, inode, *path = line.strip().split(maxsplit=5)
            if path and is_shared_memory(path[0]):
                begin, end = (int(address, 16) for address in span.split("-"))
                name = names.get(int(inode), path[0])
                found[name] = found.get(name, 0) + end - begin
    return found


def tree_of(name: str) -> str:
    """
    Returns the common prefix of the file and memfd names of a process tree,
    from one of the names: paddle-<user>-<tree>-<segment>.
    """
    return name[name.index("paddle-") :].rpartition("-")[0]


def leaks(before: Resources, after: Resources, kept: set[str]) -> list[str]:
    """
    Returns a line for each resource that is in `after` but not in `before`. The
    segments in `kept` are not leaks: live processes keep the few segments that
    they own.
    """
    # Other programs may run concurrently and have files.
    trees = {tree_of(name) for name in before.mapped if "paddle-" in name}
    lines = [
        f"file {SHM}/{file}"
        for file in sorted(after.files - before.files)
        if tree_of(file) in trees and f"{SHM}/{file}" not in kept
    ]
    for what in ("descriptors", "mapped"):
        more = getattr(after, what) - getattr(before, what)
        lines += [
            f"{what} {name}: {n}"
            for name, n in sorted(more.items())
            if name not in kept
        ]
    if after.used > before.used:
        lines.append(f"used {after.used - before.used} bytes of shared memory")
    return lines


@contextlib.contextmanager
def no_leak(*peers: Any, settle_s: float = SETTLE_S):
    """
    Fails with a list of leaks if this process or a peer holds more `settle_s`
    seconds after the body than before it. It waits because other processes
    release memory with a delay. A peer calls functions, like the peers of
    shared_tensor_base.py.
    """

    def measure() -> list[Resources]:
        return [resources(), *(peer.call(resources) for peer in peers)]

    before = measure()
    yield
    deadline = time.monotonic() + settle_s
    while True:
        after = measure()
        kept = set().union(*(each.own for each in after))
        found = [
            f"process {index}: {line}"
            for index, pair in enumerate(zip(before, after))
            for line in leaks(*pair, kept)
        ]
        if not found:
            return
        if time.monotonic() > deadline:
            raise AssertionError("leaked:\n" + "\n".join(found))
        time.sleep(0.05)
