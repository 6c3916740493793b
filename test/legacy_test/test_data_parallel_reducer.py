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
"""The reducer of paddle.DataParallel, which averages gradients over ranks."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import gc
import inspect
import operator
import pickle
import re
import threading
import unittest
import warnings
import weakref
from unittest import mock

import numpy as np
from concurrent_base import WAIT_S
from data_parallel_base import (
    ONE_PER_BUCKET,
    Ranks,
    RanksCase,
    gradients,
    has_shared_memory_groups,
    loss_of,
    new_layer,
    random_batches,
    train_alone,
    values,
)

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.distributed.data_parallel import model_sync
from paddle.distributed.data_parallel.buckets import (
    DEFAULT_LIMIT,
    ReducedParameter,
    assign_buckets,
)
from paddle.distributed.fleet.utils import recompute

OPTIONS = (
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    {"static_graph": True},
    {"static_graph": True, "gradient_as_bucket_view": True},
)


def parallel(layer, group, **options) -> paddle.DataParallel:
    options.setdefault("comm_buffer_size", 0.002)
    options.setdefault("last_comm_buffer_size", 0.001)
    return paddle.DataParallel(layer, group=group, **options)


def train(group, options, set_to_zero=True) -> dict:
    """Trains ranks that start with different parameters."""
    layer = parallel(new_layer(group.rank), group, **options)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=layer.parameters())
    batches = random_batches(4, group.nranks)
    for batch in batches:
        loss_of(layer, batch[group.rank]).backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=set_to_zero)
    return {
        "group": values(layer),
        "alone": train_alone(new_layer(0), batches, group.nranks),
        "untrained": values(new_layer(0)),
    }


def accumulate(group, options) -> dict:
    """Accumulates two parts under no_sync(), and averages with a third."""
    layer = parallel(new_layer(0), group, **options)
    batches = random_batches(3, group.nranks)
    with layer.no_sync():
        for batch in batches[:2]:
            loss_of(layer, batch[group.rank]).backward()
        local = gradients(layer)
    loss_of(layer, batches[2][group.rank]).backward()
    alone = new_layer(0)
    for batch in batches:
        for part in batch:
            (loss_of(alone, part) / group.nranks).backward()
    return {
        "group": gradients(layer),
        "local": local,
        "alone": gradients(alone),
    }


def copy_and_train(group, options) -> dict:
    """Trains a deep copy, which only the first rank makes a second time."""
    wrapped = parallel(new_layer(0), group, **options)
    wrapped.register_comm_hook(None, lambda _, bucket: bucket.buffer())
    first, second = random_batches(2, group.nranks)
    loss_of(wrapped, first[group.rank]).backward()
    local = gradients(wrapped)
    copied = copy.deepcopy(wrapped)
    if group.rank == 0:
        copy.deepcopy(wrapped)
    copied.clear_gradients()
    loss_of(copied, second[group.rank]).backward()
    alone = new_layer(0)
    for part in second:
        (loss_of(alone, part) / group.nranks).backward()
    return {
        "original": gradients(wrapped),
        "local": local,
        "copy": gradients(copied),
        "alone": gradients(alone),
    }


def copy_a_frozen_model(group) -> list:
    """Evaluates a copy on the first rank alone."""
    wrapped = parallel(new_layer(0), group)
    for each in wrapped.parameters():
        each.stop_gradient = True
    copied = copy.deepcopy(wrapped)
    if group.rank == 0:
        copied(paddle.ones([1, 6]))
    return [copied._layers is wrapped._layers]


def add_up_two_averages(group, options) -> list:
    layer = parallel(nn.Linear(1, 1, bias_attr=False), group, **options)
    for factor in (1.0, 10.0):
        layer(paddle.full([1, 1], factor * (group.rank + 1))).sum().backward()
    return layer.parameters()[0].grad.item()


class Branches(nn.Layer):
    """Only the last rank uses `right`, and no rank uses `never`."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x, uses_right):
        return self.left(x) + (self.right(x) if uses_right else 0)


def train_branches(group, options) -> list:
    """Returns the gradients of three steps; only the last rank uses `right`."""
    layer = Branches()
    wrapped = parallel(layer, group, **options)
    is_last = group.rank == group.nranks - 1
    found = []
    for step in range(3):
        inputs = paddle.full([1, 2], (step + 1) * (group.rank + 1.0))
        wrapped(inputs, is_last).sum().backward()
        found.append(
            [
                layer.left.weight.grad[0, 0].item(),
                layer.right.weight.grad[0, 0].item(),
                layer.never.weight.grad,
            ]
        )
        layer.clear_gradients()
    return found


def start_with_penalty(group) -> list:
    """Adds a term of a parameter that the outputs do not depend on."""
    layer = Branches()
    wrapped = parallel(layer, group)
    found = []
    for _ in range(2):
        outputs = wrapped(paddle.ones([1, 2]), True).sum()
        penalty = (layer.never.bias * (group.rank + 1.0)).sum()
        (outputs + penalty).backward()
        found.append(layer.never.bias.grad.tolist())
        layer.clear_gradients()
    return found


def use_more_than_in_the_first_step(group) -> None:
    wrapped = parallel(Branches(), group)
    for uses_right in (False, True):
        wrapped(paddle.ones([1, 2]), uses_right).sum().backward()


def use_more_under_no_sync(group) -> None:
    wrapped = parallel(Branches(), group)
    wrapped(paddle.ones([1, 2]), False).sum().backward()
    with wrapped.no_sync():
        wrapped(paddle.ones([1, 2]), True).sum().backward()
    wrapped(paddle.ones([1, 2]), False).sum().backward()


def start_with_other_outputs(group) -> list:
    """The first forward is not trained, or its outputs need no gradients."""
    layer = Branches()
    wrapped = parallel(layer, group)
    wrapped(paddle.ones([1, 2]), False)
    with paddle.no_grad():
        outputs = layer(paddle.ones([1, 2]), False)
    wrapped._after_forward(outputs)
    wrapped(paddle.full([1, 2], group.rank + 1.0), True).sum().backward()
    return layer.right.weight.grad[0].tolist()


def use_branches(group, options, steps=1) -> list:
    layer = Branches()
    wrapped = parallel(layer, group, **options)
    is_last = group.rank == group.nranks - 1
    layer.never.bias.grad = paddle.full([2], group.rank + 3.0)
    for _ in range(steps):
        wrapped(paddle.ones([1, 2]), is_last).sum().backward()
    return [
        None if bias.grad is None else bias.grad.tolist()
        for bias in (layer.left.bias, layer.right.bias, layer.never.bias)
    ] + [layer.never.weight.grad]


def drop_local_gradients(group, options) -> list:
    """Returns for steps without a parameter whether it has no gradient.

    Its local gradients, of no_sync() or of a step whose hook failed, were
    dropped.
    """
    ways = [use_right_under_no_sync]
    if options.get("find_unused_parameters"):
        # With other options, a step that fails decides what later steps use.
        ways.append(use_right_in_a_failing_step)
    found = []
    for use_right in ways:
        layer = Branches()
        wrapped = parallel(layer, group, **options)
        use_right(wrapped)
        assert layer.right.weight.grad is not None
        layer.clear_gradients(set_to_zero=False)
        for _ in range(2):
            wrapped(paddle.ones([1, 2]), False).sum().backward()
            found.append(layer.right.weight.grad is None)
            layer.clear_gradients(set_to_zero=False)
    return found


def use_right_under_no_sync(wrapped) -> None:
    with wrapped.no_sync():
        wrapped(paddle.ones([1, 2]), True).sum().backward()


def use_right_in_a_failing_step(wrapped) -> None:
    def fail_once(state, bucket):
        if not failed:
            failed.append(True)
            raise KeyError("of a communication hook")
        dist.all_reduce(bucket.buffer(), group=bucket.group)
        return bucket.buffer() / bucket.group.nranks

    failed = []
    wrapped.register_comm_hook(None, fail_once)
    with contextlib.suppress(KeyError):
        wrapped(paddle.ones([1, 2]), True).sum().backward()


@dataclasses.dataclass
class Output:
    value: paddle.Tensor


