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
"""Each example runs unmodified, on the available devices."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
from pathlib import Path

import pytest

from tools.wheel import REPO

CONCURRENT_INFERENCE = r"""one (?P<device>\S+), [0-9]+ requests
1 thread: [0-9,]+ requests/s
(?P<threads>[0-9]+) threads: [0-9,]+ requests/s
wrong answers: (?P<wrong>[0-9]+)
"""
ANSWERS = (
    r"(?P<answers>[0-9]+) answers, (?P<wrong>[0-9]+) wrong; "
    r"a bad request: (?P<bad>[0-9]+)\n"
)
SERVED = r"thread_([0-9]+), Place\((\S+)\): ([0-9]+) requests"
INFERENCE_SERVICE = rf"""(?P<note>no GPU and .*\n)?(?P<served>({SERVED}
)+)400 answers, (?P<wrong>[0-9]+) wrong
"""
HOGWILD = r"""before: loss (?P<loss>[0-9.]+), accuracy (?P<accuracy>[0-9.]+)%
after: loss (?P<new_loss>[0-9.]+), accuracy (?P<new_accuracy>[0-9.]+)%
steps: (?P<steps>.*)
"""
MEMORY = r"""private  shared     Pss
(?P<{0}>( +[0-9]+ +[0-9]+ +[0-9]+
)+)sum of Pss +(?P<sum_{0}>[0-9]+)
"""
SHARED_WEIGHTS = rf"""(?P<weights>[0-9]+) MiB of weights

