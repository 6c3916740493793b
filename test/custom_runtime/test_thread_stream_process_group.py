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

"""Per-thread streams: process groups, which wait for the process's stream.

CUSTOM_DEVICE_ROOT must name the folder of the built plugin in host_device/.
"""

from __future__ import annotations

import unittest
from unittest import mock

from test_host_device import name_of, setUpModule
from test_thread_stream_order import StreamTest, in_thread

from paddle.device import Stream, stream_guard
from paddle.distributed.communication.group import Group

__all__ = ["setUpModule"]


class TestProcessGroups(StreamTest):
    def test_process_group_is_refused_on_another_stream(self):
        group = Group(0, 0, [0], pg=mock.Mock(**{"name.return_value": "XCCL"}))

        def use_in_a_guard():
            with stream_guard(Stream(name_of(0))):
                return group.process_group

        with self.assertRaisesRegex(RuntimeError, "stream of the process"):
            in_thread(use_in_a_guard)
        self.assertEqual(in_thread(lambda: group.process_group), group._pg)
        with stream_guard(Stream()):
            self.assertEqual(group.process_group, group._pg)
            with self.assertRaisesRegex(RuntimeError, "stream of the process"):
                in_thread(lambda: group.process_group)

    def test_process_group_of_the_host_is_allowed_on_another_stream(self):
        group = Group(0, 0, [0], pg=mock.Mock(**{"name.return_value": "GLOO"}))

        def use_in_a_guard():
            with stream_guard(Stream(name_of(0))):
                return group.process_group

        self.assertEqual(in_thread(use_in_a_guard), group._pg)


if __name__ == "__main__":
    unittest.main()