class OpaqueOutput:
    """An object whose tensors DataParallel cannot find."""

    def __init__(self, value):
        self.value = value


class PartlyOpaqueBranches(Branches):
    """DataParallel finds only one of the two tensors that this returns."""

    def forward(self, x):
        return self.left(x), OpaqueOutput(self.right(x))


def use_partly_opaque_outputs(group) -> None:
    wrapped = parallel(
        PartlyOpaqueBranches(), group, find_unused_parameters=True
    )
    found, hidden = wrapped(paddle.ones([1, 2]))
    (found + hidden.value).sum().backward()


class SlottedOutput:
    """A dataclass without `__dict__`; one of its fields is not set."""

    __slots__ = ("missing", "value")
    missing: paddle.Tensor
    value: paddle.Tensor

    def __init__(self, value):
        self.value = value


SlottedOutput = dataclasses.dataclass(init=False)(SlottedOutput)


@dataclasses.dataclass
class CyclicOutput:
    value: paddle.Tensor
    itself: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.itself.append(self)


class WrappedBranches(Branches):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x, uses_right):
        return self.wrap(super().forward(x, uses_right))


def use_wrapped_branches(group, wrap) -> list:
    """Returns a gradient after two steps, in which no rank uses `never`."""
    layer = WrappedBranches(wrap)
    wrapped = parallel(layer, group, find_unused_parameters=True)
    for _ in range(2):
        outputs = wrapped(paddle.full([1, 2], group.rank + 1.0), True)
        outputs.value.sum().backward()
    return layer.left.weight.grad.tolist()


def cast_after_construction(group, options) -> list:
    layer = OfType("float32")
    wrapped = parallel(layer, group, **options)
    layer.to(dtype="bfloat16")
    for _ in range(2):
        layer.clear_gradients()
        wrapped(paddle.full([3], group.rank + 1.0)).sum().backward()
    gradient = layer.weight.grad
    return [str(gradient.dtype), gradient.astype("float32").tolist()]


def use_second_layer_in_every_other_step(group) -> list:
    layer = Branches()
    wrapped = parallel(layer, group, find_unused_parameters=True)
    seen = []
    for uses_right in (True, False, True):
        wrapped(paddle.ones([1, 2]), uses_right).sum().backward()
        seen.append(layer.right.bias.grad.tolist())
        layer.left.clear_gradients()
    return seen


def add_to_average_of_other_ranks(group) -> list:
    """In the second step only rank 0 uses `right`; in the others all do."""
    layer = Branches()
    wrapped = parallel(layer, group, find_unused_parameters=True)
    wrapped(paddle.ones([1, 2]), True).sum().backward()
    layer.clear_gradients()
    for uses_right in (group.rank == 0, True):
        wrapped(paddle.ones([1, 2]), uses_right).sum().backward()
    return layer.right.bias.grad.tolist()


def add_to_average_after_clearing(group, options, use_right) -> list:
    """Clears the local gradient of `right`, which only the last rank uses in
    the next step, and all ranks in the one after it.
    """
    layer = Branches()
    wrapped = parallel(layer, group, find_unused_parameters=True, **options)
    use_right(wrapped)
    layer.clear_gradients()
    for uses_right in (group.rank == group.nranks - 1, True):
        wrapped(paddle.ones([1, 2]), uses_right).sum().backward()
    return layer.right.bias.grad.tolist()


def leave_out_parameters(group) -> None:
    wrapped = parallel(Branches(), group)
    for uses_right in (True, False, False):
        wrapped(paddle.ones([1, 2]), uses_right).sum().backward()


def continue_after_a_missing_gradient(group) -> list:
    """In the second step, the last rank leaves out a parameter."""
    layer = Branches()
    wrapped = parallel(
        layer,
        group,
        comm_buffer_size=ONE_PER_BUCKET,
        last_comm_buffer_size=ONE_PER_BUCKET,
    )
    found = []
    for step in range(5):
        inputs = paddle.full([1, 2], 10.0**step)
        try:
            uses_right = step != 1 or group.rank < group.nranks - 1
            wrapped(inputs, uses_right).sum().backward()
            found.append(layer.left.weight.grad[0, 0].item())
        except RuntimeError as error:
            found.append(str(error))
        layer.clear_gradients()
    return found


def run_backward_twice(group) -> None:
    """Runs a separate backward pass for each of two heads of one network."""
    layer = new_layer(0)
    wrapped = parallel(nn.LayerList([layer, nn.Linear(3, 3)]), group)
    first = layer(paddle.ones([1, 6]))
    second = wrapped._layers[1](first)
    wrapped._after_forward([first, second])
    first.sum().backward(retain_graph=True)
    second.sum().backward()


def run_backward_twice_on_a_static_graph(group) -> list:
    """Returns the error of the second backward(), and of the next step."""
    layer = TwoOutputs()
    wrapped = parallel(layer, group, static_graph=True)
    found = []
    for _ in range(2):
        outputs = wrapped(paddle.ones([1, 2]))
        outputs["left"].sum().backward()
        try:
            outputs["right"][0].sum().backward()
        except RuntimeError as error:
            found.append(str(error))
    return found


class MixedTypes(nn.Layer):
    """Parameters whose buckets differ if they are assigned a second time."""

    def __init__(self):
        super().__init__()
        self.list = nn.ParameterList(
            [
                paddle.create_parameter([size], dtype)
                for size, dtype in (
                    (1000, "float64"),
                    (1, "float64"),
                    (4000, "float64"),
                    (1000, "float64"),
                    (1000, "float64"),
                    (4000, "float32"),
                    (4000, "float32"),
                    (100, "float32"),
                )
            ]
        )

    def forward(self, x):
        terms = [(each.astype("float64") * x).sum() for each in self.list]
        return sum(terms)


def members_of_buckets(wrapped) -> list:
    return [list(bucket.members) for bucket in wrapped._reducer.buckets]


def fail_in_backward(tensor) -> None:
    """Runs a backward pass of `tensor` that fails at its end."""

    def fail(gradient):
        raise KeyError("of a hook")

    leaf = paddle.zeros([], "float64")
    leaf.stop_gradient = False
    leaf.register_hook(fail)
    # Backward computes other gradients before it reaches the leaf.
    zero = functools.reduce(operator.mul, [1.0] * 50, leaf)
    try:
        (tensor + zero).backward(retain_graph=True)
    except OSError:  # Paddle turns a tensor hook's error into this.
        return
    raise AssertionError("no error in backward")


def old_buckets_at_rebuild(group) -> set:
    """Returns whether old buckets exist when the first step makes new ones."""
    wrapped = parallel(new_layer(0), group, comm_buffer_size=ONE_PER_BUCKET)
    reducer, found = wrapped._reducer, set()
    old = [weakref.ref(bucket) for bucket in reducer.buckets]
    make = reducer._make_bucket

    def make_and_look(*args):
        found.add(any(bucket() is not None for bucket in old))
        return make(*args)

    with mock.patch.object(reducer, "_make_bucket", make_and_look):
        loss_of(wrapped, paddle.ones([2, 6])).backward()
    return found


def wrap_without_descriptions(group) -> bool:
    with mock.patch.object(model_sync, "gather_texts", side_effect=KeyError):
        parallel(new_layer(0), group)
    return True


def buckets_around_errors(group) -> list:
    """Returns the buckets before an error, after one in a step, and after one
    in a second backward pass."""
    wrapped = parallel(
        MixedTypes(), group, comm_buffer_size=0.03, last_comm_buffer_size=0.001
    )
    x = paddle.ones([1], "float64")
    wrapped(x).backward()
    found = [members_of_buckets(wrapped)]
    fail_in_backward(wrapped(x))
    found.append(members_of_buckets(wrapped))
    outputs = wrapped(x)
    outputs.backward(retain_graph=True)
    fail_in_backward(outputs)
    return [*found, members_of_buckets(wrapped)]


class TwoOutputs(nn.Layer):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return {"left": self.left(x), "right": [self.right(x)]}


