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
"""Bindings of the wheel, which are modules beside libpaddle."""

import os
import sys
from pathlib import Path

import pytest

from tools.environment import site_packages
from tools.tests.conftest import write
from tools.wheel import EXTENSION, REPO, cmake_build, pybind_abi

# Another thread is in the middle of the import of a binding.
WHILE_IMPORTED = """
import importlib._bootstrap as bootstrap, os, sys, threading
import paddle
from paddle.base import core

begun, proceed = threading.Event(), threading.Event()
init_attributes = bootstrap._init_module_attrs

def pausing(spec, module, **how):
    if spec.name == "paddle.base._shared_storage":
        begun.set()
        assert proceed.wait(60)
    return init_attributes(spec, module, **how)

bootstrap._init_module_attrs = pausing
thread = threading.Thread(target=lambda: core.libpaddle._shared_storage)
thread.start()
assert begun.wait(60)
"""

# The import of a binding has failed on one thread. Another thread, which waited
# for it, is in the middle of its own import.
WHILE_IMPORTED_AGAIN = """
import importlib, importlib._bootstrap as bootstrap, os, signal, threading
import paddle
from paddle.base import libpaddle

begun, failures = threading.Semaphore(0), ["first"]
failed, retried, proceed = (threading.Event() for _ in range(3))
import_module = importlib.import_module
module_from_spec = bootstrap.module_from_spec

def counting(name):
    begun.release()
    return import_module(name)

def failing_once(spec):
    if spec.name == "paddle.base._program_threads":
        if failures:
            assert begun.acquire(timeout=60) and begun.acquire(timeout=60)
            raise ImportError(failures.pop())
        retried.set()
        assert proceed.wait(60)
    return module_from_spec(spec)

def read_binding():
    try:
        libpaddle._program_threads
    except ImportError:
        failed.set()

importlib.import_module = counting
bootstrap.module_from_spec = failing_once
for _ in range(2):
    threading.Thread(target=read_binding).start()
assert retried.wait(60) and failed.wait(60)
"""

# No file descriptor is free from here on, so no module can be loaded.
NO_DESCRIPTOR = """
import gc, os, resource, sys, weakref
import numpy
import paddle
from paddle.base import libpaddle

paddle.set_device("cpu")
memory = numpy.full([1000], 3.0, dtype="float32")
gone = weakref.ref(memory)
tensor = paddle.Tensor(memory, zero_copy=True)
del memory
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, limits[1]))
"""

FORK = "os._exit(0) if (child := os.fork()) == 0 else os.waitpid(child, 0)"

# A module of other code, whose objects keep others alive.
FOREIGN = {
    "CMakeLists.txt": f"""
cmake_minimum_required(VERSION 3.18)
project(foreign LANGUAGES CXX)
include({REPO / EXTENSION}/paddle_module.cmake)
paddle_module(foreign module.cc)
""",
    "module.cc": """
#include "pybind11/pybind11.h"

namespace py = pybind11;

PYBIND11_MODULE(foreign, module) {
  module.def(
      "keep_alive", [](py::handle, py::handle) {}, py::keep_alive<1, 2>());
}
""",
}


def check(run_paddle, script):
    done = run_paddle("-c", script)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_binding_is_an_attribute_of_libpaddle(run_paddle):
    check(
        run_paddle,
        """
import paddle
from paddle.base import core, libpaddle
assert libpaddle._shared_storage is libpaddle._shared_storage
assert libpaddle._shared_storage.__name__ == "paddle.base._shared_storage"
""",
    )


def test_a_binding_that_does_not_exist_is_an_attribute_error(run_paddle):
    check(
        run_paddle,
        """
import paddle
from paddle.base import libpaddle
assert getattr(libpaddle, "_no_binding", None) is None
try:
    libpaddle._no_binding
except AttributeError as error:
    assert "libpaddle" in str(error) and "_no_binding" in str(error), error
""",
    )


