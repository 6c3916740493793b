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
"""Trains one model in several processes that average their gradients.

    python data_parallel.py [--processes 2]

Each process has the whole model and takes a part of every batch. Gradients are
copied into buckets in shared memory. A thread averages each bucket as soon as
it is full, while the backward pass goes on with the layers below.
The statistics of batch norm are not averaged: they stay each process's own.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import operator
import sys
from concurrent.futures import ThreadPoolExecutor

import paddle
import paddle.multiprocessing as mp
from paddle import nn


def connect(processes: int) -> list[dict]:
    """Returns, for each rank, a pipe to each other rank."""
    pipes = [{} for _ in range(processes)]
    for one, other in itertools.combinations(range(processes), 2):
        pipes[one][other], pipes[other][one] = mp.Pipe()
    return pipes


def close(pipes: list[dict]) -> None:
    for pipe in itertools.chain(*(peers.values() for peers in pipes)):
        pipe.close()


class Group:
    """The processes that train together, as the one of `rank` sees them.

    One thread at a time may use it. A rank that fails tells the others so, and
    sends nothing more: they would take a later step for their present one.
    """

    def __init__(self, rank: int, pipes: list[dict], timeout_s: float = 300):
        self.rank = rank
        self.size = len(pipes)
        self._pipes = pipes[rank]
        self._timeout_s = timeout_s
        self._error = None
        # A process that dies closes its pipes, unless others have them open.
        close(pipes[:rank] + pipes[rank + 1 :])

    def exchange(self, step: str, value=None) -> list:
        """Returns what each rank has given, once all of them are at `step`."""
        self.check()
        try:
            self._send(step, value)
            return [
                value if peer == self.rank else self._receive(peer, step)
                for peer in range(self.size)
            ]
        except Exception as error:
            self.give_up(error)
            raise

    def check(self) -> None:
        """Raises the first error of this rank, if there was one."""
        if self._error is not None:
            raise self._error

    def give_up(self, error: Exception) -> None:
        """Makes the other ranks fail with the first error of this one."""
        if self._error is None:
            self._error = error
            self._send(None, f"{type(error).__name__}: {error}")

    def _send(self, step: str | None, value) -> None:
        for pipe in self._pipes.values():
            # The last message of a peer says why it has ended.
            with contextlib.suppress(ConnectionError):
                pipe.send((step, value))

    def _receive(self, peer: int, step: str):
        try:
            pipe, nothing = self._pipes[peer], ("nothing", None)
            message = pipe.recv() if pipe.poll(self._timeout_s) else nothing
        except (EOFError, OSError):
            raise RuntimeError(f"Rank {peer} ended before {step!r}.") from None
        its_step, value = message
        if its_step is None:
            raise RuntimeError(f"Rank {peer} failed: {value}")
        if its_step != step:
            raise RuntimeError(
                f"Rank {peer} must send {step!r} within {self._timeout_s} s, "
                f"but sent {its_step!r}."
            )
        return value


class Bucket:
    """Parameters whose gradients are averaged together.

    `tensors` has the gradients of each rank, one behind the other, in memory
    that all ranks share; `missing` names those that this rank has yet to copy.
    """

    def __init__(self, name: str, parameters: dict, group: Group):
        shapes = {key: list(each.shape) for key, each in parameters.items()}
        length = sum(each.size for each in parameters.values())
        dtype = next(iter(parameters.values())).dtype
        self.name = name
        self.parameters = parameters
        self.missing = set(parameters)
        self.tensors = group.exchange(
            f"{name} of {dtype}: {shapes}", paddle.zeros([length], dtype)
        )
        self._slots = self.split(self.tensors[group.rank])

    def split(self, tensor: paddle.Tensor) -> dict:
        """Returns the part of each parameter in a tensor of all gradients."""
        parts, end = {}, 0
        for name, parameter in self.parameters.items():
            begin, end = end, end + parameter.size
            parts[name] = tensor[begin:end].reshape(parameter.shape)
        return parts

    def take(self, name: str) -> None:
        """Copies the gradient of a parameter; none counts as zeros."""
        gradient = self.parameters[name].grad
        if name not in self.missing:
            raise RuntimeError(
                "There must be one backward() before synchronize(), but "
                f"received a second gradient of {name!r}."
            )
        if gradient is None:
            self._slots[name].zero_()
        elif gradient.is_dense():
            self._slots[name].copy_(gradient, True)
        else:
            raise TypeError(
                f"The gradient of {name!r} must be dense, but received a "
                "sparse one: build its layer with sparse=False."
            )
        self.missing.remove(name)


def in_buckets(parameters: dict, bucket_bytes: int) -> list[dict]:
    """Returns buckets in the order of backward: the last parameters first."""
    buckets, room, dtype = [], 0, None
    for name, parameter in reversed(parameters.items()):
        size = parameter.size * parameter.element_size()
        if size > room or parameter.dtype != dtype:
            buckets.append({})
            room, dtype = bucket_bytes, parameter.dtype
        buckets[-1][name] = parameter
        room -= size
    return buckets


def write_mean(group: Group, step: str, tensors: list, dtype) -> None:
    """Makes the tensors of all ranks their mean, computed in `dtype`.

    Each rank computes a part of it, for all, and adds in the order of ranks:
    the result is the same on all of them, and in every run.
    """
    begin = tensors[0].size * group.rank // group.size
    end = tensors[0].size * (group.rank + 1) // group.size
    group.exchange(f"{step}, full")
    parts = (each[begin:end].astype(dtype) for each in tensors)
    mean = functools.reduce(operator.add, parts) / group.size
    for each in tensors:
        each[begin:end].copy_(mean.astype(each.dtype), True)
    group.exchange(f"{step}, averaged")


def average(group: Group, bucket: Bucket) -> paddle.Tensor:
    """Averages gradients in their own type: the default hook."""
    mine = bucket.tensors[group.rank]
    write_mean(group, bucket.name, bucket.tensors, mine.dtype)
    return mine


class AverageAsFloat16:
    """Averages gradients as float16: a hook that sends half the bytes."""

    def __init__(self):
        self._tensors = {}

    def __call__(self, group: Group, bucket: Bucket) -> paddle.Tensor:
        mine = bucket.tensors[group.rank]
        half = mine.astype("float16")
        if bucket.name not in self._tensors:
            shared = group.exchange(f"{bucket.name} as float16", half)
            self._tensors[bucket.name] = shared
        tensors = self._tensors[bucket.name]
        tensors[group.rank].copy_(half, True)
        write_mean(group, bucket.name, tensors, mine.dtype)
        return tensors[group.rank].astype(mine.dtype)


class DataParallel:
    """Averages the gradients of a layer, which starts with rank 0's values.

    `synchronize()` goes between `backward()` and the step of the optimizer. A
    `comm_hook` gets the group and a full bucket, on a thread of its own, and
    returns the tensor that has the averages. `find_unused_parameters` allows
    parameters that take no part in a step: on some ranks, where they count as
    0, or on all, where they keep the gradient that they have.
    """

    def __init__(
        self,
        layer: nn.Layer,
        group: Group,
        bucket_bytes: int = 1 << 20,
        find_unused_parameters: bool = False,
        comm_hook=average,
    ):
        self._group = group
        self._find_unused_parameters = find_unused_parameters
        self._comm_hook = comm_hook
        self._thread = ThreadPoolExecutor(1)
        self._averages = []
        self._error = None
        parameters = {
            name: parameter
            for name, parameter in layer.named_parameters()
            if not parameter.stop_gradient
        }
        self._buckets = [
            Bucket(f"bucket {number}", each, group)
            for number, each in enumerate(in_buckets(parameters, bucket_bytes))
        ]
        for bucket in self._buckets:
            for name, parameter in bucket.parameters.items():
                parameter._register_backward_hook(
                    functools.partial(self._on_gradient, bucket, name)
                )
        state = layer.state_dict()
        is_first = group.rank == 0
        first = group.exchange("first values", state if is_first else None)[0]
        for name, tensor in state.items():
            tensor.set_value(first[name])
        group.exchange("first values, copied")

    def synchronize(self) -> None:
        """Returns when the gradients of this rank are the averages of all."""
        try:
            self._finish()
        except Exception as error:
            self._thread.shutdown(cancel_futures=True)
            self._group.give_up(error)
            raise

    def _on_gradient(self, bucket: Bucket, name: str) -> None:
        # Backward wraps exceptions of hooks in others.
        try:
            bucket.take(name)
            self._average_full_buckets()
        except Exception as error:
            self._error = self._error or error

    def _average_full_buckets(self) -> None:
        # The order is the same on all ranks.
        for bucket in self._buckets[len(self._averages) :]:
            if bucket.missing:
                return
            self._averages.append(self._thread.submit(self._average, bucket))

    def _average(self, bucket: Bucket) -> paddle.Tensor:
        # Buckets after one that failed are already queued.
        self._group.check()
        try:
            result = self._comm_hook(self._group, bucket)
            found = (result.dtype, result.shape)
            mine = bucket.tensors[self._group.rank]
            if found != (mine.dtype, mine.shape):
                raise ValueError(
                    f"A comm_hook must return a tensor of {mine.dtype} and of "
                    f"shape {mine.shape}, but returned {found}."
                )
        except Exception as error:
            self._group.give_up(error)
            raise
        return result

    def _finish(self) -> None:
        if self._error is not None:
            raise self._error
        unused = set().union(*(bucket.missing for bucket in self._buckets))
        if unused and not self._find_unused_parameters:
            raise RuntimeError(
                "All parameters must take part in a step, but rank "
                f"{self._group.rank} has no gradient of {sorted(unused)}. If "
                "that is meant, use find_unused_parameters=True."
            )
        for bucket in self._buckets:
            for name in sorted(bucket.missing):
                bucket.take(name)
        self._average_full_buckets()
        averages = [each.result() for each in self._averages]
        if self._find_unused_parameters:
            everywhere = self._group.exchange("unused parameters", unused)
            unused = set.intersection(*everywhere)
        for bucket, gradients in zip(self._buckets, averages):
            for name, gradient in bucket.split(gradients).items():
                if name not in unused:
                    bucket.parameters[name].grad = gradient
            bucket.missing = set(bucket.parameters)
        self._averages.clear()


def new_layer(seed: int) -> nn.Layer:
    paddle.seed(seed)
    hidden = [nn.Linear(512, 512) for _ in range(3)]
    return nn.Sequential(
        nn.Linear(16, 512), nn.ReLU(), *hidden, nn.Linear(512, 1)
    )


def train(layer, batches: list, group: Group, **options) -> paddle.Tensor:
    """Trains on this rank's part of each batch; returns the parameters."""
    parallel = DataParallel(layer, group, **options)
    optimizer = paddle.optimizer.SGD(0.01, layer.parameters())
    for batch in batches:
        inputs, targets = (each.chunk(group.size)[group.rank] for each in batch)
        nn.functional.mse_loss(layer(inputs), targets).backward()
        parallel.synchronize()
        optimizer.step()
        optimizer.clear_grad()
    return nn.utils.parameters_to_vector(layer.parameters()).detach()


