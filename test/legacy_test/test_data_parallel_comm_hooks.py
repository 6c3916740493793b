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
"""Communication hooks of paddle.DataParallel, built-in and user-defined."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import functools
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
from data_parallel_base import (
    HOOKS,
    ONE_PER_BUCKET,
    Ranks,
    RanksCase,
    gradients,
    has_shared_memory_groups,
    loss_of,
    new_layer,
    random_batches,
    values,
)

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed import comm_hooks
from paddle.distributed.collective import _get_global_env
from paddle.distributed.data_parallel import communication

if TYPE_CHECKING:
    from typing_extensions import Self

    from paddle.distributed.communication.group import Group


def one_step(group, hook, state=None, **options) -> list:
    layer = new_layer(0)
    wrapped = paddle.DataParallel(layer, group=group, **options)
    if hook is not None:
        wrapped.register_comm_hook(state, hook)
    batch = random_batches(1, group.nranks)[0]
    loss_of(wrapped, batch[group.rank]).backward()
    return gradients(layer)


def local_gradients(group) -> list:
    """Returns the gradients of each rank's part, computed on one rank."""
    found = []
    for part in random_batches(1, group.nranks)[0]:
        layer = new_layer(0)
        loss_of(layer, part).backward()
        found.append(gradients(layer))
    return found


def with_hook(group, name) -> dict:
    hook = getattr(comm_hooks, name)
    return {
        "hook": one_step(group, hook, group),
        "views": one_step(group, hook, group, gradient_as_bucket_view=True),
        "exact": one_step(group, None),
        "local": local_gradients(group),
    }


def send_infinity(group, name) -> list:
    layer = nn.Linear(2, 2, bias_attr=False)
    wrapped = paddle.DataParallel(layer, group=group)
    wrapped.register_comm_hook(group, getattr(comm_hooks, name))
    x = float("inf") if group.rank == 1 else 1.0
    wrapped(paddle.full([1, 2], x)).sum().backward()
    return np.isfinite(layer.weight.grad.numpy()).any()


class RegisterHook:
    def __init__(self, name: str):
        self._name = name

    def __call__(self, wrapped) -> None:
        state = wrapped.group
        if self._name == "powerSGD_hook":
            state = comm_hooks.PowerSGDState(state, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, getattr(comm_hooks, self._name))


class WithEmpty(nn.Layer):
    def __init__(self):
        super().__init__()
        self.weight = self.create_parameter([1])
        self.empty = self.create_parameter([0, 4])

    def forward(self, x):
        return (x * self.weight).sum() + self.empty.sum()


def train_with_an_empty_parameter(group, name) -> list:
    layer = WithEmpty()
    wrapped = paddle.DataParallel(
        layer,
        group=group,
        comm_buffer_size=ONE_PER_BUCKET,
        last_comm_buffer_size=ONE_PER_BUCKET,
    )
    RegisterHook(name)(wrapped)
    found = []
    for _ in range(3):
        wrapped(paddle.full([1], group.rank + 1.0)).backward()
        found.append(layer.weight.grad.item())
        layer.clear_gradients()
    return found


class ManySteps:
    """Steps with known gradients: a linear layer's depend on its input only."""

    def __init__(self, group, layer=None, **options):
        paddle.seed(0)
        self.group = group
        self.layer = layer or nn.Linear(24, 16)
        self.wrapped = paddle.DataParallel(self.layer, group=group)
        self.state = comm_hooks.PowerSGDState(
            group, start_powerSGD_iter=2, **options
        )
        self.wrapped.register_comm_hook(self.state, comm_hooks.powerSGD_hook)

    def step(self, seed) -> np.ndarray:
        paddle.seed(100 * seed + self.group.rank)
        x = paddle.randn([1, self.layer.weight.shape[0]])
        weights = paddle.randn([1, 16])
        (self.wrapped(x) * weights).sum().backward()
        gradient = self.layer.weight.grad.numpy()
        self.layer.clear_gradients()
        return gradient


def mean_of_step(group, seed) -> np.ndarray:
    found = []
    for rank in range(group.nranks):
        paddle.seed(100 * seed + rank)
        x = paddle.randn([1, 24])
        found.append((x.t() @ paddle.randn([1, 16])).numpy())
    return np.mean(found, axis=0)


