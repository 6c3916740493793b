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
"""The lifetime of shared tensors when processes end or die."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import unittest
from multiprocessing.reduction import ForkingPickler

from concurrent_base import WAIT_S, wait_until
from shared_tensor_base import (  # noqa: F401
    PeerError,
    SharingTestCase,
    describe,
    describe_kept,
    description,
    fill_kept,
    keep,
    load_and_describe,
    over_every_way_to_send,
    run_new_sharing_script,
    run_sharing_script,
    setUpModule,
    start_sharing_script,
    tearDownModule,
)
from shared_tensor_leaks import (
    SHM,
    kept_files,
    mapped_bytes,
    shared_files,
    tree_of,
)

import paddle
import paddle.incubate.multiprocessing as sharing


def vector(value: float = 3.0) -> paddle.Tensor:
    return paddle.full([5000], value)


# Functions for `Peer.call` and `Peer.order`.


def new_vector(kept):
    return vector()


def drop_data(kept, name):
    # The stack frames of the fork hold the tensor, too.
    kept[name]._clear_data()


def exit_at_once(kept):
    os._exit(0)


def become_another_program(kept):
    os.execv(
        sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"]
    )


# Bodies of processes.


def put(channel) -> None:
    channel.put(vector())


def put_without_a_file(channel) -> None:
    sharing.set_sharing_strategy("file_descriptor")
    channel.put(vector())


def put_and_exit_at_once(channel) -> None:
    channel.put(vector())
    os._exit(0)


def put_and_die(channel) -> None:
    channel.put(vector())
    os.kill(os.getpid(), signal.SIGKILL)


class LifetimeTestCase(SharingTestCase):
    def make_noise(self) -> None:
        """Shares tensors that would overwrite a tensor freed too early."""
        for _ in range(20):
            self.peer.call(describe, vector(9.0))

    def wait_for_use_of(self, used: int) -> None:
        wait_until(lambda: self.used() == used, f"use of {used} bytes")


@over_every_way_to_send(methods=("fork", "spawn"))
class TestDeath(LifetimeTestCase):
    def assert_given_back_after(self, end) -> None:
        """`end` takes a peer and ends the peer's use of a tensor."""
        before = self.used()
        with self.another_peer() as consumer:
            consumer.call(keep, "tensor", vector())
            self.assertGreater(self.used(), before)
            end(consumer)
            self.wait_for_use_of(before)

    def test_tensor_of_a_killed_consumer_is_released(self):
        self.assert_given_back_after(lambda consumer: consumer.kill())

    def test_tensor_of_a_consumer_that_exits_is_released(self):
        self.assert_given_back_after(lambda peer: peer.order(exit_at_once))
        self.assert_given_back_after(lambda consumer: consumer.close())

    def test_tensor_of_a_consumer_that_execs_another_program(self):
        before = self.used()
        with self.another_peer() as consumer:
            consumer.call(keep, "tensor", vector())
            consumer.order(become_another_program)
            self.wait_for_use_of(before)
            self.assertTrue(consumer.alive)
            # The other program does not read the connection.
            consumer.kill()

    def assert_outlives_its_producer(self, end) -> None:
        with self.another_peer() as producer:
            tensor = producer.call(new_vector)
            end(producer)
            wait_until(
                lambda: not producer.alive or not mapped_bytes(producer.pid),
                "end of the producer",
            )
            sharing.collect_shared_memory()
            self.make_noise()
            self.assertEqual(description(tensor), description(vector()))
            self.peer.call(keep, "tensor", tensor)
            tensor.fill_(5)
            self.assertEqual(
                self.peer.call(describe_kept, "tensor"), description(tensor)
            )
            producer.kill()

    def test_tensor_outlives_a_producer_that_is_killed(self):
        self.assert_outlives_its_producer(lambda producer: producer.kill())

    def test_tensor_outlives_a_producer_that_exits_immediately(self):
        self.assert_outlives_its_producer(
            lambda producer: producer.order(exit_at_once)
        )

    def test_tensor_outlives_a_producer_that_execs_another_program(self):
        self.assert_outlives_its_producer(
            lambda producer: producer.order(become_another_program)
        )

    def test_death_of_one_consumer_leaves_the_tensor_to_others(self):
        tensor = vector()
        self.peer.call(keep, "tensor", tensor)
        with self.another_peer() as consumer:
            consumer.call(keep, "tensor", tensor)
            del tensor
            consumer.kill()
            sharing.collect_shared_memory()
            self.make_noise()
            self.assertEqual(
                self.peer.call(describe_kept, "tensor"), description(vector())
            )


