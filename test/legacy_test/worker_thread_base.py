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
"""Helpers for worker thread tests: they may leave nothing behind."""

from __future__ import annotations

import threading
import unittest
from unittest import mock

from concurrent_base import WAIT_S, wait_until_threads_end

import paddle
from paddle.incubate.multiprocessing.worker_thread import WorkerThread


def in_worker(function, **options):
    """Runs `function` in a new worker and returns its result."""
    results = []
    worker = WorkerThread(lambda: results.append(function()), **options)
    worker.start()
    worker.join(WAIT_S)
    return results[0]


def draw(count=4):
    return paddle.rand([count]).tolist()


class DeliberateError(Exception):
    pass


def fail():
    raise DeliberateError("said so")


def end(thread):
    threading.Thread.join(thread, WAIT_S)
    if thread.is_alive():
        raise AssertionError(f"{thread.name} has not ended in {WAIT_S} s")


class WorkerTestCase(unittest.TestCase):
    """Checks that no test leaves a thread or an unexpected report."""

    # Errors of threads that the test does not wait for: these are reported at
    # any time, or never.
    ignored_errors = ()

    def setUp(self):
        # disable_static changes the device.
        self.addCleanup(paddle.set_device, "cpu")
        before = set(threading.enumerate())
        self.reports = []
        hook = mock.patch.object(threading, "excepthook", self.record_report)
        hook.start()
        self.addCleanup(hook.stop)
        self.addCleanup(self.check_nothing_is_left, before)

    def check_nothing_is_left(self, before):
        wait_until_threads_end(before)
        self.assertEqual(self.reports, [])

    def record_report(self, args):
        if not issubclass(args.exc_type, self.ignored_errors):
            self.reports.append(args)

    def take_reports(self):
        """Returns and clears the errors reported so far."""
        errors = [report.exc_value for report in self.reports]
        self.reports.clear()
        return errors
