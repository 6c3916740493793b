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
"""wait_for_key: waits for store keys that end when a worker is stopped."""

from __future__ import annotations

import math
import unittest

from concurrent_base import WAIT_S, Worker, in_threads
from shm_group_base import free_port
from test_interruption_points import StopTestCase

from paddle.base import core
from paddle.incubate.multiprocessing import wait_for_key


class TestWaitForKey(StopTestCase):
    def setUp(self):
        super().setUp()
        port = free_port()
        self.store = core.TCPStore("127.0.0.1", port, True, 1)
        # Another connection, as of another process.
        self.other = core.TCPStore("127.0.0.1", port, False, 1)

    def test_the_value_of_a_key_that_is_set_is_returned(self):
        self.other.set("key", "value")
        self.assertEqual(wait_for_key(self.store, "key"), b"value")
        self.assertEqual(wait_for_key(self.store, "key", timeout=0), b"value")

    def test_a_thread_waits_until_the_key_is_set(self):
        for timeout in (None, WAIT_S, math.inf):
            key = f"key {timeout}"
            waiting = Worker(wait_for_key, self.store, key, timeout)
            waiting.join(0.05)
            self.assertTrue(waiting.is_alive())
            self.other.set(key, "value")
            self.assertEqual(waiting.result(), b"value")

    def test_threads_that_wait_for_keys_of_one_store_get_their_own(self):
        keys = [str(i) for i in range(40)]

        def wait(first):
            return [wait_for_key(self.store, key) for key in keys[first::4]]

        def set_all():
            for key in keys:
                self.other.set(key, f"value {key}")

        *found, _ = in_threads(
            *[lambda f=f: wait(f) for f in range(4)], set_all
        )
        for first, values in enumerate(found):
            self.assertEqual(
                values, [f"value {key}".encode() for key in keys[first::4]]
            )

    def test_a_waiting_worker_ends_and_the_store_stays_usable(self):
        self.check(lambda: wait_for_key(self.store, "key"))
        self.check(lambda: wait_for_key(self.store, "key", timeout=WAIT_S))
        self.check_group(lambda: wait_for_key(self.store, "key"))
        self.store.set("key", "value")
        self.assertEqual(self.store.get("key"), b"value")

    def test_a_key_that_is_not_set_in_time_is_named(self):
        for timeout in (0, 0.02):
            with self.assertRaisesRegex(
                TimeoutError, f"'some key'.*within {timeout} s"
            ):
                wait_for_key(self.store, "some key", timeout)

    def test_a_bad_timeout_is_named(self):
        for timeout in (-1, math.nan):
            with self.assertRaisesRegex(ValueError, f"received {timeout}"):
                wait_for_key(self.store, "key", timeout)


if __name__ == "__main__":
    unittest.main()