def approximate(group, rank, steps) -> dict:
    run = ManySteps(group, matrix_approximation_rank=rank)
    found = [run.step(seed) for seed in range(steps)]
    exact = [mean_of_step(group, seed) for seed in range(steps)]
    return {"found": found, "exact": exact}


def repeat_one_gradient(group, use_error_feedback) -> list:
    """Returns the relative error of the sum of 60 averages."""
    run = ManySteps(
        group, use_error_feedback=use_error_feedback, warm_start=False
    )
    run.step(0), run.step(0)
    total = sum(run.step(0) for _ in range(60))
    wanted = 60 * mean_of_step(group, 0)
    return float(np.abs(total - wanted).max() / np.abs(wanted).max())


class UsedInAnotherOrder(nn.Layer):
    """Equal layers, used in another order than that of their registration.

    So the buckets of the first step differ from those of the later steps.
    """

    def __init__(self, seed):
        super().__init__()
        paddle.seed(seed)
        self.second, self.first, self.third = (
            nn.Linear(16, 16) for _ in range(3)
        )

    def forward(self, x):
        for layer in (self.first, self.second, self.third):
            x = paddle.tanh(layer(x))
        return x


class Training:
    """Training with PowerSGD that can be saved, and resumed from the start."""

    def __init__(self, group, seed, bucket_size, options):
        self.rank = group.rank
        self.layer = UsedInAnotherOrder(seed)
        self.wrapped = paddle.DataParallel(
            self.layer,
            group=group,
            comm_buffer_size=bucket_size,
            last_comm_buffer_size=bucket_size,
        )
        self.optimizer = paddle.optimizer.SGD(
            0.1, parameters=self.layer.parameters()
        )
        self.state = comm_hooks.PowerSGDState(
            **{"start_powerSGD_iter": 2, **options}
        )
        self.wrapped.register_comm_hook(self.state, comm_hooks.powerSGD_hook)
        self._saved = (self.layer, self.state)

    def step(self, seed) -> list:
        paddle.seed(100 * seed + self.rank)
        (self.wrapped(paddle.randn([8, 16])) ** 2).mean().backward()
        found = gradients(self.layer)
        self.optimizer.step()
        self.optimizer.clear_grad()
        return found

    def save(self, path) -> None:
        paddle.save([each.state_dict() for each in self._saved], path)

    def resume(self, path) -> None:
        for each, state in zip(self._saved, paddle.load(path)):
            each.set_state_dict(state)


def resume_training(group, folder, *args) -> list:
    """Returns gradients after an interruption, and without one."""
    path = str(Path(folder) / f"rank{group.rank}.pdparams")
    training = Training(group, 0, *args)
    for seed in range(5):
        training.step(seed)
    training.save(path)
    expected = training.step(5) + training.step(6)
    resumed = Training(group, 1, *args)
    resumed.resume(path)
    return [resumed.step(5) + resumed.step(6), expected]


def use_different_buckets(group) -> list:
    """Returns gradients of two runs, of which one has larger buckets."""
    options = {"start_powerSGD_iter": 0}
    found = []
    for bucket_size in (ONE_PER_BUCKET, 1):
        training = Training(group, 0, bucket_size, options)
        found.append(training.step(0) + training.step(1) + training.step(2))
    return found


def restore_state_of_another_model(group) -> None:
    run = ManySteps(group)
    for seed in range(3):
        run.step(seed)
    other = ManySteps(group, nn.Linear(32, 16))
    other.state.set_state_dict(run.state.state_dict())
    other.step(0)


def restore_state_of_a_lacking_parameter(group) -> tuple[str, list[str]]:
    """Returns the warning of the next step, and the names in the state."""
    run = ManySteps(group)
    for seed in range(3):
        run.step(seed)
    saved = run.state.state_dict()
    (error,) = saved["errors"].values()
    saved["errors"]["lacking"] = error
    run.state.set_state_dict(saved)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.step(3)
    texts = [str(each.message) for each in caught]
    (warning,) = [text for text in texts if "PowerSGD" in text]
    return warning, [*run.state.errors]