each process loads a copy:
{MEMORY.format("copies")}
all have one copy:
{MEMORY.format("one")}
the losses are the same
"""
PIPELINE = r"""produce: done again: (?P<produced>.*)
consume: done again: (?P<consumed>.*)
(?P<results>[0-9]+) results, (?P<wrong>[0-9]+) wrong
left: (?P<used>[0-9]+) bytes, (?P<segments>[0-9]+) foreign segments
"""
DATA_PARALLEL = r"""2 processes
bitwise equal to one process, part by part: True
difference from one process, whole batches: (?P<rounding>\S+)
difference with gradients sent as float16: (?P<float16>\S+)
5 steps, means in ms
forward .*
backward, .*
communication .*
backward waits .*
hidden behind backward +[0-9]+%
bucket +KiB  parameters
([0-9]+ +[0-9.]+  .*
){7}"""

SEVERAL_MACHINES = r"""4 ranks on 2 machines
epoch 0: loss (?P<first>[0-9.]+)
epoch 1: loss .*
epoch 2: loss .*
epoch 3: loss (?P<last>[0-9.]+)
"""
# Runs a command with its own PID namespace, host name and /dev/shm.
ON_A_MACHINE = (
    *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"),
    *("sh", "-c"),
    'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec "$@"',
)


@pytest.fixture(scope="module")
def run_example(start_paddle, run_paddle):
    """
    Runs an example, the first time in a new Python and then in forks of one.
    Returns the match of its output. No file may stay in shared memory.
    """
    started = set()

    def run(name, output, *arguments, **variables):
        run_python = run_paddle if name in started else start_paddle
        started.add(name)
        tree = secrets.token_hex(8)
        done = run_python(
            REPO / "examples" / name,
            *arguments,
            **{
                "CUSTOM_DEVICE_ROOT": None,
                "PADDLE_SHARED_MEMORY_TREE": tree,
                **variables,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(Path("/dev/shm").glob(f"*{tree}*"))
        match = re.fullmatch(output, done.stdout)
        assert match, done.stdout
        return match

    return run


@pytest.fixture
def plugin():
    """The folder of the test device."""
    folder = os.environ.get("CUSTOM_DEVICE_ROOT")
    if not folder:
        pytest.skip("set CUSTOM_DEVICE_ROOT to the folder of the test device")
    return folder


@pytest.fixture
def serve(run_example):
    """Runs concurrent_inference.py."""

    def run(*arguments, **variables):
        return run_example(
            "concurrent_inference.py",
            CONCURRENT_INFERENCE,
            *arguments,
            **variables,
        )

    return run


def test_inference_is_concurrent_on_the_cpu(serve):
    output = serve("--device", "cpu")
    assert output["device"] == "cpu"
    assert output["wrong"] == "0"


def test_inference_is_concurrent_on_the_first_custom_device(serve, plugin):
    output = serve("--threads", "3", CUSTOM_DEVICE_ROOT=plugin)
    assert output["device"] == "custom_cpu:0"
    assert output["threads"] == "3"
    assert output["wrong"] == "0"


def test_inference_is_concurrent_on_another_device(serve, plugin):
    output = serve("--device", "custom_cpu:1", CUSTOM_DEVICE_ROOT=plugin)
    assert output["device"] == "custom_cpu:1"
    assert output["wrong"] == "0"


@pytest.mark.parametrize("model", [[], ["--layer"]])
@pytest.mark.parametrize(
    "server", ["thread_pool_server.py", "asyncio_server.py"]
)
def test_server_answers_as_one_thread_does(run_example, server, model):
    output = run_example(server, ANSWERS, "--requests", "60", *model)
    assert output["answers"] == "60"
    assert output["wrong"] == "0"
    assert output["bad"] == "400"


def served(output) -> dict[str, int]:
    """Returns how many requests were answered on each device."""
    count: dict[str, int] = {}
    for _, device, requests in re.findall(SERVED, output["served"]):
        count[device] = count.get(device, 0) + int(requests)
    return count


def test_threads_serve_on_all_custom_devices(run_example, plugin):
    output = run_example(
        "inference_service.py", INFERENCE_SERVICE, CUSTOM_DEVICE_ROOT=plugin
    )
    devices = served(output)
    # A thread that starts late may find no request left.
    assert len(devices) > 1
    assert all(re.fullmatch("custom_cpu:[0-3]", device) for device in devices)
    assert sum(devices.values()) == 400
    assert output["wrong"] == "0"


def test_threads_serve_on_the_devices_that_are_named(run_example, plugin):
    output = run_example(
        "inference_service.py",
        INFERENCE_SERVICE,
        *("--devices", "custom_cpu:2", "cpu"),
        CUSTOM_DEVICE_ROOT=plugin,
    )
    assert set(served(output)) <= {"custom_cpu:2", "cpu"}
    assert output["wrong"] == "0"


def test_threads_serve_on_the_cpu_where_nothing_else_is(run_example):
    output = run_example("inference_service.py", INFERENCE_SERVICE)
    assert (
        output["note"]
        == "no GPU and no custom device: two threads on the CPU\n"
    )
    assert served(output) == {"cpu": 400}
    assert output["wrong"] == "0"


def test_processes_train_the_model_of_their_parent(run_example):
    output = run_example("hogwild.py", HOGWILD)
    assert float(output["accuracy"]) < 50 < 90 < float(output["new_accuracy"])
    assert float(output["new_loss"]) < float(output["loss"]) / 3
    assert output["steps"] == "[300, 300]"


def test_processes_evaluate_with_one_copy_of_the_weights(run_example):
    output = run_example("shared_weights.py", SHARED_WEIGHTS)
    weights = int(output["weights"])

    def private_of_children(kind):
        _, *children = output[kind].splitlines()
        return [int(child.split()[0]) for child in children]

    assert weights == 128
    assert len(private_of_children("one")) == 3
    assert max(private_of_children("one")) < weights / 3
    assert min(private_of_children("copies")) > weights
    saved = int(output["sum_copies"]) - int(output["sum_one"])
    assert saved == pytest.approx(3 * weights, rel=0.2)


def test_pipeline_survives_the_kill_of_a_producer_and_a_consumer(run_example):
    output = run_example("pipeline.py", PIPELINE)
    assert output["produced"] == "[8]"
    assert output["consumed"] == "[12]"
    assert (output["results"], output["wrong"]) == ("24", "0")
    assert (output["used"], output["segments"]) == ("0", "0")


def test_processes_that_average_gradients_learn_what_one_learns(run_example):
    output = run_example("data_parallel.py", DATA_PARALLEL)
    assert float(output["rounding"]) < 1e-6
    assert 0 < float(output["float16"]) < 1e-4


@pytest.fixture
def launch_on_machines(paddle_python, tmp_path):
    """
    Starts two ranks of an example on each of two machines (namespaces of this
    machine), as a user does, and returns the output of the first rank.
    """
    if subprocess.run([*ON_A_MACHINE, "probe", "true"]).returncode != 0:
        pytest.skip("this system does not let a program have namespaces")

    def run(example, *arguments):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        variables = {
            **os.environ,
            "PADDLE_DISTRI_BACKEND": "shm",
            # These host names have no addresses.
            "GLOO_SOCKET_IFNAME": "lo",
        }
        # If there are devices, the launcher gives each rank one.
        variables.pop("CUSTOM_DEVICE_ROOT", None)
        launchers = [
            subprocess.Popen(
                [
                    *(*ON_A_MACHINE, machine),
                    *(paddle_python, "-m", "paddle.distributed.launch"),
                    *("--master", f"127.0.0.1:{port}", "--nnodes", "2"),
                    *("--nproc_per_node", "2", "--rank", str(rank)),
                    *("--log_dir", tmp_path / machine),
                    *(REPO / "examples" / example, *arguments),
                ],
                env=variables,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, machine in enumerate(["machine-a", "machine-b"])
        ]
        try:
            for launcher in launchers:
                _, printed = launcher.communicate(timeout=300)
                assert launcher.returncode == 0, printed
        finally:
            for launcher in launchers:
                launcher.kill()
        return (tmp_path / "machine-a" / "workerlog.0").read_text()

    return run


def test_two_machines_train_one_model(launch_on_machines):
    printed = launch_on_machines("several_machines.py")
    output = re.search(SEVERAL_MACHINES, printed)
    assert output, printed
    assert float(output["last"]) < float(output["first"]) / 2