def backward_of_each_output(group) -> list:
    layer = TwoOutputs()
    wrapped = parallel(layer, group)
    outputs = wrapped(paddle.full([1, 2], group.rank + 1.0))
    outputs["left"].sum().backward()
    outputs["right"][0].sum().backward()
    return [layer.left.weight.grad.tolist(), layer.right.weight.grad.tolist()]


def drop_data_parallel_before_backward(group) -> list:
    layer = nn.Linear(1, 1)
    outputs = parallel(layer, group)(paddle.full([1, 1], group.rank + 1.0))
    gc.collect()
    outputs.sum().backward()
    return layer.weight.grad.tolist()


def warn_of_late_gradients(group) -> list:
    layer = parallel(new_layer(0), group)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            outputs = layer(paddle.ones([1, 6]))
            for _ in range(3):
                outputs.sum().backward(retain_graph=True)
    return [str(each.message) for each in caught]


def forward_without_backward(group) -> list:
    """Only rank 0 runs an extra forward, as for an evaluation."""
    layer = parallel(new_layer(0), group, find_unused_parameters=True)
    if group.rank == 0:
        layer(paddle.ones([1, 6]))
    loss_of(layer, random_batches(1, group.nranks)[0][group.rank]).backward()
    return gradients(layer)


def evaluate_on_rank_0_alone(group) -> list:
    layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1D(2))
    wrapped = parallel(layer, group)
    if group.rank == 0:
        wrapped.eval()
        with paddle.no_grad():
            wrapped(paddle.ones([3, 2]))
        wrapped.train()
    wrapped(paddle.randn([3, 2])).sum().backward()
    return gradients(layer)


def leave_out_backward(group, options, how) -> bool:
    """Trains until an exchange; returns whether there was a warning.

    In the second step, the last rank runs another forward pass, or multiplies
    its loss by 0.
    """
    layer = new_layer(0)
    wrapped = parallel(layer, group, **options)
    part = paddle.full([2, 6], group.rank + 1.0)
    is_last = group.rank == group.nranks - 1
    for step in range(18):
        loss = loss_of(wrapped, part)
        if step == 1 and (is_last or how == "skip on all ranks"):
            if how == "evaluate":
                wrapped.eval()
                loss_of(wrapped, part)
                wrapped.train()
            elif how == "evaluate the layer inside":
                layer.eval()
                loss_of(wrapped, part)
                layer.train()
            elif how == "evaluate under no_grad":
                with paddle.no_grad():
                    loss_of(wrapped, part)
            elif how == "add up losses":
                loss = loss + loss_of(wrapped, part)
            elif how == "multiply by 0":
                loss = loss * 0
            else:
                loss = loss_of(wrapped, part)
        loss.backward()
    return [wrapped._reducer.skipped_passes.has_warned]


def warnings_of_skipped_backward(group) -> list:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = parallel(new_layer(0), group)
        for step in range(50):
            loss = loss_of(wrapped, paddle.ones([2, 6]))
            if step == 1 and group.rank == 1:
                loss = loss_of(wrapped, paddle.ones([2, 6]))
            loss.backward()
    return [str(each.message) for each in caught]


class Classifier(nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        return outputs if self.training else outputs.argmax(-1)


def evaluate_without_gradients_on_rank_0(group) -> list:
    layer = Classifier()
    wrapped = parallel(layer, group, find_unused_parameters=True)
    if group.rank == 0:
        wrapped.eval()
        wrapped(paddle.ones([1, 2]))
        wrapped.train()
    (wrapped(paddle.ones([1, 2])) * (group.rank + 1.0)).sum().backward()
    return layer.linear.bias.grad.tolist()


def buffers_of_each_rank(group) -> list:
    layer = nn.Linear(2, 2)
    own = paddle.full([1], 0.0)
    own.no_sync = True
    layer.register_buffer("own", own)
    # Gloo cannot send this type.
    layer.register_buffer(
        "cache", paddle.full([1], 0, "complex64"), persistable=False
    )
    wrapped = parallel(layer, group, broadcast_buffers=True)
    own.set_value(paddle.full([1], float(group.rank)))
    layer.cache.set_value(paddle.full([1], group.rank, "complex64"))
    wrapped(paddle.ones([1, 2])).sum().backward()
    return [own.item(), layer.cache.item().real]


def continue_after_an_error(group) -> list:
    """Backward fails on all ranks, after a bucket was started."""
    layer = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    wrapped = parallel(
        layer,
        group,
        comm_buffer_size=ONE_PER_BUCKET,
        last_comm_buffer_size=ONE_PER_BUCKET,
    )

    def fail(gradient):
        raise KeyError("of a hook")

    def fail_in_backward(layer, inputs, outputs):
        outputs.register_hook(fail)

    def step(number):
        layer.clear_gradients()
        inputs = paddle.full([1, 3], number * (group.rank + 1.0))
        wrapped(inputs).sum().backward()
        return gradients(layer)

    before = step(1)
    hook = layer[0].register_forward_post_hook(fail_in_backward)
    try:
        step(100)
    except OSError:  # Paddle turns a tensor hook's error into this.
        hook.remove()
        return [before, step(1)]


def begin(group) -> list:
    paddle.seed(group.rank)
    layer = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1D(2))
    layer[0].register_buffer("counter", paddle.full([1], group.rank, "int64"))
    layer[1]._mean.set_value(paddle.full([2], float(group.rank)))
    parallel(layer, group)
    return [each.numpy() for each in layer.state_dict().values()]


def buffers_after_training(group, options) -> list:
    layer = nn.BatchNorm1D(2)
    layer.register_buffer("seen", paddle.zeros([1]))
    wrapped = parallel(layer, group, **options)
    paddle.seed(group.rank)
    for _ in range(2):
        wrapped(paddle.randn([4, 2])).sum().backward()
        layer.seen.set_value(layer.seen + group.rank + 1)
    # In training mode, forward first receives the buffers of rank 0.
    before = []
    hook = layer.register_forward_pre_hook(
        lambda *_: before.extend([layer._mean.numpy(), layer.seen.numpy()])
    )
    wrapped(paddle.randn([4, 2])).sum().backward()
    hook.remove()
    return before


def differ_in_size(group) -> None:
    parallel(nn.Linear(2, 2 + group.rank), group)


def differ_in_number(group) -> None:
    layer = nn.Linear(2, 2)
    layer.bias.stop_gradient = group.rank == 0
    parallel(layer, group)


def differ_in_order(group) -> list:
    """The last rank computes its gradients in a different order."""
    layer = Branches()
    del layer.never
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped = parallel(layer, group, comm_buffer_size=ONE_PER_BUCKET)
        for _ in range(2):
            x = paddle.full([1, 2], group.rank + 1.0)
            if group.rank == 0:
                outputs = layer.left(paddle.tanh(layer.right(x)) * 0 + x)
            else:
                outputs = layer.right(paddle.tanh(layer.left(x)) * 0 + x)
            wrapped._after_forward(outputs)
            outputs.sum().backward()
            layer_gradients = gradients(layer)
            layer.clear_gradients()
    texts = [str(each.message) for each in caught]
    return [
        [text for text in texts if "different order" in text],
        [float(each.sum()) for each in layer_gradients],
    ]


def names_in_buckets(
    group, comm_buffer_size, last_comm_buffer_size, steps
) -> list:
    layer = nn.LayerDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    wrapped = parallel(
        layer,
        group,
        comm_buffer_size=comm_buffer_size / (1 << 20),
        last_comm_buffer_size=last_comm_buffer_size / (1 << 20),
    )
    for _ in range(steps):
        # Backward reaches `a` first, unlike the order of construction.
        outputs = layer["a"](layer["b"](paddle.ones([1, 4])))
        wrapped._after_forward(outputs)
        outputs.sum().backward()
    return [
        [member.name for member in bucket.members.values()]
        for bucket in wrapped._reducer.buckets
    ]


