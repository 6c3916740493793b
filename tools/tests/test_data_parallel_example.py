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
"""The example of data-parallel training: as it stands, and piece by piece."""

from __future__ import annotations

import os
import random
import re

import pytest

from tools.wheel import REPO

CASES = REPO / "tools" / "tests" / "data_parallel_cases.py"
NAMES = re.findall(r"^    def (test_\w+)", CASES.read_text(), re.MULTILINE)

OUTPUT = re.compile(
    r"""2 processes
equal to one process, part by part, to the last bit: True
difference from one process, whole batches: (?P<rounding>\S+)
difference with gradients sent as float16: (?P<float16>\S+)
buckets averaged before backward ended: [0-9]+ of 7
gradient of what one rank alone uses: \[0.5, 0.5\]
gradient of what nobody uses: None
if that is not allowed: All parameters must .* no gradient of \['never.*
shared memory left: 0 bytes
"""
)


@pytest.fixture(scope="module")
def cases(run_paddle):
    """Returns the output of the cases, which run once for all."""
    done = run_paddle("-m", "unittest", "tools.tests.data_parallel_cases")
    assert f"\nRan {len(NAMES)} tests" in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_piece(cases, name):
    assert not re.search(rf"^(FAIL|ERROR): {name} ", cases, re.MULTILINE), cases


def test_script_trains_and_leaves_nothing(run_paddle):
    family = f"{random.getrandbits(63):016x}"
    done = run_paddle(
        "examples/data_parallel.py", PADDLE_SHARED_MEMORY_FAMILY=family
    )
    assert done.returncode == 0, done.stdout + done.stderr
    output = OUTPUT.fullmatch(done.stdout)
    assert output, done.stdout
    assert float(output["rounding"]) < 1e-6
    assert 0 < float(output["float16"]) < 1e-4
    assert not [name for name in os.listdir("/dev/shm") if family in name]
