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
"""Checks that each source file begins with Paddle's license header.

python -m tools.lint_headers FILE...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_HEADER = re.compile(
    r"(?:#!.*\n)?(?P<c>#|//) Copyright \(c\) 20\d\d PaddlePaddle Authors\. "
    r"All Rights Reserved\.\n(?P=c)\n"
    r"(?P=c) Licensed under the Apache License, Version 2\.0 "
)


def main(argv: list[str]) -> int:
    bare = [
        name
        for name in argv
        if not _HEADER.match(Path(name).read_text(encoding="utf-8"))
    ]
    for name in bare:
        print(f"{name}:1: no license header; copy it from tools/wheel.py")
    return 1 if bare else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
