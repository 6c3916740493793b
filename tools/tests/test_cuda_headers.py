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
"""Our C++ for CUDA against the headers of CUDA: what no wheel here compiles."""

from __future__ import annotations

import subprocess
import sysconfig

import pytest

from tools.environment import cuda_headers
from tools.tests.conftest import write
from tools.wheel import EXTENSION, REPO

# Stubs of the headers of CUDA's math libraries and runtime compiler, which
# Paddle's headers include. Our code calls none of these libraries, so the stubs
# declare only what Paddle's headers need.
LIBRARIES = {
    "cublas_v2.h": """
#include <cuda.h>
#include <cuda_runtime.h>
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
""",
    "cudnn.h": """
enum cudnnStatus_t { CUDNN_STATUS_SUCCESS };
enum cudnnActivationMode_t {};
enum cudnnDataType_t {};
enum cudnnPoolingMode_t {};
enum cudnnTensorFormat_t {};
namespace phi::dynload {
const char* cudnnGetErrorString(cudnnStatus_t status);
}
""",
    "cufft.h": "enum cufftResult_t { CUFFT_SUCCESS };",
    "curand.h": "enum curandStatus_t { CURAND_STATUS_SUCCESS };",
    "cusolverDn.h": "enum cusolverStatus_t { CUSOLVER_STATUS_SUCCESS };",
    "cusparse.h": "enum cusparseStatus_t { CUSPARSE_STATUS_SUCCESS };",
    "nvrtc.h": "enum nvrtcResult {};",
}
# Paddle's headers that declare each function of those libraries.
LOADED = {
    "cublas": "cublas_v2.h",
    "cublasLt": "cublas_v2.h",
    "cudnn": "cudnn.h",
    "cufft": "cufft.h",
    "curand": "curand.h",
    "cusolver": "cusolverDn.h",
    "cusparse": "cusparse.h",
    "nvrtc": "nvrtc.h",
}
SOURCES = sorted(
    path
    for folder in (REPO / "paddle", REPO / EXTENSION)
    for path in folder.rglob("*.cc")
    if "PADDLE_WITH_CUDA" in path.read_text()
    or path.name in ("redirected_lookups.cc", "thread_contexts_module.cc")
)


@pytest.fixture(scope="session")
def check(tmp_path_factory, wheel_tree):
    """Compiles a text as in a build for CUDA, without generating code."""
    libraries = tmp_path_factory.mktemp("libraries")
    loaded = "paddle/phi/backends/dynload"
    files = {
        **LIBRARIES,
        **{f"{loaded}/{k}.h": f"#include <{v}>\n" for k, v in LOADED.items()},
    }
    write(libraries, {k: f"#pragma once\n{v}\n" for k, v in files.items()})
    headers = wheel_tree / "paddle" / "include"
    compatible = headers / "paddle" / "phi" / "api" / "include" / "compat"
    folders = [
        *(libraries, *cuda_headers(), headers, headers / "third_party"),
        *(sysconfig.get_path("include"), REPO / EXTENSION / "include"),
        compatible,
    ]

    def run(text):
        return subprocess.run(
            [
                *("c++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra"),
                *("-Werror", "-DPADDLE_WITH_CUDA", f"-I{REPO}"),
                *(f"-isystem{folder}" for folder in folders),
                *("-x", "c++", "-"),
            ],
            input=text,
            capture_output=True,
            text=True,
        )

    return run


def test_code_for_cuda_compiles(check):
    # Together: most of the time is spent on headers, which they share.
    done = check("".join(f'#include "{source}"\n' for source in SOURCES))
    assert done.returncode == 0, done.stderr


def test_cuda_branches_are_compiled(check):
    done = check(
        """
#include "paddle/phi/backends/gpu/gpu_info.h"
#ifdef PADDLE_WITH_CUDA
cudaStream_t stream;
cudaNoSuchType_t other;
#endif
"""
    )
    assert done.returncode != 0
    assert "cudaNoSuchType_t" in done.stderr
    assert "cudaStream_t" not in done.stderr
