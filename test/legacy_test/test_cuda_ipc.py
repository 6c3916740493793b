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
"""GPU tensors between processes: arrival, lifetime, refusals."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import unittest
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
from unittest import mock

from concurrent_base import WAIT_S
from cuda_ipc_base import (
    GpuTestCase,
    describe_kept_on_gpu,
    describe_on_gpu,
    fill_late,
    gpu,
    ipc_stats,
    ipc_stats_of_peer,
    keep_on_gpu,
    kept_address,
    load_and_describe_on_gpu,
    needs_gpu,
    needs_stand_in_driver,
    needs_stand_in_module,
    needs_two_gpus,
    new_vector,
    on_gpu,
    sending_stream,
    vector,
    write_kept,
)
from shared_tensor_base import (  # noqa: F401
    STRATEGIES,
    Peer,
    PeerError,
    forget,
    run_sharing_script,
    setUpModule,
    tearDownModule,
)
from shared_tensor_damage import REFUSALS, damaged, no_stream
from test_shared_tensor import DTYPES, VIEWS, matrix
from test_shared_tensor_stress import SEED

import paddle
import paddle.incubate.multiprocessing as sharing
from paddle.base import core
from paddle.base.shared_storage import native
from paddle.incubate.multiprocessing.tensor_reductions import reduce_tensor

# The number of retries of a failed allocation.
RETRIES = "FLAGS_offload_retry_times"


def message_of(tensor) -> bytes:
    return bytes(ForkingPickler.dumps(tensor))


def send_by_a_thread_that_stays(connection) -> None:
    """Returns immediately; a thread of the process sends a tensor later."""
    left = threading.Event()
    util.Finalize(None, left.set, exitpriority=-1000)

    def send():
        left.wait(WAIT_S)
        connection.send(vector())
        connection.recv()

    threading.Thread(target=send).start()


def gpu_parameter() -> paddle.Tensor:
    parameter = paddle.create_parameter(
        [2, 3],
        "float32",
        attr=paddle.ParamAttr(
            learning_rate=0.25, regularizer=paddle.regularizer.L2Decay(0.5)
        ),
    )
    gpu.put_in(parameter, gpu.to_gpu(parameter, 0))
    return parameter


def gpu_layer() -> paddle.nn.Layer:
    layer = paddle.nn.Linear(2, 3)
    for parameter in layer.parameters():
        gpu.put_in(parameter, gpu.to_gpu(parameter, 0))
    return layer


def descriptions(tensors: dict | list) -> dict:
    items = tensors if isinstance(tensors, dict) else dict(enumerate(tensors))
    return {name: on_gpu(tensor) for name, tensor in items.items()}


# Functions for `Peer.call`.


def describe_all(kept, tensors):
    return descriptions(tensors)


def describe_parameter(kept, parameter):
    state = dict(vars(parameter))
    state["regularizer"] = str(state["regularizer"])
    return state, parameter.trainable, on_gpu(parameter)


def describe_dense(kept, dense):
    tensor = paddle.Tensor()
    tensor.get_tensor()._share_data_with(dense)
    return on_gpu(tensor)


def write_first(kept, tensors, value):
    gpu.write(tensors[0], paddle.full(tensors[0].shape, value))
    handles = sharing.ipc_memory_stats()["handles"]
    return handles, [on_gpu(tensor) for tensor in tensors]


def set_strategy(kept, strategy):
    sharing.set_sharing_strategy(strategy)


def put_back_written(kept, kind):
    there, back = kept["_queues"][kind]
    tensor = there.get()
    gpu.write(tensor, paddle.full(tensor.shape, 5.0))
    back.put(tensor)


def send_back_written(kept):
    tensor = kept["_pipe"].recv()
    gpu.write(tensor, paddle.full(tensor.shape, 5.0))
    kept["_pipe"].send(tensor)


def new_message(kept):
    return message_of(vector())


def new_unfinished_message(kept):
    """Returns a message of a tensor on which the GPU's work never ends."""
    kept["tensor"] = vector()
    fill_late(gpu.address(kept["tensor"]), 0, sending_stream(), 10**9)
    return message_of(kept["tensor"])


def message_of_kept(kept, name):
    return message_of(kept[name])


def new_in_chunks(kept, value):
    gpu.use_chunks(0, True, True)
    return large(value)


def load_and_keep(kept, name, message):
    kept[name] = ForkingPickler.loads(message)


def forget_soon(kept):
    time.sleep(0.3)
    forget(kept)


