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
"""Virtual environments with Paddle's official wheel and with ours."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tools.wheel import (
    BUILD,
    REPO,
    build,
    cmake_build,
    official_wheel,
    pybind_abi,
    run,
    step,
)

# Paddle imports setuptools, which its wheel does not require; before Python
# 3.12, a virtual environment has it together with pip.
TESTING = (
    *("pytest==8.4.2", "hypothesis==6.112.1", "setuptools==80.9.0"),
    # With protobuf 7, fleet.init of Paddle 3.3.0 fails.
    "protobuf==6.33.6",
)
# Without CUDA's math libraries, whose packages have more than 1 GB.
CUDA_HEADERS = (
    "nvidia-cuda-cccl-cu12==12.6.77",
    "nvidia-cuda-nvcc-cu12==12.6.77",
    "nvidia-cuda-runtime-cu12==12.6.77",
)
# Additional packages that Paddle's own tests import.
UPSTREAM_TESTS = (
    "parameterized==0.9.0",
    "scipy==1.13.1; python_version < '3.10'",
    "scipy==1.15.3; python_version >= '3.10'",
)


def environment(folder: Path, wheel: Path) -> Path:
    """
    Returns the Python of the virtual environment `folder`, which has `wheel`
    and the test packages. An outdated environment is created anew.
    """
    python = folder / "bin" / "python"
    stamp = folder / "made-of.txt"
    made_of = "\n".join([str(wheel), sys.version, *TESTING])
    if stamp.exists() and stamp.read_text() == made_of:
        return python
    with step(f"installing {wheel.name} in {folder}"):
        venv.create(folder, clear=True)
        _install(python, wheel, *TESTING)
        stamp.write_text(made_of)
    return python


def _install(python: Path, *packages: str | Path) -> None:
    # With the pip of this Python: installing pip in an environment takes longer
    # than unpacking Paddle. All modules except the packages' tests are compiled
    # here, on all CPUs, since many containers set PYTHONDONTWRITEBYTECODE: each
    # test process would compile them again.
    run(
        *(sys.executable, "-m", "pip", "--python", python),
        *("install", "-q", "--no-compile", *packages),
    )
    run(
        *(python, "-m", "compileall", "-q", "-j", "0"),
        *("-x", "site-packages/.+/tests/", site_packages(python)),
    )


def add_packages(python: Path, packages: tuple[str, ...]) -> None:
    """Installs the packages that an environment lacks."""
    with step(f"adding packages to {python.parent.parent}"):
        _install(python, *packages)


def _environment(name: str, version: str, wheel: Path) -> Path:
    tag = f"{version}-cp{sys.version_info[0]}{sys.version_info[1]}"
    return environment(BUILD / "environments" / f"{name}-{tag}", wheel)


def official_here(version: str) -> Path:
    """Returns the official wheel of `version` for this machine."""
    return official_wheel(version, BUILD / "official")


def stock_python(version: str) -> Path:
    """Returns the Python of an environment with the official wheel."""
    return _environment("stock", version, official_here(version))


def our_python(version: str) -> Path:
    """
    Returns the Python of an environment with the custom wheel, built from the
    official one.
    """
    wheel = build(official_here(version), BUILD / "wheels")
    return _environment("ours", version, wheel)


def stock_and_ours(version: str) -> tuple[Path, Path]:
    """Returns the Pythons of the environments with the two wheels."""
    return stock_python(version), our_python(version)


def without_native_parts(version: str) -> Path:
    """
    Returns the Python of an environment with the custom wheel without native
    parts, which exists for any platform. It is built from this machine's
    official wheel of `version`.
    """
    wheel = build(official_here(version), BUILD / "wheels", native=False)
    return _environment("no-native", version, wheel)


def site_packages(python: Path) -> Path:
    """Returns the site-packages folder of an environment."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def cuda_headers() -> list[Path]:
    """Returns the folders of CUDA's headers, which are downloaded once."""
    folder = BUILD / "cuda-headers"
    stamp = folder / "made-of.txt"
    made_of = "\n".join(CUDA_HEADERS)
    if not stamp.exists() or stamp.read_text() != made_of:
        with step(f"downloading the CUDA headers to {folder}"):
            shutil.rmtree(folder, ignore_errors=True)
            run(
                *(sys.executable, "-m", "pip", "install", "-q", "--no-deps"),
                *("--target", folder, *CUDA_HEADERS),
            )
            stamp.write_text(made_of)
    return sorted(folder.glob("nvidia/*/include"))


# A tool requests the same programs more than once in a run.
@functools.lru_cache(None)
def cpp_tests(python: Path, sanitizer: str = "", target: str = "all") -> Path:
    """
    Returns the folder of the C++ tests, built for the Paddle of an environment,
    with a sanitizer if one is given. Without one, it has only the tests whose
    results may depend on timing or optimization.
    """
    folder = BUILD / "test" / "cpp" / (sanitizer or "plain")
    with step(f"building {target} in {folder}"):
        cmake_build(
            REPO / "tools" / "cpp_tests",
            folder,
            target,
            SANITIZE=sanitizer,
            ONLY_OPTIMIZED="" if sanitizer else "ON",
            PADDLE_ROOT=site_packages(python) / "paddle",
        )
    return folder


def host_device(python: Path) -> Path:
    """
    Returns the folder of the test device plugin, built for the Paddle of an
    environment.
    """
    return cpp_tests(python, target="host_device") / "host_device"


def stand_in_driver(python: Path) -> Path:
    """Returns the folder of the stand-in for the CUDA driver."""
    folder = cpp_tests(python, target="stand_in_driver")
    return folder / "shared_memory" / "stand_in"


def stand_in_gpu(python: Path) -> Path:
    """
    Returns the folder of the module that creates tensors on a GPU or on the
    stand-in for one, built for the Paddle of an environment.
    """
    package = site_packages(python) / "paddle"
    folder = BUILD / "test" / "stand_in_gpu"
    with step(f"building {folder}"):
        cmake_build(
            REPO / "tools" / "stand_in_gpu",
            folder,
            PADDLE_ROOT=package,
            PYBIND_ABI=pybind_abi(package / "base" / "libpaddle.so"),
            Python_EXECUTABLE=python,
        )
    return folder