def delay_first_gradients(group) -> list:
    layer = new_layer(0)
    delayed = [
        (name, each) for name, each in layer.named_parameters() if "4." in name
    ]
    wrapped = parallel(layer, group, delay_all_reduce_named_params=delayed)
    seen = []
    wrapped.register_comm_hook(
        None,
        lambda _, bucket: seen.append(
            (gradient_count[0], [each.shape for each in bucket.gradients()])
        )
        or bucket.buffer(),
    )
    gradient_count = [0]

    def count():
        gradient_count[0] += 1

    for parameter in layer.parameters():
        parameter._register_backward_hook(count)
    wrapped(paddle.ones([1, 6])).sum().backward()
    return seen


def delay_an_unknown_name(group) -> None:
    delayed = [("no.such", paddle.ones([1]))]
    parallel(new_layer(0), group, delay_all_reduce_named_params=delayed)


def delay(group, delayed) -> None:
    parallel(new_layer(0), group, delay_all_reduce_named_params=delayed)


def pickle_a_wrapper(group) -> None:
    pickle.dumps(parallel(new_layer(0), group))


def train_a_shallow_copy(group) -> list:
    """Returns whether the layer is shared, and its gradient."""
    wrapped = parallel(nn.Linear(1, 1, bias_attr=False), group)
    copied = copy.copy(wrapped)
    copied(paddle.full([1, 1], group.rank + 1.0)).sum().backward()
    return [
        copied._layers is wrapped._layers,
        wrapped._layers.weight.grad.item(),
    ]


def gradients_are_views(group, options) -> bool:
    layer = parallel(new_layer(0), group, **options)
    for _ in range(3):
        loss_of(
            layer, random_batches(1, group.nranks)[0][group.rank]
        ).backward()
        views = [
            parameter.grad.data_ptr() == view.data_ptr()
            for bucket in layer._reducer.buckets
            for parameter, view in zip(bucket.parameters(), bucket.gradients())
        ]
        layer.clear_gradients()
    return views


class OfType(nn.Layer):
    """A weight of `dtype`, which few kernels support, and a float32 weight."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = self.create_parameter([3], dtype=dtype)
        self.other = self.create_parameter([1])

    def forward(self, x):
        return self.weight.astype("float32") * x + self.other.astype("float32")


def train_other_types(group, dtype, options) -> list:
    layer = OfType(dtype)
    parallel(layer, group, **options)(
        paddle.full([3], group.rank + 0.25)
    ).sum().backward()
    weight = layer.weight.grad
    return [
        weight.astype("float32").tolist(),
        str(weight.dtype),
        layer.other.grad.tolist(),
    ]


def share_a_parameter(group, options) -> list:
    layer = nn.Linear(1, 1, bias_attr=False)
    layer.weight.set_value(paddle.full([1, 1], 2.0))
    wrapped = parallel(nn.Sequential(layer, layer), group, **options)
    wrapped(paddle.full([1, 1], group.rank + 1.0)).sum().backward()
    return layer.weight.grad.item()


class Recomputed(nn.Layer):
    """Uses one layer in two recomputed segments."""

    def __init__(self):
        super().__init__()
        paddle.seed(0)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x.stop_gradient = False
        for _ in range(2):
            x = recompute(self.linear, x)
        return x


def recompute_activations(group, options) -> list:
    layer = Recomputed()
    wrapped = parallel(layer, group, **options)
    found = []
    for _ in range(2):
        wrapped(paddle.full([1, 6], group.rank + 1.0)).sum().backward()
        found.append(gradients(layer)[0])
        layer.clear_gradients()
    alone = Recomputed()
    for rank in range(group.nranks):
        outputs = alone(paddle.full([1, 6], rank + 1.0))
        (outputs.sum() / group.nranks).backward()
    return [found, gradients(alone)[0]]


class PartlyRecomputed(Branches):
    """Recomputes `right`, so the graph of the outputs does not show it."""

    def forward(self, x):
        x.stop_gradient = False
        return self.left(recompute(self.right, x))


def recompute_a_part(group) -> list:
    layer = PartlyRecomputed()
    for each in (layer.left, layer.right):
        each.weight.set_value(paddle.eye(2))
    wrapped = parallel(layer, group)
    found = []
    for _ in range(2):
        wrapped(paddle.full([1, 2], group.rank + 1.0)).sum().backward()
        both = (layer.left, layer.right)
        found.append([each.weight.grad.tolist() for each in both])
        layer.clear_gradients()
    return found


def recompute_a_part_with_unused_parameters(group) -> None:
    wrapped = parallel(PartlyRecomputed(), group, find_unused_parameters=True)
    wrapped(paddle.ones([1, 2])).sum().backward()


def leave_parameters_alone(group) -> list:
    layer = nn.LayerList([nn.Linear(1, 1, bias_attr=False) for _ in range(3)])
    layer[0].weight.stop_gradient = True
    layer[1].weight.no_sync = True
    wrapped = parallel(layer, group)
    x = paddle.full([1, 1], group.rank + 1.0)
    outputs = sum(each(x) for each in layer)
    wrapped._after_forward(outputs)
    outputs.sum().backward()
    return [gradient.item() for gradient in gradients(layer)]


def compute_gradients_between_steps(group, options, is_wrapped) -> list:
    """Returns the results of paddle.grad, and the gradients of each step."""
    layer = nn.Linear(1, 1, bias_attr=False)
    wrapped = parallel(layer, group, **options)
    x = paddle.full([1, 1], group.rank + 1.0)
    found = []
    for _ in range(3):
        wrapped(x).sum().backward()
        outputs = (wrapped if is_wrapped else layer)(10 * x)
        (local,) = paddle.grad(outputs.sum(), layer.parameters())
        found.append([layer.weight.grad.item(), local.item()])
        layer.clear_gradients()
    return found


def is_freed(group) -> bool:
    wrapped = parallel(new_layer(0), group)
    loss_of(wrapped, random_batches(1, group.nranks)[0][group.rank]).backward()
    layer, reducer = wrapped._layers, weakref.ref(wrapped._reducer)
    del wrapped
    gc.collect()
    # Without the reducer, gradients stay local.
    layer.clear_gradients()
    (layer(paddle.ones([1, 6])).sum() * group.rank).backward()
    return [reducer() is None, float(layer[4].bias.grad.sum())]


def is_kept_by_outputs(group) -> list:
    wrapped = parallel(new_layer(0), group, find_unused_parameters=True)
    outputs = wrapped(paddle.ones([1, 6]))
    reducer = weakref.ref(wrapped._reducer)
    del wrapped
    gc.collect()
    found = [reducer() is not None]
    del outputs
    gc.collect()
    return [*found, reducer() is not None]


class WeaklyReferenced:
    """An object that supports weak references."""


def graph_is_freed(group) -> bool:
    wrapped = parallel(new_layer(0), group, find_unused_parameters=True)
    kept = WeaklyReferenced()
    reference = weakref.ref(kept)
    outputs = wrapped(paddle.ones([1, 6]))
    outputs.register_hook(lambda gradient, kept=kept: None)
    outputs.sum().backward()
    del outputs, kept
    gc.collect()
    return [reference() is None]


def average_during_backward(group) -> bool:
    """The last gradient's hook waits until the first bucket is averaged."""
    layer = new_layer(0)
    wrapped = parallel(layer, group, comm_buffer_size=ONE_PER_BUCKET)
    averaged = threading.Event()

    def hook(state, bucket):
        task = group.process_group.all_reduce(
            bucket.buffer(), paddle.base.core.ReduceOp.SUM, False
        )
        if bucket.index() == 0:
            watcher = threading.Thread(
                target=lambda: task.wait() and averaged.set()
            )
            watcher.start()
        return bucket.buffer()

    wrapped.register_comm_hook(None, hook)
    in_time = []
    layer[0].weight._register_backward_hook(
        lambda: in_time.append(averaged.wait(WAIT_S))
    )
    loss_of(wrapped, paddle.ones([2, 6])).backward()
    return in_time


def fail_in_hook_of_gradient(group) -> list:
    layer = nn.Linear(2, 2)

    def fail():
        raise KeyError("of a hook")

    layer.weight._register_backward_hook(fail)
    layer(paddle.ones([1, 2])).sum().backward()