def train_alone(layer, batches: list, parts: int) -> paddle.Tensor:
    """Trains in one process, on one part of each batch after the other."""
    parameters = layer.parameters()
    optimizer = paddle.optimizer.SGD(0.01, parameters)
    for batch in batches:
        gradients = []
        for inputs, targets in zip(*(each.chunk(parts) for each in batch)):
            nn.functional.mse_loss(layer(inputs), targets).backward()
            gradients.append([each.grad.clone() for each in parameters])
            optimizer.clear_grad(set_to_zero=False)
        for parameter, of_parts in zip(parameters, zip(*gradients)):
            parameter.grad = functools.reduce(operator.add, of_parts) / parts
        optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
    return nn.utils.parameters_to_vector(parameters).detach()


def averaged_during_backward(layer, batch: tuple, group: Group) -> str:
    """Returns how many buckets were averaged before backward had ended."""
    averaged = []

    def hook(group, bucket):
        averaged.append(average(group, bucket))
        return averaged[-1]

    parallel = DataParallel(layer, group, comm_hook=hook)
    nn.functional.mse_loss(layer(batch[0]), batch[1]).backward()
    in_time = len(averaged)
    parallel.synchronize()
    return f"{in_time} of {len(averaged)}"


def use_branches(group: Group, **options) -> nn.LayerDict:
    """Does one step: the last rank alone uses `right`, and none `never`."""
    names = ("left", "right", "never")
    layers = nn.LayerDict({name: nn.Linear(2, 2) for name in names})
    parallel = DataParallel(layers, group, **options)
    inputs = paddle.ones([1, 2])
    outputs = layers["left"](inputs)
    if group.rank == group.size - 1:
        outputs = outputs + layers["right"](inputs)
    outputs.sum().backward()
    parallel.synchronize()
    return layers


