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
"""Tensors through every kind of Python queue, pipe, pool and process."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import unittest

import numpy as np
from concurrent_base import WAIT_S
from shared_tensor_base import (  # noqa: F401
    Peer,
    SharingTestCase,
    describe_kept,
    description,
    fill_kept,
    over_every_way_to_send,
    run_sharing_script,
    setUpModule,
    tearDownModule,
)

import paddle
import paddle.incubate.multiprocessing as sharing

# Functions for `Peer.call`.


def fill_and_put_back(kept, name):
    there, back = kept["_channels"][name]
    tensor = there.get()
    tensor.fill_(5)
    back.put(tensor)


def fill_and_send_back(kept):
    connection = kept["_pipe"]
    tensor = connection.recv()
    tensor.fill_(5)
    connection.send(tensor)


def put_and_join(kept):
    _, back = kept["_channels"]["JoinableQueue"]
    back.put(paddle.full([3], 5.0))
    back.join()


# Functions for pools and processes.


def filled(tensor: paddle.Tensor) -> paddle.Tensor:
    tensor.fill_(5)
    return tensor


def new_tensor(value: int) -> paddle.Tensor:
    return paddle.full([3], float(value))


def fill_from(queue) -> None:
    queue.get().fill_(5)


class FilledTestCase(SharingTestCase):
    def assert_filled(self, tensor: paddle.Tensor) -> None:
        self.assertEqual(
            tensor.numpy().tolist(), np.full(tensor.shape, 5.0).tolist()
        )

    def assert_same_and_filled(
        self, tensor: paddle.Tensor, back: paddle.Tensor
    ) -> None:
        self.assert_filled(tensor)
        self.assertEqual(back.data_ptr(), tensor.data_ptr())


@over_every_way_to_send()
class TestChannels(FilledTestCase):
    def new_peer(self):
        cls, context = type(self), self.context
        cls.channels = {
            kind: (getattr(context, kind)(), getattr(context, kind)())
            for kind in ("Queue", "SimpleQueue", "JoinableQueue")
        }
        for kind in ("Queue", "JoinableQueue"):
            for queue in cls.channels[kind]:
                cls.addClassCleanup(queue.join_thread)
                cls.addClassCleanup(queue.close)
        cls.pipe, theirs = context.Pipe()
        peer = Peer(context, cls.strategy, _channels=cls.channels, _pipe=theirs)
        theirs.close()
        return peer

    def test_queue_carries_a_tensor_and_back(self):
        there, back = self.channels["Queue"]
        tensor = paddle.zeros([3])
        there.put(tensor)
        self.peer.call(fill_and_put_back, "Queue")
        self.assert_same_and_filled(tensor, back.get(timeout=WAIT_S))

    def test_simple_queue_carries_a_tensor_and_back(self):
        there, back = self.channels["SimpleQueue"]
        tensor = paddle.zeros([3])
        there.put(tensor)
        self.peer.call(fill_and_put_back, "SimpleQueue")
        self.assert_same_and_filled(tensor, back.get())

    def test_joinable_queue_is_joined_when_the_tensor_is_taken(self):
        _, back = self.channels["JoinableQueue"]
        self.peer.order(put_and_join)
        self.assert_filled(back.get(timeout=WAIT_S))
        back.task_done()
        self.peer.receive()

    def test_pipe_carries_a_tensor_and_back(self):
        tensor = paddle.zeros([3])
        self.pipe.send(tensor)
        self.peer.call(fill_and_send_back)
        self.assertTrue(self.pipe.poll(WAIT_S))
        self.assert_same_and_filled(tensor, self.pipe.recv())

    def test_messages_arrive_in_order_and_whole(self):
        there, back = self.channels["Queue"]
        tensors = [paddle.full([n + 1], n) for n in range(50)]
        for tensor in tensors:
            there.put(tensor)
        for _ in tensors:
            self.peer.call(fill_and_put_back, "Queue")
        for tensor in tensors:
            self.assert_same_and_filled(tensor, back.get(timeout=WAIT_S))


@over_every_way_to_send()
class TestProcesses(FilledTestCase):
    def test_pool_maps_over_tensors(self):
        tensors = [paddle.zeros([n + 1]) for n in range(5)]
        pool = self.context.Pool(1)
        try:
            results = pool.map_async(filled, tensors).get(WAIT_S)
            created = pool.map_async(new_tensor, [4, 5]).get(WAIT_S)
        except BaseException:
            pool.terminate()
            raise
        # Not terminate: Paddle's handler of SIGTERM can deadlock.
        pool.close()
        pool.join()
        for tensor, result in zip(tensors, results):
            self.assert_same_and_filled(tensor, result)
        self.assertEqual([c[0].item() for c in created], [4, 5])

    def test_executor_takes_and_returns_tensors(self):
        tensor = paddle.zeros([3])
        with concurrent.futures.ProcessPoolExecutor(
            1, mp_context=self.context
        ) as executor:
            back = executor.submit(filled, tensor).result(WAIT_S)
            created = executor.submit(new_tensor, 4).result(WAIT_S)
        self.assert_same_and_filled(tensor, back)
        self.assertEqual(created.tolist(), [4, 4, 4])

    def test_manager_keeps_tensors_in_its_containers(self):
        tensor = paddle.zeros([3])
        with self.context.Manager() as manager:
            mapping, sequence = manager.dict(), manager.list()
            queue = manager.Queue()
            mapping["tensor"] = tensor
            sequence.append(tensor)
            queue.put(tensor)
            mapping["tensor"].fill_(5)
            for back in (mapping["tensor"], sequence[0], queue.get()):
                self.assert_same_and_filled(tensor, back)
            del back

    def test_process_gets_a_tensor_as_an_argument(self):
        tensor = paddle.arange(6)
        with self.another_peer(tensor=tensor) as other:
            self.assertEqual(
                other.call(describe_kept, "tensor"), description(tensor)
            )
            # A forked child has a copy.
            if self.method != "fork":
                other.call(fill_kept, "tensor", 5)
                self.assert_filled(tensor)

    def test_child_fills_the_tensor_of_a_queue_and_the_parent_sees_it(self):
        # The first example in the design of this feature.
        tensor = paddle.zeros([3])
        queue = self.context.SimpleQueue()
        process = self.context.Process(target=fill_from, args=(queue,))
        process.start()
        queue.put(tensor)
        process.join(WAIT_S)
        self.assertEqual(process.exitcode, 0)
        process.close()
        self.assert_filled(tensor)


class TestErrorsOfTheSender(unittest.TestCase):
    """A Queue pickles on a feeder thread, and drops that thread's errors."""

    def test_receiver_gets_the_error_of_a_tensor_that_cannot_be_sent(self):
        run_sharing_script(
            self,
            """
            def put(queue):
                weight = paddle.ones([2])
                weight.stop_gradient = False
                queue.put([1, weight * 2])
                queue.put("next")
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            child = context.Process(target=put, args=(queue,))
            child.start()
            try:
                queue.get(timeout=100)
                raise AssertionError("it arrived")
            except RuntimeError as error:
                for words in (f"Process {child.pid} could not", "detach"):
                    assert words in str(error), error
            assert queue.get(timeout=100) == "next"
            child.join()
            """,
        )

    def test_receiver_gets_the_errors_of_other_objects_with_tensors(self):
        queue = multiprocessing.get_context("fork").Queue()
        self.addCleanup(queue.close)
        queue.put(paddle.jit.to_static(paddle.nn.Linear(2, 2)))
        with self.assertRaisesRegex(TypeError, "rollback"):
            queue.get(timeout=WAIT_S)
        self.addCleanup(
            sharing.set_shared_memory_limit, sharing.get_shared_memory_limit()
        )
        sharing.set_shared_memory_limit(1 << 20)
        queue.put(paddle.ones([1 << 20]).get_tensor())
        with self.assertRaisesRegex(MemoryError, "set_shared_memory_limit"):
            queue.get(timeout=WAIT_S)

    def test_receiver_gets_the_error_of_a_sender_without_descriptors(self):
        run_sharing_script(
            self,
            """
            import os, resource
            queue = multiprocessing.get_context("spawn").Queue()
            sharing.set_sharing_strategy("file_descriptor")
            queue.put(paddle.zeros([0]))  # needs no memory
            queue.get(timeout=100)
            x = paddle.ones([2])
            compiled = paddle.jit.to_static(lambda x: x)
            _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            held = []
            try:
                while True:
                    held.append(os.dup(0))
            except OSError:
                pass
            queue.put(x)
            queue.put(compiled)
            for kind in (MemoryError, TypeError):
                try:
                    queue.get(timeout=100)
                    raise AssertionError("it arrived")
                except kind as error:
                    assert "could not send" in str(error), error
            """,
        )

    def test_executor_handles_its_own_errors(self):
        weight = paddle.ones([2])
        weight.stop_gradient = False
        with concurrent.futures.ProcessPoolExecutor(
            1, multiprocessing.get_context("fork")
        ) as executor:
            future = executor.submit(id, weight * 2)
            with self.assertRaisesRegex(RuntimeError, "detach"):
                future.result(WAIT_S)
            self.assertEqual(executor.submit(abs, -5).result(WAIT_S), 5)


if __name__ == "__main__":
    unittest.main()