def share_with_another(group, options) -> list:
    """Returns whether two DataParallel of one layer get correct gradients."""
    layer, alone = new_layer(0), new_layer(0)
    both = [parallel(layer, group, **options) for _ in range(2)]
    batches = random_batches(2, group.nranks)
    for part, other in zip(*batches):
        (loss_of(alone, part) + loss_of(alone, other)).backward()
    for _ in range(2):
        layer.clear_gradients()
        losses = [
            loss_of(wrapped, batch[group.rank])
            for wrapped, batch in zip(both, batches)
        ]
        sum(losses).backward()
    return [
        np.allclose(one * group.nranks, other, rtol=1e-4, atol=1e-6)
        for one, other in zip(gradients(layer), gradients(alone))
    ]


def alternate_with_another(group, options) -> list:
    """Alternates steps of two DataParallel of one layer; returns gradients."""
    layer = nn.Linear(1, 1, bias_attr=False)
    both = [parallel(layer, group, **options) for _ in range(2)]
    found = []
    for step in range(4):
        inputs = paddle.full([1, 1], (step + 1) * (group.rank + 1.0))
        both[step % 2](inputs).sum().backward()
        found.append(layer.weight.grad.item())
        layer.clear_gradients()
    return found


def train_a_frozen_parameter(group) -> None:
    layer = nn.Linear(2, 2)
    layer.bias.stop_gradient = True
    wrapped = parallel(layer, group)
    layer.bias.stop_gradient = False
    wrapped(paddle.ones([1, 2])).sum().backward()


def step_with_bias(group, wrapped) -> list:
    """Returns the gradients of a layer with one weight and one bias."""
    for each in wrapped.parameters():
        # clear_gradients() does not clear frozen parameters.
        each.grad = None
    wrapped(paddle.full([1, 1], group.rank + 1.0)).sum().backward()
    return [
        None if each.grad is None else each.grad.mean().item()
        for each in wrapped.parameters()
    ]


def freeze_between_steps(group, options) -> list:
    wrapped = parallel(nn.Linear(1, 1), group, **options)
    step_with_bias(group, wrapped)
    wrapped._layers.weight.stop_gradient = True
    return step_with_bias(group, wrapped)


def build_again_after_freezing(group, options) -> list:
    layer = nn.Linear(1, 1)
    step_with_bias(group, parallel(layer, group, **options))
    layer.bias.stop_gradient = True
    return step_with_bias(group, parallel(layer, group, **options))


def freeze_before_the_first_step(group, options) -> list:
    layer = nn.Linear(1, 1)
    wrapped = parallel(layer, group, **options)
    layer.bias.stop_gradient = True
    return [step_with_bias(group, wrapped) for _ in range(2)]


def unfreeze_after_the_error(group, options) -> list:
    layer = nn.Linear(1, 1)
    wrapped = parallel(layer, group, **options)
    step_with_bias(group, wrapped)
    layer.bias.stop_gradient = True
    try:
        step_with_bias(group, wrapped)
    except RuntimeError:
        layer.bias.stop_gradient = False
        return step_with_bias(group, wrapped)


def freeze_everything_in_one_step(group, options) -> list:
    """Computes only a gradient of the inputs in the second step, as a GAN."""
    layer = nn.Linear(1, 1)
    wrapped = parallel(layer, group, **options)
    step_with_bias(group, wrapped)
    inputs = paddle.ones([1, 1])
    inputs.stop_gradient = False
    for each in layer.parameters():
        each.stop_gradient = True
    wrapped(inputs).sum().backward()
    for each in layer.parameters():
        each.stop_gradient = False
    is_computed = inputs.grad.item() == layer.weight.item()
    return [is_computed, *step_with_bias(group, wrapped)]


def evaluate_with_a_frozen_parameter(group, options) -> list:
    layer = nn.Linear(1, 1)
    wrapped = parallel(layer, group, **options)
    step_with_bias(group, wrapped)
    layer.bias.stop_gradient = True
    wrapped.eval()
    wrapped(paddle.ones([1, 1]))
    wrapped.train()
    layer.bias.stop_gradient = False
    return step_with_bias(group, wrapped)


def freeze_in_every_other_step(group, options) -> list:
    layer = nn.Linear(1, 1)
    wrapped = parallel(layer, group, **options)
    found = []
    for step in range(4):
        layer.bias.stop_gradient = step % 2 == 1
        found.append(step_with_bias(group, wrapped))
    return found


def freeze_behind_opaque_outputs(group) -> None:
    layer = WrappedBranches(OpaqueOutput)
    wrapped = parallel(layer, group, find_unused_parameters=True)
    layer.left.bias.stop_gradient = True
    wrapped(paddle.ones([1, 2]), True).value.sum().backward()


def no_sync_while_a_rank_keeps_outputs(group) -> list:
    layer = nn.Linear(1, 1, bias_attr=False)
    wrapped = parallel(layer, group)
    x = paddle.full([1, 1], group.rank + 1.0)
    kept = wrapped(x) if group.rank == 0 else None
    with wrapped.no_sync():
        wrapped(x).sum().backward()
    found = [layer.weight.grad.item()]
    wrapped(x).sum().backward()
    del kept
    return [*found, layer.weight.grad.item()]


def train_after_unfreezing(group) -> list:
    """Builds one DataParallel before the bias is unfrozen, and one after."""
    layer = nn.Linear(1, 1)
    layer.bias.stop_gradient = True
    early = parallel(layer, group)
    early(paddle.ones([1, 1])).sum().backward()
    layer.clear_gradients()
    layer.bias.stop_gradient = False
    late = parallel(layer, group)
    late(paddle.full([1, 1], group.rank + 1.0)).sum().backward()
    return [layer.weight.grad.item(), layer.bias.grad.item()]


def use_more_than_learned(group) -> None:
    wrapped = parallel(Branches(), group, static_graph=True)
    for uses_right in (False, True):
        wrapped(paddle.ones([1, 2]), uses_right).sum().backward()


def parameters_of(sizes) -> list:
    """Returns parameters with these sizes in KiB."""
    return [
        ReducedParameter(str(size), paddle.empty([256 * size]), "Linear")
        for size in sizes
    ]


def sizes_of_buckets(sizes, limit=25 << 20) -> list:
    """Returns each bucket's parameter sizes in KiB, by default with defaults.

    `limit` is in bytes.
    """
    parts = assign_buckets(
        parameters_of(sizes), range(len(sizes)), limit, 1 << 20
    )
    return [[sizes[index] for index in part] for part in parts]


class TestBuckets(unittest.TestCase):
    def test_a_bucket_holds_at_most_an_eighth_of_the_gradients(self):
        self.assertEqual(
            sizes_of_buckets([1024] * 16),
            [[1024], *[[1024] * 2] * 7, [1024]],
        )

    def test_a_limit_of_the_caller_may_exceed_an_eighth(self):
        self.assertEqual(
            sizes_of_buckets([1024] * 16, 7 << 20),
            [[1024], [1024] * 7, [1024] * 7, [1024]],
        )

    def test_the_default_limit_is_that_of_data_parallel(self):
        arguments = inspect.signature(paddle.DataParallel.__init__).parameters
        self.assertEqual(
            DEFAULT_LIMIT,
            arguments["comm_buffer_size"].default * 1024 * 1024,
        )

    def test_buckets_of_small_models_may_hold_1_mib(self):
        self.assertEqual(
            sizes_of_buckets([256] * 12), [[256] * 4, [256] * 4, [256] * 4]
        )

    def test_a_nearly_full_bucket_does_not_wait_for_a_small_gradient(self):
        self.assertEqual(
            sizes_of_buckets([8, 2048] * 8),
            [[8], [2048], *[[8, 2048]] * 6, [8], [2048]],
        )