def see_buckets(group) -> list:
    seen = []

    def hook(state, bucket):
        parameters = [parameter.shape for parameter in bucket.parameters()]
        shapes = [gradient.shape for gradient in bucket.gradients()]
        # The gradients are views of the buffer.
        bucket.gradients()[0].fill_(7.0)
        seen.append(
            [
                state,
                bucket.index(),
                bucket.is_last(),
                parameters == shapes,
                bucket.buffer()[0].item(),
            ]
        )
        return bucket.buffer()

    sizes = {"comm_buffer_size": ONE_PER_BUCKET}
    found = one_step(group, hook, "a state", **sizes)
    return [seen, {float(each.min()) for each in found}]


def is_moved(group, free) -> bool:
    """Returns whether a 4000-byte buffer is moved to shared memory.

    `free` bytes of shared memory are free, and buckets may use all of them.
    """
    buffer = paddle.zeros([1000])
    memory = mock.Mock(f_bavail=free, f_frsize=1)
    with (
        mock.patch.object(communication.os, "statvfs", return_value=memory),
        mock.patch.object(communication, "_SHARE_OF_FREE_MEMORY", 1.0),
    ):
        communication.move_to_shared_memory(buffer, group)
    return buffer.is_shared()


def see_where_buffers_are(group, share_of_free, is_full) -> list:
    """Returns whether each bucket's buffer is in shared memory.

    A bucket may use `share_of_free` of the free memory. If `is_full`, moving a
    buffer to shared memory fails.
    """
    seen = []

    def hook(_, bucket):
        seen.append(bucket.buffer().is_shared())
        return bucket.buffer()

    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(
                communication, "_SHARE_OF_FREE_MEMORY", share_of_free
            )
        )
        if is_full:
            stack.enter_context(
                mock.patch.object(
                    paddle.Tensor, "share_memory_", side_effect=MemoryError
                )
            )
        one_step(group, hook, comm_buffer_size=ONE_PER_BUCKET)
    return seen


def double(group, kind) -> list:
    def hook(_, bucket):
        if kind == "tensor":
            return bucket.buffer() * 2
        if kind == "concurrent.futures":
            future = concurrent.futures.Future()
            future.set_result(bucket.buffer() * 2)
            return future
        future = comm_hooks.allreduce_hook(group, bucket)
        return future.then(lambda mean: mean * 2)

    return one_step(group, hook)


def return_other_size(group) -> None:
    one_step(group, lambda *_: paddle.ones([9]))


def return_other_type(group) -> None:
    one_step(group, lambda _, bucket: bucket.buffer().astype("float64"))


def return_a_number(group) -> None:
    one_step(group, lambda *_: 5)


def return_a_task(group) -> None:
    one_step(
        group,
        lambda _, bucket: dist.all_reduce(
            bucket.buffer(), group=group, sync_op=False
        ),
    )


def fail(group) -> None:
    def hook(*_):
        raise ValueError("no bucket today")

    one_step(group, hook)


def continue_after_a_wrong_result(group) -> list:
    wrapped = paddle.DataParallel(nn.Linear(2, 2), group=group)
    results = [lambda bucket: paddle.zeros([9])]

    def hook(state, bucket):
        if results:
            return results.pop()(bucket)
        return comm_hooks.allreduce_hook(group, bucket)

    wrapped.register_comm_hook(None, hook)
    try:
        wrapped(paddle.ones([1, 2])).sum().backward()
    except ValueError:
        wrapped.clear_gradients()
        outputs = wrapped(paddle.ones([1, 2])) * (group.rank + 1.0)
        outputs.sum().backward()
        return gradients(wrapped)


def last_buckets_of_a_sparse_model(group) -> list:
    layer = nn.Sequential(
        nn.Embedding(3, 2, sparse=True), nn.Linear(2, 2), nn.Linear(2, 2)
    )
    wrapped = paddle.DataParallel(layer, group=group, comm_buffer_size=1e-6)
    last = []

    def hook(state, bucket):
        last.append(bucket.is_last())
        return comm_hooks.allreduce_hook(group, bucket)

    wrapped.register_comm_hook(None, hook)
    steps = []
    for _ in range(2):
        wrapped(paddle.to_tensor([0, 1])).sum().backward()
        steps.append([sum(last), last[-1]])
        last.clear()
    return steps


def register_twice(group) -> None:
    wrapped = paddle.DataParallel(new_layer(0), group=group)
    for _ in range(2):
        wrapped.register_comm_hook(None, comm_hooks.allreduce_hook)


