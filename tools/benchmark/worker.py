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
"""A process that measures with the Paddle of one environment."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from tools.wheel import REPO

if TYPE_CHECKING:
    from pathlib import Path


class Worker:
    """
    A process that answers questions.

    Args:
        python: the Python of the environment.
        script: the program; see `answer_questions` in devices_worker.py.
        numbers: for each call's name, the number of calls per round.
        plugin: the folder of the test device, or None.
        cores: the cores that the process may run on.
        variables: additional environment variables.
    """

    def __init__(
        self,
        python: Path,
        script: Path,
        numbers: dict[str, int],
        plugin: Path | None,
        cores: set[int],
        **variables: str,
    ) -> None:
        environ = {
            k: v for k, v in os.environ.items() if "CUSTOM_DEVICE" not in k
        }
        if plugin:
            environ["CUSTOM_DEVICE_ROOT"] = str(plugin)
            environ["PYTHONPATH"] = str(REPO / "test" / "custom_runtime")
        self._numbers = numbers
        self._process = subprocess.Popen(
            [str(python), str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**environ, **variables},
        )
        os.sched_setaffinity(self._process.pid, cores)

    def ask(self, *question: Any) -> Any:
        """Returns the worker's answer to a question."""
        self.send(*question)
        return self.receive()

    def send(self, *question: Any) -> None:
        """Sends a question, whose answer `receive` returns."""
        print(json.dumps(question), file=self._process.stdin, flush=True)

    def receive(self) -> Any:
        """Returns the answer to the first question that has none yet."""
        return json.loads(self._process.stdout.readline())

    def seconds(self, where: str, name: str) -> float:
        """Returns the mean time of a call in one round."""
        number = self._numbers[name]
        return self.ask("seconds", where, name, number) / number

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
