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
"""Each example runs as it stands in its folder, on what there is."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tools.wheel import REPO

OUTPUT = re.compile(
    r"""one (?P<device>\S+), [0-9]+ requests
1 thread: [0-9,]+ requests/s
(?P<threads>[0-9]+) threads: [0-9,]+ requests/s
wrong answers: (?P<wrong>[0-9]+)
"""
)


@pytest.fixture
def serve():
    """Runs concurrent_inference.py and returns its output, matched."""
    python = os.environ.get("PADDLE_PYTHON")
    if not python:
        pytest.skip("set PADDLE_PYTHON to a Python that has the custom wheel")

    def run(*arguments, **variables):
        environ = {k: v for k, v in os.environ.items() if "CUSTOM_DEV" not in k}
        example = REPO / "examples" / "concurrent_inference.py"
        done = subprocess.run(
            [python, str(example), *arguments],
            env={**environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        output = OUTPUT.fullmatch(done.stdout)
        assert output, done.stdout
        return output

    return run


@pytest.fixture
def plugin():
    """The folder of the test device."""
    folder = os.environ.get("CUSTOM_DEVICE_ROOT")
    if not folder:
        pytest.skip("set CUSTOM_DEVICE_ROOT to the folder of the test device")
    return folder


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
