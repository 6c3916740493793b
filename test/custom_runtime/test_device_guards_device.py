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
"""Device and stream guards for C++ code: device_guards.h.

The tests compile a custom operator that uses the guards, and call its functions
through ctypes, without the GIL. They delay the work before a wait, so that a
missing wait gives a wrong value.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import ctypes
import sys
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import test_host_device
from host_device_control import TooSlow, delay, take_trace, with_ample_delay
from test_host_device import name_of

sys.path.append(str(Path(__file__).parents[1] / "legacy_test"))

from concurrent_base import in_thread
from extension_base import load_extension
from thread_device_base import current_handles, handle

import paddle
from paddle.base.threads.streams import native
from paddle.device import Stream, current_stream, stream_guard

if TYPE_CHECKING:
    from collections.abc import Callable

# In microseconds: plenty of time for an operation that does not wait.
DELAY = 300_000
SOURCE = Path(__file__).with_name("device_guards_operator.cc")
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

operator: Any = None
library: Any = None


def setUpModule() -> None:
    global operator, library
    test_host_device.setUpModule()
    operator, file = load_extension("device_guards_operator", SOURCE)
    library = ctypes.CDLL(file)
    library.run_case.restype = ctypes.c_char_p
    library.current_stream.restype = ctypes.c_void_p


def call_inside(device: int, function: Callable[[int], Any]) -> Any:
    """
    Calls a function inside a C++ guard for a new stream of a device, passes it
    the stream's handle, and returns its result.
    """
    results = []
    errors = []

    def call(stream: int) -> None:
        try:
            results.append(function(stream))
        except BaseException as error:
            errors.append(error)

    library.call_inside(device, CALLBACK(call))
    if errors:
        raise errors[0]
    return results[0]


class GuardTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device(name_of(0))
        self.addCleanup(paddle.device.synchronize)


class TestInCpp(GuardTestCase):
    """Checks written in C++, run on the main thread and on another thread."""

    def check(self, case: str) -> None:
        for run in (library.run_case, self.run_in_thread):
            error = run(case.encode())
            self.assertIsNone(error, f"{case}: {error}")

    @staticmethod
    def run_in_thread(case: bytes) -> bytes | None:
        return in_thread(library.run_case, case)

    def test_device_guard_restores_the_device_also_after_exceptions(self):
        self.check("DeviceGuards")

    def test_device_guard_takes_other_devices(self):
        self.check("ResetDeviceGuards")

    def test_optional_guard_does_nothing_before_it_gets_a_device(self):
        self.check("OptionalDeviceGuards")

    def test_cpu_guard_does_nothing(self):
        self.check("CpuGuards")

    def test_unknown_devices_are_refused_and_change_nothing(self):
        self.check("UnknownDevices")

    def test_stream_guard_restores_stream_and_device(self):
        self.check("StreamGuards")

    def test_stream_guard_takes_other_streams(self):
        self.check("ResetStreamGuards")

    def test_multi_stream_guard_sets_one_stream_per_device(self):
        self.check("MultiStreamGuards")

    def test_destroying_streams_does_not_change_the_device(self):
        self.check("DestroyedStreams")

    def test_native_threads_have_their_own_devices_and_streams(self):
        self.check("Threads")


class TestOperator(GuardTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.x = paddle.ones([4])
        current_stream().synchronize()

    def scaled_late(self, scale: Callable) -> list[float]:
        """
        Returns what `scale` computes from x while delayed work that triples x
        is pending.
        """
        with delay(0, DELAY, handle(current_stream())):
            self.x.scale_(3.0)
        y = scale(self.x)
        paddle.device.synchronize()
        return y.tolist()

    @with_ample_delay
    def test_without_waits_the_operator_reads_its_input_too_early(self):
        take_trace()
        early = self.scaled_late(operator.scale_without_waits)
        *_, last = (each for each in take_trace() if each.kind == "scale")
        if last.stream != handle(current_stream()):
            raise TooSlow("the operator read its input after the delayed work")
        self.assertEqual(early, [2.0] * 4)

    def test_waits_for_its_input(self):
        for call in (self.scaled_late, self.on_another_stream):
            self.x = paddle.ones([4])
            self.assertEqual(call(operator.scale_on_side_stream), [6.0] * 4)

    def on_another_stream(self, scale: Callable) -> list[float]:
        def call() -> list[float]:
            with stream_guard(Stream()):
                return self.scaled_late(scale)

        return in_thread(call)

    def test_the_current_stream_waits_for_its_output(self):
        take_trace()
        operator.scale_on_side_stream(self.x)
        paddle.device.synchronize()
        (side,) = {
            operation.stream
            for operation in take_trace()
            if operation.kind == "scale"
        }
        self.assertNotEqual(side, handle(current_stream()))
        with delay(0, DELAY, side):
            y = operator.scale_on_side_stream(self.x)
        z = y * 3
        current_stream().synchronize()
        self.assertEqual(z.tolist(), [6.0] * 4)

    def test_input_keeps_the_gradients_of_other_operators(self):
        # The operator itself has no gradient.
        self.x.stop_gradient = False
        operator.scale_on_side_stream(self.x.detach())
        (self.x * 2).sum().backward()
        self.assertEqual(self.x.grad.tolist(), [2.0] * 4)


class TestPython(GuardTestCase):
    """C++ guards around Python code, and Python guards around C++ code."""

    def test_python_inside_a_guard_runs_on_its_stream(self):
        def check(stream: int) -> list[float]:
            self.assertEqual(handle(current_stream(name_of(1))), stream)
            x = paddle.ones([4], device=name_of(1))
            take_trace()
            y = x * 2
            paddle.device.synchronize(name_of(1))
            (scale,) = (
                operation
                for operation in take_trace()
                if operation.kind == "scale"
            )
            self.assertEqual(scale.stream, stream)
            return y.tolist()

        for run in (call_inside, lambda *args: in_thread(call_inside, *args)):
            before = current_handles([name_of(1)])
            self.assertEqual(run(1, check), [2.0] * 4)
            self.assertEqual(current_handles([name_of(1)]), before)

    def test_stream_of_a_guard_is_current_on_the_process_contexts(self):
        # As in code that predictors and gradients of programs call.
        def check(stream: int) -> None:
            current = handle(current_stream(name_of(1)))
            self.assertEqual(current, stream)

        before = current_handles([name_of(1)])
        native.with_process_contexts(call_inside, 1, check)
        in_thread(native.with_process_contexts, call_inside, 1, check)
        self.assertEqual(current_handles([name_of(1)]), before)

    def test_python_inside_a_guard_cannot_set_a_stream_of_its_device(self):
        stream = Stream(name_of(1))

        def check(inside: int) -> None:
            for act in (
                lambda: paddle.device.set_stream(stream),
                stream_guard(stream).__enter__,
            ):
                with self.assertRaisesRegex(RuntimeError, "guard"):
                    act()
                self.assertEqual(handle(current_stream(name_of(1))), inside)
            other = Stream(name_of(2))
            with stream_guard(other):
                self.assertEqual(
                    current_handles([name_of(1), name_of(2)]),
                    [inside, handle(other)],
                )

        def run() -> None:
            before = current_handles([name_of(1), name_of(2)])
            call_inside(1, check)
            self.assertEqual(current_handles([name_of(1), name_of(2)]), before)
            with stream_guard(stream):
                call_inside(1, check)
                self.assertEqual(
                    handle(current_stream(name_of(1))), handle(stream)
                )

        run()
        in_thread(run)

    def test_first_default_stream_inside_a_guard_is_the_devices_own(self):
        # Each process records its default streams at the first call.
        self.run_program(DEFAULT_STREAM)

    def test_cpp_stream_may_live_until_the_process_ends(self):
        self.run_program(STATIC_STREAM)

    def test_cpp_stream_outlives_a_forked_child_that_exits(self):
        self.run_program(FORKED_CHILD)

    def test_child_forked_inside_a_guard_leaves_it_and_works(self):
        self.run_program(FORK_INSIDE)

    def run_program(self, program: str) -> None:
        done = test_host_device.run_python(program, LIBRARY=library._name)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_cpp_uses_the_stream_set_in_python(self):
        def check() -> None:
            stream = Stream(name_of(1))
            with stream_guard(stream):
                self.assertEqual(library.current_stream(1), handle(stream))
                self.assertIsNone(library.run_case(b"StreamGuards"))
                self.assertEqual(library.current_stream(1), handle(stream))

        check()
        in_thread(check)

    def test_cpp_may_drop_the_last_reference_to_a_python_stream(self):
        def keep() -> None:
            with stream_guard(Stream(name_of(1))):
                library.keep_current_stream(1)

        in_thread(keep)
        library.drop_kept_stream()
        self.assertIsNone(library.run_case(b"StreamGuards"))


# Exits with an error unless the default stream is right.
DEFAULT_STREAM = """
import ctypes, os, paddle
library = ctypes.CDLL(os.environ["LIBRARY"])
paddle.set_device("custom_cpu:1")
handles = []
def call(stream):
    default = paddle.device.default_stream()
    handles.extend([stream, default.stream_base.raw_stream])
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
library.call_inside(1, function)
inside, default = handles
assert default != inside
assert paddle.device.current_stream().stream_base.raw_stream == default
"""

STATIC_STREAM = """
import os, paddle
from paddle.utils import cpp_extension
cpp_extension.load_op_meta_info_and_register_op(os.environ["LIBRARY"])
paddle.set_device("custom_cpu:1")
x = paddle.ones([4])
y, = paddle.base.core.eager._run_custom_op("scale_on_side_stream", x)
assert y.tolist() == [2.0] * 4, y
"""

# The child has the guard of the thread that forked, as it has its device.
FORK_INSIDE = """
import ctypes, os, sys, paddle
library = ctypes.CDLL(os.environ["LIBRARY"])
children = []
def call(stream):
    children.append(os.fork())
    current = paddle.device.current_stream("custom_cpu:1").stream_base
    assert current.raw_stream == stream
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
library.call_inside(1, function)
default = paddle.device.default_stream("custom_cpu:1").stream_base.raw_stream
current = paddle.device.current_stream("custom_cpu:1").stream_base.raw_stream
assert current == default, (current, default)
paddle.set_device("cpu")
assert (paddle.ones([2]) * 2).tolist() == [2.0] * 2
if children[0] == 0:
    sys.exit()
assert os.waitpid(children[0], 0)[1] == 0
"""

# A child that ends as a script does destroys the static variables.
FORKED_CHILD = (
    STATIC_STREAM
    + """
import sys
child = os.fork()
if child == 0:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""
)


if __name__ == "__main__":
    unittest.main()