def run(rank: int, pipes: list[dict], batches: list, results) -> None:
    """Runs in each process; the first one reports."""
    group = Group(rank, pipes)
    found = {
        "trained": train(new_layer(rank), batches, group),
        "float16": train(
            new_layer(rank), batches, group, comm_hook=AverageAsFloat16()
        ),
        "overlap": averaged_during_backward(new_layer(rank), batches[0], group),
    }
    branches = use_branches(group, find_unused_parameters=True)
    found["right"] = branches["right"].bias.grad
    found["never"] = branches["never"].bias.grad
    try:
        use_branches(group)
    except RuntimeError as error:
        found["error"] = error
    if rank == 0:
        results.put(found)


def run_in_processes(batches: list, processes: int) -> dict:
    pipes = connect(processes)
    results = mp.get_context("spawn").SimpleQueue()
    arguments = (pipes, batches, results)
    context = mp.spawn(run, arguments, processes, join=False, devices="cpu")
    close(pipes)
    context.join()
    return results.get()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    processes = parser.parse_args().processes
    paddle.set_device("cpu")
    paddle.seed(0)
    size = 64 * processes
    batches = [(paddle.randn([size, 16]), paddle.randn([size, 1]))] * 5
    found = run_in_processes(batches, processes)
    in_parts = train_alone(new_layer(0), batches, processes)
    in_whole = train_alone(new_layer(0), batches, 1)
    is_equal = bool(found["trained"].equal_all(in_parts))
    rounding = float((found["trained"] - in_whole).abs().max())
    by_float16 = float((found["float16"] - in_parts).abs().max())
    print(f"{processes} processes")
    print(f"equal to one process, part by part, to the last bit: {is_equal}")
    print(f"difference from one process, whole batches: {rounding:.0e}")
    print(f"difference with gradients sent as float16: {by_float16:.0e}")
    print(f"buckets averaged before backward ended: {found['overlap']}")
    print(f"gradient of what one rank alone uses: {found['right'].tolist()}")
    print(f"gradient of what nobody uses: {found['never']}")
    print(f"if that is not allowed: {found['error']}")
    del found, batches
    mp.collect_shared_memory()
    print(f"shared memory left: {mp.shared_memory_stats()['used']} bytes")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