def register_a_number(group) -> None:
    paddle.DataParallel(new_layer(0), group=group).register_comm_hook(None, 5)


def train_with(group, name) -> list:
    layer = new_layer(0)
    wrapped = paddle.DataParallel(layer, group=group)
    state = group
    if name == "powerSGD_hook":
        state = comm_hooks.PowerSGDState(group, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, getattr(comm_hooks, name))
    optimizer = paddle.optimizer.SGD(0.05, parameters=layer.parameters())
    losses = []
    for _ in range(15):
        loss = loss_of(wrapped, random_batches(1, group.nranks)[0][group.rank])
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        total = loss.detach()
        dist.all_reduce(total, group=group)
        losses.append(total.item())
    return [values(layer), losses]


def continue_after_an_error_on_one_rank(group) -> list:
    """Returns the result of each step, until the group reports an error."""
    layer = nn.LayerList([nn.Linear(2, 2, bias_attr=False) for _ in range(4)])
    wrapped = paddle.DataParallel(
        nn.Sequential(*layer),
        group=group,
        comm_buffer_size=ONE_PER_BUCKET,
        last_comm_buffer_size=ONE_PER_BUCKET,
    )

    def hook(_, bucket):
        if group.rank == 1 and bucket.index() == 1 and len(found) == 1:
            raise KeyError("of one rank")
        return comm_hooks.allreduce_hook(group, bucket)

    found: list = []
    wrapped.register_comm_hook(None, hook)
    for _ in range(3):
        wrapped.clear_gradients()
        try:
            wrapped(paddle.full([1, 2], group.rank + 1.0)).sum().backward()
        except KeyError:
            found.append("its own")
        except RuntimeError as error:
            return [*found, str(error)]
        else:
            found.append(layer[0].weight.grad.tolist())
    return found


class OnAThread:
    """A hook that averages on a thread.

    On the last rank the thread is late, and on the others the hook. So their
    operations on the two threads have another order, unless one thread waits.
    """

    def __init__(self, group):
        self._is_late = group.rank == group.nranks - 1
        self._thread = concurrent.futures.ThreadPoolExecutor(1)

    def __call__(self, _, bucket) -> concurrent.futures.Future:
        future = self._thread.submit(self._average, bucket)
        if not self._is_late:
            time.sleep(0.02)
        return future

    def _average(self, bucket) -> paddle.Tensor:
        if self._is_late:
            time.sleep(0.02)
        dist.all_reduce(bucket.buffer(), group=bucket.group)
        return bucket.buffer() / bucket.group.nranks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self._thread.shutdown()


def average_on_a_thread(group, options, steps) -> list:
    """Returns whether the averages of each step were correct."""
    layer = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, bias_attr=False))
    layer[1].weight.set_value(paddle.ones([1, 1]))
    sizes = dict.fromkeys(
        ("comm_buffer_size", "last_comm_buffer_size"), ONE_PER_BUCKET
    )
    wrapped = paddle.DataParallel(layer, group=group, **sizes, **options)
    found = []
    with OnAThread(group) as hook:
        wrapped.register_comm_hook(None, hook)
        for step in range(steps):
            layer.clear_gradients()
            wrapped(paddle.full([1, 1], step + group.rank)).sum().backward()
            mean = step + (group.nranks - 1) / 2
            found.append(layer[0].weight.grad.item() == mean)
    return found


def average_sparse_gradients_beside_a_thread(group) -> list:
    layer = nn.Sequential(
        nn.Linear(1, 1), nn.Linear(1, 1), nn.Embedding(3, 1, sparse=True)
    )
    wrapped = paddle.DataParallel(
        nn.LayerList(layer), group=group, comm_buffer_size=ONE_PER_BUCKET
    )
    found = []
    with OnAThread(group) as hook:
        wrapped.register_comm_hook(None, hook)
        for _ in range(3):
            wrapped.clear_gradients()
            rows = layer[2](paddle.to_tensor([group.rank]))
            outputs = layer[0](rows) * 0 + layer[1](rows) * 0 + rows
            wrapped._after_forward(outputs * (group.rank + 1.0))
            (outputs * (group.rank + 1.0)).sum().backward()
            gradient = layer[2].weight.grad
            found.append(gradient.get_selected_rows().rows())
    return found