@over_every_way_to_send(("file_system",), methods=("fork", "spawn"))
class TestDelivery(LifetimeTestCase):
    def assert_delivered(self, body, channel) -> None:
        process = self.context.Process(target=body, args=(channel,))
        process.start()
        process.join(WAIT_S)
        self.assertIsNotNone(process.exitcode)
        process.close()
        sharing.collect_shared_memory()
        self.assertFalse(channel.empty())
        self.assertEqual(description(channel.get()), description(vector()))

    def test_tensor_of_a_worker_that_returned_arrives(self):
        queue = self.context.Queue()
        self.addCleanup(queue.join_thread)
        self.addCleanup(queue.close)
        self.assert_delivered(put, queue)

    def test_tensor_of_a_worker_that_exits_immediately_arrives(self):
        self.assert_delivered(put_and_exit_at_once, self.context.SimpleQueue())

    def test_tensor_of_a_worker_that_was_killed_arrives(self):
        self.assert_delivered(put_and_die, self.context.SimpleQueue())


@over_every_way_to_send(("file_descriptor",), methods=("fork", "spawn"))
class TestNoDelivery(LifetimeTestCase):
    def test_tensor_of_a_dead_worker_is_a_clear_error(self):
        queue = self.context.SimpleQueue()
        process = self.context.Process(target=put_without_a_file, args=(queue,))
        process.start()
        process.join(WAIT_S)
        process.close()
        with self.assertRaisesRegex(RuntimeError, "file_system"):
            queue.get()


@over_every_way_to_send(methods=("fork",))
class TestFork(LifetimeTestCase):
    def test_child_keeps_a_tensor_that_its_parent_drops(self):
        before = self.used()
        tensor = vector()
        self.peer.call(describe, tensor)
        with self.another_peer(tensor=tensor) as child:
            del tensor
            self.assertGreater(self.used(), before)
            self.make_noise()
            self.assertEqual(
                child.call(describe_kept, "tensor"), description(vector())
            )
        self.wait_for_use_of(before)

    def test_parent_keeps_tensors_of_a_child_that_dies(self):
        for name in ("close", "kill"):
            with self.subTest(name):
                tensor = vector()
                self.peer.call(keep, "tensor", tensor)
                with self.another_peer(tensor=tensor) as child:
                    getattr(child, name)()
                sharing.collect_shared_memory()
                self.make_noise()
                self.assertEqual(description(tensor), description(vector()))
                tensor.fill_(5)
                self.assertEqual(
                    self.peer.call(describe_kept, "tensor"),
                    description(tensor),
                )

    def test_shared_tensor_stays_shared_over_a_fork(self):
        tensor = vector()
        self.peer.call(describe, tensor)
        with self.another_peer(tensor=tensor) as child:
            child.call(fill_kept, "tensor", 5)
        self.assertEqual(description(tensor), description(vector(5.0)))

    def test_child_keeps_a_received_tensor_that_its_parent_drops(self):
        tensor = self.peer.call(new_vector)
        with self.another_peer(tensor=tensor) as child:
            del tensor
            sharing.collect_shared_memory()
            for _ in range(20):
                self.peer.call(new_vector).fill_(9)
            self.assertEqual(
                child.call(describe_kept, "tensor"), description(vector())
            )

    def test_child_receives_a_message_sent_before_the_fork(self):
        message = bytes(ForkingPickler.dumps(vector()))
        with self.another_peer() as child:
            self.assertEqual(
                child.call(load_and_describe, message), description(vector())
            )

    def test_child_drops_an_inherited_tensor_and_its_parent_keeps_it(self):
        tensor = vector()
        self.peer.call(keep, "tensor", tensor)
        with self.another_peer(tensor=tensor) as child:
            child.call(drop_data, "tensor")
            self.make_noise()
            self.assertEqual(description(tensor), description(vector()))


