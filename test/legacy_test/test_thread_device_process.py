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
"""Per-thread devices: forks, and the first use of Paddle."""

from __future__ import annotations

import unittest

from thread_device_base import (
    ForkTestCase,
    needs_another_device,
    on_every_device_list,
    run_script,
)


class TestFork(ForkTestCase):
    @needs_another_device
    def test_process_forked_from_a_thread_starts_on_that_threads_device(self):
        run_script(
            self,
            """
            from thread_device_base import *

            def in_child():
                assert places_of_new_tensors() == {devices[1]}
                assert in_thread(places_of_new_tensors) == {devices[1]}
                paddle.set_device("cpu")
                assert places_of_new_tensors() == {"cpu"}
                assert in_thread(places_of_new_tensors) == {"cpu"}

            def fork_here():
                paddle.set_device(devices[1])
                forked(in_child)
                assert places_of_new_tensors() == {devices[1]}

            in_thread(fork_here)
            assert places_of_new_tensors() == {devices[0]}
            """,
            self.devices,
        )

    @needs_another_device
    def test_process_forked_from_a_thread_without_a_device(self):
        run_script(
            self,
            """
            from thread_device_base import *

            def in_child():
                assert places_of_new_tensors() == {devices[2]}
                paddle.set_device(devices[1])
                assert in_thread(places_of_new_tensors) == {devices[1]}

            paddle.set_device(devices[2])
            in_thread(forked, in_child)
            """,
            self.devices,
        )

    @needs_another_device
    def test_process_started_by_multiprocessing_from_a_thread(self):
        run_script(
            self,
            """
            from thread_device_base import *

            def start_process():
                paddle.set_device(devices[1])
                context = multiprocessing.get_context("fork")
                process = context.Process(
                    target=lambda: sys.exit(
                        places_of_new_tensors() != {devices[1]}
                    )
                )
                process.start()
                process.join(WAIT_S)
                return process.exitcode

            assert in_thread(start_process) == 0
            """,
            self.devices,
        )


@on_every_device_list
class TestFirstUse(unittest.TestCase):
    def test_paddle_imported_first_in_a_thread(self):
        run_script(
            self,
            """
            def first():
                global paddle
                import paddle
                from thread_device_base import places_of_new_tensors
                assert places_of_new_tensors() == {devices[0]}

            thread = threading.Thread(target=first)
            thread.start()
            thread.join()
            from thread_device_base import *
            from paddle.base.threads.main_thread import is_main_thread
            assert is_main_thread()
            assert in_thread(is_main_thread) is False
            assert paddle.in_dynamic_mode()
            assert places_of_new_tensors() == {devices[0]}
            paddle.set_device(other)
            assert in_thread(places_of_new_tensors) == {other}
            """,
            self.devices,
            tests_import=True,
        )

    def test_thread_that_imported_paddle_follows_the_main_thread(self):
        run_script(
            self,
            """
            imported, has_moved = threading.Event(), threading.Event()
            seen = []

            def first():
                import paddle
                from thread_device_base import places_of_new_tensors
                imported.set()
                assert has_moved.wait(WAIT_S)
                seen.append(places_of_new_tensors())

            thread = threading.Thread(target=first)
            thread.start()
            assert imported.wait(WAIT_S)
            import paddle
            paddle.set_device(other)
            has_moved.set()
            thread.join()
            assert seen == [{other}], seen
            """,
            self.devices,
            tests_import=True,
        )

    def test_default_device_found_by_many_threads_does_not_undo_a_set(self):
        # The thread that imports Paddle finds it, while the others wait.
        run_script(
            self,
            """
            together = threading.Barrier(9, timeout=WAIT_S)
            seen = []

            def first():
                together.wait()
                import paddle
                seen.append(paddle.get_device())

            sys.setswitchinterval(1e-6)
            threads = [threading.Thread(target=first) for _ in range(8)]
            for thread in threads:
                thread.start()
            together.wait()
            import paddle
            paddle.set_device(other)
            for thread in threads:
                thread.join()
            assert paddle.get_device() == other
            assert len(seen) == 8, seen
            assert set(seen) <= {devices[0], other}, seen
            """,
            self.devices,
            tests_import=True,
        )


if __name__ == "__main__":
    unittest.main()