@pytest.mark.parametrize(
    "name",
    [
        "_predictor_threads",
        "_process_group_shm",
        "_program_threads",
        "_shared_storage",
    ],
)
def test_import_paddle_does_not_load_a_binding_that_it_does_not_use(
    name, run_paddle
):
    check(
        run_paddle,
        f"import sys, paddle; assert 'paddle.base.{name}' not in sys.modules",
    )


def test_two_threads_may_use_a_binding_for_the_first_time(run_paddle):
    check(
        run_paddle,
        f"""{WHILE_IMPORTED}
assert core.libpaddle._shared_storage.__name__.endswith("_shared_storage")
proceed.set()
thread.join()
""",
    )


def test_a_fork_during_an_import_leaves_a_binding_that_works(run_paddle):
    check(
        run_paddle,
        f"""{WHILE_IMPORTED}
child = os.fork()
if child == 0:
    os._exit(not hasattr(core.libpaddle._shared_storage, "is_shared"))
proceed.set()
thread.join()
assert os.waitpid(child, 0)[1] == 0
""",
    )


def test_a_fork_waits_for_an_import_after_one_that_failed(run_paddle):
    check(
        run_paddle,
        f"""{WHILE_IMPORTED_AGAIN}
threading.Timer(0.5, proceed.set).start()
child = os.fork()
if child == 0:
    signal.alarm(20)
    libpaddle._program_threads
    os._exit(0)
proceed.set()
assert os.waitpid(child, 0)[1] == 0
""",
    )


@pytest.mark.parametrize("stale", ["", "import importlib\n"])
def test_get_tensor_keeps_the_memory_while_the_binding_cannot_be_loaded(
    stale, run_paddle
):
    # If the list of files is outdated, listing them fails, too.
    if stale:
        stale += "importlib.invalidate_caches()\n"
    check(
        run_paddle,
        f"""{NO_DESCRIPTOR}{stale}
inside = tensor.get_tensor()
assert tensor.get_tensor() is inside
tensor._clear()  # it no longer refers to the memory
del tensor
gc.collect()
assert gone() is not None
assert (numpy.array(inside) == 3).all()
assert "paddle.base._shared_storage" not in sys.modules
del inside
assert gone() is None
""",
    )