def new_wrapped_that_fails_once(group):
    layer = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    wrapped = paddle.DataParallel(
        layer,
        group=group,
        comm_buffer_size=ONE_PER_BUCKET,
        last_comm_buffer_size=ONE_PER_BUCKET,
    )
    failing = [1]

    def fail_once():
        if failing:
            failing.clear()
            raise KeyError("of all ranks")

    layer[0].weight._register_backward_hook(fail_once)
    return layer, wrapped


def loss_of_rank(wrapped, group):
    return wrapped(paddle.ones([1, 1])).sum() * (group.rank + 1.0)


def continue_on_a_thread_after_an_error(group) -> list:
    """Backward fails on all ranks while the thread may communicate."""
    layer, wrapped = new_wrapped_that_fails_once(group)
    with OnAThread(group) as hook:
        wrapped.register_comm_hook(None, hook)
        for _ in range(2):
            layer.clear_gradients()
            with contextlib.suppress(KeyError):
                loss_of_rank(wrapped, group).backward()
    return layer[1].bias.grad.tolist()


class ThenAverages:
    """A hook that returns `first`'s futures until `averages` is set."""

    averages = False

    def __init__(self, first):
        self._first = first

    def __call__(self, _, bucket):
        if not self.averages:
            return self._first()
        return comm_hooks.allreduce_hook(None, bucket)


def continue_after_a_shutdown(group) -> list:
    """An executor cancels the futures of the failed step."""
    layer, wrapped = new_wrapped_that_fails_once(group)
    busy = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        executor.submit(busy.wait)
        hook = ThenAverages(lambda: executor.submit(int))
        wrapped.register_comm_hook(None, hook)
        with contextlib.suppress(KeyError):
            loss_of_rank(wrapped, group).backward()
        executor.shutdown(wait=False, cancel_futures=True)
        busy.set()
    hook.averages = True
    layer.clear_gradients()
    loss_of_rank(wrapped, group).backward()
    return layer[1].bias.grad.tolist()


def continue_beside_an_endless_hook(group) -> list:
    """Returns the error of the second step, and the gradient of the third."""
    layer, wrapped = new_wrapped_that_fails_once(group)
    future = concurrent.futures.Future()
    hook = ThenAverages(lambda: future)
    wrapped.register_comm_hook(None, hook)
    with contextlib.suppress(KeyError):
        loss_of_rank(wrapped, group).backward()
    hook.averages = True
    try:
        loss_of_rank(wrapped, group).backward()
    except RuntimeError as raised:
        error = str(raised)
    future.cancel()
    layer.clear_gradients()
    loss_of_rank(wrapped, group).backward()
    return [error, layer[1].bias.grad.item()]


def continue_with_the_timeout_of_a_group(_) -> list:
    timeout = datetime.timedelta(seconds=3)
    return continue_beside_an_endless_hook(
        dist.new_group(backend="shm", timeout=timeout)
    )


def continue_with_the_timeout_of_the_environment(group) -> list:
    with mock.patch.object(_get_global_env(), "_pg_timeout", 3000):
        return continue_beside_an_endless_hook(group)


class ThreadedHookCases:
    def assert_error_names_endless_hook(self, continue_beside):
        for error, gradient in self.call(continue_beside):
            self.assertRegex(error, r"waited 3 s, .* for '1\.bias'")
            self.assertEqual(gradient, (self.size + 1) / 2)

    def test_a_future_may_communicate_on_a_thread(self):
        for options in (
            {},
            {"gradient_as_bucket_view": True},
            {"find_unused_parameters": True},
            {"static_graph": True},
        ):
            with self.subTest(options=options):
                found = self.call(average_on_a_thread, options, 3)
                self.assertEqual(found, [[True] * 3] * self.size)

    def test_a_thread_may_communicate_when_skipped_passes_are_exchanged(self):
        found = self.call(average_on_a_thread, {}, 18)
        self.assertEqual(found, [[True] * 18] * self.size)

    def test_sparse_gradients_are_gathered_when_the_threads_are_done(self):
        found = self.call(average_sparse_gradients_beside_a_thread)
        rows = [*range(self.size)]
        self.assertEqual(found, [[rows] * 3] * self.size)

    def test_a_step_waits_for_the_threads_of_a_failed_step(self):
        mean = (self.size + 1) / 2
        found = self.call(continue_on_a_thread_after_an_error)
        self.assertEqual(found, [[mean]] * self.size)

    def test_a_step_does_not_wait_for_futures_that_a_shutdown_cancelled(self):
        mean = (self.size + 1) / 2
        found = self.call(continue_after_a_shutdown)
        self.assertEqual(found, [[mean]] * self.size)


