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
"""The project's own tools."""

from __future__ import annotations

import sys

_PACKAGES = ("matplotlib", "numpy", "packaging", "rich", "torch")

# The nox session that installs the packages of a tool, by its module.
_SESSIONS = {
    "benchmark": "bench",
    "demonstration": "wheel",
    "prefixes": "prefixes",
    "run_tests": "tests",
    "upstream": "upstream",
    "wheel": "wheel",
}


def _name_the_session(kind, error, traceback) -> None:
    """Say how to get a missing package, if one has ended a tool.

    This is installed here, because the packages are missing as soon as the
    module of a tool is imported, and Python imports this module first.
    """
    spec = sys.modules["__main__"].__spec__
    names = spec.name.split(".") if spec else []
    session = _SESSIONS.get(names[1]) if names[:1] == ["tools"] else None
    missing = getattr(error, "name", None) in _PACKAGES
    if session is None or not missing:
        sys.__excepthook__(kind, error, traceback)
        return
    print(
        f"error: {error.name} is not installed for {sys.executable}. Run"
        f" `nox -s {session}`, which installs what"
        f" `python -m {'.'.join(names[:2])}` needs; its arguments follow `--`.",
        file=sys.stderr,
    )


sys.excepthook = _name_the_session
