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
"""What examples/data_parallel.py promises, shown by real processes.

They run on the Python that has Paddle: test_data_parallel_example.py sees to
that. This process only starts others, and computes nothing itself.
"""

from __future__ import annotations

import itertools
import multiprocessing
import multiprocessing.resource_tracker
import os
import random
import signal
import sys
import threading
import time
import unittest
from pathlib import Path

import numpy as np

import paddle
import paddle.multiprocessing as mp
from paddle import nn

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = map(str, (REPO / "examples", REPO / "test" / "legacy_test"))
import data_parallel as example  # noqa: E402
from concurrent_base import WAIT_S  # noqa: E402

EACH_ALONE = 1  # bytes: each parameter gets a bucket of its own


class Ranks:
    """Processes that call `function(group, *args)`, one for each rank."""

    def __init__(self, function, *args, processes=2, method="fork"):
        context = multiprocessing.get_context(method)
        pipes = example.connect(processes)
        self._answers, self._processes = [], []
        for rank in range(processes):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_answer,
                args=(function, rank, pipes, theirs, args),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._answers.append(ours)
            self._processes.append(process)
        example.close(pipes)

    def answer(self, rank: int):
        """Returns what the call returned, the error it raised, as a string, or
        minus the number of the signal that has ended the process."""
        if not self._answers[rank].poll(WAIT_S):
            raise AssertionError(f"rank {rank} has not ended in {WAIT_S} s")
        try:
            return self._answers[rank].recv()
        except EOFError:
            self._processes[rank].join(WAIT_S)
            return self._processes[rank].exitcode

    def answers(self) -> list:
        return [self.answer(rank) for rank in range(len(self._processes))]

    def kill(self, rank: int) -> None:
        self._processes[rank].kill()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for process, answer in zip(self._processes, self._answers):
            process.kill()
            process.join()
            process.close()
            answer.close()


def _answer(function, rank, pipes, answer, args) -> None:
    paddle.set_device("cpu")
    group = example.Group(rank, pipes, WAIT_S)
    try:
        result = function(group, *args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    answer.send(result)


def answers(function, *args, **options) -> list:
    with Ranks(function, *args, **options) as ranks:
        return ranks.answers()


# What the ranks do.


def random_batches(count: int, size: int) -> list:
    paddle.seed(7)
    return [
        (paddle.randn([size, 16]), paddle.randn([size, 1]))
        for _ in range(count)
    ]


def train(group, steps: int) -> dict:
    """Returns the parameters after training in several ways."""
    batches = random_batches(steps, 12 * group.size)
    backwards = [
        [paddle.concat(each.chunk(group.size)[::-1]) for each in batch]
        for batch in batches
    ]
    rank, size = group.rank, group.size
    results = {
        "group": example.train(example.new_layer(rank), batches, group),
        "parts": example.train_alone(example.new_layer(0), batches, size),
        "backwards": example.train_alone(example.new_layer(0), backwards, size),
        "whole": example.train_alone(example.new_layer(0), batches, 1),
        "untrained": example.train_alone(example.new_layer(0), [], 1),
    }
    return {name: each.numpy() for name, each in results.items()}


def train_on_whole_numbers(group) -> dict:
    """One step in which every product and sum is exact."""

    def layer(seed):
        paddle.seed(seed)
        model = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))
        for parameter in model.parameters():
            parameter.set_value(paddle.round(parameter * 4))
        return model

    paddle.seed(7)
    inputs = paddle.randint(-2, 3, [32, 16]).astype("float32")
    batches = [(inputs, inputs.sum(1, keepdim=True))]
    together = example.train(layer(group.rank), batches, group)
    alone = example.train_alone(layer(0), batches, 1)
    return {"group": together.numpy(), "whole": alone.numpy()}


def start(group, new_layer) -> list:
    """Returns the state of a layer that was given to DataParallel."""
    paddle.seed(group.rank)
    layer = new_layer()
    example.DataParallel(layer, group)
    return [each.numpy() for each in layer.state_dict().values()]


def linear():
    return nn.Linear(2, 2)


def batch_norm():
    layer = nn.BatchNorm1D(3)
    layer._mean.set_value(paddle.randn([3]))
    return layer


def linear_of_size_of_rank(group) -> None:
    example.DataParallel(nn.Linear(2, 1 + group.rank), group)