def address_rebuilt(handle):
    tensor = native.rebuild_tensor(handle, no_stream)
    return None if 0 in tensor.shape else gpu.address(tensor)


def address_rebuilt_dense(handle):
    dense = native.rebuild_dense_tensor(handle, no_stream)
    return None if 0 in dense.shape() else dense._ptr()


def rebuild_damaged(kept, rebuild, handles, seed):
    """
    Rebuilds tensors from damaged handles. Returns the number of errors, and the
    number of tensors that begin in the memory of the tensor "right" or have no
    elements.
    """
    rng = random.Random(seed)
    begin = gpu.address(kept["right"])
    memory = range(begin, begin + 4 * kept["right"].size)
    errors = right = 0
    for handle in handles:
        harmed = damaged(handle, rng, rng.randint(1, 3))
        try:
            address = rebuild(harmed)
        except REFUSALS:
            errors += 1
            continue
        assert address is None or address in memory, harmed.hex()
        right += 1
    return errors, right


# The body of a process.


def hold() -> None:
    tensor = ForkingPickler.loads(bytes.fromhex(input()))
    print("held", flush=True)
    sys.stdin.read()
    assert on_gpu(tensor) == on_gpu(vector())


class TestWhatArrives(GpuTestCase):
    def new_peer(self, **kept):
        cls = type(self)
        cls.queues = {
            kind: (getattr(self.context, kind)(), getattr(self.context, kind)())
            for kind in ("Queue", "SimpleQueue")
        }
        for queue in cls.queues["Queue"]:
            cls.addClassCleanup(queue.join_thread)
            cls.addClassCleanup(queue.close)
        cls.pipe, theirs = self.context.Pipe()
        peer = super().new_peer(_queues=cls.queues, _pipe=theirs, **kept)
        theirs.close()
        return peer

    def assert_arrives(self, tensor: paddle.Tensor) -> None:
        expected = on_gpu(tensor)
        self.assertTrue(expected[0].startswith("Place(gpu:"), expected)
        self.assertEqual(self.peer.call(describe_on_gpu, tensor), expected)
        self.assertEqual(on_gpu(tensor), expected, "changed by sending")

    def test_every_dtype_arrives(self):
        for dtype in DTYPES:
            with self.subTest(dtype=dtype):
                tensor = gpu.to_gpu(paddle.arange(5).cast(dtype), 0)
                self.assert_arrives(tensor)

    def test_tensor_without_dimensions_arrives(self):
        self.assert_arrives(gpu.to_gpu(paddle.to_tensor(3.5), 0))

    @needs_two_gpus
    def test_tensor_arrives_on_the_gpu_that_it_was_on(self):
        self.assert_arrives(vector(device=1))

    @needs_two_gpus
    def test_tensor_without_elements_stays_on_its_gpu(self):
        for device in (0, 1):
            with self.subTest(device=device):
                base = vector(device=device)
                self.assert_arrives(gpu.view(base, paddle.zeros([0, 3])))

    def test_view_arrives(self):
        for name, view in VIEWS.items():
            with self.subTest(name):
                base = gpu.to_gpu(matrix(), 0)
                self.assert_arrives(gpu.view(base, view(matrix())))

    def test_view_and_its_base_of_one_message_share_memory(self):
        base = gpu.to_gpu(matrix(), 0)
        row = gpu.view(base, VIEWS["row"](matrix()))
        handles, arrived = self.peer.call(write_first, [base, row], 5.0)
        self.assertEqual(handles, 1)
        self.assertEqual(arrived, [on_gpu(base), on_gpu(row)])
        self.assertEqual(gpu.to_cpu(row).tolist(), [5.0] * 4)

    def test_each_process_sees_writes_of_the_other(self):
        tensor = vector()
        self.peer.call(keep_on_gpu, "tensor", tensor)
        self.peer.call(write_kept, "tensor", 5.0)
        self.assertEqual(on_gpu(tensor), on_gpu(vector(5.0)))
        gpu.write(tensor, paddle.full([1000], 7.0))
        self.assertEqual(
            self.peer.call(describe_kept_on_gpu, "tensor"), on_gpu(vector(7.0))
        )

    def test_stop_gradient_arrives(self):
        for stop_gradient in (True, False):
            with self.subTest(stop_gradient=stop_gradient):
                tensor = vector()
                tensor.stop_gradient = stop_gradient
                self.assert_arrives(tensor)

    def test_parameter_arrives_with_its_attributes(self):
        parameter = gpu_parameter()
        parameter.need_clip = False
        parameter.custom = {"group": [1, 2]}
        expected = describe_parameter(None, parameter)
        self.assertEqual(
            self.peer.call(describe_parameter, parameter), expected
        )

    def test_parameter_stays_not_trainable(self):
        parameter = gpu_parameter()
        parameter.trainable = False
        expected = describe_parameter(None, parameter)
        self.assertEqual(
            self.peer.call(describe_parameter, parameter), expected
        )

    def test_dense_tensor_arrives(self):
        tensor = vector()
        self.assertEqual(
            self.peer.call(describe_dense, tensor.get_tensor()), on_gpu(tensor)
        )

    def test_dense_tensor_outlives_its_tensor(self):
        dense = vector().get_tensor()
        self.assertEqual(
            self.peer.call(describe_dense, dense), on_gpu(vector())
        )

    def test_parameters_of_a_layer_arrive(self):
        parameters = gpu_layer().parameters()
        self.assertEqual(
            self.peer.call(describe_all, parameters), descriptions(parameters)
        )

    def test_state_of_a_layer_arrives(self):
        state = gpu_layer().state_dict()
        self.assertEqual(
            self.peer.call(describe_all, state), descriptions(state)
        )

    def test_either_sharing_strategy_carries_a_tensor_and_back(self):
        for strategy in STRATEGIES:
            with self.subTest(strategy):
                self.addCleanup(
                    sharing.set_sharing_strategy, sharing.get_sharing_strategy()
                )
                sharing.set_sharing_strategy(strategy)
                self.peer.call(set_strategy, strategy)
                self.assert_arrives(vector())
                self.assertEqual(
                    on_gpu(self.peer.call(new_vector)), on_gpu(vector())
                )

    def assert_written_and_same(self, tensor, back) -> None:
        self.assertEqual(gpu.address(back), gpu.address(tensor))
        self.assertEqual(on_gpu(back), on_gpu(vector(5.0)))

    def test_queue_carries_a_tensor_and_back(self):
        there, back = self.queues["Queue"]
        tensor = vector()
        there.put(tensor)
        self.peer.call(put_back_written, "Queue")
        self.assert_written_and_same(tensor, back.get(timeout=WAIT_S))

    def test_simple_queue_carries_a_tensor_and_back(self):
        there, back = self.queues["SimpleQueue"]
        tensor = vector()
        there.put(tensor)
        self.peer.call(put_back_written, "SimpleQueue")
        self.assert_written_and_same(tensor, back.get())

    def test_pipe_carries_a_tensor_and_back(self):
        tensor = vector()
        self.pipe.send(tensor)
        self.peer.call(send_back_written)
        self.assertTrue(self.pipe.poll(WAIT_S))
        self.assert_written_and_same(tensor, self.pipe.recv())

    def test_result_that_requires_grad_is_refused(self):
        leaf = paddle.ones([1000])
        leaf.stop_gradient = False
        result = leaf * 2
        gpu.put_in(result, vector())
        with self.assertRaisesRegex(
            RuntimeError, r"must be a leaf.*detach\(\)"
        ):
            message_of(result)
        self.assert_arrives(result.detach())


