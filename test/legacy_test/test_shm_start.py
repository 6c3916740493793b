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
"""The ways in which programs start ranks with the backend shm."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest

from concurrent_base import pristine_environment, run_command, script_command
from shared_tensor_leaks import shared_files
from shm_group_base import ON_LINUX, Error, RanksTestCase, free_port

import paddle
import paddle.distributed as dist

REDUCE = """
import os, sys
import paddle
import paddle.distributed as dist

def reduce():
    dist.init_parallel_env()
    x = paddle.full([3], dist.get_rank() + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 3, x
    with open(sys.argv[1], "a") as report:
        report.write(f"{dist.get_backend()} {dist.get_rank()}\\n")
"""
SPAWN = """
if __name__ == "__main__":
    dist.spawn(reduce, nprocs=2, backend="shm")
"""
RETURN = """
import sys
import paddle
import paddle.distributed as dist

def reduce():
    dist.init_parallel_env()
    if dist.get_rank() == 1:
        return
    try:
        dist.all_reduce(paddle.ones([1]))
        text = "rank 1 took part"
    except RuntimeError as error:
        text = str(error)
    with open(sys.argv[1], "a") as report:
        report.write(text)

if __name__ == "__main__":
    dist.spawn(reduce, nprocs=2, backend="shm", start_method=sys.argv[2])
"""
STOP = """
import datetime, sys, threading
import paddle
from paddle.base import core
from paddle.distributed import shared_memory_group

def join():
    store = core.TCPStore("127.0.0.1", int(sys.argv[2]), True, 1, 60)
    timeout = datetime.timedelta(minutes=1)
    return shared_memory_group.join(store, 0, 1, 1, timeout)

def import_workers():
    from paddle.multiprocessing import WorkerThread
    return WorkerThread

def work():
    begun.set()
    while not worker.should_stop():
        ended.wait(0.01)
    group.barrier().wait()
    with open(sys.argv[1], "w") as report:
        report.write("used the group")

if sys.argv[3] == "workers first":
    WorkerThread, group = import_workers(), join()
else:
    group, WorkerThread = join(), import_workers()
begun, ended = threading.Event(), threading.Event()
worker = WorkerThread(work, daemon=True)
worker.start()
assert begun.wait(60)
"""
REPEAT = """
import atexit, datetime, sys
from multiprocessing import get_context, util
from paddle.base import core
from paddle.distributed import shared_memory_group

class Group:
    def __init__(self, store, number):
        timeout = datetime.timedelta(minutes=1)
        self.process_group = shared_memory_group.join(
            store, 0, 1, number, timeout
        )

def repeat():
    store = core.TCPStore("127.0.0.1", int(sys.argv[2]), True, 1, 60)
    counts = []
    for number in range(3):
        shared_memory_group.leave([Group(store, number)])
        counts.append((atexit._ncallbacks(), len(util._finalizer_registry)))
    with open(sys.argv[1], "a") as report:
        report.write(f"{counts[2] == counts[0]}\\n")

if __name__ == "__main__":
    repeat()
    child = get_context("fork").Process(target=repeat)
    child.start()
    child.join()
"""
REFUSE = """
import sys
import paddle
import paddle.distributed as dist

def reduce():
    dist.init_parallel_env()
    x = paddle.to_tensor([1.0], place=paddle.CustomPlace("custom_cpu", 0))
    try:
        dist.all_reduce(x)
        text = "nothing was refused"
    except ValueError as error:
        text = str(error)
    assert "host memory" in text, text
    with open(sys.argv[1], "a") as report:
        report.write(f"{dist.get_backend()} {dist.get_rank()}\\n")
"""


def join_in_static_mode() -> None:
    paddle.enable_static()
    try:
        dist.init_parallel_env()
    finally:
        paddle.disable_static()


def use_groups_of_pairs() -> list[float]:
    """Reduces in a group of the even ranks and in a group of the odd ranks."""
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3], backend="shm")]
    x = paddle.full([1], float(dist.get_rank()))
    dist.all_reduce(x, group=pairs[dist.get_rank() % 2])
    return x.tolist()


def refuse_bad_tensors() -> list[str]:
    """Returns the errors for tensors that the backend does not accept."""
    matrix, row = paddle.ones([4, 6]), paddle.ones([4])
    other_row, without_memory = paddle.ones([4]), paddle.ones([4])
    without_memory._clear_data()
    calls = [
        lambda: dist.all_reduce(matrix.transpose([1, 0])),
        lambda: dist.all_reduce(paddle.ones([2]).astype("float8_e4m3fn")),
        lambda: dist.stream.all_gather(paddle.ones([5]), paddle.ones([2])),
        lambda: dist.stream.all_gather(
            paddle.ones([4], "int32"), paddle.ones([2])
        ),
        lambda: dist.alltoall_single(matrix, matrix),
        lambda: dist.stream.all_gather(row, row[1:3]),
        lambda: dist.stream.reduce_scatter(row[1:3], row),
        lambda: dist.stream.scatter(row[1:3], row, dist.get_rank()),
        lambda: dist.alltoall_single(paddle.ones([3]), paddle.ones([3])),
        lambda: dist.stream.reduce_scatter(paddle.ones([2]), paddle.ones([3])),
        lambda: dist.send(paddle.ones([1]), dist.get_rank()),
        lambda: dist.stream.all_reduce(matrix, op=7),
        lambda: dist.stream.gather(
            paddle.ones([1]), [], dist.get_rank(), use_calc_stream=True
        ),
        lambda: dist.all_reduce(without_memory),
        lambda: dist.alltoall_single(row, other_row, [1, 2], [2, 2]),
        lambda: dist.alltoall_single(row, other_row, [5, -1], [2, 2]),
        lambda: dist.alltoall_single(row, other_row, [2, 2], [2, 2, 0]),
        lambda: dist.alltoall([], [row] * 3),
        lambda: dist.alltoall([], [row, row.astype("float64")]),
    ]
    found = []
    for call in calls:
        try:
            call()
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    # No rank waits for a refused operation.
    dist.all_reduce(matrix)
    return found


def _gradient_of_rows() -> paddle.Tensor:
    embedding = paddle.nn.Embedding(2, 2, sparse=True)
    embedding(paddle.to_tensor([0, 1])).sum().backward()
    return embedding.weight.grad


def refuse_tensors_that_are_not_dense() -> dict[str, str]:
    """Returns the errors of all operations, by operation and kind of tensor."""
    dense, peer = paddle.ones([2, 2]), 1 - dist.get_rank()
    kinds = {
        "COO": dense.to_sparse_coo(2),
        "CSR": dense.to_sparse_csr(),
        "selected rows": _gradient_of_rows(),
    }
    group = dist.get_group().process_group
    operations = {
        "all_reduce": dist.all_reduce,
        "broadcast": lambda x: dist.broadcast(x, 0),
        "reduce": lambda x: dist.reduce(x, 0),
        "send": lambda x: dist.send(x, peer),
        "recv": lambda x: dist.recv(x, peer),
        "send_partial": lambda x: group.send_partial(x, dst=peer, num=2, id=0),
        "all_gather": lambda x: dist.all_gather([], x),
        "all_gather into": lambda x: dist.stream.all_gather(x, dense),
        "gather": lambda x: dist.gather(x, [], dist.get_rank()),
        "scatter": lambda x: dist.scatter(x, [x] * 2, dist.get_rank()),
        "reduce_scatter": lambda x: dist.reduce_scatter(dense, [dense, x]),
        "alltoall": lambda x: dist.alltoall([], [dense, x]),
        "alltoall_single": lambda x: dist.alltoall_single(dense, x),
        "by name": lambda x: group.all_reduce(
            tensor=x, op=dist.ReduceOp.SUM, sync_op=True
        ),
    }
    found = {}
    for operation, call in operations.items():
        for kind, tensor in kinds.items():
            try:
                call(tensor)
                found[f"{operation} of {kind}"] = "nothing"
            except ValueError as error:
                found[f"{operation} of {kind}"] = str(error)
    # No rank waits for a refused operation.
    dist.all_reduce(dense)
    return found


def use_part_of_the_output() -> list[list[float]]:
    """Gathers and reduces with a rank's part within the whole tensor."""
    own = slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    gathered = paddle.full([4], dist.get_rank() + 1.0)
    dist.stream.all_gather(gathered, gathered[own])
    reduced = paddle.arange(4, dtype="float32")
    part = reduced[own]
    dist.stream.reduce_scatter(part, reduced)
    return [gathered.tolist(), part.tolist()]


@unittest.skipUnless(ON_LINUX, "the backend shm needs Linux")
class TestShmStart(RanksTestCase):
    def setUp(self):
        self.addCleanup(self.assertEqual, shared_files(), shared_files())
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.report = os.path.join(folder.name, "report")
        self.script = os.path.join(folder.name, "script.py")

    def report_of(self, command, script, *arguments, **environment):
        """Runs a script and returns the lines of its report."""
        with open(self.script, "w") as file:
            file.write(script)
        run_command(
            self,
            [*command, self.script, self.report, *arguments],
            {**pristine_environment(), **environment},
        )
        with open(self.report) as report:
            return list(report)

    def run_job(self, command, script, **environment):
        """Runs a script and checks that two ranks have used the backend."""
        report = self.report_of(command, script, **environment)
        self.assertEqual(sorted(report), ["SHM 0\n", "SHM 1\n"])

    def test_spawn(self):
        self.run_job([sys.executable], REDUCE + SPAWN)

    def test_rank_whose_function_returns_has_left(self):
        for method in ("fork", "spawn"):
            with self.subTest(method):
                (text,) = self.report_of([sys.executable], RETURN, method)
                self.assertIn("rank 1", text.lower())
                self.assertIn("has left", text)
                os.remove(self.report)

    def test_worker_threads_are_stopped_before_groups_are_left(self):
        for order in ("workers first", "groups first"):
            with self.subTest(order):
                port = str(free_port())
                report = self.report_of(
                    [sys.executable], STOP, port, order, PADDLE_TRAINER_ID="0"
                )
                self.assertEqual(report, ["used the group"])
                os.remove(self.report)

    def test_repeated_groups_register_no_more_exit_functions(self):
        report = self.report_of(
            [sys.executable], REPEAT, str(free_port()), PADDLE_TRAINER_ID="0"
        )
        self.assertEqual(report, ["True\n", "True\n"])

    def test_launch(self):
        folder = os.path.dirname(self.script)
        self.run_job(
            [
                *(sys.executable, "-m", "paddle.distributed.launch"),
                *("--nproc_per_node", "2", "--log_dir", folder),
            ],
            REDUCE + "\nreduce()\n",
            PADDLE_DISTRI_BACKEND="shm",
            CUSTOM_DEVICE_ROOT="",
        )

    @unittest.skipUnless(
        "custom_cpu" in paddle.device.get_all_custom_device_type(),
        "needs the plugin in test/custom_runtime/host_device, built and named "
        "by CUSTOM_DEVICE_ROOT",
    )
    def test_tensors_on_a_device_are_refused(self):
        self.run_job([sys.executable], REFUSE + SPAWN)

    def test_groups_of_some_ranks(self):
        ranks = self.start_group(4)
        self.assertEqual(
            ranks.call(use_groups_of_pairs), [[2.0], [4.0], [2.0], [4.0]]
        )

    def test_static_mode_is_refused(self):
        ranks = self.start(2)
        ranks.begin(join_in_static_mode)
        for outcome in ranks.outcomes():
            self.assertIsInstance(outcome, Error)
            self.assertIn("dynamic mode only", outcome.text)

    def test_errors_for_refused_tensors_say_why(self):
        ranks = self.start_group(2)
        parts = (
            "contiguous()",
            "float8_e4m3fn",
            "5 elements",
            "int32",
            *["overlaps"] * 4,
            "3 rows, which cannot be",
            "3 elements",
            "the caller",
            "",
            "use_calc_stream",
            "no memory yet",
            "sizes [1, 2]",
            "sizes [5, -1]",
            "sizes [2, 2, 0]",
            "3 tensors",
            "float64",
        )
        for found in ranks.call(refuse_bad_tensors):
            self.assertEqual(len(found), len(parts))
            for text, part in zip(found, parts):
                self.assertIn(part, text)
                self.assertNotEqual(text, "nothing")

    def test_tensors_that_are_not_dense_are_refused_by_each_operation(self):
        ranks = self.start_group(2)
        cures = {
            "COO": "sparse tensor (COO)",
            "CSR": "sparse tensor (CSR)",
            "selected rows": "sparse=False",
        }
        for found in ranks.call(refuse_tensors_that_are_not_dense):
            for call, text in found.items():
                kind = call.split(" of ")[1]
                with self.subTest(call):
                    self.assertIn(cures[kind], text)
                    if kind != "selected rows":
                        self.assertIn("to_dense()", text)

    def test_part_of_the_output_may_be_the_input(self):
        ranks = self.start_group(2)
        gathered = [1.0, 1.0, 2.0, 2.0]
        self.assertEqual(
            ranks.call(use_part_of_the_output),
            [[gathered, [0.0, 2.0]], [gathered, [4.0, 6.0]]],
        )

    def test_importing_paddle_does_not_load_the_group(self):
        run_command(
            self,
            script_command(
                "import sys, paddle, paddle.distributed\n"
                "assert 'paddle.base._process_group_shm' not in sys.modules"
            ),
            pristine_environment(),
        )


if __name__ == "__main__":
    unittest.main()