def wait_in_backward_for_first_bucket(group) -> bool:
    """Returns whether the bucket of `last` was averaged meanwhile."""
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    averaged, seen = threading.Event(), []

    def hook(group, bucket):
        result = example.average(group, bucket)
        averaged.set()
        return result

    parallel = example.DataParallel(
        nn.LayerList([first, last]),
        group,
        bucket_bytes=EACH_ALONE,
        comm_hook=hook,
    )
    hidden = first(paddle.ones([2, 4]))
    # Called before the gradients of `first` are computed.
    hidden.register_hook(lambda gradient: seen.append(averaged.wait(WAIT_S)))
    last(hidden).sum().backward()
    parallel.synchronize()
    return seen == [True]


def names_in_buckets(group, bucket_bytes: int) -> list:
    layer = nn.LayerList([nn.Linear(4, 2), nn.Linear(2, 2)])
    buckets = []

    def hook(group, bucket):
        buckets.append(list(bucket.parameters))
        return example.average(group, bucket)

    parallel = example.DataParallel(
        layer, group, bucket_bytes=bucket_bytes, comm_hook=hook
    )
    layer[1](layer[0](paddle.ones([1, 4]))).sum().backward()
    parallel.synchronize()
    return buckets


def use_branches(group, **options) -> list:
    layers = example.use_branches(group, **options)
    gradients = [layer.bias.grad for layer in layers.values()]
    return [None if each is None else each.tolist() for each in gradients]


def use_second_layer_in_turns(group) -> list:
    layers = nn.LayerList([nn.Linear(2, 2), nn.Linear(2, 2)])
    parallel = example.DataParallel(layers, group, find_unused_parameters=True)
    found = []
    for step in range(group.size):
        used = layers if step == group.rank else layers[:1]
        sum(layer(paddle.ones([1, 2])).sum() for layer in used).backward()
        parallel.synchronize()
        found.append(layers[1].bias.grad.tolist())
        layers.clear_gradients(set_to_zero=False)
    return found


def keep_gradient_of_unused(group) -> list:
    used, unused = nn.Linear(2, 1), nn.Linear(2, 1)
    parallel = example.DataParallel(
        nn.LayerList([used, unused]), group, find_unused_parameters=True
    )
    unused.bias.grad = paddle.full([1], 3.0)
    used(paddle.ones([1, 2])).sum().backward()
    parallel.synchronize()
    return unused.bias.grad.tolist()


def use_one_parameter_twice(group) -> list:
    layer = nn.Linear(2, 2)
    parallel = example.DataParallel(layer, group)
    inputs = paddle.full([1, 2], float(group.rank))
    (layer(inputs) + layer(2 * inputs)).sum().backward()
    parallel.synchronize()
    return [each.grad.tolist() for each in layer.parameters()]


def add_up_gradients_of_two_steps(group) -> list:
    layer = nn.Linear(1, 1)
    parallel = example.DataParallel(layer, group)
    for factor in (1.0, 10.0):
        layer(paddle.full([1, 1], factor * group.rank)).sum().backward()
        parallel.synchronize()
    return layer.weight.grad.tolist()


def freeze_a_parameter(group) -> list:
    layer = nn.Linear(2, 2)
    layer.weight.stop_gradient = True
    parallel = example.DataParallel(layer, group)
    layer(paddle.ones([1, 2])).sum().backward()
    parallel.synchronize()
    return [layer.weight.grad, layer.bias.grad.tolist()]


def train_two_data_types(group) -> list:
    first, last = nn.Linear(1, 3), nn.Linear(1, 1).to(dtype="float64")
    layer = nn.LayerList([first, last])
    parallel = example.DataParallel(layer, group)
    inputs = paddle.full([1, 1], float(group.rank))
    (first(inputs).sum() + last(inputs.astype("float64")).sum()).backward()
    parallel.synchronize()
    return [
        (str(each.grad.dtype), each.grad.tolist())
        for each in layer.parameters()
    ]


def send_as_float16(group) -> dict:
    sent = []
    hook = example.AverageAsFloat16()

    def recorded(group, bucket):
        result = hook(group, bucket)
        sent.append(str(hook._tensors[bucket.name][group.rank].dtype))
        return result

    batches = random_batches(2, 12 * group.size)
    by_hook = example.train(
        example.new_layer(group.rank), batches, group, comm_hook=recorded
    )
    by_default = example.train(example.new_layer(group.rank), batches, group)
    return {
        "float16": by_hook.numpy(),
        "float32": by_default.numpy(),
        "sent": set(sent),
    }