@over_every_way_to_send(methods=("fork",))
class TestMessages(LifetimeTestCase):
    def new_message(self) -> bytes:
        """Returns a message that holds the only reference to its tensor."""
        return bytes(ForkingPickler.dumps(vector()))

    def test_message_keeps_its_tensor(self):
        message = self.new_message()
        sharing.collect_shared_memory()
        sharing.collect_shared_memory(message_timeout=3600)
        self.make_noise()
        self.assertEqual(
            self.peer.call(load_and_describe, message), description(vector())
        )

    def test_a_thread_may_read_the_old_memory_of_a_parameter_that_is_sent(self):
        # A Queue sends on a thread of its own, while the sender may compute.
        weight = paddle.create_parameter([1 << 18], "float32")
        weight.set_value(paddle.full([1 << 18], 3.0))
        old = (ctypes.c_float * weight.size).from_address(weight.data_ptr())
        message = ForkingPickler.dumps(weight)
        self.assertNotEqual(weight.data_ptr(), ctypes.addressof(old))
        self.assertEqual(set(old), {3.0})
        ForkingPickler.loads(message)

    def test_messages_of_a_dropped_queue_expire_on_demand(self):
        before = self.used()
        messages = sharing.shared_memory_stats()["messages"]
        queue = self.context.SimpleQueue()
        for _ in range(10):
            queue.put(vector())
        self.assertEqual(
            sharing.shared_memory_stats()["messages"], messages + 10
        )
        del queue
        self.assertGreater(self.used(), before)
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(self.used(), before)
        self.assertEqual(sharing.shared_memory_stats()["messages"], messages)

    def test_expired_message_is_a_clear_error_for_its_receiver(self):
        message = self.new_message()
        sharing.collect_shared_memory(message_timeout=0)
        with self.assertRaisesRegex(RuntimeError, "has expired"):
            ForkingPickler.loads(message)
        with self.assertRaises(PeerError) as caught:
            self.peer.call(load_and_describe, message)
        self.assertEqual(caught.exception.kind, "RuntimeError")
        self.assertIn("has expired", caught.exception.message)

    def test_expired_message_is_received_while_its_tensor_lives(self):
        tensor = vector()
        message = bytes(ForkingPickler.dumps(tensor))
        sharing.collect_shared_memory(message_timeout=0)
        self.assertEqual(
            self.peer.call(load_and_describe, message), description(tensor)
        )

    def test_message_received_and_dropped_by_all_is_a_clear_error(self):
        message = self.new_message()
        self.peer.call(load_and_describe, message)
        self.used()
        self.make_noise()
        with self.assertRaisesRegex(RuntimeError, "does not exist any more"):
            ForkingPickler.loads(message)


# A process that has sent tensors to two children and received tensors from
# them. All three processes wait, and messages are in flight.
TREE = """
from killed_test_run import end_with

script = os.getpid()

def work(connection):
    end_with(script)
    kept = [connection.recv()]
    connection.send(paddle.full([5000], 4.0))
    for _ in range(5):
        connection.send(paddle.full([5000], 5.0))
    time.sleep(600)

context = multiprocessing.get_context("fork")
kept = []
for _ in range(2):
    connection, theirs = context.Pipe()
    context.Process(target=work, args=(theirs,)).start()
    connection.send(paddle.full([5000], 3.0))
    kept += [connection, connection.recv()]
print("ready", flush=True)
time.sleep(600)
"""


