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
"""Runs the project's tests: tool tests, C++ tests, and tests of our wheel.

    python -m tools.run_tests [PYTEST_ARGUMENT ...]

Without arguments all tests run, in parts. Two parts per CPU run in parallel,
and each part starts when its builds are done. Each part has its own /dev/shm.
If the system does not allow that, the tests of our wheel are one part, and the
C++ programs run after the Python tests. The output of a part is printed when
the part ends. With arguments, only pytest runs, with these arguments: with our
wheel, on the test device and on each GPU; for files under
tools/without_native_parts/, with the wheel without native parts; for other
files under tools/, in the environment of the tools.

After Ctrl-C or a failed build, the parts that are running finish, and no other
part starts.

Exit status: 0 if everything that ran passed, otherwise 1.
"""

from __future__ import annotations

import contextlib
import os
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

from tools.command_line import let_tests_interrupt_processes, reports_errors
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
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path


# Runs the command that follows. Programs that share tensors remove the files in
# /dev/shm of the user's process trees without living processes. Such files may
# belong to a test that runs in parallel.
OWN_SHM = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs tmpfs /dev/shm && exec "$0" "$@"',
)

# The number of parts of the tests of our wheel: enough to keep all CPUs busy
# until the end.
PADDLE_PARTS = 12

# The files that take longest, in that order: each part gets one, so that all
# parts take about equally long.
LONGEST = (
    "test/legacy_test/test_shm_machines.py",
    "test/legacy_test/test_shared_tensor_lifetime.py",
    "test/legacy_test/test_shm_failure.py",
    "test/legacy_test/test_shm_data_parallel.py",
    "test/legacy_test/test_inference_threads_process.py",
    "test/legacy_test/test_shared_tensor.py",
    "test/legacy_test/test_data_parallel_threads.py",
    "test/legacy_test/test_shm_start.py",
    "test/legacy_test/test_import_side_effects.py",
    "test/legacy_test/test_cuda_ipc.py",
    "test/legacy_test/test_killed_test_run.py",
    "test/legacy_test/test_shm_group.py",
    # Not in the part of test_cuda_ipc.py, whose messages keep the events that
    # the stand-in driver can make for a process.
    "test/legacy_test/test_interprocess_event.py",
)

# The number of parts that run in parallel per CPU: tests with several processes
# spend most of their time waiting.
PARTS_PER_CPU = 2

SANITIZERS = ("", "address", "thread")

PYTEST = ("-m", "pytest", "-q")
# For the tests of a Paddle.
PADDLE_PYTEST = (*PYTEST, "-p", "tools.gc_freeze")

# The test command has a time goal, so pytest reports the slowest tests.
SLOWEST = ("--durations=5", "--durations-min=5")

# The tests that also run as on a CPU-only machine.
CPU_ONLY = (
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
    "test/legacy_test/test_thread_stream_static.py",
    "test/legacy_test/test_thread_stream_to_static.py",
)