def one_step(group, **options) -> list:
    layer = nn.Linear(2, 2)
    parallel = example.DataParallel(layer, group, **options)
    layer(paddle.ones([1, 2])).sum().backward()
    parallel.synchronize()
    return layer.bias.grad.tolist()


def replace_average(group) -> list:
    def hook(group, bucket):
        return paddle.full_like(bucket.tensors[group.rank], 5.0)

    return one_step(group, comm_hook=hook)


def return_other_size(group) -> list:
    return one_step(group, comm_hook=lambda *_: paddle.ones([9]))


def return_other_type(group) -> list:
    return one_step(group, comm_hook=lambda *_: paddle.ones([6], "float64"))


def fail_in_the_hook_of_rank_1(group) -> list:
    def hook(group, bucket):
        if group.rank == 1:
            raise ValueError("no bucket today")
        return example.average(group, bucket)

    return one_step(group, comm_hook=hook)


def forget_synchronize(group) -> None:
    layer = nn.Linear(2, 2)
    parallel = example.DataParallel(layer, group)
    for _ in range(2):
        layer(paddle.ones([1, 2])).sum().backward()
    parallel.synchronize()


def use_sparse_gradients(group) -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    parallel = example.DataParallel(layer, group)
    layer(paddle.to_tensor([1, 2])).sum().backward()
    parallel.synchronize()


def end_rank_1_in_second_bucket(
    group, signal_number: int, timeout_s: float = WAIT_S
) -> list:
    def hook(group, bucket):
        if bucket.name == "bucket 1":
            # Not from the start, where a busy machine may take longer.
            group._timeout_s = timeout_s
        if group.rank == 1 and bucket.name == "bucket 1":
            os.kill(os.getpid(), signal_number)
            # The last of its threads stops a little later.
            threading.Event().wait()
        return example.average(group, bucket)

    return one_step(group, bucket_bytes=EACH_ALONE, comm_hook=hook)


def until_all_buckets_ran(parallel) -> None:
    """Waits for the thread that averages, as a slow end of backward() would."""
    parallel._thread.submit(int).result(WAIT_S)


def buckets_given_to_a_hook_that_fails(group) -> list:
    layer, given = nn.Linear(2, 2), []

    def hook(group, bucket):
        given.append(bucket.name)
        raise ValueError("no bucket today")

    parallel = example.DataParallel(
        layer, group, bucket_bytes=EACH_ALONE, comm_hook=hook
    )
    layer(paddle.ones([1, 2])).sum().backward()
    until_all_buckets_ran(parallel)
    try:
        parallel.synchronize()
    except ValueError:
        return given


