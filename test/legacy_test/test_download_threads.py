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
"""Downloads of one file at the same time, from a server in this process."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

from concurrent_base import WAIT_S, Worker, wait_until

from paddle.dataset import common
from paddle.utils import download

_DATA = bytes(range(256)) * 1024
# Larger than the buffers through which a file is written.
_HALF = len(_DATA) // 2
_QUARTER = len(_DATA) // 4
_MD5 = hashlib.md5(_DATA).hexdigest()
# A proxy of the environment cannot reach this machine.
_ENVIRONMENT = {"no_proxy": "*", "NO_PROXY": "*"}


class Server(ThreadingHTTPServer):
    """
    Sends a part of the file, and the rest when the test allows it: half for the
    first request, and a quarter for others.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = 0
        self.lock = threading.Lock()
        # For the first two requests, in their order.
        self.may_go_on = [threading.Event(), threading.Event()]
        self.fails = False
        self.url = f"http://127.0.0.1:{self.server_port}/file"
        # shutdown() waits for as long as the argument.
        threading.Thread(
            target=self.serve_forever, args=(0.01,), daemon=True
        ).start()

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with self.server.lock:
            i = self.server.requests
            self.server.requests += 1
        self.send_response(200)
        self.send_header("content-length", str(len(_DATA)))
        self.end_headers()
        part = _QUARTER if i else _HALF
        self.wfile.write(_DATA[:part])
        self.wfile.flush()
        if i < 2:
            self.server.may_go_on[i].wait(WAIT_S)
        if not self.server.fails:
            self.wfile.write(_DATA[part:])

    def log_message(self, *args):
        pass


class TestDownloads(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.server = Server()
        self.addCleanup(self.server.stop)
        for patch in (
            mock.patch.dict(os.environ, _ENVIRONMENT),
            mock.patch.object(common, "DATA_HOME", self.folder),
            mock.patch.object(download, "DOWNLOAD_RETRY_LIMIT", 1),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def path_from_url(self, md5):
        path = download.get_path_from_url(
            self.server.url, self.folder, md5, decompress=False
        )
        return self.content(path)

    def dataset(self):
        return self.content(common.download(self.server.url, "a/b", _MD5))

    def content(self, path):
        with open(path, "rb") as file:
            return file.read()

    def check_overlapping_downloads(self, function):
        """
        The second download begins in the middle of the first one, and has
        written a part of its file when the first one ends.
        """

        def wait_for_size(least, most):
            wait_until(
                lambda: any(least < size < most for size in self.sizes()),
                f"a file has between {least} and {most} bytes",
            )

        first = Worker(function)
        wait_for_size(_QUARTER, len(_DATA))
        second = Worker(function)
        wait_for_size(0, _QUARTER + 1)
        self.server.may_go_on[0].set()
        self.assertTrue(first.result() == _DATA, "the first one is wrong")
        self.server.may_go_on[1].set()
        self.assertTrue(second.result() == _DATA, "the second one is wrong")
        self.assertEqual(self.server.requests, 2)

    def paths(self):
        return [
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.folder)
            for name in names
        ]

    def files(self):
        return [os.path.basename(path) for path in self.paths()]

    def sizes(self):
        return [os.path.getsize(path) for path in self.paths()]

    def test_two_downloads_from_a_url_do_not_mix(self):
        self.check_overlapping_downloads(lambda: self.path_from_url(None))
        self.assertEqual(self.files(), ["file"])

    def test_two_downloads_with_a_checksum_do_not_mix(self):
        self.check_overlapping_downloads(lambda: self.path_from_url(_MD5))
        self.assertEqual(self.files(), ["file"])

    def test_two_downloads_of_a_dataset_do_not_mix(self):
        self.check_overlapping_downloads(self.dataset)
        self.assertEqual(self.files(), ["file"])

    def test_a_failed_download_leaves_no_file(self):
        self.server.fails = True
        for event in self.server.may_go_on:
            event.set()
        with self.assertRaisesRegex(RuntimeError, "Retry limit reached"):
            self.path_from_url(None)
        self.assertEqual(self.files(), [])

    def test_a_failed_download_of_a_dataset_leaves_no_file(self):
        self.server.fails = True
        for event in self.server.may_go_on:
            event.set()
        with self.assertRaisesRegex(RuntimeError, "within retry limit"):
            self.dataset()
        self.assertEqual(self.files(), [])

    def test_a_downloaded_file_has_the_usual_permissions(self):
        self.server.may_go_on[0].set()
        self.path_from_url(None)
        usual = os.path.join(self.folder, "usual")
        with open(usual, "wb"):
            pass
        modes = [
            os.stat(os.path.join(self.folder, name)).st_mode
            for name in ("file", "usual")
        ]
        self.assertEqual(modes[0], modes[1])


if __name__ == "__main__":
    unittest.main()
