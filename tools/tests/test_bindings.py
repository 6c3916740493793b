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

import pytest

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
    "name", ["_process_group_shm", "_program_threads", "_shared_storage"]
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
