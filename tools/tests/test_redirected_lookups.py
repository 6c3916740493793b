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
"""Calls between compiled libraries that the wheel's extension redirects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools.series import load_series
from tools.wheel import EXTENSION, REPO, cmake_build, run

# A custom operator library without operators, which calls the lookup of device
# contexts itself. It does not need Paddle's headers for that.
LIBRARY = r"""
#include <string>
#include <unordered_map>
#include <vector>

#include "paddle/phi/common/place.h"

namespace phi {

class DeviceContext;

class DeviceContextPool {
 public:
  static DeviceContextPool& Instance();
  DeviceContext* Get(const Place& place);
};

}  // namespace phi

extern "C" {

void* PD_GetOpMetaInfoMap() {
  static std::unordered_map<std::string, std::vector<char>> operators;
  return &operators;
}

void* context_of_host() {
  return phi::DeviceContextPool::Instance().Get(phi::CPUPlace());
}
}
"""
IN_PADDLE = """
import ctypes
import sys
import threading

import paddle
from paddle.base import core
from paddle.base.threads.host_context import host_context

paddle.utils.cpp_extension.load_op_meta_info_and_register_op(sys.argv[1])
look_up = ctypes.CDLL(sys.argv[1]).context_of_host
look_up.restype = ctypes.c_void_p


def look_up_inside(found):
    with host_context(generator=core.Generator()):
        found.append(look_up())


found = []
threads = [
    threading.Thread(target=look_up_inside, args=[found]) for _ in range(2)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 2, found
assert look_up() not in found
"""


@pytest.fixture
def output_of(run_paddle):
    """Runs code with Paddle, which must succeed, and returns its output."""

    def run(code, *arguments):
        done = run_paddle("-c", code, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_slots_of_calls_are_found_and_written(tmp_path):
    cmake_build(REPO / EXTENSION / "test", tmp_path)
    run(tmp_path / "call_redirection_test")


def test_lazily_bound_custom_operators_find_thread_contexts(
    output_of, tmp_path
):
    package = Path(
        output_of(
            "import sysconfig; print(sysconfig.get_path('purelib'), end='')",
        ),
        "paddle",
    )
    source = tmp_path / "operators.cc"
    source.write_text(LIBRARY)
    library = source.with_suffix(".so")
    run(
        *("c++", "-std=c++17", "-shared", "-fPIC", "-Wl,-z,lazy", source),
        *("-I", package / "include", "-L", package / "libs"),
        *("-l:libphi_core.so", "-l:libcommon.so", "-o", library),
        *(f"-Wl,-rpath,{package / 'libs'}", f"-Wl,-rpath-link={package}/libs"),
        "-Wl,--allow-shlib-undefined",
    )
    output_of(IN_PADDLE, library)


def test_files_for_upstream_do_not_mention_the_redirection():
    own = [path for patch in load_series(REPO) for path in patch.own_files]
    assert own
    for path in own:
        assert "redirect" not in (REPO / path).read_text().lower(), path


DRAWS = """
import os
import sys
import threading

sys.setdlopenflags(int(sys.argv[1]))

import paddle
from paddle.base import core
from paddle.base.threads.host_context import host_context


def draw_inside():
    generator = core.Generator()
    generator.manual_seed(7)
    with host_context(generator=generator):
        return paddle.rand([4]).tolist()


def compute_until(end, found):
    while not end.is_set():
        assert (paddle.full([4], 3.0) * 2).tolist() == [6.0] * 4
    found.append(draw_inside())


paddle.seed(7)
expected = paddle.rand([4]).tolist()
end, found = threading.Event(), []
threads = [
    threading.Thread(target=compute_until, args=[end, found]) for _ in range(8)
]
for thread in threads:
    thread.start()
assert draw_inside() == expected
end.set()
for thread in threads:
    thread.join()
assert found == [expected] * 8, found
"""


@pytest.mark.parametrize("binding", [os.RTLD_NOW, os.RTLD_LAZY])
def test_concurrently_computing_threads_find_their_contexts(
    binding, start_paddle
):
    done = start_paddle("-c", DRAWS, binding)
    assert done.returncode == 0, done.stdout + done.stderr


# The modules of streams and of programs both redirect the calls of the backward
# pass of programs. Each test runs in its own process, so that one comes first.

SECOND_PASS = """
import sys
import threading

import paddle
from paddle.device import Stream, stream_guard


def use_a_stream():
    with stream_guard(Stream()):
        paddle.ones([1])


paddle.set_device("custom_cpu:0")
layer = paddle.jit.to_static(paddle.nn.ReLU(), full_graph=True)
x = paddle.full([2], 3.0)
x.stop_gradient = False
y = layer(x).sum()
y.backward(retain_graph=True)
thread = threading.Thread(target=use_a_stream)
thread.start()
thread.join()
try:
    y.backward()
except RuntimeError as error:
    assert "second backward pass" in str(error), error
else:
    sys.exit("The second backward pass was not refused.")
"""


def test_a_second_backward_pass_is_refused_if_streams_come_later(output_of):
    output_of(SECOND_PASS)


def test_backward_waits_for_a_stream_that_comes_before_programs(start_paddle):
    test = (
        "test/custom_runtime/test_thread_stream_to_static_order.py"
        "::TestProgramsOfToStatic"
        "::test_backward_waits_for_the_stream_of_the_calling_thread"
    )
    done = start_paddle("-m", "pytest", "-q", REPO / test)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


# Both passes accumulate into the same gradient, so only the number of refusals
# is checked.
ONE_CALL = """
import threading

import paddle

layer = paddle.jit.to_static(paddle.nn.ReLU(), full_graph=True)
x = paddle.full([2], 3.0)
x.stop_gradient = False


def differentiate(loss, errors):
    barrier.wait()
    try:
        paddle.autograd.backward([loss], retain_graph=True)
    except RuntimeError as error:
        assert "second backward pass" in str(error), error
        errors.append(error)


for _ in range(100):
    y = layer(x)
    barrier, errors = threading.Barrier(2), []
    threads = [
        threading.Thread(target=differentiate, args=[y.sum(), errors])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 1, errors
"""


def test_one_of_two_concurrent_backward_passes_of_a_call_fails(output_of):
    output_of(ONE_CALL)