class TestTrees(SharingTestCase):
    method = "fork"

    def killed_tree(self) -> set[str]:
        """Kills a process tree and returns the files that it had."""
        tree = start_sharing_script(TREE)
        kill = threading.Timer(WAIT_S, os.killpg, (tree.pid, signal.SIGKILL))
        kill.start()
        ready = tree.stdout.readline()
        kill.cancel()
        self.assertEqual(ready, "ready\n")
        names = {os.path.basename(name) for name in mapped_bytes(tree.pid)}
        self.assertLessEqual(names, shared_files())
        self.assertGreaterEqual(len(names), 3, "one a process")
        with kept_files(tree_of(min(names)).rpartition("-")[2]):
            os.killpg(tree.pid, signal.SIGKILL)
            # All processes of the tree had its output pipe.
            self.assertEqual(tree.communicate(timeout=WAIT_S)[0], "")
            self.assertLessEqual(names, shared_files())
        return names

    def test_next_process_that_shares_removes_the_files_of_a_killed_tree(self):
        names = self.killed_tree()
        run_sharing_script(self, "paddle.ones([1]).share_memory_()")
        self.assertEqual(names & shared_files(), set())

    def test_files_of_a_live_tree_are_not_removed(self):
        tensor = vector()
        self.peer.call(keep, "tensor", tensor)
        ours = {
            os.path.basename(name)
            for name in mapped_bytes(os.getpid())
            if name.startswith(SHM)
        }
        self.assertGreaterEqual(len(ours), 2, "one a process")
        self.killed_tree()
        run_sharing_script(self, "paddle.ones([1]).share_memory_()")
        self.assertLessEqual(ours, shared_files())
        with self.another_peer() as other:
            self.assertEqual(
                other.call(describe, tensor), description(vector())
            )

    def test_tree_that_ends_leaves_no_file(self):
        done = run_sharing_script(
            self,
            """
            from shared_tensor_leaks import mapped_bytes

            def work(connection):
                kept = connection.recv()
                connection.send(paddle.full([5000], 4.0))

            context = multiprocessing.get_context("fork")
            connection, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,))
            process.start()
            connection.send(paddle.full([5000], 3.0))
            kept = connection.recv()
            process.join()
            in_flight = ForkingPickler.dumps(paddle.full([5000], 3.0))
            print(*map(os.path.basename, mapped_bytes(os.getpid())))
            """,
        )
        names = set(done.stdout.split())
        self.assertGreaterEqual(len(names), 2, "one a process")
        self.assertEqual(names & shared_files(), set())


# A parent sends a message to a program and ends before the program imports
# Paddle, if it ever does: the program reads its input to the end, that is,
# until its parent ends. A program belongs to the tree if its parent had joined
# the tree when it started the program; the parent joins by sharing a tensor.
SEND_AND_END = """
import subprocess
tensor = paddle.arange(6).share_memory_()
program = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE
)
program.stdin.write(ForkingPickler.dumps(tensor))
program.stdin.flush()
print(os.environ["PADDLE_SHARED_MEMORY_TREE"], flush=True)
"""
LOAD = """
import sys
message = sys.stdin.buffer.read()
import paddle
import paddle.incubate.multiprocessing
from multiprocessing.reduction import ForkingPickler
print(ForkingPickler.loads(message).sum().item())
"""
NEVER_IMPORT = """
import sys
sys.stdin.buffer.read()
print("ends")
"""
# It prints "left" after Paddle's exit handlers, which run in reverse order.
LEAVE_FIRST = """
import atexit, os, sys
def wait():
    os.write(2, b"left\\n")
    sys.stdin.buffer.read()
atexit.register(wait)
import paddle
import paddle.incubate.multiprocessing
"""


