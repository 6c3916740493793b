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

# For each tool module, the nox session that installs its packages.
_SESSIONS = {
    "benchmark": "bench",
    "demonstration": "wheel",
    "prefixes": "prefixes",
    "run_tests": "tests",
    "upstream": "upstream",
    "wheel": "wheel",
}


def _suggest_session(kind, error, traceback) -> None:
    """Print how to install a missing package that stopped a tool.

    The hook is installed here because a tool fails while Python imports its
    module, and Python imports this package before that.
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
        f" `nox -s {session}`, which installs the packages that"
        f" `python -m {'.'.join(names[:2])}` needs; put arguments after `--`.",
        file=sys.stderr,
    )


sys.excepthook = _suggest_session