class DyingPipe:
    """The end of a pipe whose process dies behind a message of its group."""

    def __init__(self, pipe, left: itertools.count):
        self._pipe = pipe
        self._left = left

    def send(self, message) -> None:
        self._pipe.send(message)
        if next(self._left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            # The last of its threads stops a little later.
            threading.Event().wait()

    def __getattr__(self, name: str):
        return getattr(self._pipe, name)


def end_rank_2_behind_a_message(group, number: int) -> None:
    """Two steps in two buckets, in which rank 2 sends 16 messages."""
    layer = nn.Linear(2, 2)
    parallel = example.DataParallel(layer, group, bucket_bytes=EACH_ALONE)
    if group.rank == 2:
        left = itertools.count(-number)
        for peer, pipe in group._pipes.items():
            group._pipes[peer] = DyingPipe(pipe, left)
    for _ in range(2):
        layer(paddle.ones([1, 2])).sum().backward()
        until_all_buckets_ran(parallel)
        parallel.synchronize()
        layer.clear_gradients()
    # The others need nothing more of it, and may have ended well.
    group.exchange("end")


def train_forever(group, started) -> None:
    layer = example.new_layer(0)
    parallel = example.DataParallel(layer, group)
    # A process that is killed may leave the lock of an event locked.
    if group.rank == 2:
        started.set()
    while True:
        layer(paddle.ones([2, 16])).sum().backward()
        parallel.synchronize()
        layer.clear_gradients()


def shared_files() -> set[str]:
    """Returns the files that this tree of processes has in /dev/shm."""
    family = os.environ["PADDLE_SHARED_MEMORY_FAMILY"]
    return {name for name in os.listdir("/dev/shm") if family in name}


class TestDataParallel(unittest.TestCase):
    def setUp(self):
        # Both live until the end of the run, and are no leaks: a process, and
        # the descriptor of /dev/shm that a process which shares tensors keeps.
        multiprocessing.resource_tracker.ensure_running()
        mp.collect_shared_memory()
        self.descriptors = len(os.listdir("/proc/self/fd"))

    def tearDown(self):
        mp.collect_shared_memory()
        self.assertEqual(shared_files(), set())
        self.assertEqual(len(os.listdir("/proc/self/fd")), self.descriptors)

    def assert_same_bits(self, one, other):
        self.assertEqual(one.tobytes(), other.tobytes())

    def assert_each(self, found: list, pattern: str):
        for each in found:
            self.assertRegex(str(each), pattern)


class TestEquality(TestDataParallel):
    def test_training_equals_one_process_part_by_part_to_the_last_bit(self):
        for processes in (2, 3, 4):
            for found in answers(train, 3, processes=processes):
                self.assert_same_bits(found["group"], found["parts"])
                self.assertFalse((found["group"] == found["untrained"]).all())

    def test_all_ranks_have_the_same_parameters_to_the_last_bit(self):
        first, *others = answers(train, 3, processes=3)
        for other in others:
            self.assert_same_bits(other["group"], first["group"])

    def test_gradients_are_added_in_the_order_of_ranks(self):
        found = answers(train, 3, processes=3)[0]
        self.assertFalse((found["backwards"] == found["parts"]).all())
        self.assert_same_bits(found["group"], found["parts"])

    def test_training_equals_one_process_on_whole_batches_to_rounding(self):
        for found in answers(train, 3):
            np.testing.assert_allclose(
                found["group"], found["whole"], rtol=1e-4, atol=1e-6
            )

    def test_where_arithmetic_is_exact_whole_batches_give_the_same_bits(self):
        for processes in (2, 4):
            for found in answers(train_on_whole_numbers, processes=processes):
                self.assert_same_bits(found["group"], found["whole"])

    def test_a_parameter_used_twice_is_averaged_once(self):
        expected = [[[1.5, 1.5], [1.5, 1.5]], [2.0, 2.0]]
        self.assertEqual(answers(use_one_parameter_twice), [expected] * 2)

    def test_gradients_that_are_not_cleared_add_up(self):
        expected = [[0.5 + 5.0]]
        found = answers(add_up_gradients_of_two_steps)
        self.assertEqual(found, [expected] * 2)

    def test_a_frozen_parameter_is_left_alone(self):
        self.assertEqual(answers(freeze_a_parameter), [[None, [1.0, 1.0]]] * 2)

    def test_parameters_of_two_data_types_and_of_one_number_are_averaged(self):
        expected = [
            ("paddle.float32", [[1.0] * 3]),
            ("paddle.float32", [1.0] * 3),
            ("paddle.float64", [[1.0]]),
            ("paddle.float64", [1.0]),
        ]
        found = answers(train_two_data_types, processes=3)
        self.assertEqual(found, [expected] * 3)


class TestStart(TestDataParallel):
    def test_all_ranks_start_with_the_parameters_of_the_first(self):
        first, second = answers(start, linear)
        for one, other in zip(first, second):
            self.assert_same_bits(one, other)

    def test_all_ranks_start_with_the_buffers_of_the_first(self):
        first, second = answers(start, batch_norm)
        for one, other in zip(first, second):
            self.assert_same_bits(one, other)

    def test_layers_that_differ_are_refused(self):
        self.assert_each(
            answers(linear_of_size_of_rank),
            "RuntimeError: Rank . must send .*bucket 0 .*, but sent .*bucket 0",
        )


class TestBuckets(TestDataParallel):
    def test_a_bucket_is_averaged_while_backward_goes_on(self):
        found = answers(wait_in_backward_for_first_bucket)
        self.assertEqual(found, [True, True])

    def test_buckets_are_full_in_the_order_of_backward(self):
        self.assertEqual(
            answers(names_in_buckets, 24),
            [[["1.bias", "1.weight"], ["0.bias"], ["0.weight"]]] * 2,
        )


class TestUnusedParameters(TestDataParallel):
    def test_they_are_an_error_that_names_them_and_the_rank(self):
        first, second = answers(use_branches)
        self.assertRegex(
            first,
            r"rank 0 has no gradient of \['never.bias', 'never.weight', "
            r"'right.bias', 'right.weight'\]. .* find_unused_parameters=True",
        )
        self.assertRegex(
            second,
            r"rank 1 has no gradient of \['never.bias', 'never.weight'\]\.",
        )

    def test_one_that_some_ranks_use_counts_as_zero_on_the_others(self):
        for left, right, _ in answers(
            lambda group: use_branches(group, find_unused_parameters=True),
            processes=4,
        ):
            self.assertEqual(left, [1.0, 1.0])
            self.assertEqual(right, [0.25, 0.25])

    def test_one_that_was_used_in_an_earlier_step_counts_as_zero(self):
        self.assertEqual(
            answers(use_second_layer_in_turns), [[[0.5, 0.5]] * 2] * 2
        )

    def test_one_that_no_rank_uses_has_no_gradient(self):
        for *_, never in answers(
            lambda group: use_branches(group, find_unused_parameters=True)
        ):
            self.assertIsNone(never)

    def test_one_that_no_rank_uses_keeps_the_gradient_it_has(self):
        self.assertEqual(answers(keep_gradient_of_unused), [[3.0], [3.0]])


class TestCommunicationHook(TestDataParallel):
    def test_what_it_returns_is_the_average(self):
        self.assertEqual(answers(replace_average), [[5.0, 5.0]] * 2)

    def test_gradients_can_be_sent_as_float16(self):
        first, second = answers(send_as_float16)
        self.assertEqual(first["sent"], {"paddle.float16"})
        self.assert_same_bits(first["float16"], second["float16"])
        self.assertFalse((first["float16"] == first["float32"]).all())
        np.testing.assert_allclose(
            first["float16"], first["float32"], atol=1e-4
        )

    def test_it_must_return_the_type_and_shape_of_the_bucket(self):
        for call in (return_other_size, return_other_type):
            self.assert_each(
                answers(call),
                "must return a tensor of paddle.float32 and of shape .*6.*, "
                "but returned",
            )

    def test_its_error_is_raised_on_all_ranks(self):
        first, second = answers(fail_in_the_hook_of_rank_1)
        self.assertRegex(first, "Rank 1 failed: ValueError: no bucket today")
        self.assertEqual(second, "ValueError: no bucket today")


class TestErrors(TestDataParallel):
    def test_a_second_backward_before_synchronize_is_refused(self):
        self.assert_each(
            answers(forget_synchronize),
            "one backward.. before synchronize.., but received a second",
        )

    def test_sparse_gradients_are_refused(self):
        self.assert_each(
            answers(use_sparse_gradients), "'weight' must be dense, but"
        )

    def test_a_rank_that_is_killed_in_a_step_ends_the_others(self):
        for method, processes in (("fork", 3), ("spawn", 2)):
            found = answers(
                end_rank_1_in_second_bucket,
                signal.SIGKILL,
                processes=processes,
                method=method,
            )
            self.assertEqual(found.pop(1), -signal.SIGKILL)
            self.assert_each(
                found, "RuntimeError: Rank 1 ended before 'bucket 1"
            )

    def test_a_rank_that_is_killed_behind_any_message_ends_the_others(self):
        for number in range(16):
            found = answers(end_rank_2_behind_a_message, number, processes=3)
            self.assertEqual(found.pop(), -signal.SIGKILL)
            with self.subTest(number=number):
                # Whichever rank sees it first, the others name the same cause.
                self.assert_each(
                    found,
                    "^RuntimeError: (Rank 1 failed: RuntimeError: |"
                    "Rank 0 failed: RuntimeError: )?Rank 2 ended before",
                )

    def test_nothing_is_averaged_behind_a_bucket_that_failed(self):
        found = answers(buckets_given_to_a_hook_that_fails)
        self.assertEqual(found, [["bucket 0"]] * 2)

    def test_a_rank_that_is_killed_at_any_time_ends_the_others(self):
        seed = random.randrange(2**32)
        rng = random.Random(seed)
        for _ in range(5):
            started = multiprocessing.get_context("fork").Event()
            with Ranks(train_forever, started, processes=3) as ranks:
                self.assertTrue(started.wait(WAIT_S), f"seed {seed}")
                time.sleep(rng.random() / 20)
                ranks.kill(2)
                found = [ranks.answer(0), ranks.answer(1)]
                with self.subTest(seed=seed):
                    self.assert_each(
                        found, "RuntimeError: Rank . (ended|failed)"
                    )

    def test_a_rank_that_stops_ends_the_others_in_time(self):
        with Ranks(end_rank_1_in_second_bucket, signal.SIGSTOP, 2) as ranks:
            self.assertRegex(
                ranks.answer(0),
                "Rank 1 must send 'bucket 1, .*' within 2 s, but sent "
                "'nothing'",
            )


if __name__ == "__main__":
    unittest.main()
