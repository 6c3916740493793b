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

import unittest

from concurrent_base import in_thread

import paddle
from paddle import profiler


def make_profiler(**kwargs):
    return profiler.Profiler(
        targets=[profiler.ProfilerTarget.CPU],
        on_trace_ready=lambda _: None,
        **kwargs,
    )


def run_steps(prof):
    with prof:
        paddle.ones([2])
        prof.step()


class TestProfilers(unittest.TestCase):
    def check_error(self, prof):
        with self.assertRaisesRegex(RuntimeError, "only one at a time"):
            prof.start()

    def test_a_second_profiler_is_a_clear_error(self):
        first = make_profiler()
        self.check_error(make_profiler())
        in_thread(lambda: self.check_error(make_profiler()))
        run_steps(first)

    def test_a_profiler_works_after_an_error_and_the_end_of_the_first_one(self):
        first = make_profiler()
        self.check_error(make_profiler())
        run_steps(first)
        del first
        second = make_profiler()
        run_steps(second)
        self.assertIsNotNone(second.profiler_result)

    def test_a_second_profiler_may_measure_time(self):
        first = make_profiler()
        in_thread(run_steps, make_profiler(timer_only=True))
        run_steps(first)


if __name__ == "__main__":
    unittest.main()