class TestPrograms(unittest.TestCase):
    """Programs of a tree that import Paddle after their parent, or never."""

    def run_parent(self, program: str, script: str) -> tuple[str, set[str]]:
        """Returns the program's output, and the tree's files at that time."""
        done = run_sharing_script(self, script, program)
        tree, *said = done.stdout.split()
        files = {name for name in shared_files() if f"-{tree}-" in name}
        return " ".join(said), files

    def test_message_outlives_its_sender_for_a_program_that_starts(self):
        said, files = self.run_parent(LOAD, SEND_AND_END)
        self.assertEqual((said, files), ("15", set()))

    def test_file_for_a_program_without_paddle_is_removed_after_it_ends(self):
        said, files = self.run_parent(NEVER_IMPORT, SEND_AND_END)
        self.assertEqual(said, "ends")
        self.assertEqual(len(files), 1)
        sharing.collect_shared_memory()
        self.assertEqual(files & shared_files(), set())

    def test_program_that_has_left_keeps_no_file(self):
        script = SEND_AND_END.replace(
            "stdin=subprocess.PIPE", "stdin=subprocess.PIPE, stderr=-1"
        )
        script += "assert b'left\\n' in program.stderr\n"
        _, files = self.run_parent(LEAVE_FIRST, script)
        self.assertEqual(files, set())


def limited(kibibytes: int) -> tuple[str, ...]:
    """Returns a wrapper that limits the address space of a command."""
    return ("bash", "-c", f'ulimit -v {kibibytes} && exec "$@"', "-")


KEEP_RESULTS = """
            def make(i):
                return paddle.full([5], float(i))
            def descriptors():
                return len(os.listdir("/proc/self/fd"))
            def occupied():
                tree = os.environ["PADDLE_SHARED_MEMORY_TREE"]
                files = [x for x in os.scandir("/dev/shm") if tree in x.name]
                return sum(x.stat().st_blocks * 512 for x in files)
            before = descriptors()
            pool = multiprocessing.get_context("fork").Pool(
                2, maxtasksperchild=1
            )
            tensors = [pool.apply(make, (i,)) for i in range(120)]
            pool.close()
            pool.join()
            assert [float(x[4]) for x in tensors] == list(range(120))
"""


class TestManyProducers(unittest.TestCase):
    def test_pool_works_under_a_limit_on_addresses(self):
        for strategy in ("file_system", "file_descriptor"):
            for gibibytes in (4, 128):
                with self.subTest(strategy=strategy, gibibytes=gibibytes):
                    run_new_sharing_script(
                        self,
                        f"""
                        sharing.set_sharing_strategy("{strategy}")
                        def make(i):
                            return paddle.full([100], float(i))
                        pool = multiprocessing.get_context("fork").Pool(4)
                        tensors = pool.map(make, range(20), chunksize=1)
                        values = [float(x[99]) for x in tensors]
                        assert values == list(range(20)), values
                        pool.close()
                        pool.join()
                        """,
                        limited(gibibytes << 20),
                    )

    def test_results_of_workers_that_are_replaced_need_no_descriptors(self):
        run_sharing_script(
            self,
            KEEP_RESULTS
            + """
            assert descriptors() <= before + 40, descriptors()
            # Their workers end one by one, and the last may be ending still.
            assert occupied() <= 120 * 24 * 1024, occupied()
            message = ForkingPickler.dumps(tensors[0])
            assert ForkingPickler.loads(message).tolist() == tensors[0].tolist()
            assert sharing.shared_memory_stats()["detached"] == 0
            """,
        )

    def test_results_are_reduced_to_their_pages_when_descriptors_are_short(
        self,
    ):
        run_new_sharing_script(
            self,
            KEEP_RESULTS
            + """
            assert descriptors() <= before + 40, descriptors()
            assert sharing.shared_memory_stats()["detached"] >= 60
            # They are shared with the workers that were forked since.
            assert tensors[0].is_shared()
            try:
                ForkingPickler.dumps(tensors[0])
                raise AssertionError("it was sent")
            except RuntimeError as error:
                assert "clone()" in str(error), error
            message = ForkingPickler.dumps(tensors[0].clone())
            assert ForkingPickler.loads(message).tolist() == tensors[0].tolist()
            """,
            ("bash", "-c", 'ulimit -n 64 && exec "$@"', "-"),
        )

    def test_tensor_of_a_producer_that_ended_is_moved_to_be_sent_on(self):
        run_sharing_script(
            self,
            """
            import resource
            def produce(queue, i):
                queue.put(paddle.full([5], float(i)))
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            workers = [
                context.Process(target=produce, args=(queue, i))
                for i in range(40)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
                worker.close()
            # So few that they are short when tensors of 16 have come.
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (32, most))
            tensors = [queue.get() for _ in workers]
            tensors.sort(key=lambda x: float(x[0]))
            assert sharing.shared_memory_stats()["detached"] >= 16
            tensor, address = tensors[0], tensors[0].data_ptr()
            view = tensor[1:3]
            assert tensor.is_shared()
            message = ForkingPickler.dumps(tensor)
            assert tensor.data_ptr() != address
            def fill(message):
                ForkingPickler.loads(message).fill_(7.0)
            worker = context.Process(target=fill, args=(message,))
            worker.start()
            worker.join()
            assert worker.exitcode == 0
            assert tensor.tolist() == [7.0] * 5, tensor
            assert view.tolist() == [7.0] * 2, view
            assert [float(x[0]) for x in tensors[1:]] == list(range(1, 40))
            del tensors, tensor, view
            sharing.collect_shared_memory(0)
            assert sharing.shared_memory_stats()["used"] == 0
            """,
        )


