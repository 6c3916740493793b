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
"""Runs programs in forks of a Python that has loaded what they need.

Most of the time of an import of Paddle goes into third-party packages, into
libpaddle, and into reading bytecode. A server loads them once, without
importing Paddle. In its forks, `import paddle` takes a third of the time. This
also holds for a folder of links to the files that the server has loaded.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from tools.series import PatchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# Takes what follows `python` on a command line: "-c" and code, or a script, and
# then its arguments; the working folder; and all environment variables. Those
# that Python and libraries read when they start or are loaded have no effect,
# except for PYTHONDONTWRITEBYTECODE.
RunInFork = Callable[
    ["list[str]", Path, "Mapping[str, str]"],
    "subprocess.CompletedProcess[str]",
]

# The slowest third-party imports of Paddle and its tests.
PACKAGES = (
    *("PIL.Image", "google.protobuf", "httpx", "hypothesis", "numpy"),
    *("opt_einsum", "pytest", "setuptools"),
)

# For each line of its input, it runs a program and prints the exit status.
SERVER = """
import ctypes
import gc
import importlib.util
import json
import os
import signal
import sys
import time
import types
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path


def load_once(load):
    loaded = {}

    def load_or_reuse(loader, argument):
        # A link has the key of its target.
        file = os.stat(loader.path)
        key = file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns
        if key not in loaded:
            loaded[key] = load(loader, argument)
        return loaded[key]

    return load_or_reuse


def load_package(package):
    name = "paddle.base.libpaddle"
    file = package / "base" / "libpaddle.so"
    spec = importlib.util.spec_from_file_location(name, file)
    importlib.util.module_from_spec(spec)
    # `import paddle` must find it missing, and adds it again.
    del sys.modules[name]
    for file in package.rglob("*.py"):
        SourceFileLoader("", str(file)).get_code("")


def ends(group):
    try:
        for _ in range(1000):
            os.killpg(group, 0)
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return True
    return False


def run(arguments, folder, environ, *output):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # when the server ends
    for number, path in enumerate([os.devnull, *output]):
        with open(path, "a" if number else "r") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if arguments[0] == "-c":
        code = arguments.pop(1)
        filename = "<string>"
    else:
        filename = main.__file__ = arguments[0]
        code = Path(filename).read_bytes()
        sys.path[0] = os.path.dirname(filename)
    sys.argv[:] = arguments
    gc.enable()
    exec(compile(code, filename, "exec"), main.__dict__)


gc.disable()
ExtensionFileLoader.create_module = load_once(ExtensionFileLoader.create_module)
SourceFileLoader.get_code = load_once(SourceFileLoader.get_code)
package, *modules = sys.argv[1:]
for name in modules:
    importlib.import_module(name)
if package:
    load_package(Path(package))
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(*json.loads(line))
        sys.exit()
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(600)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(0)
    print(status if ends(child) else "left processes behind", flush=True)
"""


@contextlib.contextmanager
def fork_server(
    python: str | Path, modules: Iterable[str], package: Path | None = None
) -> Iterator[RunInFork]:
    """
    Provides a function that runs a program in a fork of a server. It kills a
    program that takes more than 10 minutes. It raises PatchError if the server
    has exited, or if processes of the program are left 10 seconds after its
    end, which it kills.

    Args:
        python: the Python.
        modules: third-party modules that the server loads.
        package: the folder of a Paddle. The server loads libpaddle and the
            bytecode.
    """
    server = subprocess.Popen(
        [str(python), "-c", SERVER, str(package or ""), *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(
        arguments: list[str], folder: Path, environ: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as outputs:
            output, errors = Path(outputs, "output"), Path(outputs, "errors")
            output.touch()
            errors.touch()
            request = arguments, str(folder), environ, str(output), str(errors)
            try:
                # A server that has exited does not answer.
                with contextlib.suppress(BrokenPipeError):
                    print(json.dumps(request), file=server.stdin, flush=True)
                answer = server.stdout.readline().strip()
            except BaseException:
                # The next program would get the late answer to this one.
                server.kill()
                raise
            if not answer:
                raise PatchError(f"{python} exited while running {arguments}")
            if answer == "left processes behind":
                raise PatchError(f"{arguments} {answer}, which were killed")
            return subprocess.CompletedProcess(
                arguments, int(answer), output.read_text(), errors.read_text()
            )

    try:
        yield run
    finally:
        server.communicate()