class HookCases:
    def test_allreduce_hook_equals_the_default(self):
        for found in self.call(with_hook, "allreduce_hook"):
            self.assert_same_bits(found["hook"], found["exact"])

    def test_float16_averages_are_means_of_rounded_gradients(self):
        for found in self.call(with_hook, "fp16_compress_hook"):
            parts = zip(*found["local"])
            for one, views, local in zip(found["hook"], found["views"], parts):
                rounded = [each.astype("float16") for each in local]
                mean = np.mean(np.float32(rounded), axis=0)
                np.testing.assert_allclose(one, mean, rtol=1e-3, atol=1e-6)
                self.assertEqual(
                    one.tobytes(),
                    one.astype("float16").astype("float32").tobytes(),
                )
                self.assertEqual(one.tobytes(), views.tobytes())

    def test_bfloat16_averages_have_eight_bits_of_precision(self):
        for found in self.call(with_hook, "bf16_compress_hook"):
            for one, exact in zip(found["hook"], found["exact"]):
                largest = np.abs(exact).max()
                np.testing.assert_allclose(
                    one, exact, rtol=2**-6, atol=largest * 2**-7
                )
                self.assertEqual((one.view("uint32") & 0xFFFF).max(), 0)

    def test_8_bit_averages_are_within_the_documented_error(self):
        for found in self.call(with_hook, "quantization_8bit_hook"):
            largest = max(
                np.abs(each).max() for part in found["local"] for each in part
            )
            different = False
            for one, exact in zip(found["hook"], found["exact"]):
                self.assertLessEqual(
                    np.abs(one - exact).max(), largest / 254 * 1.001
                )
                different |= (one != exact).any()
            self.assertTrue(different)

    def test_an_infinite_gradient_reaches_all_ranks(self):
        for name in (
            "allreduce_hook",
            "fp16_compress_hook",
            "bf16_compress_hook",
            "quantization_8bit_hook",
        ):
            found = self.call(send_infinity, name)
            self.assertEqual(found, [False] * self.size)

    def test_a_step_that_overflows_on_one_rank_is_skipped_on_all(self):
        for name in (
            "fp16_compress_hook",
            "quantization_8bit_hook",
            "powerSGD_hook",
        ):
            with self.subTest(name):
                self.assert_step_skipped_on_all({}, RegisterHook(name))

    def test_all_ranks_get_equal_parameters_and_the_loss_falls(self):
        for name in (
            "fp16_compress_hook",
            "bf16_compress_hook",
            "quantization_8bit_hook",
            "powerSGD_hook",
        ):
            with self.subTest(name=name):
                first, *others = self.call(train_with, name)
                for other in others:
                    self.assert_same_bits(first[0], other[0])
                self.assertLess(first[1][-1], first[1][0] / 2)

    def test_power_sgd_is_exact_if_the_rank_suffices(self):
        # A rank's gradient has rank 1.
        for found in self.call(approximate, self.size, 5):
            for one, exact in zip(found["found"], found["exact"]):
                np.testing.assert_allclose(one, exact, rtol=1e-3, atol=1e-3)

    def test_power_sgd_approximates_after_the_first_exact_steps(self):
        for found in self.call(approximate, 1, 4):
            ranks = [
                np.linalg.matrix_rank(each, tol=1e-4) for each in found["found"]
            ]
            self.assertEqual(ranks, [self.size, self.size, 1, 1])

    def test_error_feedback_corrects_approximation_errors(self):
        for found in self.call(repeat_one_gradient, True):
            self.assertLess(found, 0.1)
        for found in self.call(repeat_one_gradient, False):
            self.assertGreater(found, 0.1)

    def test_a_new_process_resumes_from_a_saved_power_sgd_state(self):
        for bucket_size in (ONE_PER_BUCKET, 1):
            for options in ({}, {"warm_start": False}):
                with (
                    self.subTest(bucket_size=bucket_size, options=options),
                    tempfile.TemporaryDirectory() as folder,
                ):
                    args = folder, bucket_size, options
                    for found, expected in self.call(resume_training, *args):
                        self.assert_same_sums(found, expected)

    def test_power_sgd_does_not_depend_on_the_buckets(self):
        for found, expected in self.call(use_different_buckets):
            self.assert_same_sums(found, expected)

    def test_a_hook_may_return_a_tensor_or_a_future(self):
        for kind in ("tensor", "concurrent.futures", "future"):
            first, *others = self.call(double, kind)
            if kind == "future":
                for other in others:
                    self.assert_same_bits(first, other)
            for found in (first, *others):
                self.assertGreater(np.abs(found[0]).max(), 0)


