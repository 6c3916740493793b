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
"""Forks and exits of processes whose threads use predictors."""

from __future__ import annotations

import os
import unittest

from concurrent_base import (
    pristine_environment,
    run_command,
    script_command,
)
from forked_script import run_forked_script
from inference_threads_base import IMAGE, IMAGE_LEGACY, PredictorTestCase

FORK = """
import ctypes
import faulthandler
import os
import sys
import threading
import numpy as np
from inference_threads_base import call, hook_once
from paddle.inference import Config, PredictorPool, create_predictor

def keep_variables_of_parents_threads():
    # In Paddle 3.3.0 a thread that ends adds its memory statistics to those of
    # another thread, which a forked child may not have. glibc frees such a
    # thread's thread_local variables when a new thread reuses its stack.
    # Requesting a larger stack size prevents reuse of the parent's stacks.
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(256)
    assert libc.pthread_attr_init(attributes) == 0
    size = ctypes.c_size_t(64 << 20)
    assert libc.pthread_attr_setstacksize(attributes, size) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0

def print_stacks_later():
    # Before the test kills the process for taking too long.
    faulthandler.dump_traceback_later(60)

if sys.platform == "linux":
    # Before the next handlers, which start a thread.
    os.register_at_fork(after_in_child=keep_variables_of_parents_threads)
print_stacks_later()
os.register_at_fork(
    # The child would lack the thread that has to be cancelled.
    before=faulthandler.cancel_dump_traceback_later,
    after_in_parent=print_stacks_later,
    after_in_child=print_stacks_later,
)

def config():
    path = sys.argv[1].rpartition(".")[0]
    model = Config(sys.argv[1], path + ".pdiparams")
    model.disable_glog_info()
    if "onednn" in sys.argv:
        model.enable_mkldnn()
    else:
        model.disable_mkldnn()
    return model
"""

FORK_IN_RUNS = (
    FORK
    + """
if "fork first" in sys.argv:
    # Before the first predictor exists, which registers the fork handlers.
    if os.fork() == 0:
        os._exit(0)
    os.wait()
import paddle
from concurrent_base import Worker
# Locks the building of programs during forks.
layer = paddle.jit.load(sys.argv[1].rpartition(".")[0])
layer(paddle.ones([1, 3, 4, 4]))
predictor, pool = create_predictor(config()), PredictorPool(config(), 2)
if "lock first" in sys.argv:
    # The order of the fork handlers in a build from source: the last one that
    # is registered is called first.
    from paddle.base.threads import fork, programs
    for steps in (fork._waits, fork._steps_in_parent):
        steps.clear()
    os.register_at_fork(
        before=programs._lock, after_in_parent=programs._unlock_in_parent)
large, small = (np.ones([1, 3, n, n], "float32") for n in (256, 4))
expected = call(predictor.clone(), small)
stop, began = threading.Event(), threading.Semaphore(0)

def repeat(step):
    step()
    began.release()
    while not stop.is_set():
        step()

workers = [Worker(repeat, step) for step in (
    lambda: call(predictor, large),
    lambda: pool.predict([large]),
    predictor.clone,
    lambda: create_predictor(config()),
)]
for _ in workers:
    began.acquire()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for new in (predictor.clone(), create_predictor(config())):
                np.testing.assert_array_equal(call(new, small), expected)
            np.testing.assert_array_equal(
                pool.predict([small], timeout=60)[0], expected)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for worker in workers:
    worker.result()
"""
)

FORK_IN_HOOK = (
    FORK
    + """
predictor, pool = create_predictor(config()), PredictorPool(config(), 1)
small = np.ones([1, 3, 4, 4], "float32")
expected = call(predictor, small)
forked, entered = threading.Event(), threading.Semaphore(0)

def wait(*_):
    entered.release()
    forked.wait()

def repeat_until_forked(step):
    worker = threading.Thread(target=step)
    worker.start()
    entered.acquire()
    return worker

predictor.register_input_hook(hook_once(wait))
pool._predictors[0].register_input_hook(hook_once(wait))
workers = [
    repeat_until_forked(lambda: call(predictor, small)),
    repeat_until_forked(lambda: pool.predict([small])),
]
pid = os.fork()
if pid == 0:
    status = 1
    try:
        for step, text in (
            (lambda: call(predictor, small), "has ended is in a call"),
            (lambda: pool.predict([small]), "None of the 1 predictors"),
        ):
            try:
                step()
            except RuntimeError as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        np.testing.assert_array_equal(call(predictor.clone(), small), expected)
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
forked.set()
for worker in workers:
    worker.join()
np.testing.assert_array_equal(call(predictor, small), expected)
np.testing.assert_array_equal(pool.predict([small])[0], expected)
"""
)

