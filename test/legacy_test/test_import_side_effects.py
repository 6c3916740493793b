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
"""`import paddle` has no side effects before tensors are shared."""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
import unittest

from concurrent_base import (
    WAIT_S,
    pristine_environment,
)
from shared_tensor_base import (
    run_new_sharing_script,
    run_sharing_script,
)

IMPORT = """
import json, os, sys
def state():
    return {
        "environ": dict(os.environ),
        "descriptors of folders": [
            name
            for name in os.listdir("/proc/self/fd")
            if os.path.isdir(f"/proc/self/fd/{name}")
        ],
        "locks": [
            line
            for name in os.listdir("/proc/self/fdinfo")
            if os.path.exists(f"/proc/self/fdinfo/{name}")
            for line in open(f"/proc/self/fdinfo/{name}")
            if line.startswith("lock:")
        ],
    }
before = state()
import paddle
print(json.dumps([before, state(), sorted(sys.modules), [
    str(getattr(finder, "__module__", finder)) for finder in sys.meta_path
]]))
"""

# Modules outside of PACKAGES that are loaded at their first use.
LATER = {
    "multiprocessing.connection",
    "multiprocessing.pool",
    "multiprocessing.queues",
    "paddle.base.process_tree",
    "paddle.distributed.hierarchical_group",
    "paddle.distributed.machine_connections",
    "paddle.distributed.machine_transfers",
    "paddle.distributed.python_process_group",
    "paddle.distributed.thread_process_group",
    "paddle.io.dataloader.shared_batch",
}

# The packages that only threads, processes and their communication need, and
# the modules of these packages that `import paddle` may load.
PACKAGES = (
    "paddle.base.threads.",
    "paddle.distributed.comm_hooks.",
    "paddle.distributed.data_parallel.",
    "paddle.incubate.multiprocessing.",
)
LOADED = {
    "paddle.base.threads.device_guards",
    "paddle.base.threads.devices",
    "paddle.base.threads.fork",
    "paddle.base.threads.host_context",
    "paddle.base.threads.main_thread",
    "paddle.base.threads.operator_device",
    "paddle.base.threads.programs",
    "paddle.base.threads.saved_tensors_hooks",
    "paddle.base.threads.scopes",
    "paddle.base.threads.stream_guards",
    "paddle.base.threads.stream_pool",
    "paddle.base.threads.streams",
    "paddle.base.threads.thread_value",
    "paddle.base.threads.unique_names",
    "paddle.distributed.data_parallel.join",
    "paddle.distributed.data_parallel.reducer_methods",
    "paddle.incubate.multiprocessing.event_reductions",
    "paddle.incubate.multiprocessing.feeder_errors",
    "paddle.incubate.multiprocessing.lazy_names",
    "paddle.incubate.multiprocessing.other_reductions",
    "paddle.incubate.multiprocessing.reductions",
}


class TestImport(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", IMPORT],
            env=pristine_environment(),
            check=True,
            timeout=WAIT_S,
            stdout=subprocess.PIPE,
            text=True,
        )
        cls.before, cls.after, cls.modules, cls.finders = json.loads(
            done.stdout
        )

    def test_environment_has_no_process_tree(self):
        new = self.after["environ"].keys() - self.before["environ"].keys()
        ours = {name for name in new if name.startswith("PADDLE")}
        self.assertEqual(ours, set())

    def test_no_lock_is_taken(self):
        self.assertEqual(self.after["locks"], self.before["locks"])

    def test_no_folder_is_kept_open(self):
        # The folder /dev/shm, of which a process locks a byte range.
        name = "descriptors of folders"
        self.assertEqual(len(self.after[name]), len(self.before[name]))

    def test_no_import_finder_is_installed(self):
        ours = [name for name in self.finders if "paddle" in name]
        self.assertEqual(ours, [])

    def test_rarely_used_modules_are_not_loaded(self):
        for name in LATER:
            self.assertIsNotNone(importlib.util.find_spec(name), name)
        self.assertEqual(LATER & set(self.modules), set())

    def test_no_further_module_is_loaded(self):
        found = {name for name in self.modules if name.startswith(PACKAGES)}
        self.assertEqual(found - LOADED, set())