def test_get_tensor_keeps_the_memory_while_the_interpreter_exits(run_paddle):
    done = run_paddle(
        "-c",
        """
import os, sys
import paddle

paddle.set_device("cpu")

class Late:
    def __init__(self):
        self.tensor = paddle.full([1000], 3.0)
        # Kept here, because Python clears the globals of modules.
        self.write, self.is_finalizing = os.write, sys.is_finalizing

    def __del__(self):
        assert self.is_finalizing()
        inside = self.tensor.get_tensor()
        del self.tensor
        self.write(1, b"%f" % inside._get_float_element(999))

late = Late()
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3.000000"
    assert "Traceback" not in done.stderr


def test_get_tensor_of_other_tensors_while_the_binding_cannot_be_loaded(
    run_paddle,
):
    check(
        run_paddle,
        f"""{NO_DESCRIPTOR}
kept = paddle.ones([3])
sparse = paddle.sparse.sparse_coo_tensor([[0], [1]], [2.0], [2, 2])
assert sparse.get_tensor() is None
without_memory = paddle.ones([2])
without_memory._clear_data()
inside = without_memory.get_tensor()
del without_memory
assert not inside._is_initialized()
tensor._clear()  # it has no implementation
tensor.get_tensor()
paddle.enable_static()
inside = libpaddle.eager.Tensor.get_tensor(kept)
assert inside.shape() == [3]
""",
    )


def test_the_binding_is_loaded_once_that_is_possible_again(run_paddle):
    check(
        run_paddle,
        f"""{NO_DESCRIPTOR}
tensor.get_tensor()
copy = paddle.full([1000], 3.0)
try:
    copy.share_memory_()
except OSError as error:
    message = str(error)
else:
    raise AssertionError("shared without a descriptor")
assert "paddle.base._shared_storage" in message, message
assert "Free file descriptors" in message, message
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
copy.share_memory_()
assert copy.is_shared()
""",
    )


def test_get_tensor_ignores_capsules_of_other_code(
    tmp_path, paddle_python, run_paddle
):
    package = site_packages(Path(paddle_python)) / "paddle"
    write(tmp_path, FOREIGN)
    cmake_build(
        tmp_path,
        tmp_path,
        PADDLE_ROOT=package,
        PYBIND_ABI=pybind_abi(package / "base" / "libpaddle.so"),
        Python_EXECUTABLE=sys.executable,
    )
    check(
        run_paddle,
        f"""
import ctypes, sys
import numpy
import paddle
from paddle.base import libpaddle

sys.path.append({str(tmp_path)!r})
import foreign

make = ctypes.pythonapi.PyCapsule_New
make.restype = ctypes.py_object
make.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
unreadable = 1
paddle.set_device("cpu")
tensor = paddle.full([1000], 3.0)
for name in (None, b"other"):
    inside = tensor.get_tensor()
    foreign.keep_alive(inside, make(unreadable, name, None))
    # get_tensor calls this; the search finds the foreign capsule.
    libpaddle._shared_storage.keep_alive(inside, paddle.ones([1]))
del tensor
assert (numpy.array(inside) == 3).all()
""",
    )


def test_replacing_a_predictor_method_too_early_warns(run_paddle):
    check(
        run_paddle,
        """
import unittest.mock, warnings
from paddle.inference import Config, Predictor, create_predictor

init = Predictor.__init__
Predictor.run = lambda self: None
Predictor.clone = unittest.mock.Mock()
Predictor.__init__ = lambda self, config: init(self, config)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    try:
        create_predictor(Config())
    except ValueError as error:
        assert "names no model" in str(error), error
assert {warning.category for warning in seen} == {RuntimeWarning}, seen
texts = [str(warning.message) for warning in seen]
assert len(texts) == 3, texts
for name, text in zip(("__init__", "run", "clone"), texts):
    assert f"paddle.inference.Predictor.{name} is lost" in text, text
    assert "import paddle.base._predictor_threads" in text, text
""",
    )


@pytest.mark.parametrize(
    "first",
    [
        "import paddle.base._predictor_threads",
        "create_predictor(Config())",
        FORK,
    ],
)
def test_predictor_methods_may_be_replaced_later(first, run_paddle):
    check(
        run_paddle,
        f"""
import contextlib, os, warnings
import paddle
from paddle.inference import Config, Predictor, create_predictor

warnings.simplefilter("error", RuntimeWarning)
with contextlib.suppress(ValueError):  # the config names no model
    {first}
Predictor.run = run = lambda self: None
with contextlib.suppress(ValueError):
    create_predictor(Config())
assert Predictor.run is run
""",
    )


@pytest.mark.parametrize(
    "first", ["import paddle.base._predictor_threads", FORK]
)
@pytest.mark.parametrize("make", ["create_predictor", "Predictor"])
def test_the_first_predictor_after_a_fork_or_import_loads_the_scratchpads(
    make, first, run_paddle
):
    check(
        run_paddle,
        f"""
import contextlib, os, sys
import paddle
{first}
from paddle.inference import Config, {make}
with contextlib.suppress(ValueError):  # the config names no model
    {make}(Config())
assert "paddle.base._onednn_scratchpads" in sys.modules
""",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root")
def test_fork_of_a_process_that_cannot_load_code_is_silent(
    run_paddle, tmp_path
):
    script = f"""
import os
import paddle
os.chroot({str(tmp_path)!r})
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = run_paddle("-c", script)
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


def test_a_fork_does_not_repeat_a_failed_import(run_paddle):
    check(
        run_paddle,
        f"""{NO_DESCRIPTOR}
try:
    libpaddle._program_threads
except ImportError:
    pass
else:
    raise AssertionError("loaded without a descriptor")
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert "paddle.base._program_threads" not in sys.modules
""",
    )