FORK_AND_DROP = (
    FORK
    + """
import gc
predictor = create_predictor(config())
small = np.ones([1, 3, 4, 4], "float32")
expected = call(predictor, small)
cycle = [predictor, predictor.clone(), PredictorPool(config(), 2)]
cycle.append(cycle)
for each in cycle[:2]:
    call(each, small)
cycle[2].predict([small])
of_thread = threading.local()
made, stop = threading.Barrier(3), threading.Event()

def serve():
    of_thread.predictors = [predictor.clone(), create_predictor(config())]
    for each in of_thread.predictors:
        call(each, small)
    made.wait()
    stop.wait()

for _ in range(2):
    threading.Thread(target=serve, daemon=True).start()
made.wait()
ends = [lambda: os._exit(0), sys.exit, lambda: None]
for end in ends:
    pid = os.fork()
    if pid == 0:
        clone = predictor.clone()
        predictor = each = cycle = None
        gc.collect()
        own = create_predictor(config())
        for each in (clone, own):
            np.testing.assert_array_equal(call(each, small), expected)
        clone = own = each = None
        end()
        break
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
"""
)

FORK_WITH_LOCK = (
    """
import os
import threading
lock = threading.Lock()
# Registered before Paddle's handlers, so that it is called after them.
os.register_at_fork(
    before=lock.acquire,
    after_in_parent=lock.release,
    after_in_child=lock.release,
)
"""
    + FORK
    + """
from concurrent_base import Worker
predictor = create_predictor(config())
large = np.ones([1, 3, 256, 256], "float32")
expected = call(predictor, large)
stop, began = threading.Event(), threading.Event()

def repeat():
    while not stop.is_set():
        with lock:
            began.set()
            np.testing.assert_array_equal(call(predictor, large), expected)

worker = Worker(repeat)
began.wait()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
worker.result()
"""
)

EXIT = (
    FORK
    + """
predictors = [create_predictor(config()) for _ in range(2)]
pool = PredictorPool(config(), 1)
large = np.ones([1, 3, 256, 256], "float32")
began = threading.Semaphore(0)
handle = predictors[1].get_input_handle("x")

def repeat(step):
    step()
    began.release()
    while True:
        step()

steps = {
    "run": [lambda: call(predictors[0], large)],
    "copy": [lambda: handle.copy_from_cpu(large)],
    "pool": [lambda: pool.predict([large])] * 2,
    "make": [predictors[0].clone, lambda: create_predictor(config())],
}
for step in steps[sys.argv[2]]:
    threading.Thread(target=repeat, args=[step], daemon=True).start()
    began.acquire()
"""
)

EXIT_IN_HOOK = (
    FORK
    + """
predictor = create_predictor(config())
entered = threading.Event()

def wait(*_):
    entered.set()
    threading.Event().wait()

predictor.register_input_hook(wait)
small = np.ones([1, 3, 4, 4], "float32")
threading.Thread(target=call, args=[predictor, small], daemon=True).start()
entered.wait()
"""
)

# The handlers of atexit are called in the reverse order of their registration:
# `end` when Paddle has dropped its kernels, and `before_end` before that, but
# after the handler that the first predictor registers.
EXIT_IN_HANDLERS = (
    """
import atexit
import os
import sys
import threading
import traceback

def or_exit(step):
    def call_step():
        try:
            step()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return call_step

def end():
    # Until the other thread has returned, or waits, this one does not run.
    sys.setswitchinterval(1000)
    end_began.set()
    call_began.wait()
    assert not returned, returned

atexit.register(or_exit(end))
"""
    + FORK
    + """
end_began, call_began = threading.Event(), threading.Event()
small = np.ones([1, 3, 4, 4], "float32")
returned = []

def in_daemon_thread(step):
    thread = threading.Thread(target=or_exit(step), daemon=True)
    thread.start()
    return thread

def check(new):
    np.testing.assert_array_equal(call(new, small), expected)

def check_everywhere():
    check(predictors[0])
    in_daemon_thread(lambda: check(predictors[1])).join()

def before_end():
    check_everywhere()
    pid = os.fork()
    if pid == 0:
        or_exit(check_everywhere)()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

atexit.register(or_exit(before_end))
predictors = [create_predictor(config()) for _ in range(3)]
pool = PredictorPool(config(), 1)
expected = call(predictors[0], small)
for each in predictors:
    check(each)
step = {
    "run": lambda: call(predictors[2], small),
    "pool": lambda: pool.predict([small]),
    "clone": lambda: predictors[2].clone(),
    "make": lambda: create_predictor(config()),
}[sys.argv[2]]

def call_at_end():
    end_began.wait()
    call_began.set()
    try:
        step()
    finally:
        returned.append(sys.exc_info())

in_daemon_thread(call_at_end)
"""
)

