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

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import types
import unittest
import zipfile
from unittest import mock

from concurrent_base import WAIT_S, Worker, in_thread, in_threads
from thread_device_base import on_every_device_list

import paddle
from paddle.base.threads.devices import current_place
from paddle.base.threads.thread_value import UNSET


def wait(event):
    if not event.wait(WAIT_S):
        raise TimeoutError("the other thread has not gone on")


class TestDownloadedRepositories(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for patch in (
            mock.patch.object(paddle.hapi.hub, "HUB_DIR", self.folder),
            mock.patch.dict(
                paddle.utils.download._download_methods, get=self.download
            ),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        # Called once an archive is there.
        self.after_download = lambda: None

    def download(self, url, path):
        """Makes the archive of a repository whose model is its name."""
        name = url.split("/")[4]
        with tempfile.TemporaryDirectory() as folder:
            repository = os.path.join(folder, f"{name}-main")
            os.mkdir(repository)
            with open(os.path.join(repository, "hubconf.py"), "w") as hubconf:
                hubconf.write(f"def model():\n    return {name!r}\n")
            shutil.make_archive(
                path.removesuffix(".zip"), "zip", folder, f"{name}-main"
            )
        after, self.after_download = self.after_download, lambda: None
        after()
        return path

    def load(self, name, **kwargs):
        return paddle.hub.load(f"owner/{name}:main", "model", **kwargs)

    def folders(self):
        return {
            name: os.stat(os.path.join(self.folder, name)).st_ino
            for name in os.listdir(self.folder)
        }

    def test_overlapping_loads_of_two_repositories_do_not_mix(self):
        may_begin, begun, may_go_on, ended = (
            threading.Event() for _ in range(4)
        )
        link = paddle.hapi.hub._git_archive_link

        def link_of(owner, name, *args, **kwargs):
            if name == "second":
                # Until here, it has not looked for an archive.
                begun.set()
                wait(may_go_on)
            else:
                may_begin.set()
                wait(begun)
            return link(owner, name, *args, **kwargs)

        def after_first_download():
            may_go_on.set()
            wait(ended)

        def load_second():
            wait(may_begin)
            try:
                return self.load("second")
            finally:
                ended.set()

        self.after_download = after_first_download
        with mock.patch.object(paddle.hapi.hub, "_git_archive_link", link_of):
            models = in_threads(lambda: self.load("first"), load_second)
        self.assertEqual(models, ["first", "second"])
        self.assertEqual([self.load(name) for name in models], models)
        self.assertEqual(
            self.folders().keys(), {"owner_first_main", "owner_second_main"}
        )

    def test_a_repository_that_another_thread_has_downloaded_stays(self):
        folders = []

        def load_and_look():
            self.load("same")
            folders.append(self.folders()["owner_same_main"])

        self.after_download = lambda: in_thread(load_and_look)
        self.assertEqual(self.load("same"), "same")
        self.assertEqual([self.folders()["owner_same_main"]], folders)

    def test_a_repository_is_downloaded_again_if_that_is_forced(self):
        self.load("same")
        path = os.path.join(self.folder, "owner_same_main", "hubconf.py")
        os.remove(path)
        self.assertEqual(self.load("same", force_reload=True), "same")
        self.assertEqual(self.folders().keys(), {"owner_same_main"})


class TestHubOnThreads(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def repository(self, name, code=""):
        """Returns a repository whose model is its name."""
        path = os.path.join(self.folder, name)
        os.mkdir(path)
        with open(os.path.join(path, "hubconf.py"), "w") as hubconf:
            hubconf.write(f"{code}\ndef model():\n    return {name!r}\n")
        return path

    def load(self, repository):
        return paddle.hub.load(repository, "model", source="local")

    def test_overlapping_loads_return_models_of_their_own_repositories(self):
        first, second = self.repository("first"), self.repository("second")
        self.assertEqual(
            in_threads(lambda: self.load(first), lambda: self.load(second)),
            ["first", "second"],
        )

    def test_a_load_does_not_wait_for_one_on_another_thread(self):
        waits = self.repository("waits", "from test_thread_hub import paused")
        works = self.repository("works")
        inside, may_go_on = threading.Event(), threading.Event()

        def pause():
            inside.set()
            wait(may_go_on)

        module = types.ModuleType("test_thread_hub")
        module.__getattr__ = lambda name: pause()
        patch = mock.patch.dict(sys.modules, {"test_thread_hub": module})
        patch.start()
        self.addCleanup(patch.stop)
        worker = Worker(self.load, waits)
        wait(inside)
        self.assertEqual(self.load(works), "works")
        may_go_on.set()
        self.assertEqual(worker.result(), "waits")

    def test_a_hubconf_may_load_another_one(self):
        inner = self.repository("inner")
        outer = self.repository(
            "outer",
            "import paddle\n"
            f"found = paddle.hub.load({inner!r}, 'model', source='local')\n"
            "assert found == 'inner'",
        )
        self.assertEqual(self.load(outer), "outer")

    def test_a_repository_without_hubconf_is_an_error(self):
        path = os.path.join(self.folder, "empty")
        os.mkdir(path)
        with self.assertRaisesRegex(RuntimeError, "make sure config exists"):
            self.load(path)

    def test_a_hubconf_that_misses_a_file_reports_it(self):
        path = self.repository("misses", "open('/does/not/exist')")
        with self.assertRaisesRegex(FileNotFoundError, "/does/not/exist"):
            self.load(path)

    def test_a_failed_import_leaves_the_path_and_does_not_block_others(self):
        fails = self.repository("fails", "raise ValueError('from hubconf')")
        works = self.repository("works")
        path = list(sys.path)
        self.addCleanup(setattr, sys, "path", list(path))
        with self.assertRaisesRegex(ValueError, "from hubconf"):
            self.load(fails)
        self.assertEqual(sys.path, path)
        self.assertEqual(in_thread(self.load, works), "works")


@on_every_device_list
class TestDeviceDuringLoad(unittest.TestCase):
    def load(self, zipped, fails=False):
        """Returns the devices during and after a load of parameters."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.pdparams")
            paddle.save({"weight": paddle.ones([1])}, path)
            if zipped:
                with zipfile.ZipFile(path + ".zip", "w") as archive:
                    archive.write(path, "weights.pdparams")
                path += ".zip"
            during = []

            def load(path):
                during.append(paddle.get_device())
                if fails:
                    raise ValueError("from load")
                return paddle_load(path)

            paddle_load = paddle.load
            with mock.patch.object(paddle, "load", load):
                # The file is already where it would be downloaded to.
                paddle.hub.load_state_dict_from_url(
                    "https://example.com/" + os.path.basename(path),
                    folder,
                    map_location="cpu",
                )
        return during[0], paddle.get_device()

    def test_a_thread_without_a_device_has_none_after_a_load(self):
        paddle.set_device(self.devices[0])

        def load(zipped):
            return self.load(zipped), current_place.get_local()

        for zipped in (False, True):
            self.assertEqual(
                in_thread(load, zipped), (("cpu", self.devices[0]), UNSET)
            )

    def test_a_thread_without_a_device_has_none_after_a_failed_load(self):
        def load():
            with self.assertRaisesRegex(ValueError, "from load"):
                self.load(False, fails=True)
            return current_place.get_local()

        self.assertIs(in_thread(load), UNSET)


if __name__ == "__main__":
    unittest.main()