class TestOverGloo(HookCases, ThreadedHookCases, RanksCase):
    def test_an_endless_hook_is_an_error_after_the_default_timeout(self):
        self.assert_error_names_endless_hook(
            continue_with_the_timeout_of_the_environment
        )

    def test_a_hook_receives_the_state_and_each_bucket(self):
        for seen, found in self.call(see_buckets):
            self.assertEqual(
                seen,
                [["a state", n, n == 5, True, 7.0] for n in range(6)],
            )
            self.assertEqual(found, {7.0})

    def test_buffers_are_not_in_shared_memory(self):
        for seen in self.call(see_where_buffers_are, 1.0, False):
            self.assertEqual(seen, [False] * 6)

    def test_an_invalid_hook_result_is_an_error(self):
        for call, pattern in (
            (
                return_other_size,
                "ValueError: .* with the size .* 9 elements of",
            ),
            (return_other_type, "ValueError: .* type .* of paddle.float64"),
            (return_a_number, "TypeError: .* future of a tensor, .* type int"),
            (
                return_a_task,
                r"TypeError: .* type \w*[tT]ask\w*, whose wait\(\) returned .*"
                r"To return the task .*comm_hooks\.Future\(function\)",
            ),
        ):
            for error in self.errors(call):
                self.assertRegex(error, pattern)

    def test_backward_raises_the_error_of_a_hook(self):
        for error in self.errors(fail):
            self.assertEqual(error, "ValueError: no bucket today")

    def test_a_step_after_an_invalid_hook_result_is_correct(self):
        mean = (self.size + 1) / 2
        for weight, bias in self.call(continue_after_a_wrong_result):
            self.assertEqual(weight.tolist(), [[mean] * 2] * 2)
            self.assertEqual(bias.tolist(), [mean] * 2)

    def test_exactly_one_bucket_is_the_last_with_sparse_gradients(self):
        for steps in self.call(last_buckets_of_a_sparse_model):
            self.assertEqual(steps, [[1, True]] * 2)

    def test_only_one_callable_hook_can_be_registered(self):
        for error in self.errors(register_twice):
            self.assertRegex(error, "already has a communication hook")
        for error in self.errors(register_a_number):
            self.assertRegex(error, "TypeError: .* callable, but received 5")

    def test_the_options_of_power_sgd_are_checked(self):
        with self.assertRaisesRegex(ValueError, "at least 1, but received 0"):
            comm_hooks.PowerSGDState(matrix_approximation_rank=0)
        with self.assertRaisesRegex(ValueError, "random_seed .* received -1"):
            comm_hooks.PowerSGDState(random_seed=-1)

    def test_a_power_sgd_state_without_parameter_names_is_refused(self):
        state = comm_hooks.PowerSGDState()
        valid = state.state_dict()
        by_bucket = {**valid, "errors": {(0, 1): np.zeros([2, 2])}}
        with self.assertRaisesRegex(
            ValueError, r"has the key \(0, 1\), .* with a new PowerSGDState"
        ):
            state.set_state_dict(by_bucket)
        del valid["random_seed"]
        with self.assertRaisesRegex(ValueError, r"lacks \['random_seed'\]"):
            state.set_state_dict(valid)

        with self.assertRaisesRegex(ValueError, "must be a dict, .* None"):
            state.set_state_dict(None)

    def test_a_random_seed_must_be_an_integer(self):
        for seed in (-1, 1 << 32, 0.5, "1"):
            with self.assertRaisesRegex(ValueError, "random_seed must be an"):
                comm_hooks.PowerSGDState(random_seed=seed)

    def test_a_restored_parameter_that_the_model_lacks_is_warned_of(self):
        for warning, names in self.call(restore_state_of_a_lacking_parameter):
            self.assertRegex(
                warning, r"for \['lacking'\], too, which this model"
            )
            self.assertNotIn("lacking", names)

    def test_an_error_names_a_parameter_that_does_not_fit_the_state(self):
        for error in self.errors(restore_state_of_another_model):
            self.assertRegex(
                error,
                r"error of shape \[24, 16\] for 'weight', .* \[32, 16\] as a "
                "matrix. Restore a state of the same model",
            )