class TestLifetime(GpuTestCase):
    method = "forkserver"

    def make_noise(self) -> None:
        """Sends tensors that would overwrite a tensor freed too early."""
        for _ in range(20):
            self.peer.call(describe_on_gpu, vector(9.0))

    def assert_kept_is_right(self, peer: Peer) -> None:
        self.make_noise()
        self.assertEqual(
            peer.call(describe_kept_on_gpu, "tensor"), on_gpu(vector())
        )

    def given_to(self, peer: Peer) -> int:
        """Makes only the peer keep a tensor; returns its size in bytes."""
        tensor = vector()
        peer.call(keep_on_gpu, "tensor", tensor)
        size = self.gpu_bytes()
        del tensor
        self.assertGreater(size, 0)
        self.assertEqual(self.gpu_bytes(), size, "freed while a peer has it")
        return size

    def test_argument_of_a_process_arrives(self):
        with self.another_peer(tensor=vector()) as other:
            self.assert_kept_is_right(other)

    def test_tensor_outlives_its_use_by_the_sender(self):
        self.given_to(self.peer)
        sharing.collect_shared_memory()
        self.assert_kept_is_right(self.peer)

    def test_memory_is_freed_by_the_next_send(self):
        self.given_to(self.peer)
        self.peer.call(forget)
        other = vector()
        size = self.gpu_bytes() // 2
        message = message_of(other)
        self.assertEqual(self.gpu_bytes(), size)
        self.peer.call(load_and_describe_on_gpu, message)

    def test_memory_is_freed_by_a_collection(self):
        self.given_to(self.peer)
        self.peer.call(forget)
        sharing.collect_shared_memory()
        self.assertEqual(self.gpu_bytes(), 0)

    def test_memory_is_freed_by_ipc_collect(self):
        self.given_to(self.peer)
        self.peer.call(forget)
        # Paddle's own part of it needs a Paddle built for GPUs.
        with contextlib.suppress(RuntimeError):
            paddle.device.cuda.ipc_collect()
        self.assertEqual(self.gpu_bytes(), 0)

    def test_memory_of_a_killed_receiver_is_released(self):
        with self.another_peer() as receiver:
            self.given_to(receiver)
            receiver.kill()
            sharing.collect_shared_memory()
            self.assertEqual(self.gpu_bytes(), 0)

    def set_room(self, size: int, retries: int) -> None:
        """
        Limits the free memory of GPU 0 to the given bytes, and sets the number
        of retries of a failed allocation.
        """
        before = paddle.get_flags(RETRIES)
        self.addCleanup(paddle.set_flags, before)
        paddle.set_flags({RETRIES: retries})
        self.addCleanup(gpu.set_limit, 0, 1 << 40)
        gpu.set_limit(0, gpu.used(0) + size)

    @needs_stand_in_module
    def test_memory_of_a_killed_receiver_is_found_when_memory_runs_out(self):
        with self.another_peer() as receiver:
            size = self.given_to(receiver)
            self.set_room(size - 1, retries=1)
            receiver.kill()
            tensor = vector(5.0)
            self.assertEqual(self.gpu_bytes(), size)
            self.assertEqual(gpu.to_cpu(tensor).tolist(), [5.0] * 1000)

    @needs_stand_in_module
    def test_allocation_waits_for_memory_that_a_receiver_drops_soon(self):
        size = self.given_to(self.peer)
        # Enough retries for a busy machine, until the peer drops it.
        self.set_room(size - 1, retries=1000)
        self.peer.send(ForkingPickler.dumps((forget_soon, ())))
        tensor = vector(5.0)
        self.peer.receive()
        self.assertEqual(self.gpu_bytes(), size)
        self.assertEqual(gpu.to_cpu(tensor).tolist(), [5.0] * 1000)

    @needs_stand_in_module
    def test_allocation_fails_while_all_memory_is_in_use(self):
        size = self.given_to(self.peer)
        self.set_room(size - 1, retries=1)
        with self.assertRaisesRegex(MemoryError, "no memory on the device"):
            vector(5.0)
        self.assertEqual(self.gpu_bytes(), size)
        gpu.set_limit(0, 1 << 40)
        self.assert_kept_is_right(self.peer)

    def test_message_keeps_its_tensor(self):
        message = message_of(vector())
        sharing.collect_shared_memory()
        sharing.collect_shared_memory(message_timeout=3600)
        self.make_noise()
        self.assertEqual(
            self.peer.call(load_and_describe_on_gpu, message), on_gpu(vector())
        )

    def test_unreceived_message_expires_on_demand(self):
        message = message_of(vector())
        self.assertGreater(self.gpu_bytes(), 0)
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(self.gpu_bytes(), 0)
        with self.assertRaisesRegex(RuntimeError, "has expired"):
            ForkingPickler.loads(message)
        with self.assertRaises(PeerError) as caught:
            self.peer.call(load_and_describe_on_gpu, message)
        self.assertEqual(caught.exception.kind, "RuntimeError")
        self.assertIn("has expired", caught.exception.message)

    def test_tensors_in_flight_are_distinguished(self):
        messages = [message_of(vector(float(n))) for n in range(3)]
        for n in (2, 0, 1):
            self.assertEqual(
                self.peer.call(load_and_describe_on_gpu, messages[n]),
                on_gpu(vector(float(n))),
            )

    def test_tensor_that_comes_back_is_memory_of_the_sender(self):
        tensor = vector()
        address = gpu.address(tensor)
        message = message_of(tensor)
        size = self.gpu_bytes()
        del tensor
        back = ForkingPickler.loads(message)
        self.assertEqual(gpu.address(back), address)
        self.assertEqual(self.gpu_bytes(), size)
        self.make_noise()
        self.assertEqual(on_gpu(back), on_gpu(vector()))
        del back
        self.assertEqual(self.gpu_bytes(), 0)

    @needs_stand_in_module
    def test_other_threads_run_while_a_tensor_that_came_back_is_waited_for(
        self,
    ):
        laps = itertools.count()
        goes_on = threading.Event()
        goes_on.set()

        def run():
            while goes_on.is_set():
                next(laps)

        def laps_meanwhile(seconds):
            back = ForkingPickler.loads(message_of(vector()))
            fill_late(gpu.address(back), 0, None, int(seconds * 1_000_000))
            before = next(laps)
            del back
            return next(laps) - before

        thread = threading.Thread(target=run)
        thread.start()
        for seconds in (0.2, 1, 5):
            found = laps_meanwhile(seconds)
            # On a busy machine, the work may finish before the wait begins.
            if found > 100:
                break
        goes_on.clear()
        thread.join()
        self.assertGreater(found, 100)

    def test_tensor_that_comes_back_from_a_receiver_is_memory_of_the_sender(
        self,
    ):
        tensor = vector()
        address = gpu.address(tensor)
        self.peer.call(keep_on_gpu, "tensor", tensor)
        del tensor
        back = ForkingPickler.loads(self.peer.call(message_of_kept, "tensor"))
        self.assertEqual(gpu.address(back), address)
        self.assertEqual(on_gpu(back), on_gpu(vector()))

    def test_tensor_sent_twice_arrives_as_one_memory(self):
        tensor = vector()
        self.peer.call(keep_on_gpu, "one", tensor)
        self.peer.call(keep_on_gpu, "other", tensor)
        self.assertEqual(
            self.peer.call(kept_address, "one"),
            self.peer.call(kept_address, "other"),
        )
        self.assertEqual(self.peer.call(ipc_stats_of_peer)["handles"], 1)

    def test_tensor_passed_on_needs_its_owner_and_its_last_holder(self):
        with self.another_peer() as third:
            size = self.given_to(self.peer)
            message = self.peer.call(message_of_kept, "tensor")
            self.peer.call(forget)
            third.call(load_and_keep, "tensor", message)
            sharing.collect_shared_memory()
            self.assertEqual(self.gpu_bytes(), size)
            self.assert_kept_is_right(third)
            third.call(forget)
            sharing.collect_shared_memory()
            self.assertEqual(self.gpu_bytes(), 0)

    def test_tensor_passed_on_by_a_process_that_then_ended_arrives(self):
        tensor = vector()
        with self.another_peer() as ended:
            ended.call(keep_on_gpu, "tensor", tensor)
            message = ended.call(message_of_kept, "tensor")
        back = ForkingPickler.loads(message)
        self.assertEqual(gpu.address(back), gpu.address(tensor))
        self.assertEqual(on_gpu(back), on_gpu(vector()))

    @needs_stand_in_module
    def test_stats_count_memory_shared_with_other_processes(self):
        def figures(**expected):
            return {**dict.fromkeys(before, 0), **expected}

        before = ipc_stats()
        self.assertEqual(before, figures())
        tensor = vector()
        self.peer.call(keep_on_gpu, "tensor", tensor)
        sent = {"sent": 1, "sent_bytes": 4000}
        self.assertEqual(ipc_stats(), figures(**sent))
        self.assertEqual(
            self.peer.call(ipc_stats_of_peer),
            figures(received=1, received_bytes=4000, handles=1),
        )
        del tensor
        self.assertEqual(
            ipc_stats(), figures(**sent, limbo=1, limbo_bytes=4000)
        )
        self.peer.call(forget)
        self.assertEqual(ipc_stats(), figures())

    def test_summary_names_the_process_that_holds_and_counts_messages(self):
        tensor = vector()
        self.peer.call(keep_on_gpu, "tensor", tensor)
        message = message_of(tensor)
        self.assertRegex(
            sharing.ipc_memory_summary(),
            f"on GPU 0: messages not received: 1, held by process "
            f"{self.peer.pid}",
        )
        self.peer.call(load_and_describe_on_gpu, message)