# The first use of a heap draws random bits, after which it works without. So a
# heap works here exactly if it already existed.
WITHOUT_RANDOM_BITS = """
import ctypes, errno, os, platform, struct
from paddle.base import libpaddle

binding = libpaddle._shared_storage  # may be imported here
number = {"x86_64": 318, "aarch64": 278}[platform.machine()]  # of getrandom
# Classic BPF: fail with EPERM if the system call is getrandom.
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
FAIL, ALLOW = 0x00050000 | errno.EPERM, 0x7FFF0000
program = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in [
        (LOAD, 0, 0, 0),
        (JUMP_IF_EQUAL, 0, 1, number),
        (RETURN, 0, 0, FAIL),
        (RETURN, 0, 0, ALLOW),
    ]
)
instructions = ctypes.create_string_buffer(program)
PR_SET_SECCOMP, FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("start", ctypes.c_void_p)]

libc = ctypes.CDLL(None, use_errno=True)
filter = Program(4, ctypes.addressof(instructions))
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
if libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(filter), 0, 0) != 0:
    print("no filter:", os.strerror(ctypes.get_errno()))
    sys.exit()

def works(function):
    try:
        function()
    except Exception as error:
        assert "random bits failed: Operation not permitted" in str(error)
        return False
    return True

assert not works(binding.random_bits)
"""


@unittest.skipUnless(
    platform.machine() in ("x86_64", "aarch64"),
    "the test knows the numbers of system calls of x86_64 and aarch64",
)
class TestHeaps(unittest.TestCase):
    """A heap reads limits and takes locks at each fork once it exists."""

    def run_script(self, before, after):
        done = run_new_sharing_script(
            self, before + WITHOUT_RANDOM_BITS + after
        )
        if "no filter" in done.stdout:
            self.skipTest(done.stdout)

    def test_importing_paddle_and_loading_the_binding_create_no_heap(self):
        self.run_script(
            "",
            """
assert not works(binding.stats)
assert not works(binding.cuda_stats)
""",
        )

    def test_heaps_exist_once_this_process_has_joined_its_tree(self):
        self.run_script(
            """
from paddle.base.shared_storage import join_process_tree
join_process_tree()
""",
            """
assert works(binding.stats)
assert works(binding.cuda_stats)
""",
        )


class TestProcessTree(unittest.TestCase):
    def test_result_outlives_a_child_that_was_started_before_any_share(self):
        for method in ("spawn", "forkserver"):
            with self.subTest(method):
                run_sharing_script(
                    self,
                    f"""
                    context = multiprocessing.get_context("{method}")
                    ours, theirs = context.Pipe()
                    send = "import paddle; theirs.send(paddle.arange(6))"
                    child = context.Process(
                        target=exec, args=(send, {{"theirs": theirs}})
                    )
                    child.start()
                    child.join()
                    assert ours.recv().sum().item() == 15
                    """,
                )


# Makes the import of a module slow, so that other threads act during it.
SLOW_IMPORT = """
import threading
name = "paddle.incubate.multiprocessing.{module}"
begun = threading.Event()
class Slow:
    @staticmethod
    def find_spec(found, path, target=None):
        if found == name and not begun.is_set():
            begun.set()
            time.sleep(1)
sys.meta_path.insert(0, Slow)
"""


class TestForkDuringAFirstUse(unittest.TestCase):
    """A child does not inherit the import lock of another thread."""

    def test_queue_sends_its_first_tensor_when_a_child_starts(self):
        run_sharing_script(
            self,
            SLOW_IMPORT.format(module="tensor_reductions")
            + f"""
context = multiprocessing.get_context("fork")
asked, answered = context.Queue(), context.Queue()
asked.put(paddle.ones([3]))
begun.wait({WAIT_S})
child = context.Process(target=lambda: answered.put(asked.get() + 1))
child.start()
assert answered.get(timeout={WAIT_S}).tolist() == [2, 2, 2]
child.join()
""",
        )

    def test_lazy_name_is_first_used_when_a_child_starts(self):
        for name, module in (
            ("Prefetcher", "prefetcher"),
            ("get_context", "pools"),
        ):
            with self.subTest(name):
                run_sharing_script(
                    self,
                    SLOW_IMPORT.format(module=module)
                    + f"""
thread = threading.Thread(target=lambda: sharing.{name})
thread.start()
begun.wait({WAIT_S})
child = multiprocessing.get_context("fork").Process(
    target=lambda: sharing.{name}
)
child.start()
child.join({WAIT_S})
assert child.exitcode == 0, child.exitcode
thread.join()
""",
                )


class TestNoDescriptorLeft(unittest.TestCase):
    SCRIPT = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used - 1, most))
"""

    def test_get_tensor_works_and_keeps_the_tensor(self):
        run_sharing_script(
            self,
            self.SCRIPT
            + """
inside = paddle.full([1000], 3.0).get_tensor()
other = paddle.full([1000], 4.0)
import numpy
assert (numpy.array(inside) == 3).all()
""",
        )

    def test_fork_works_silently(self):
        done = run_sharing_script(
            self,
            self.SCRIPT
            + """
if os.fork() == 0:
    os._exit(0)
assert os.wait()[1] == 0
""",
        )
        self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