# The tests of devices, modes, names and threads that also run on the wheel
# without native parts.
ON_ANY_PLATFORM = (
    "test/legacy_test/test_batch_source.py",
    "test/legacy_test/test_blocking_queue.py",
    "test/legacy_test/test_dataloader_collating_fetcher.py",
    "test/legacy_test/test_dataloader_dropped.py",
    "test/legacy_test/test_dataloader_interruption.py",
    "test/legacy_test/test_dataloader_threads.py",
    "test/legacy_test/test_device_functions.py",
    "test/legacy_test/test_device_strings.py",
    "test/legacy_test/test_interruption_points.py",
    "test/legacy_test/test_memory_stats.py",
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
    "tools/without_native_parts/test_without_native_parts.py",
    "test/legacy_test/test_worker_thread.py",
)
# Of these, the tests that need native parts: of per-thread random numbers, of
# programs on threads, and of objects that keep a tensor alive.
# test_without_native_parts.py tests the errors in place of the first two.
NEEDS_NATIVE_PARTS = tuple(
    f"test/legacy_test/test_{test}"
    for test in (
        "batch_source.py::TestBatches"
        "::test_the_seed_alone_determines_what_a_reader_gets",
        "batch_source.py::TestBatches"
        "::test_a_seed_that_is_not_given_is_drawn_from_paddles_generator",
        "dataloader_collating_fetcher.py::TestLoader"
        "::test_what_get_tensor_returns_keeps_the_memory_of_a_batch",
        "dataloader_threads.py::TestSameAsProcesses",
        "thread_device.py::TestTracerState_custom_cpu"
        "::test_to_static_works_on_a_thread_as_on_the_main_thread",
        "thread_device.py::TestTracerState_gpu"
        "::test_to_static_works_on_a_thread_as_on_the_main_thread",
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
    """A command, with additional environment variables."""

    title: str
    command: tuple[str | Path, ...]
    variables: Mapping[str, str | Path | None] = MappingProxyType({})

    def with_own_shm(self) -> Part:
        """Returns this part with a private /dev/shm."""
        return self._replace(command=(*OWN_SHM, *self.command))

    def run(self, **how: Any) -> subprocess.CompletedProcess[str]:
        """
        Runs the command in the project folder. A variable that is None is
        unset.
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
    """Returns the part with the tool tests."""
    return Part(
        "tools",
        (sys.executable, *PYTEST, *SLOWEST, *arguments),
        {
            "PADDLE_WHEEL_TREE": site_packages(stock),
            "PADDLE_PYTHON": ours,
            "CUSTOM_DEVICE_ROOT": host_device(stock),
        },
    )


def paddle_part(stock: Path, ours: Path, arguments: list[str]) -> Part:
    """Returns the part with the tests of our wheel."""
    gpu = (stand_in_gpu(ours), stand_in_driver(stock))
    return Part(
        "Paddle",
        (ours, *PADDLE_PYTEST, "-rs", *SLOWEST, *arguments),
        {
            "CUSTOM_DEVICE_ROOT": host_device(stock),
            "PADDLE_STAND_IN_GPU": os.pathsep.join(map(str, gpu)),
        },
    )


def split(part: Part, files: list[str], count: int) -> list[Part]:
    """Splits a pytest part into several, each with some of the files."""
    # Neighbors in the list have similar names and take about equally long.
    groups = [files[first::count] for first in range(count)]
    return [
        part._replace(
            title=f"{part.title}, {number} of {count}",
            command=(*part.command, *group),
        )
        for number, group in enumerate(groups, 1)
    ]


def paddle_test_files() -> list[str]:
    """Returns the test files that run with our wheel, the longest first."""
    found = {str(f.relative_to(REPO)) for f in REPO.glob("test/**/test_*.py")}
    return [*LONGEST, *sorted(found - set(LONGEST))]


def cpu_part(ours: Path) -> Part:
    """Returns the part with the device tests as on a CPU-only machine."""
    return Part(
        "Paddle, CPU only",
        (ours, *PADDLE_PYTEST, *CPU_ONLY),
        {"CUSTOM_DEVICE_ROOT": None},
    )


def any_platform_part(stock: Path, arguments: Sequence[str]) -> Part:
    """Returns the part with the tests of the wheel without native parts."""
    deselected = [f"--deselect={test}" for test in NEEDS_NATIVE_PARTS]
    return Part(
        "Paddle without native parts",
        (
            *(without_native_parts(SUPPORTED[0]), *PADDLE_PYTEST),
            *(*deselected, *arguments),
        ),
        {
            "CUSTOM_DEVICE_ROOT": host_device(stock),
            "PYTHONPATH": REPO / "test" / "legacy_test",
        },
    )


def core_part(stock: Path, sanitizer: str) -> Part:
    """Returns the part with the C++ tests, plain or under a sanitizer."""
    title = f"C++ under the {sanitizer} sanitizer" if sanitizer else "C++"
    ctest = (beside_python("ctest"), "--output-on-failure", "--test-dir")
    return Part(title, (*ctest, cpp_tests(stock, sanitizer)))


def can_have_own_shm() -> bool:
    """Returns whether a part can have its own /dev/shm; root often can."""
    try:
        done = subprocess.run([*OWN_SHM, "true"], stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return False
    return done.returncode == 0


def all_pass(batches: Iterable[list[Part]], at_once: int | None) -> bool:
    """
    Runs parts, `at_once` of them in parallel, and returns whether all passed. A
    batch of parts starts when the iterator yields it, before the parts of
    earlier batches that still wait: a late batch is one long part, which would
    otherwise run alone at the end.
    """
    printing = threading.Lock()
    waiting: list[Part] = []

    def next_passes() -> bool:
        part = waiting.pop()
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

    with thread_pool(at_once) as pool:
        passed = []
        for batch in batches:
            waiting.extend(reversed(batch))
            passed += [pool.submit(next_passes) for _ in batch]
        wait(passed)
    return all(each.result() for each in passed)


@contextlib.contextmanager
def thread_pool(count: int | None) -> Iterator[ThreadPoolExecutor]:
    """
    Provides an executor. After an error, such as Ctrl-C, its threads finish the
    calls that are running and start no others.
    """
    with ThreadPoolExecutor(count) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def stock_with_plugins(version: str) -> Path:
    """
    Returns the Python of an environment with the official wheel, after building
    the test device and the stand-in driver for it.
    """
    stock = stock_python(version)
    host_device(stock)
    stand_in_driver(stock)
    return stock


def python_parts(ours: Path, stock: Path, count: int) -> list[Part]:
    """
    Returns the tests of our wheel, as `count` parts, and the tool tests.
    """
    paddle = paddle_part(stock, ours, [])
    return [
        # The longest part comes first: last, it would run alone at the end.
        tools_part(stock, ours, ["tools/tests"]),
        *split(paddle, paddle_test_files(), count),
        cpu_part(ours),
    ]


def demonstration_part(builds: list[Future[list[Part]]]) -> Part:
    """Returns the demonstration part, once all builds are done.

    The demonstration would build what is missing.
    """
    for build in builds:
        # Unlike wait(), this also returns for a cancelled future.
        with contextlib.suppress(CancelledError):
            build.exception()
    command = (sys.executable, "-m", "tools.demonstration")
    return Part("demonstration", command)


def all_tests_pass(version: str) -> bool:
    """
    Builds and runs all tests, each part as soon as its builds are done, and
    returns whether all passed.
    """
    has_own_shm = can_have_own_shm()
    count = PADDLE_PARTS if has_own_shm else 1
    # Both threads need it. Each runs its submitted calls in order.
    official_here(version)
    with thread_pool(1) as wheels, thread_pool(1) as programs:
        stock = programs.submit(stock_with_plugins, version)
        python = [
            wheels.submit(
                lambda: python_parts(our_python(version), stock.result(), count)
            ),
            wheels.submit(
                lambda: [any_platform_part(stock.result(), ON_ANY_PLATFORM)]
            ),
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
            isolated = ([p.with_own_shm() for p in batch] for batch in batches)
            return all_pass(isolated, at_once)
        print("No /dev/shm for each part: C++ runs after Python.", flush=True)
        passed = [all_pass(built(python), at_once), all_pass(built(core), 1)]
        return all(passed)


def built(batches: list[Future[list[Part]]]) -> Iterator[list[Part]]:
    """Yields batches of parts, each when its builds are done."""
    return (batch.result() for batch in as_completed(batches))


@reports_errors
def main(argv: list[str] | None = None) -> int:
    """Runs the command line; the module docstring gives the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    let_tests_interrupt_processes()
    version = SUPPORTED[0]
    if not arguments:
        return 0 if all_tests_pass(version) else 1

    def any_in(folder: str) -> bool:
        return any(word.startswith(folder) for word in arguments)

    if any_in("tools/without_native_parts/"):
        part = any_platform_part(stock_with_plugins(version), arguments)
    else:
        make_part = tools_part if any_in("tools/") else paddle_part
        part = make_part(*stock_and_ours(version), arguments)
    return 1 if part.run().returncode else 0


if __name__ == "__main__":
    sys.exit(main())