def large(value: float = 3.0) -> paddle.Tensor:
    """Returns a tensor that spans several chunks on GPU 0."""
    return gpu.to_gpu(paddle.full([400, 300], value), 0)


def descriptors_of_chunks() -> int:
    """Returns the number of open chunk descriptors of the stand-in."""
    folder = "/proc/self/fd"
    targets = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"{folder}/{name}"))
    return sum("stand-in chunk" in target for target in targets)


@needs_stand_in_module
class TestChunks(GpuTestCase):
    """Memory that is mapped in chunks, as by the virtual-memory allocator."""

    method = "forkserver"

    def setUp(self):
        super().setUp()
        self.use_chunks(exportable=True)

    def use_chunks(self, exportable: bool) -> None:
        gpu.use_chunks(0, True, exportable)
        self.addCleanup(gpu.use_chunks, 0, False, False)

    def test_tensors_of_one_and_of_several_chunks_arrive(self):
        for tensor in (vector(), large()):
            self.assertEqual(
                self.peer.call(describe_on_gpu, tensor), on_gpu(tensor)
            )

    def test_every_kind_of_view_arrives(self):
        for name, view in VIEWS.items():
            with self.subTest(name):
                tensor = gpu.view(gpu.to_gpu(matrix(), 0), view(matrix()))
                self.assertEqual(
                    self.peer.call(describe_on_gpu, tensor), on_gpu(tensor)
                )

    def test_view_that_begins_in_a_later_chunk_arrives(self):
        content = paddle.arange(120000, dtype="float32").reshape([400, 300])
        view = gpu.view(gpu.to_gpu(content, 0), content[350:, ::2])
        self.assertEqual(self.peer.call(describe_on_gpu, view), on_gpu(view))

    def test_each_process_sees_writes_of_the_other(self):
        tensor = large()
        self.peer.call(keep_on_gpu, "tensor", tensor)
        self.peer.call(write_kept, "tensor", 5.0)
        self.assertEqual(
            gpu.to_cpu(tensor).numpy().tolist(), [[5.0] * 300] * 400
        )
        gpu.write(tensor, paddle.full([400, 300], 7.0))
        self.assertEqual(
            self.peer.call(describe_kept_on_gpu, "tensor"), on_gpu(tensor)
        )

    def test_tensor_that_its_sender_drops_lives_as_long_as_its_receiver(self):
        tensor = large()
        right = on_gpu(tensor)
        self.peer.call(keep_on_gpu, "tensor", tensor)
        size = self.gpu_bytes()
        del tensor
        sharing.collect_shared_memory()
        self.assertEqual(self.gpu_bytes(), size)
        self.assertEqual(self.peer.call(describe_kept_on_gpu, "tensor"), right)
        self.peer.call(forget)
        sharing.collect_shared_memory()
        self.assertEqual(self.gpu_bytes(), 0)

    def test_memory_of_a_killed_receiver_is_released(self):
        with self.another_peer() as receiver:
            receiver.call(keep_on_gpu, "tensor", large())
            receiver.kill()
            sharing.collect_shared_memory()
            self.assertEqual(self.gpu_bytes(), 0)

    def test_receiver_keeps_a_tensor_whose_sender_was_killed(self):
        with self.another_peer() as sender:
            tensor = sender.call(new_in_chunks, 5.0)
            sender.kill()
            right = on_gpu(large(5.0))
            self.assertEqual(on_gpu(tensor), right)
            del tensor

    @needs_stand_in_driver
    def test_descriptors_are_closed_when_the_memory_is_unused(self):
        tensor = large()
        alone = descriptors_of_chunks()
        self.peer.call(keep_on_gpu, "tensor", tensor)
        self.assertGreater(descriptors_of_chunks(), alone)
        self.peer.call(forget)
        del tensor
        sharing.collect_shared_memory()
        self.assertEqual(descriptors_of_chunks(), 0)

    def test_chunks_that_cannot_be_exported_use_paddles_path(self):
        self.use_chunks(exportable=False)
        tensor = vector()
        # This needs a Paddle built for GPUs.
        with self.assertRaisesRegex(AttributeError, "cuda_current_device"):
            message_of(tensor)
        base = gpu.to_gpu(matrix(), 0)
        with self.assertRaisesRegex(NotImplementedError, r"tensor\.clone\(\)"):
            message_of(gpu.view(base, VIEWS["row"](matrix())))
        self.assertEqual(sharing.ipc_memory_stats()["sent"], 0)


