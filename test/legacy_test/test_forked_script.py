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
"""A forked script behaves like a script that a new Python runs."""

from __future__ import annotations

import os
import signal
import sys
import unittest

from concurrent_base import pristine_environment, run_command, script_command
from forked_script import run_forked_script, start_forked_script
from thread_device_base import device_lists

PRINT_STATE = """
import os, sys
import paddle
state = {
    "arguments": sys.argv,
    "path": sys.path,
    "folder": os.getcwd(),
    "globals": sorted(globals()),
    "environment": dict(sorted(os.environ.items())),
    "own session": os.getsid(0) == os.getpid(),
    "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
    "signals": [
        line
        for line in open("/proc/self/status")
        if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
    ],
}
print(state)
"""


@unittest.skipUnless(sys.platform == "linux", "reads /proc")
class TestForkedScript(unittest.TestCase):
    def test_state_is_that_of_a_new_python(self):
        forked = run_forked_script(self, PRINT_STATE, "a", "b")
        command = [*script_command(PRINT_STATE), "a", "b"]
        new = run_command(self, command, pristine_environment())
        self.assertEqual(forked.stdout, new.stdout)

    def test_only_its_main_thread_exists(self):
        run_forked_script(
            self, "import os; assert len(os.listdir('/proc/self/task')) == 1"
        )

    def test_computes_on_each_device(self):
        devices = {name for kind in device_lists().values() for name in kind}
        run_forked_script(
            self,
            f"""
import paddle
for device in {devices}:
    paddle.set_device(device)
    assert (paddle.ones([2]) * 2).tolist() == [2, 2], device
""",
        )

    def test_is_compiled_without_imports_from_the_future(self):
        run_forked_script(
            self,
            "def function(a: int): pass\n"
            "assert function.__annotations__ == {'a': int}",
        )

    def test_prints_what_its_exit_functions_print(self):
        script = (
            "import atexit, sys\n"
            "atexit.register(print, 'exits')\n"
            "print('fails', file=sys.stderr)"
        )
        done = run_forked_script(self, script)
        self.assertEqual((done.stdout, done.stderr), ("exits\n", "fails\n"))

    def test_status_tells_how_it_ended(self):
        for script, status in (
            ("import sys; sys.exit(3)", 3),
            ("1 / 0", 1),
            ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ):
            process = start_forked_script(script)
            out, err = process.communicate()
            self.assertEqual((process.returncode, out), (status, ""))
            self.assertEqual("ZeroDivisionError" in err, status == 1)

    def test_failure_fails_the_test(self):
        with self.assertRaisesRegex(AssertionError, "ZeroDivisionError"):
            run_forked_script(self, "1 / 0")

    def test_its_group_can_be_killed(self):
        process = start_forked_script(
            "import os, time; print('runs', flush=True); os.fork()\n"
            "time.sleep(600)"
        )
        self.assertEqual(process.stdout.readline(), "runs\n")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