class TestShutdown(unittest.TestCase):
    def test_interpreter_that_holds_shared_tensors_ends_quietly(self):
        for strategy in sorted(sharing.get_all_sharing_strategies()):
            with self.subTest(strategy):
                done = run_sharing_script(
                    self,
                    f"""
                    import atexit
                    sharing.set_sharing_strategy({strategy!r})
                    context = multiprocessing.get_context("fork")
                    queue = context.Queue()
                    connection, theirs = context.Pipe()

                    def work():
                        kept = theirs.recv()
                        theirs.send(paddle.full([5000], 4.0))
                        theirs.recv()

                    process = context.Process(target=work)
                    process.start()
                    own = paddle.full([5000], 3.0)
                    connection.send(own)
                    received = connection.recv()
                    connection.send(0)
                    row = own[5:]
                    for n in range(10):
                        queue.put(paddle.full([n], 3.0))
                    cycle = [own, received]
                    cycle.append(cycle)

                    @atexit.register
                    def use():
                        assert own.sum().item() == 15000
                        assert received.sum().item() == 20000
                        ForkingPickler.dumps(paddle.ones([3]))
                    """,
                )
                self.assertNotRegex(
                    done.stderr,
                    "Traceback|Exception|Error|terminate|Segmentation|leak",
                )

    def test_interpreter_that_ends_during_a_send_ends_quietly(self):
        run_sharing_script(
            self,
            """
            queue = multiprocessing.Queue()
            queue.cancel_join_thread()
            for _ in range(40):
                queue.put(paddle.ones([8 << 20]))
            time.sleep(0.05)
            """,
        )


class TestThreads(unittest.TestCase):
    def test_tensor_that_loses_its_memory_during_a_send_is_harmless(self):
        run_sharing_script(
            self,
            """
            for n in range(12):
                tensor = paddle.full([8 << 20], 1.0)
                sender = threading.Thread(
                    target=ForkingPickler.dumps, args=(tensor,)
                )
                sender.start()
                time.sleep(0.002 * (n % 6))
                tensor._clear_data()
                sender.join()
                sharing.collect_shared_memory(0)
            """,
        )


if __name__ == "__main__":
    unittest.main()
