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
import tempfile
import threading
import unittest
from unittest import mock

from concurrent_base import WAIT_S, Worker

import paddle
import paddle.distributed as dist
from paddle.distributed.flex_checkpoint.dcp import load_state_dict as module


class LoadTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        # The load writes to slices, which are copies on the test device.
        self.addCleanup(paddle.set_device, paddle.get_device())
        paddle.set_device("cpu")

    def path_of(self, name):
        return os.path.join(self.folder, name)

    def save(self, name, key, value, rows, **options):
        state = {key: paddle.full([rows], value)}
        dist.save_state_dict(state, self.path_of(name), **options)

    def load(self, name, key, rows, **options):
        state = {key: paddle.full([rows], -1.0)}
        dist.load_state_dict(state, self.path_of(name), **options)
        return state[key].tolist()


class TestLoads(LoadTest):
    def check_overlapping_loads(self, paused_in, key, rows, **options):
        """
        Loads one checkpoint, and another one with `key` and `rows` while the
        first load is inside of the function `paused_in`.
        """
        self.save("first", "w", 1.0, 6, **options)
        self.save("second", key, 2.0, rows, **options)
        inside, may_go_on = threading.Event(), threading.Event()
        function = getattr(module, paused_in)

        def pause(*args):
            if threading.current_thread() is not threading.main_thread():
                inside.set()
                if not may_go_on.wait(WAIT_S):
                    raise TimeoutError("the second load has not ended")
            return function(*args)

        with mock.patch.object(module, paused_in, pause):
            first = Worker(lambda: self.load("first", "w", 6, **options))
            try:
                self.assertTrue(inside.wait(WAIT_S))
                second = self.load("second", key, rows, **options)
            finally:
                may_go_on.set()
            self.assertEqual(first.result(), [1.0] * 6)
        self.assertEqual(second, [2.0] * rows)

    def test_a_thread_may_load_other_shapes_meanwhile(self):
        self.check_overlapping_loads("check_resumable_locally", "w", 3)

    def test_a_thread_may_load_other_keys_meanwhile(self):
        self.check_overlapping_loads("check_resumable_locally", "v", 6)

    def test_a_thread_may_load_safetensors_meanwhile(self):
        self.check_overlapping_loads(
            "get_rank_to_files", "w", 3, safetensors=True
        )

    def test_safetensors_load_after_other_safetensors(self):
        self.save("first", "w", 1.0, 3, safetensors=True)
        self.save("second", "w", 2.0, 6, safetensors=True)
        self.load("first", "w", 3, safetensors=True)
        loaded = self.load("second", "w", 6, safetensors=True)
        self.assertEqual(loaded, [2.0] * 6)

    def test_safetensors_load_after_another_format(self):
        self.save("first", "w", 1.0, 3)
        self.save("second", "w", 2.0, 6, safetensors=True)
        self.load("first", "w", 3)
        loaded = self.load("second", "w", 6, safetensors=True)
        self.assertEqual(loaded, [2.0] * 6)

    def test_safetensors_load_after_a_load_that_failed(self):
        self.save("first", "w", 1.0, 3, safetensors=True)
        self.save("second", "w", 2.0, 6, safetensors=True)
        with mock.patch.object(
            module, "get_rank_to_read_files", side_effect=OSError
        ):
            with self.assertRaises(OSError):
                self.load("first", "w", 3, safetensors=True)
        loaded = self.load("second", "w", 6, safetensors=True)
        self.assertEqual(loaded, [2.0] * 6)

    def test_a_load_ignores_the_metadata_of_a_call_of_its_implementation(self):
        self.save("first", "w", 1.0, 3, safetensors=True)
        self.save("second", "w", 2.0, 6, safetensors=True)
        state = {"w": paddle.zeros([3])}
        module.load_state_dict_impl(
            state, self.path_of("first"), safetensors=True
        )
        loaded = self.load("second", "w", 6, safetensors=True)
        self.assertEqual(loaded, [2.0] * 6)


class TestFilesOfAFolder(LoadTest):
    def setUp(self):
        super().setUp()
        self.save("folder", "w", 1.0, 2, unique_id=0)

    def save_another(self):
        """Loads the first checkpoint, and saves another in its folder."""
        loaded = self.load("folder", "w", 2, unique_id=0)
        self.assertEqual(loaded, [1.0] * 2)
        self.save("folder", "w", 2.0, 2, unique_id=1)

    def test_each_unique_id_has_files_of_its_own(self):
        self.save_another()
        for unique_id, value in ((1, 2.0), (0, 1.0)):
            loaded = self.load("folder", "w", 2, unique_id=unique_id)
            self.assertEqual(loaded, [value] * 2)

    def test_a_load_without_an_id_takes_the_newest_checkpoint(self):
        self.save_another()
        self.assertEqual(self.load("folder", "w", 2), [2.0] * 2)

    def test_a_removed_checkpoint_is_not_found(self):
        self.save_another()
        self.load("folder", "w", 2, unique_id=1)
        os.remove(os.path.join(self.path_of("folder"), "1.metadata"))
        with self.assertRaisesRegex(AssertionError, "No metadata file"):
            self.load("folder", "w", 2, unique_id=1)

    def test_a_merged_state_has_the_unique_id_that_was_given(self):
        self.save_another()
        path = self.path_of("folder")
        for unique_id, value in ((None, 2.0), (0, 1.0), (1, 2.0)):
            state = dist.load_merged_state_dict(path, unique_id=unique_id)
            self.assertEqual(state["w"].tolist(), [value] * 2)

    def test_a_merged_file_has_the_unique_id_that_was_given(self):
        self.save_another()
        for unique_id, value in ((None, 2.0), (0, 1.0), (1, 2.0)):
            merged = self.path_of(f"merged {unique_id}")
            module.merge_sharded_state_dict(
                self.path_of("folder"), merged, unique_id=unique_id
            )
            file = os.path.join(merged, "model-00001-of-00001.safetensors")
            state = paddle.load(file, safetensors=True)
            self.assertEqual(state["w"].tolist(), [value] * 2)


if __name__ == "__main__":
    unittest.main()