class TestOneRank(unittest.TestCase):
    def test_a_deep_copy_has_its_own_parameters(self):
        wrapped = paddle.DataParallel(nn.Linear(1, 1, bias_attr=False))
        copied = copy.deepcopy(wrapped)
        copied(paddle.ones([1, 1])).sum().backward()
        self.assertIsNone(wrapped.parameters()[0].grad)
        self.assertEqual(copied.parameters()[0].grad.item(), 1.0)

    def test_a_buffer_size_must_be_a_number(self):
        for name in ("comm_buffer_size", "last_comm_buffer_size"):
            for value in ("25", None, [1]):
                with self.assertRaisesRegex(
                    TypeError,
                    rf"^{name} must be a number, but received "
                    rf"{re.escape(repr(value))}. Pass a size in MiB",
                ):
                    paddle.DataParallel(nn.Linear(1, 1), **{name: value})

    def test_a_buffer_size_must_be_positive_and_finite(self):
        for name in ("comm_buffer_size", "last_comm_buffer_size"):
            for value in (0, -0.5, float("inf"), float("nan")):
                with self.assertRaisesRegex(
                    ValueError,
                    f"^{name} must be positive and finite, but received "
                    f"{value}. Pass a size in MiB",
                ):
                    paddle.DataParallel(nn.Linear(1, 1), **{name: value})

    def test_positional_buffer_sizes_are_checked(self):
        with self.assertRaisesRegex(ValueError, "^last_comm_buffer_size .* -3"):
            paddle.DataParallel(nn.Linear(1, 1), None, 25, -3)

    def test_a_buffer_size_may_be_any_type_of_number(self):
        for value in (1, 0.5, np.float32(2), np.int64(3), paddle.ones([])):
            paddle.DataParallel(nn.Linear(1, 1), comm_buffer_size=value)

    def test_a_subclass_may_have_other_arguments(self):
        class Renamed(paddle.DataParallel):
            def __init__(self, comment, layer):
                super().__init__(layer)

        Renamed("zero", nn.Linear(1, 1))


