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
"""Programs in forks of a Python that has loaded what they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tools.fork_server import fork_server
from tools.series import PatchError
from tools.tests.conftest import write

SHOW = """
import json, os, sys
import beside
print(__name__, __file__, sys.argv, sys.path[0], sys.modules["__main__"].SHOWN)
print(os.getcwd(), dict(os.environ), sys.stdin.read(), file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture
def server():
    with fork_server(sys.executable, ["json"]) as server:
        yield server


def test_a_script_runs_as_python_runs_it(server, tmp_path):
    write(
        tmp_path, {"scripts/a.py": f"SHOWN = 1{SHOW}", "scripts/beside.py": ""}
    )
    arguments = [str(tmp_path / "scripts" / "a.py"), "-c", "ä"]
    environ = {"PATH": os.environ["PATH"], "LC_CTYPE": "C.UTF-8"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    forked = server(arguments, tmp_path, environ)
    assert done.returncode == forked.returncode == 3
    assert forked.stdout == done.stdout
    assert forked.stderr == done.stderr


def test_code_has_its_arguments_and_no_file(server, tmp_path):
    code = "import sys; print(sys.argv, globals().get('__file__'))"
    done = server(["-c", code, "one", "two"], tmp_path, {})
    assert done.stdout == "['-c', 'one', 'two'] None\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_each_program_starts_as_the_server_is(server, tmp_path):
    code = "import sys; print('json' in sys.modules, hasattr(sys, 'set'))"
    for _ in range(2):
        done = server(["-c", f"{code}; sys.set = 1"], tmp_path, {})
        assert done.stdout == "True False\n"


def test_an_error_of_a_program_is_its_own(server, tmp_path):
    failed = server(["-c", "import no_such_module"], tmp_path, {})
    assert failed.returncode == 1
    assert "no_such_module" in failed.stderr
    killed = server(["-c", "import os; os.kill(os.getpid(), 9)"], tmp_path, {})
    assert killed.returncode == -9
    assert server(["-c", "print(1)"], tmp_path, {}).stdout == "1\n"


def test_a_program_that_leaves_a_process_is_an_error(server, tmp_path):
    code = "import os, time; os.fork() or time.sleep(600)"
    with pytest.raises(PatchError, match="left processes behind"):
        server(["-c", code], tmp_path, {})
    assert server(["-c", "print(1)"], tmp_path, {}).stdout == "1\n"


def test_an_interrupted_call_ends_the_server(server, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            server(["-c", "import time; time.sleep(600)"], tmp_path, {})
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(PatchError, match="exited while running"):
        server(["-c", "print(1)"], tmp_path, {})


def test_functions_for_the_exit_run(server, tmp_path):
    code = "import atexit; atexit.register(print, 'left')"
    assert server(["-c", code], tmp_path, {}).stdout == "left\n"


def test_links_to_a_file_are_imported_with_their_own_names(server, tmp_path):
    write(tmp_path, {"real.py": "print(__name__, __file__)\n"})
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").symlink_to("real.py")
    done = server(["-c", "import one, two"], tmp_path, {})
    lines = [f"{name} {tmp_path / name}.py\n" for name in ("one", "two")]
    assert done.stdout == "".join(lines)


def test_a_server_that_exits_is_an_error(tmp_path):
    with fork_server(sys.executable, ["no_such_module"]) as server:
        with pytest.raises(PatchError, match="exited while running"):
            server(["-c", "pass"], tmp_path, {})