@has_shared_memory_groups
class TestOverSharedMemory(HookCases, ThreadedHookCases, RanksCase):
    kind = "shm"

    def test_an_endless_hook_is_an_error_after_the_timeout_of_its_group(self):
        self.assert_error_names_endless_hook(
            continue_with_the_timeout_of_a_group
        )

    def test_hooks_accept_empty_gradients(self):
        for name in HOOKS:
            with self.subTest(name=name):
                found = self.call(train_with_an_empty_parameter, name)
                np.testing.assert_allclose(found, [[1.5] * 3] * 2, rtol=1e-2)

    def test_ranks_in_different_steps_after_an_error_do_not_average(self):
        # All buckets have the same size, so the group cannot tell them apart.
        ranks = Ranks(2, "fork")
        self.addCleanup(ranks.end)
        first, second = ranks.call(
            self.kind, continue_after_an_error_on_one_rank
        )
        self.assertEqual(first[:1], second[:1])
        self.assertEqual(second[1], "its own")
        for error in (*first[1:], *second[2:]):
            self.assertRegex(
                str(error), "All ranks must call the same operations"
            )

    def test_buffers_are_in_shared_memory_if_there_is_room(self):
        for share_of_free, is_full, is_shared in (
            (1.0, False, True),
            (0.0, False, False),
            (1.0, True, False),
        ):
            for seen in self.call(
                see_where_buffers_are, share_of_free, is_full
            ):
                self.assertEqual(seen, [is_shared] * 6)

    def test_there_is_room_if_the_buffers_of_all_ranks_fit(self):
        enough = self.size * 4000
        for free, expected in ((enough - 1, False), (enough, True)):
            self.assertEqual(self.call(is_moved, free), [expected] * self.size)


@functools.cache
def pair_of_this_rank() -> Group:
    """Returns one of two groups of two ranks."""
    # Creating groups over gloo sometimes times out on a busy machine.
    pairs = [dist.new_group(ranks, backend="shm") for ranks in ([0, 1], [2, 3])]
    return pairs[dist.get_rank() // 2]


def average_in_pairs(group, name) -> list:
    """Trains two groups of two ranks; returns a gradient of each step.

    The state of the hook does not name a group.
    """
    # Large enough for PowerSGD to approximate; its gradient has rank 1.
    layer = nn.Linear(8, 8, bias_attr=False)
    wrapped = paddle.DataParallel(layer, group=pair_of_this_rank())
    state = None
    if name == "powerSGD_hook":
        state = comm_hooks.PowerSGDState(start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, getattr(comm_hooks, name))
    found = []
    for _ in range(4):
        layer.clear_gradients()
        wrapped(paddle.full([1, 8], group.rank + 1.0)).sum().backward()
        found.append(layer.weight.grad.mean().item())
    return found


@has_shared_memory_groups
class TestPairs(RanksCase):
    size = 4

    def test_hooks_average_over_the_group_of_their_data_parallel(self):
        for name in HOOKS:
            with self.subTest(name=name):
                found = self.call(average_in_pairs, name)
                for rank, each in enumerate(found):
                    mean = [1.5, 1.5, 3.5, 3.5][rank]
                    np.testing.assert_allclose(each, [mean] * 4, rtol=1e-5)


class TestOverLateGroup(HookCases, RanksCase):
    kind = "late"


class TestThreeRanks(HookCases, RanksCase):
    size = 3


@has_shared_memory_groups
class TestThreeRanksOverSharedMemory(HookCases, RanksCase):
    size = 3
    kind = "shm"


if __name__ == "__main__":
    unittest.main()