class CoreCases:
    """The cases that also run under other ways to start ranks."""

    def test_training_equals_serial_training_in_one_process(self):
        for options in OPTIONS:
            for set_to_zero in (True, False):
                with self.subTest(options=options, set_to_zero=set_to_zero):
                    for found in self.call(train, options, set_to_zero):
                        self.assert_trained(found)

    def assert_trained(self, found):
        for one, other in zip(found["group"], found["untrained"]):
            self.assertFalse((one == other).all())
        self.assert_same_sums(found["group"], found["alone"])

    def test_all_ranks_get_bitwise_equal_parameters(self):
        for options in OPTIONS:
            first, *others = self.call(train, options)
            for other in others:
                self.assert_same_bits(first["group"], other["group"])

    def test_gradients_under_no_sync_are_local_and_averaged_with_the_next(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                found = self.call(accumulate, options)
                self.assertFalse(
                    (found[0]["local"][0] == found[1]["local"][0]).all()
                )
                for each in found:
                    for one, other in zip(each["group"], each["alone"]):
                        np.testing.assert_allclose(
                            one, other, rtol=1e-4, atol=1e-6
                        )

    def test_gradients_that_are_not_cleared_add_up(self):
        mean = (self.size + 1) / 2
        for options in OPTIONS:
            for found in self.call(add_up_two_averages, options):
                self.assertAlmostEqual(found, 11 * mean, places=5)

    def test_a_parameter_counts_as_zero_on_ranks_that_do_not_use_it(self):
        for options in OPTIONS:
            for left, right, *_ in self.call(use_branches, options):
                self.assertEqual(left, [1.0, 1.0])
                np.testing.assert_allclose(right, [1 / self.size] * 2)


class ReducerCases(CoreCases):
    def test_a_parameter_that_no_rank_uses_keeps_its_gradient(self):
        for options in OPTIONS:
            for rank, found in enumerate(self.call(use_branches, options, 2)):
                self.assertEqual(found[2:], [[rank + 3.0] * 2, None])

    def test_a_model_with_an_unused_parameter_trains(self):
        expected = [
            [step * (self.size + 1) / 2, step * 1.0, None] for step in (1, 2, 3)
        ]
        for options in OPTIONS:
            with self.subTest(options=options):
                for found in self.call(train_branches, options):
                    for one, wanted in zip(found, expected):
                        np.testing.assert_allclose(
                            one[:2], wanted[:2], rtol=1e-6
                        )
                        self.assertIsNone(one[2])

    def test_a_parameter_outside_forward_is_averaged(self):
        mean = (self.size + 1) / 2
        for found in self.call(start_with_penalty):
            self.assertEqual(found, [[mean] * 2] * 2)

    def test_a_forward_without_backward_does_not_decide_what_is_used(self):
        mean = (self.size + 1) / 2
        for found in self.call(start_with_other_outputs):
            self.assertEqual(found, [mean] * 2)

    def test_outputs_may_be_dataclasses(self):
        mean = 2 * (self.size + 1) / 2
        for kind in (Output, SlottedOutput, CyclicOutput):
            for found in self.call(use_wrapped_branches, kind):
                np.testing.assert_allclose(found, [[mean] * 2] * 2)

    def test_opaque_outputs_count_as_using_all_parameters(self):
        for error in self.errors(use_wrapped_branches, OpaqueOutput):
            self.assertRegex(
                error,
                "got no gradient for 'never.weight'.* Use the whole output .*"
                "finds output tensors only in tuples, lists, dicts and data",
            )

    def test_a_gradient_of_an_opaque_output_beside_others_is_an_error(self):
        for error in self.errors(use_partly_opaque_outputs):
            self.assertRegex(
                error,
                r"'right\.\w+' \(of a Linear\) has a gradient, but no output "
                ".* finds output tensors only in tuples, lists, dicts and data",
            )

    def test_parameters_may_be_cast_after_construction(self):
        mean = (self.size + 1) / 2
        for options in OPTIONS[:2]:
            for found in self.call(cast_after_construction, options):
                self.assertEqual(found, ["paddle.bfloat16", [mean] * 3])

    def test_a_parameter_whose_local_gradient_was_dropped_counts_as_unused(
        self,
    ):
        for options in OPTIONS:
            with self.subTest(options=options):
                for found in self.call(drop_local_gradients, options):
                    self.assertEqual(set(found), {True})

    def test_a_parameter_keeps_its_average_in_steps_without_it(self):
        expected = [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0]]
        found = self.call(use_second_layer_in_every_other_step)
        self.assertEqual(found, [expected] * self.size)

    def test_a_gradient_is_added_to_the_average_from_other_ranks(self):
        for found in self.call(add_to_average_of_other_ranks):
            np.testing.assert_allclose(
                found, [1 + 1 / self.size] * 2, rtol=1e-6
            )

    def test_a_gradient_is_added_to_the_average_after_a_cleared_one(self):
        for use_right in (use_right_under_no_sync, use_right_in_a_failing_step):
            for options in OPTIONS[:2]:
                with self.subTest(use_right=use_right, options=options):
                    for found in self.call(
                        add_to_average_after_clearing, options, use_right
                    ):
                        np.testing.assert_allclose(
                            found, [1 + 1 / self.size] * 2, rtol=1e-6
                        )

    def test_each_output_may_have_its_own_backward_pass(self):
        mean = (self.size + 1) / 2
        expected = [[[mean, mean], [mean, mean]]] * 2
        for found in self.call(backward_of_each_output):
            self.assertEqual(found, expected)

    def test_a_forward_without_backward_does_not_communicate(self):
        first, *others = self.call(forward_without_backward)
        for other in others:
            self.assert_same_bits(first, other)

    def test_a_step_that_only_some_ranks_skip_causes_a_warning(self):
        for options in OPTIONS[::2]:
            with self.subTest(options=options):
                found = self.call(leave_out_backward, options, "skip")
                self.assertEqual(found, [[True]] * self.size)

    def test_other_differences_of_forward_passes_cause_no_warning(self):
        for how in (
            "skip on all ranks",
            "add up losses",
            "multiply by 0",
            "evaluate",
            "evaluate the layer inside",
            "evaluate under no_grad",
        ):
            with self.subTest(how=how):
                found = self.call(leave_out_backward, {}, how)
                self.assertEqual(found, [[False]] * self.size)

    def test_gradients_of_a_deep_copy_are_averages(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                for found in self.call(copy_and_train, options):
                    # The copy does not have the hook, which averages nothing.
                    self.assert_same_bits(found["original"], found["local"])
                    for one, other in zip(found["copy"], found["alone"]):
                        np.testing.assert_allclose(
                            one, other, rtol=1e-4, atol=1e-6
                        )

    def test_a_copy_of_a_frozen_model_does_not_communicate(self):
        found = self.call(copy_a_frozen_model)
        self.assertEqual(found, [[False]] * self.size)

    def test_a_shared_parameter_is_averaged_once(self):
        mean = (self.size + 1) / 2
        for options in OPTIONS:
            for found in self.call(share_a_parameter, options):
                self.assertAlmostEqual(found, 4 * mean, places=5)

    def test_gradients_are_bucket_views_only_on_request(self):
        options = {"gradient_as_bucket_view": True}
        for found in self.call(gradients_are_views, options):
            self.assertEqual(found, [True] * 6)
        for found in self.call(gradients_are_views, {}):
            self.assertEqual(found, [False] * 6)

    def test_gradients_are_averaged_in_their_data_type(self):
        mean = (self.size - 1) / 2 + 0.25
        for dtype in ("float16", "bfloat16", "float64"):
            for options in ({}, {"gradient_as_bucket_view": True}):
                with self.subTest(dtype=dtype, options=options):
                    expected = [[mean] * 3, f"paddle.{dtype}", [3.0]]
                    found = self.call(train_other_types, dtype, options)
                    self.assertEqual(found, [expected] * self.size)

    def test_a_step_after_a_failed_step_is_correct(self):
        for before, after in self.call(continue_after_an_error):
            self.assert_same_bits(before, after)

    def test_outputs_keep_the_reducer_alive_for_backward(self):
        mean = (self.size + 1) / 2
        for found in self.call(drop_data_parallel_before_backward):
            self.assertEqual(found, [[mean]])


class TestOverGloo(ReducerCases, RanksCase):
    def test_recomputing_a_layer_twice_needs_static_graph(self):
        for found, alone in self.call(
            recompute_activations, {"static_graph": True}
        ):
            for each in found:
                np.testing.assert_allclose(each, alone, rtol=1e-5)
        for error in self.errors(recompute_activations, {}):
            self.assertRegex(
                error, "computed a second time .* static_graph=True"
            )

    def test_a_recomputed_layer_counts_as_used(self):
        expected = [[[1.5] * 2] * 2] * 2
        for found in self.call(recompute_a_part):
            self.assertEqual(found, [expected] * 2)

    def test_unused_parameters_cannot_be_found_in_a_recomputed_layer(self):
        for error in self.errors(recompute_a_part_with_unused_parameters):
            self.assertRegex(
                error,
                r"'right\.\w+' \(of a Linear\) has a gradient, but no output "
                ".* recomputes its activations, .* static_graph=True",
            )

    def test_frozen_and_no_sync_parameters_are_not_averaged(self):
        self.assertEqual(
            self.call(leave_parameters_alone), [[1.0, 1.5], [2.0, 1.5]]
        )

    def test_all_ranks_start_with_the_state_of_the_first(self):
        first, second = self.call(begin)
        self.assertEqual(len(first), 7)
        self.assert_same_bits(first, second)

    def test_a_training_step_starts_with_the_buffers_of_the_first_rank(self):
        options = {"broadcast_buffers": True}
        first, second = self.call(buffers_after_training, options)
        self.assert_same_bits(first, second)
        first, second = self.call(buffers_after_training, {})
        self.assertNotEqual(first[0].tobytes(), second[0].tobytes())
        self.assertEqual([first[1].item(), second[1].item()], [2.0, 4.0])

    def test_no_sync_and_non_persistable_buffers_are_not_broadcast(self):
        self.assertEqual(self.call(buffers_of_each_rank), [[0, 0], [1, 1]])

    def test_an_evaluation_on_one_rank_does_not_communicate(self):
        self.assertEqual(
            self.call(evaluate_without_gradients_on_rank_0), [[1.5] * 2] * 2
        )

    def test_one_rank_may_evaluate_alone_under_no_grad(self):
        first, second = self.call(evaluate_on_rank_0_alone)
        self.assert_same_bits(first, second)

    def test_equal_models_are_not_described_to_all_ranks(self):
        self.assertEqual(self.call(wrap_without_descriptions), [True] * 2)

    def test_an_error_names_the_first_difference_between_models(self):
        for error in self.errors(differ_in_size):
            self.assertRegex(
                error,
                r"ValueError: .* parameter 0 is weight of shape \[2, 2\] and "
                r"paddle.float32 on rank 0 and weight of shape \[2, 3\] ",
            )
        for error in self.errors(differ_in_number):
            self.assertRegex(
                error, "rank 0 has 1 trainable parameters, and 2 on rank 1"
            )

    def test_the_next_forward_names_parameters_without_gradients(self):
        for rank, error in enumerate(self.errors(leave_out_parameters)):
            self.assertRegex(
                error,
                rf"RuntimeError: Rank {rank} got no gradient for 'right.weight'"
                r" \(of a Linear\), .*'right.bias'.* find_unused_parameters=",
            )
            self.assertNotIn("never", error)

    def test_using_more_parameters_than_the_first_step_is_an_error(self):
        for steps in (use_more_than_in_the_first_step, use_more_under_no_sync):
            for error in self.errors(steps):
                self.assertRegex(
                    error,
                    r"^RuntimeError: 'right\.\w+' \(of a Linear\) has a "
                    "gradient, but had none in the first step.* "
                    "find_unused_parameters=True",
                )

    def test_two_wrappers_may_expect_the_same_gradients_without_views(
        self,
    ):
        for found in self.call(share_with_another, {}):
            self.assertEqual(found, [True] * 6)
        for error in self.errors(
            share_with_another, {"gradient_as_bucket_view": True}
        ):
            self.assertRegex(
                error,
                r"^RuntimeError: '0.weight' \(of a Linear\) belongs to two "
                "DataParallel layers .* without gradient_as_bucket_view",
            )

    def test_two_wrappers_of_a_layer_can_alternate(self):
        for options in OPTIONS:
            found = self.call(alternate_with_another, options)
            self.assertEqual(found, [[1.5, 3.0, 4.5, 6.0]] * 2)

    def test_unfreezing_a_parameter_after_construction_is_an_error(self):
        for error in self.errors(train_a_frozen_parameter):
            self.assertRegex(
                error,
                r"^RuntimeError: 'bias' \(of a Linear\) has a gradient, but "
                "was frozen .* before you build DataParallel",
            )

    def test_freezing_a_parameter_between_steps_is_an_error(self):
        for options in OPTIONS:
            if options.get("find_unused_parameters"):
                continue
            with self.subTest(options=options):
                for error in self.errors(freeze_between_steps, options):
                    self.assertRegex(
                        error,
                        r"^RuntimeError: 'weight' \(of a Linear\) had "
                        "stop_gradient=True .* Build DataParallel again after "
                        "freezing.* find_unused_parameters=True",
                    )

    def test_a_wrapper_that_is_built_after_freezing_averages_the_rest(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                found = self.call(build_again_after_freezing, options)
                self.assertEqual(found, [[1.5, None]] * 2)

    def test_a_parameter_that_is_frozen_before_the_first_step_is_left_out(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                found = self.call(freeze_before_the_first_step, options)
                self.assertEqual(found, [[[1.5, None]] * 2] * 2)

    def test_a_step_after_unfreezing_is_correct(self):
        for options in (*OPTIONS[:2], *OPTIONS[4:]):
            with self.subTest(options=options):
                found = self.call(unfreeze_after_the_error, options)
                self.assertEqual(found, [[1.5, 1.0]] * 2)

    def test_a_step_may_freeze_all_parameters(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                found = self.call(freeze_everything_in_one_step, options)
                self.assertEqual(found, [[True, 1.5, 1.0]] * 2)

    def test_an_evaluation_may_freeze_parameters(self):
        for options in OPTIONS:
            with self.subTest(options=options):
                found = self.call(evaluate_with_a_frozen_parameter, options)
                self.assertEqual(found, [[1.5, 1.0]] * 2)

    def test_steps_that_find_unused_parameters_may_freeze_them(self):
        for options in OPTIONS[2:4]:
            with self.subTest(options=options):
                found = self.call(freeze_in_every_other_step, options)
                self.assertEqual(found, [[[1.5, 1.0], [1.5, None]] * 2] * 2)

    def test_freezing_parameters_of_opaque_outputs_is_an_error(self):
        for error in self.errors(freeze_behind_opaque_outputs):
            self.assertRegex(
                error,
                r"^RuntimeError: 'left.bias' .* had stop_gradient=True .* "
                "finds output tensors only in tuples, lists, dicts and data",
            )

    def test_paddle_grad_is_local_and_does_not_change_the_next_step(self):
        for options in OPTIONS:
            for is_wrapped in (True, False):
                with self.subTest(options=options, is_wrapped=is_wrapped):
                    first, second = self.call(
                        compute_gradients_between_steps, options, is_wrapped
                    )
                    self.assertEqual(first, [[1.5, 10.0]] * 3)
                    self.assertEqual(second, [[1.5, 20.0]] * 3)

    def test_a_new_wrapper_trains_parameters_that_an_older_one_saw_frozen(self):
        self.assertEqual(self.call(train_after_unfreezing), [[1.5, 1.0]] * 2)

    def test_gradients_stay_local_although_a_rank_keeps_other_outputs(self):
        self.assertEqual(
            self.call(no_sync_while_a_rank_keeps_outputs),
            [[1.0, 3.0], [2.0, 3.0]],
        )

    def test_using_more_parameters_than_the_static_graph_is_an_error(self):
        for error in self.errors(use_more_than_learned):
            self.assertRegex(
                error,
                r"^RuntimeError: The gradient of 'right\.\w+' .* was computed "
                "more often than in the first step.* static_graph=True "
                "requires",
            )

    def test_a_second_gradient_in_a_step_is_an_error(self):
        for error in self.errors(run_backward_twice):
            self.assertRegex(
                error,
                r"^RuntimeError: The gradient of '0\.\d\.\w+' \(of a Linear\) "
                r"was computed a second time .* Call backward\(\) once on the "
                r"sum of the losses, run each forward but the last under "
                r"no_sync\(\), .*static_graph=",
            )

    def test_a_second_backward_of_a_static_graph_is_an_error(self):
        for found in self.call(run_backward_twice_on_a_static_graph):
            self.assertEqual(len(found), 2)
            for error in found:
                self.assertRegex(
                    error,
                    r"The gradient of 'right\.\w+' .* was computed more often "
                    r".* call backward\(\) once on the sum of the losses",
                )

    def test_old_buckets_are_freed_before_new_ones_are_made(self):
        self.assertEqual(self.call(old_buckets_at_rebuild), [{False}] * 2)

    def test_buckets_have_the_same_parameters_after_an_error(self):
        for before, *after in self.call(buckets_around_errors):
            self.assertEqual(after, [before] * 2)

    def test_a_gradient_after_averaging_causes_a_warning(self):
        for caught in self.call(warn_of_late_gradients):
            self.assertEqual(len(caught), 2)
            for text in caught:
                self.assertRegex(
                    text,
                    r"is not averaged. Call backward\(\) once on the sum of "
                    r"the losses, or .*each but the last under no_sync\(\)",
                )

    def test_a_warning_of_skipped_steps_names_the_ranks(self):
        for caught in self.call(warnings_of_skipped_backward):
            self.assertEqual(len(caught), 1)
            self.assertRegex(
                caught[0],
                r"without backward\(\): 0 on rank 0, 1 on rank 1.* loss \* 0",
            )

    def test_gradients_in_a_different_order_are_averaged_with_a_warning(self):
        first, second = self.call(differ_in_order)
        self.assertEqual(first[0], [])
        self.assertRegex(
            second[0][0],
            "on rank 1 than on rank 0, first 'right.* instead of 'left",
        )
        self.assertEqual(first[1], second[1])

    def test_buckets_follow_backward_and_are_small_at_both_ends(self):
        # 64 bytes for each weight, and 16 for each bias.
        for sizes, buckets in (
            ((1024, 1024), [["b.bias", "b.weight", "a.bias", "a.weight"]]),
            ((128, 64), [["b.bias"], ["b.weight", "a.bias"], ["a.weight"]]),
            ((64, 64), [["b.bias"], ["b.weight"], ["a.bias"], ["a.weight"]]),
        ):
            found = self.call(names_in_buckets, *sizes, 0)
            self.assertEqual(found, [buckets] * 2)

    def test_buckets_are_rebuilt_in_the_order_of_the_first_backward(self):
        found = self.call(names_in_buckets, 1, 1, 1)
        self.assertEqual(
            [{name for (name,) in buckets[:2]} for buckets in found],
            [{"a.bias", "a.weight"}] * 2,
        )
        self.assertEqual(found[0], found[1])

    def test_delayed_parameters_are_averaged_after_backward(self):
        for seen in self.call(delay_first_gradients):
            self.assertEqual(seen[-1][0], 6)
            self.assertEqual(sorted(map(list, seen[-1][1])), [[3], [32, 3]])

    def test_unknown_delayed_parameters_are_an_error(self):
        for error in self.errors(delay_an_unknown_name):
            self.assertRegex(error, r"but has \['no.such'\]")

    def test_delayed_parameters_must_be_pairs(self):
        for delayed, pattern in (
            (5, r"be a list of \(name, tensor\) pairs, but received 5"),
            (["x"], r"contain \(name, tensor\) pairs, but contains 'x'"),
            (["ab"], r"contain \(name, tensor\) pairs, but contains 'ab'"),
            ([("x", 1)], r"contains \('x', 1\)"),
        ):
            for error in self.errors(delay, delayed):
                self.assertRegex(error, "TypeError: .*" + pattern)
                self.assertRegex(error, r"Pass pairs of named_parameters\(\)")

    def test_a_wrapper_cannot_be_pickled(self):
        for error in self.errors(pickle_a_wrapper):
            self.assertRegex(
                error,
                r"^TypeError: A DataParallel cannot be pickled.* Pickle or "
                r"send the layer .*_layers\) or its state_dict\(\)",
            )

    def test_a_shallow_copy_shares_the_layer_and_averages(self):
        self.assertEqual(self.call(train_a_shallow_copy), [[True, 1.5]] * 2)

    def test_the_reducer_is_freed_with_its_data_parallel(self):
        self.assertEqual(self.call(is_freed), [[True, 0.0], [True, 3.0]])

    def test_finding_unused_parameters_does_not_leak_the_graph(self):
        self.assertEqual(self.call(graph_is_freed), [[True]] * 2)

    def test_dropping_the_outputs_frees_the_reducer(self):
        self.assertEqual(self.call(is_kept_by_outputs), [[True, False]] * 2)

    def test_a_hook_error_is_raised_unchanged(self):
        for error in self.errors(fail_in_hook_of_gradient):
            self.assertEqual(error, "KeyError: 'of a hook'")


@has_shared_memory_groups
class TestOverSharedMemory(ReducerCases, RanksCase):
    kind = "shm"

    def test_ranks_in_different_steps_after_a_missing_gradient_do_not_average(
        self,
    ):
        # All weights have the same size, so the group cannot tell them apart.
        ranks = Ranks(2)
        self.addCleanup(ranks.end)
        first, second = ranks.call(self.kind, continue_after_a_missing_gradient)
        self.assertEqual([first[0], second[0]], [1.0] * 2)
        self.assertRegex(second[2], "Rank 1 got no gradient for 'right")
        for error in (*first[1:], *second[3:]):
            self.assertRegex(
                str(error), "All ranks must call the same operations"
            )


class TestOverLateGroup(ReducerCases, RanksCase):
    kind = "late"


class TestOverBackgroundGroup(ReducerCases, RanksCase):
    kind = "background"

    def test_a_bucket_is_averaged_during_backward(self):
        self.assertEqual(self.call(average_during_backward), [[True], [True]])


class TestThreeRanks(ReducerCases, RanksCase):
    size = 3
    kind = "background"


@has_shared_memory_groups
class TestThreeRanksOverSharedMemory(ReducerCases, RanksCase):
    size = 3
    kind = "shm"


if __name__ == "__main__":
    unittest.main()
