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
"""Run the unit tests of one file and record each result immediately.

    python run_side.py RESULTS FILE [--static]

This script runs in the environment under test and imports nothing from the
project. Like Paddle's own runner, it imports the file as a module and passes
its test cases to unittest, so that a block under ``if __name__ == "__main__"``
does not run. A file without test cases that has such a block is a plain
program; it replaces this process.

RESULTS gets one JSON object per line: {"started": TEST}; {"test": TEST,
"outcome": "passed", "failed" or "skipped", "errors": [TEXT]};
{"unimportable": TEXT}; {"program": true}; and, last, {"finished": true}. A run
that is killed loses only the running test.

JUnit XML cannot replace this record: unittest, which Paddle's runner uses,
writes none, and pytest and unittest-xml-reporting write it at the end of a run,
so that a timeout or a crash would lose all results.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
import unittest
from pathlib import Path

_PROGRAM = re.compile(r"^if\s+__name__\s*==\s*['\"]__main__['\"]", re.MULTILINE)


class Record:
    """The file of results; forked children of a test do not write to it."""

    def __init__(self, path: str):
        self._stream = open(path, "a", buffering=1)  # noqa: SIM115
        self._owner = os.getpid()

    def add(self, **entry) -> None:
        if os.getpid() == self._owner:
            self._stream.write(json.dumps(entry) + "\n")


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def recording_result(record: Record, module: str) -> type:
    """Return a class of unittest results that write to the record."""

    class Result(unittest.TextTestResult):
        # The outcomes of the running test; None between tests.
        _noted = None

        def startTest(self, test):
            self._noted = []
            record.add(started=self._name(test))
            super().startTest(test)

        def stopTest(self, test):
            super().stopTest(test)
            self._add(test, self._noted)
            self._noted = None

        def addError(self, test, err):
            super().addError(test, err)
            self._note(test, "failed", _error_text(err[1]))

        def addFailure(self, test, err):
            super().addFailure(test, err)
            self._note(test, "failed", _error_text(err[1]))

        def addSubTest(self, test, subtest, err):
            super().addSubTest(test, subtest, err)
            if err is not None:
                self._note(test, "failed", _error_text(err[1]))

        def addUnexpectedSuccess(self, test):
            super().addUnexpectedSuccess(test)
            self._note(test, "failed", "unexpected success")

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            self._note(test, "skipped", "")

        def _note(self, test, outcome: str, error: str) -> None:
            if self._noted is None:
                # The setup of a class or module failed or skipped its tests.
                self._add(test, [(outcome, error)])
            else:
                self._noted.append((outcome, error))

        def _add(self, test, noted: list) -> None:
            outcomes = [outcome for outcome, _ in noted]
            record.add(
                test=self._name(test),
                # "failed" sorts before "passed" and "skipped".
                outcome=min(outcomes, default="passed"),
                errors=[error for _, error in noted if error],
            )

        def _name(self, test) -> str:
            name, prefix = test.id(), f"{module}."
            return name.removeprefix(prefix)

    return Result


def _import(file: Path, record: Record):
    try:
        return importlib.import_module(file.stem)
    except unittest.SkipTest:
        record.add(test="import", outcome="skipped", errors=[])
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        record.add(unimportable=_error_text(error))
    return None


def main(results: str, name: str, static: bool) -> None:
    file = Path(name)
    # Replaces the folder of this script with the folder of the test file.
    sys.path[0] = str(file.parent)
    sys.argv = [name]
    record = Record(results)
    if static:
        import paddle

        paddle.enable_static()
    module = _import(file, record)
    if module is not None:
        suite = unittest.defaultTestLoader.loadTestsFromModule(module)
        source = file.read_text(encoding="utf-8", errors="replace")
        if not suite.countTestCases() and _PROGRAM.search(source):
            record.add(program=True)
            os.execv(sys.executable, [sys.executable, name])
        unittest.TextTestRunner(
            verbosity=2, resultclass=recording_result(record, file.stem)
        ).run(suite)
    record.add(finished=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], "--static" in sys.argv[3:])