class TestRefusals(GpuTestCase):
    method = "forkserver"

    def assert_refused_by(self, peer, what: str, call, *args) -> None:
        with self.assertRaises(PeerError) as caught:
            peer.call(call, *args)
        self.assertEqual(caught.exception.kind, "RuntimeError")
        self.assertIn(what, caught.exception.message)

    def forked_peer(self, **kept) -> Peer:
        context = multiprocessing.get_context("fork")
        peer = Peer(context, self.strategy, **kept)
        self.addCleanup(peer.close)
        return peer

    def test_forked_child_gets_an_error_that_suggests_spawn(self):
        tensor = vector()
        message = message_of(tensor)
        child = self.forked_peer(tensor=tensor)
        self.assert_refused_by(
            child, "'spawn'", load_and_describe_on_gpu, message
        )
        self.assert_refused_by(child, "'spawn'", message_of_kept, "tensor")
        self.peer.call(load_and_describe_on_gpu, message)

    def test_forked_child_keeps_no_memory_of_its_parent(self):
        tensor = vector()
        message_of(tensor)
        received = self.peer.call(new_vector)
        child = self.forked_peer(own=tensor, received=received)
        del tensor, received
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(self.gpu_bytes(), 0)
        self.assertFalse(any(self.peer.call(ipc_stats_of_peer).values()))
        self.assertTrue(child.alive)

    @needs_stand_in_module
    def test_forked_child_gets_the_error_though_nothing_was_sent_before(self):
        run_sharing_script(
            self,
            """
            from cuda_ipc_base import vector
            from shared_tensor_base import Peer, PeerError
            from test_cuda_ipc import message_of_kept

            tensor = vector()
            context = multiprocessing.get_context("fork")
            child = Peer(context, "file_system", tensor=tensor)
            try:
                child.call(message_of_kept, "tensor")
            except PeerError as error:
                assert "'spawn'" in error.message, error.message
            else:
                raise AssertionError("no refusal")
            child.close()
            """,
        )

    def peer_that_sees(self, devices: str) -> Peer:
        vector()  # initializes the GPUs of this process
        # A fork server has the environment in which it was started.
        spawn = multiprocessing.get_context("spawn")
        with (
            mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=devices),
            mock.patch.object(type(self), "context", spawn),
        ):
            peer = self.new_peer()
        self.addCleanup(peer.close)
        return peer

    @needs_two_gpus
    def test_gpu_that_is_hidden_from_the_receiver_is_named(self):
        receiver = self.peer_that_sees("0")
        for tensor in (
            vector(device=1),
            gpu.view(vector(device=1), paddle.zeros([0])),
        ):
            self.assert_refused_by(receiver, "GPU-", describe_on_gpu, tensor)
            self.assert_refused_by(
                receiver, "tensor.cpu()", describe_on_gpu, tensor
            )
        self.assertEqual(
            receiver.call(describe_on_gpu, vector()), on_gpu(vector())
        )
        sharing.collect_shared_memory(message_timeout=0)

    @needs_two_gpus
    def test_gpu_of_another_number_in_the_receiver_is_the_same_gpu(self):
        receiver = self.peer_that_sees("1,0")
        for here, there in ((0, 1), (1, 0)):
            with self.subTest(f"GPU {here} is GPU {there} there"):
                tensor = vector(device=here)
                place, rest = receiver.call(describe_on_gpu, tensor)
                self.assertEqual(place, f"Place(gpu:{there})")
                self.assertEqual(rest, on_gpu(tensor)[1])
                receiver.call(keep_on_gpu, "tensor", tensor)
                receiver.call(write_kept, "tensor", 5.0)
                self.assertEqual(gpu.to_cpu(tensor).tolist(), [5.0] * 1000)
                receiver.call(forget)

    @needs_stand_in_driver
    def test_view_of_memory_without_a_handle_is_refused_with_a_remedy(self):
        with mock.patch.dict(os.environ, STAND_IN_NOT_EXPORTABLE="1"):
            base = gpu.to_gpu(matrix(), 0)
        with self.assertRaisesRegex(NotImplementedError, r"tensor\.clone\(\)"):
            message_of(gpu.view(base, VIEWS["row"](matrix())))

    @needs_stand_in_driver
    def test_tensor_whose_memory_has_no_handle_uses_paddles_path(self):
        with mock.patch.dict(os.environ, STAND_IN_NOT_EXPORTABLE="1"):
            tensor = vector()
        # This needs a Paddle built for GPUs.
        with self.assertRaisesRegex(AttributeError, "cuda_current_device"):
            message_of(tensor)

    @needs_stand_in_module
    def test_flag_that_would_overwrite_a_sent_tensor_is_refused(self):
        paddle.set_flags({"FLAGS_alloc_fill_value": 0})
        self.addCleanup(paddle.set_flags, {"FLAGS_alloc_fill_value": -1})
        with self.assertRaisesRegex(RuntimeError, "FLAGS_alloc_fill_value=0"):
            message_of(vector())

    @needs_stand_in_module
    def test_flag_that_lets_paddle_move_memory_is_refused(self):
        for flag in ("FLAGS_native_compact", "FLAGS_enable_compact_mem"):
            paddle.set_flags({flag: True})
            self.addCleanup(paddle.set_flags, {flag: False})
            with self.assertRaisesRegex(RuntimeError, "Unset both flags"):
                message_of(vector())
            paddle.set_flags({flag: False})

    def test_ctrl_c_ends_the_wait_for_the_work_of_the_sender(self):
        with self.another_peer() as sender:
            message = sender.call(new_unfinished_message)
            interrupt = threading.Timer(
                0.2, os.kill, (os.getpid(), signal.SIGINT)
            )
            interrupt.start()
            with self.assertRaises(KeyboardInterrupt):
                ForkingPickler.loads(message)
            sender.kill()

    def test_tensor_of_a_sender_that_is_killed_at_work_is_a_clear_error(self):
        with self.another_peer() as sender:
            message = sender.call(new_unfinished_message)
            threading.Timer(0.2, os.kill, (sender.pid, signal.SIGKILL)).start()
            with self.assertRaisesRegex(
                RuntimeError, "process that owns its GPU memory has ended"
            ):
                ForkingPickler.loads(message)

    def test_tensor_of_a_sender_that_has_ended_is_a_clear_error(self):
        with self.another_peer() as sender:
            message = sender.call(new_message)
        with self.assertRaisesRegex(
            RuntimeError, "process that owns its GPU memory has ended"
        ):
            ForkingPickler.loads(message)

    @needs_stand_in_module
    def test_damaged_handle_is_an_error_or_the_memory_that_was_sent(self):
        print(f"PADDLE_SHARED_TENSOR_SEED={SEED}")
        tensor = gpu.to_gpu(matrix(), 0)
        self.peer.call(keep_on_gpu, "right", tensor)
        for rebuild in (address_rebuilt, address_rebuilt_dense):
            handles = [reduce_tensor(tensor)[1][0] for _ in range(1000)]
            errors, right = self.peer.call(
                rebuild_damaged, rebuild, handles, SEED
            )
            self.assertEqual(errors + right, len(handles))
            self.assertGreater(errors, len(handles) // 2)
            self.assertGreater(right, 0)
        sharing.collect_shared_memory(message_timeout=0)

    @needs_stand_in_module
    def test_views_of_gpu_memory_are_refused(self):
        handle = reduce_tensor(vector())[1][0]
        with self.assertRaisesRegex(ValueError, "only be rebuilt in shared"):
            native.rebuild_views(handle, [(core.DataType.UINT8, [1], 0)])
        sharing.collect_shared_memory(message_timeout=0)


@needs_gpu
class TestExit(unittest.TestCase):
    def assert_quiet(self, errors: str) -> None:
        self.assertNotRegex(
            errors, "Traceback|Exception|terminate|Segmentation|violation|leak"
        )

    def test_sender_that_ends_names_the_holders_of_its_memory(self):
        done = run_sharing_script(
            self,
            """
            import subprocess
            from cuda_ipc_base import vector

            holder = subprocess.Popen(
                [sys.executable, "-c", "import test_cuda_ipc as t; t.hold()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            message = ForkingPickler.dumps(vector())
            print(bytes(message).hex(), file=holder.stdin, flush=True)
            assert holder.stdout.readline() == "held\\n"
            print(holder.pid)
            """,
        )
        self.assertIn("other processes still use its GPU memory", done.stderr)
        self.assertIn(f"held by process {done.stdout.strip()}", done.stderr)
        self.assert_quiet(done.stderr)

    def test_thread_that_outlives_the_work_of_its_process_can_send(self):
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        child = context.Process(
            target=send_by_a_thread_that_stays, args=(theirs,)
        )
        child.start()
        self.assertTrue(connection.poll(WAIT_S))
        tensor = connection.recv()
        self.assertEqual(on_gpu(tensor), on_gpu(vector()))
        del tensor
        connection.send(None)
        child.join(WAIT_S)
        self.assertEqual(child.exitcode, 0)

    def test_process_that_has_sent_and_received_ends_quietly(self):
        done = run_sharing_script(
            self,
            """
            from cuda_ipc_base import keep_on_gpu, new_vector, vector
            from shared_tensor_base import Peer, forget

            peer = Peer(
                multiprocessing.get_context("spawn"),
                "file_system",
                first=keep_on_gpu,
            )
            own = vector()
            peer.call(keep_on_gpu, "own", own)
            received = peer.call(new_vector)
            peer.call(keep_on_gpu, "received", received)
            peer.call(forget)
            cycle = [own, received]
            cycle.append(cycle)
            """,
        )
        self.assert_quiet(done.stderr)


if __name__ == "__main__":
    unittest.main()
