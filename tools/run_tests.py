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
"""Runs the tests of the project: of the tools, in C++, and under our wheel.

    python -m tools.run_tests [PYTEST_ARGUMENT ...]

Without arguments all tests run, twice as many parts side by side as there are
CPUs, each as soon as what it needs is built. Each part has a /dev/shm of its
own; where the system does not allow that, the tests under our wheel are one
part, and the programs in C++ run after the tests in Python. The output of a
part is printed when it has ended. With arguments, pytest alone runs with these
arguments: under our wheel, on the test device and on each GPU there is, or, for
files under tools/, in the environment of the tools.

Ctrl-C, or a build that fails, ends the run after the parts that run already.

Exit status: 0 when all that ran has passed, otherwise 1.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import (
    CancelledError,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.command_line import reports_errors
from tools.environment import (
    cpp_tests,
    host_device,
    official_here,
    our_python,
    site_packages,
    stand_in_driver,
    stand_in_gpu,
    stock_and_ours,
    stock_python,
    without_native_parts,
)
from tools.tree import SUPPORTED
from tools.wheel import REPO, beside_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path


# Runs the command that follows. Programs that share tensors remove what is left
# in /dev/shm of the user's process trees that have no living member, which may
# be of a test that runs side by side.
OWN_SHM = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"',
)

# As many parts have the tests under our wheel: enough for each CPU to have work
# until the end.
PADDLE_PARTS = 8

# As many parts run at once for each CPU: tests of several processes spend most
# of their time waiting.
PARTS_PER_CPU = 2

SANITIZERS = ("", "address", "thread")

# The time of the test command has a goal, so pytest names the slowest tests.
SLOWEST = ("--durations=5", "--durations-min=5")

# The tests of what can be tested on a machine that has the CPU alone.
ON_THE_CPU_ALONE = (
    "test/legacy_test/test_multiprocessing_devices.py",
    "test/legacy_test/test_multiprocessing_pool.py",
    "test/legacy_test/test_tensor_names.py",
    "test/legacy_test/test_thread_device.py",
    "test/legacy_test/test_thread_device_context.py",
    "test/legacy_test/test_thread_device_loader.py",
    "test/legacy_test/test_thread_device_process.py",
    "test/legacy_test/test_thread_device_static.py",
    "test/legacy_test/test_thread_op_device.py",
    "test/legacy_test/test_thread_stream.py",
    "test/legacy_test/test_thread_stream_process.py",
    "test/legacy_test/test_thread_stream_work.py",
)


# The tests of devices, modes, names and threads, which run on the wheel without
# native parts, too.
ON_ANY_PLATFORM = (
    "test/legacy_test/test_batch_source.py",
    "test/legacy_test/test_dataloader_gathered_batch.py",
    "test/legacy_test/test_dataloader_threads.py",
    "test/legacy_test/test_prefetcher.py",
    "test/legacy_test/test_tensor_names.py",
    "test/legacy_test/test_thread_device.py",
    "test/legacy_test/test_thread_device_context.py",
    "test/legacy_test/test_thread_device_loader.py",
    "test/legacy_test/test_thread_device_process.py",
    "test/legacy_test/test_thread_device_static.py",
    "test/legacy_test/test_thread_device_stress.py",
    "test/legacy_test/test_thread_group.py",
    "test/legacy_test/test_thread_op_device.py",
    "test/legacy_test/test_thread_value.py",
    "test/legacy_test/test_without_native_parts.py",
    "test/legacy_test/test_worker_thread.py",
)
# Of these, the tests of random numbers per thread, of programs on threads, and
# of what keeps its tensor alive. test_without_native_parts.py has what happens
# without the first two.
NEEDS_NATIVE_PARTS = tuple(
    f"test/legacy_test/test_{test}"
    for test in (
        "batch_source.py::TestBatches"
        "::test_the_seed_alone_determines_what_a_reader_gets",
        "batch_source.py::TestBatches"
        "::test_a_seed_that_is_not_given_is_drawn_from_paddles_generator",
        "dataloader_gathered_batch.py::TestLoader"
        "::test_what_get_tensor_returns_keeps_the_memory_of_a_batch",
        "dataloader_threads.py::TestSameAsProcesses",
        "thread_device.py::TestStateOfTheTracer_custom_cpu"
        "::test_to_static_on_a_thread_is_as_on_the_main_thread",
        "thread_device.py::TestStateOfTheTracer_gpu"
        "::test_to_static_on_a_thread_is_as_on_the_main_thread",
        "thread_group.py::TestStart"
        "::test_threads_draw_the_same_numbers_again_from_the_same_seed",
        "worker_thread.py::TestRandomNumbers",
        "worker_thread.py::TestErrors::test_a_failed_start_is_raised_by_join",
        "prefetcher.py::TestPrefetcher"
        "::test_random_items_do_not_depend_on_what_the_consumer_draws",
        "prefetcher.py::TestPrefetcher"
        "::test_a_failed_start_of_the_thread_reaches_the_consumer",
        "worker_thread.py::TestFork::test_a_fork_of_a_worker_goes_on_in_its_state",
    )
)


class Part(NamedTuple):
    """A command, with the variables that its environment has besides."""

    title: str
    command: tuple[str | Path, ...]
    variables: Mapping[str, str | Path | None] = MappingProxyType({})

    def with_own_shm(self) -> Part:
        """Returns this part with a /dev/shm that others do not see."""
        return self._replace(command=(*OWN_SHM, *self.command))

    def run(self, **how: Any) -> subprocess.CompletedProcess[str]:
        """
        Runs the command in the folder of the project. A variable that is None
        is not in its environment.
        """
        environ = {**os.environ, **self.variables}
        return subprocess.run(
            [str(word) for word in self.command],
            cwd=REPO,
            env={k: str(v) for k, v in environ.items() if v is not None},
            text=True,
            **how,
        )


def tools_part(stock: Path, ours: Path, arguments: list[str]) -> Part:
    """Returns the tests of the tools."""
    return Part(
        "tools",
        (sys.executable, "-m", "pytest", "-q", *SLOWEST, *arguments),
        {
            "PADDLE_WHEEL_TREE": site_packages(stock),
            "PADDLE_PYTHON": ours,
            "CUSTOM_DEVICE_ROOT": host_device(stock),
        },
    )


def paddle_part(stock: Path, ours: Path, arguments: list[str]) -> Part:
    """Returns the tests that run under our wheel."""
    gpu = (stand_in_gpu(ours), stand_in_driver(stock))
    return Part(
        "Paddle",
        (ours, "-m", "pytest", "-q", "-rs", *SLOWEST, *arguments),
        {
            "CUSTOM_DEVICE_ROOT": host_device(stock),
            "PADDLE_STAND_IN_GPU": os.pathsep.join(map(str, gpu)),
        },
    )


def split(part: Part, files: list[str], count: int) -> list[Part]:
    """Returns a part of pytest as several ones, each with some of the files."""
    # Neighbours in the list, whose names begin alike, take about equally long.
    groups = [files[first::count] for first in range(count)]
    return [
        part._replace(
            title=f"{part.title}, {number} of {count}",
            command=(*part.command, *group),
        )
        for number, group in enumerate(groups, 1)
    ]


def files_of_tests() -> list[str]:
    """Returns the files of tests that run under our wheel."""
    found = REPO.glob("test/**/test_*.py")
    return sorted(str(file.relative_to(REPO)) for file in found)


def cpu_part(ours: Path) -> Part:
    """Returns the tests of devices as on a machine that has the CPU alone."""
    return Part(
        "Paddle with the CPU alone",
        (ours, "-m", "pytest", "-q", *ON_THE_CPU_ALONE),
        {"CUSTOM_DEVICE_ROOT": None},
    )


def any_platform_part(stock: Path) -> Part:
    """Returns the tests that run under the wheel without native parts."""
    deselected = [f"--deselect={test}" for test in NEEDS_NATIVE_PARTS]
    return Part(
        "Paddle without native parts",
        (
            *(without_native_parts(SUPPORTED[0]), "-m", "pytest", "-q"),
            *(*deselected, *ON_ANY_PLATFORM),
        ),
        {"CUSTOM_DEVICE_ROOT": host_device(stock)},
    )


def core_part(stock: Path, sanitizer: str) -> Part:
    """Returns the programs in C++, plain or under a sanitizer."""
    title = f"C++ under the {sanitizer} sanitizer" if sanitizer else "C++"
    ctest = (beside_python("ctest"), "--output-on-failure", "--test-dir")
    return Part(title, (*ctest, cpp_tests(stock, sanitizer)))


def can_have_own_shm() -> bool:
    """Returns whether a part can have a /dev/shm of its own; root often can."""
    try:
        done = subprocess.run([*OWN_SHM, "true"], stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def all_pass(batches: Iterable[list[Part]], at_once: int | None) -> bool:
    """
    Runs parts in their order, some of them at once, and returns whether all
    succeeded. A batch of parts starts when the iterator has it.
    """
    printing = threading.Lock()

    def passes(part: Part) -> bool:
        with printing:
            print(f"===== {part.title}: started", flush=True)
        start = time.monotonic()
        done = part.run(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        result = "passed" if done.returncode == 0 else "FAILED"
        seconds = round(time.monotonic() - start)
        with printing:
            print(f"\n{done.stdout.rstrip()}")
            print(f"===== {part.title}: {result}, {seconds} s\n", flush=True)
        return done.returncode == 0

    with threads(at_once) as pool:
        passed = [
            pool.submit(passes, part) for batch in batches for part in batch
        ]
        wait(passed)
    return all(each.result() for each in passed)


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[ThreadPoolExecutor]:
    """
    Has threads that do what is submitted to them. After an error, such as
    Ctrl-C, they only end what they have begun.
    """
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def stock_with_plugins(version: str) -> Path:
    """
    Returns the Python of an environment with the official wheel. From then on
    the test device and the driver of the stand-in for a GPU are found built.
    """
    stock = stock_python(version)
    host_device(stock)
    stand_in_driver(stock)
    return stock


def python_parts(ours: Path, stock: Path, count: int) -> list[Part]:
    """
    Returns the tests under our wheel, as `count` parts, and those of the tools.
    """
    paddle = paddle_part(stock, ours, [])
    return [
        # The longest part: last, it would run alone at the end.
        tools_part(stock, ours, ["tools/tests"]),
        *split(paddle, files_of_tests(), count),
        cpu_part(ours),
    ]


def demonstration_part(builds: list[Future[list[Part]]]) -> Part:
    """Returns the demonstration, which would build what is missing."""
    for build in builds:
        # Unlike wait(), returns for one that was cancelled, too.
        with contextlib.suppress(CancelledError):
            build.exception()
    command = (sys.executable, "-m", "tools.demonstration")
    return Part("demonstration", command)


def all_tests_pass(version: str) -> bool:
    """
    Builds and runs all tests, each part as soon as what it needs is built.
    Returns whether all passed.
    """
    has_own_shm = can_have_own_shm()
    count = PADDLE_PARTS if has_own_shm else 1
    # Both threads start from it. Each does in order what is submitted to it.
    official_here(version)
    with threads(1) as wheels, threads(1) as programs:
        stock = programs.submit(stock_with_plugins, version)
        python = [
            wheels.submit(
                lambda: python_parts(our_python(version), stock.result(), count)
            ),
            wheels.submit(lambda: [any_platform_part(stock.result())]),
        ]
        core = [
            programs.submit(
                lambda sanitizer: [core_part(stock.result(), sanitizer)],
                sanitizer,
            )
            for sanitizer in SANITIZERS
        ]
        builds = [*python, *core]
        python.append(wheels.submit(lambda: [demonstration_part(builds)]))
        at_once = PARTS_PER_CPU * (os.cpu_count() or 1)
        if has_own_shm:
            batches = built([*python, *core])
            apart = ([p.with_own_shm() for p in batch] for batch in batches)
            return all_pass(apart, at_once)
        print("No /dev/shm for each part: C++ runs after Python.", flush=True)
        passed = [all_pass(built(python), at_once), all_pass(built(core), 1)]
        return all(passed)


def built(batches: list[Future[list[Part]]]) -> Iterator[list[Part]]:
    """Yields batches of parts, each when what it needs is built."""
    return (batch.result() for batch in as_completed(batches))


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the module's text gives the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    # Programs that a shell starts in the background ignore Ctrl-C, and their
    # children inherit that; some tests interrupt processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    version = SUPPORTED[0]
    if not arguments:
        return 0 if all_tests_pass(version) else 1
    stock, ours = stock_and_ours(version)
    of_tools = any(word.startswith("tools/") for word in arguments)
    part = tools_part if of_tools else paddle_part
    return 1 if part(stock, ours, arguments).run().returncode else 0


if __name__ == "__main__":
    sys.exit(main())