# Every way to create a process's first predictor. It may load the replaced
# methods of predictors.
FIRST_PREDICTOR = (
    FORK
    + """
from paddle.inference import Predictor
make = {
    "function": lambda: create_predictor(config()),
    "class": lambda: Predictor(config()),
    "pool": lambda: PredictorPool(config(), 1).retrieve(0),
}[sys.argv[2]]
predictor = make()
assert predictor._input_types() == {"x": "float32"}, predictor._input_types()
errors = []
def overlap(*_):
    thread = threading.Thread(target=run_beside)
    thread.start()
    thread.join()
def run_beside():
    try:
        predictor.run()
    except RuntimeError as error:
        errors.append(str(error))
predictor.register_output_hook(hook_once(overlap))
call(predictor, np.ones([1, 3, 4, 4], "float32"))
assert "one thread at a time" in errors[0], errors
"""
)

# Python destroys the state of a native thread, including its threading.local
# values, when its call of Python ends.
END_OF_NATIVE_THREAD = (
    FORK
    + """
import ctypes
local = threading.local()
predictors = [create_predictor(config())]

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def keep_one(_):
    local.predictor = predictors.pop()

libc = ctypes.CDLL(None)
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, keep_one, None) == 0
assert libc.pthread_join(thread, None) == 0
assert not predictors
"""
)


# Keeps glibc from unmapping stacks, which would free the variables that
# keep_variables_of_parents_threads keeps.
VARIABLES = {"GLIBC_TUNABLES": f"glibc.pthread.stack_cache_size={1 << 40}"}


@unittest.skipUnless(hasattr(os, "fork"), "needs fork and signals")
class TestForkAndExit(PredictorTestCase):
    def run_script(
        self,
        script: str,
        *args: str,
        program: str = IMAGE + ".json",
        onednn: bool = False,
    ) -> None:
        path = os.path.join(self.folder, program)
        end = ["onednn"] if onednn else []
        run_forked_script(self, script, path, *args, *end, **VARIABLES)

    def run_script_that_imports_paddle(
        self, script: str, *args: str, program: str = IMAGE + ".json"
    ) -> None:
        """Runs a script that has something to do before it imports Paddle."""
        path = os.path.join(self.folder, program)
        run_command(
            self,
            [*script_command(script), path, *args],
            {**pristine_environment(), **VARIABLES},
        )

    def test_child_of_a_fork_while_threads_run_predictors(self):
        for onednn in (False, True):
            with self.subTest(onednn=onednn):
                self.run_script(FORK_IN_RUNS, onednn=onednn)

    def test_child_if_a_fork_preceded_the_first_predictor(self):
        self.run_script(FORK_IN_RUNS, "fork first")

    def test_child_if_a_fork_locks_programs_before_it_pauses_predictors(self):
        self.run_script(FORK_IN_RUNS, "lock first")

    def test_first_predictor_of_a_process_may_be_created_in_any_way(self):
        for way in ("function", "class", "pool"):
            with self.subTest(way=way):
                self.run_script(FIRST_PREDICTOR, way)

    def test_fork_handler_may_wait_for_a_request_of_another_thread(self):
        self.run_script_that_imports_paddle(FORK_WITH_LOCK)

    def test_predictor_in_use_at_the_fork_is_unavailable_in_the_child(self):
        for onednn in (False, True):
            with self.subTest(onednn=onednn):
                self.run_script(FORK_IN_HOOK, onednn=onednn)

    def test_child_may_drop_its_parents_predictors(self):
        for program in (IMAGE + ".json", IMAGE_LEGACY + ".pdmodel"):
            with self.subTest(program=program):
                self.run_script(FORK_AND_DROP, program=program)

    def test_exit_while_daemon_threads_use_predictors(self):
        for what in ("run", "copy", "pool", "make"):
            with self.subTest(what=what):
                self.run_script(EXIT, what)

    def test_exit_while_daemon_threads_use_predictors_with_onednn(self):
        for what in ("run", "make"):
            with self.subTest(what=what):
                self.run_script(EXIT, what, onednn=True)

    def test_calls_at_exit_work_until_paddle_drops_its_kernels(self):
        # After that, a call of a daemon thread never returns, without an error.
        for program in (IMAGE + ".json", IMAGE_LEGACY + ".pdmodel"):
            for what in ("run", "pool", "clone", "make"):
                with self.subTest(program=program, what=what):
                    self.run_script_that_imports_paddle(
                        EXIT_IN_HANDLERS, what, program=program
                    )

    def test_exit_while_a_hook_waits(self):
        self.run_script(EXIT_IN_HOOK)

    def test_native_thread_ends_with_the_last_reference_to_a_predictor(self):
        for onednn in (False, True):
            with self.subTest(onednn=onednn):
                self.run_script(END_OF_NATIVE_THREAD, onednn=onednn)


if __name__ == "__main__":
    unittest.main()
