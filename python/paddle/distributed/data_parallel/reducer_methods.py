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
"""The methods of ``paddle.DataParallel`` that use its reducer.

The reducer's modules are imported at first use, because every import of Paddle
imports this module, also in programs without a reducer.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import paddle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Self

    from paddle import Tensor
    from paddle.nn import Layer

    from .buckets import Bucket, ReducedParameter
    from .future import Future


class ReducerMethods:
    """Base class of `DataParallel`: gradient averaging, hooks, statistics.

    `DataParallel` sets the attributes that are used here.
    """

    def init_reducer(self) -> None:
        """Checks that the ranks' models are equal, and builds the reducer."""
        from paddle.framework import _current_expected_place

        from .model_sync import check_models_equal

        delayed = _named_tensors(self._delay_all_reduce_named_params or ())
        self._delay_all_reduce_named_params = delayed
        found = list(_reduced_parameters(self._layers, delayed))
        trainable = _trainable(found)
        # The models of other ranks may have the parameters that are missing.
        place = found[0].tensor.place if found else _current_expected_place()
        check_models_equal(trainable, self.group, place)
        _check_any_trainable(trainable)
        _check_delayed_names(delayed, trainable)
        self._build_reducer(found)

    def _build_reducer(self, parameters: list[ReducedParameter]) -> None:
        """Builds the reducer, without communication."""
        from .reducer import Reducer, ReducerOptions

        frozen = [
            each
            for each in parameters
            if each.tensor.stop_gradient and each.tensor.is_floating_point()
        ]
        self._reducer = Reducer(
            _trainable(parameters),
            frozen,
            self.group,
            ReducerOptions(
                self.comm_buffer_size,
                self.last_comm_buffer_size,
                self.find_unused_parameters,
                self._gradient_as_bucket_view,
                self._static_graph,
            ),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a DataParallel of a copy of the layer, with the same group.

        Copying does not communicate, so it is not checked whether all ranks
        copy. Ranks that train the copy must have made it of equal models. It
        has no communication hook. If all parameters are frozen, the copy
        averages nothing.
        """
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        state = dict(self.__dict__)
        shared = {name: state.pop(name) for name in ("group", "_strategy")}
        state.update(
            _reducer=None,
            _join=None,
            _has_comm_hook=False,
            grad_need_sync=True,
        )
        copied.__dict__.update(copy.deepcopy(state, memo), **shared)
        if self._reducer is not None:
            delayed = copied._delay_all_reduce_named_params
            parameters = list(_reduced_parameters(copied._layers, delayed))
            if _trainable(parameters):
                copied._build_reducer(parameters)
        return copied

    def __copy__(self) -> Self:
        # By default, copying would call `__getstate__`.
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "A DataParallel cannot be pickled, because it communicates over a "
            "group of this process. Pickle or send the layer that it wraps "
            "(its attribute _layers) or its state_dict(), and wrap the layer "
            "again."
        )

    def register_comm_hook(
        self,
        state: object,
        hook: Callable[[object, Bucket], Future | Tensor],
    ) -> None:
        """Registers a hook that averages the gradients.

        Sparse gradients are averaged without the hook. The hooks in
        ``paddle.distributed.comm_hooks`` are ready to use. The idea and the
        names are those of torch's DistributedDataParallel.

        Args:
            state (object): Passed to the hook.
            hook (Callable[[object, Bucket], Future|Tensor]): Receives ``state``
                and a bucket, and returns a tensor with the bucket's averages,
                or a future of it. The tensor has the size and data type of
                ``bucket.buffer()``.

        Raises:
            TypeError: ``hook`` is not callable.
            RuntimeError: A hook is registered already.

        Examples:
            .. code-block:: python

                >>> import paddle
                >>> import paddle.distributed as dist
                >>> import paddle.multiprocessing as mp
                >>> groups = dist.new_thread_groups(2)
                >>> found = {}
                >>> def train(rank):
                ...     layer = paddle.nn.Linear(1, 1, bias_attr=False)
                ...     model = paddle.DataParallel(layer, group=groups[rank])
                ...     def average(state, bucket):
                ...         dist.all_reduce(bucket.buffer(), group=bucket.group)
                ...         return bucket.buffer() / 2
                ...     model.register_comm_hook(None, average)
                ...     model(paddle.full([1, 1], rank + 1.0)).sum().backward()
                ...     found[rank] = layer.weight.grad.item()
                >>> mp.start_threads(train, nthreads=2, devices="cpu")
                >>> print(sorted(found.items()))
                [(0, 1.5), (1, 1.5)]
        """
        if not callable(hook):
            raise TypeError(
                f"A communication hook must be callable, but received {hook!r}."
                " Pass a function that takes a state and a bucket."
            )
        if self._has_comm_hook:
            raise RuntimeError(
                "This DataParallel already has a communication hook, and can "
                "have only one. Build another DataParallel for another hook."
            )
        self._has_comm_hook = True
        if self._reducer is not None:
            self._reducer.set_hook(lambda bucket: hook(state, bucket))

    def statistics(self) -> dict:
        """Returns the buckets and the mean times of a step, in milliseconds.

        The times are measured on the calling thread. On a GPU, they measure
        calls, not kernels.

        Returns:
            dict: ``steps``, the number of averaged steps; ``forward_ms``,
            ``backward_ms``, ``communication_ms`` and ``waiting_ms``;
            ``hidden_share``, the share of the communication in which backward
            did not wait, from 0 to 1; and ``buckets``, a list of dicts with the
            ``bytes`` of a bucket and the names of its ``parameters``.

        Raises:
            RuntimeError: There is only one rank.

        Examples:
            .. code-block:: python

                >>> import paddle
                >>> import paddle.distributed as dist
                >>> import paddle.multiprocessing as mp
                >>> groups = dist.new_thread_groups(2)
                >>> found = {}
                >>> def train(rank):
                ...     layer = paddle.nn.Linear(1, 1, bias_attr=False)
                ...     model = paddle.DataParallel(layer, group=groups[rank])
                ...     model(paddle.full([1, 1], rank + 1.0)).sum().backward()
                ...     found[rank] = model.statistics()["buckets"]
                >>> mp.start_threads(train, nthreads=2, devices="cpu")
                >>> print(found[0])
                [{'bytes': 4, 'parameters': ['weight']}]
        """
        if self._reducer is None:
            raise RuntimeError(
                "A DataParallel with one rank has no statistics. Start several "
                "ranks with paddle.distributed.launch or spawn."
            )
        from .statistics import as_dict

        return as_dict(self._reducer.times, self._reducer.buckets)

    def statistics_table(self) -> str:
        """Returns `statistics()` as a text table.

        Returns:
            str: Lines with the times in milliseconds, and one per bucket.

        Raises:
            RuntimeError: There is only one rank.

        Examples:
            .. code-block:: python

                >>> import paddle
                >>> import paddle.distributed as dist
                >>> import paddle.multiprocessing as mp
                >>> groups = dist.new_thread_groups(2)
                >>> found = {}
                >>> def train(rank):
                ...     layer = paddle.nn.Linear(1, 1, bias_attr=False)
                ...     model = paddle.DataParallel(layer, group=groups[rank])
                ...     model(paddle.full([1, 1], rank + 1.0)).sum().backward()
                ...     found[rank] = model.statistics_table().splitlines()[0]
                >>> mp.start_threads(train, nthreads=2, devices="cpu")
                >>> print(found[0])
                1 steps, means in ms
        """
        from .statistics import as_table

        return as_table(self.statistics())

    def _before_forward(self) -> None:
        """Broadcasts buffers to all ranks before a training step.

        The source is the first rank, or the first rank with inputs left.
        """
        if not self._synchronizes():
            return
        # A forward that raised, or was an evaluation, has left its mark.
        self._reducer.times.drop("forward")
        self._reducer.times.mark("forward")
        source = 0
        if self._join is not None:
            source = self._join.begin_step(self)
        self._synchronize_buffers(source)

    def _synchronize_buffers(self, source: int) -> None:
        if self.training and self._broadcast_buffers:
            from .model_sync import broadcast_buffers

            broadcast_buffers(self._layers, self.group, source)

    def _take_part_without_inputs(self, source: int) -> None:
        """Communicates like the other ranks in a step."""
        self._synchronize_buffers(source)
        self._reducer.take_part_without_gradients()

    def _after_forward(self, outputs: object) -> None:
        """Tells the reducer which gradients to average."""
        if self._reducer is None or not paddle.is_grad_enabled():
            return
        if not self.training and _need_no_gradients(outputs):
            # An evaluation, which no backward pass can follow. Other ranks may
            # not run it.
            return
        if self.grad_need_sync:
            self._reducer.times.add("forward")
            trains = self.training and self._layers.training
            self._reducer.prepare_for_backward(outputs, trains)
        else:
            self._reducer.skip_synchronization()

    def _synchronizes(self) -> bool:
        return (
            self._reducer is not None
            and self.grad_need_sync
            and paddle.is_grad_enabled()
        )


def check_buffer_size(name: str, value: Any) -> None:
    """Raises unless `value` is a positive number, which is in MiB."""
    how_to_fix = "Pass a size in MiB, such as 25 or 0.5."
    try:
        # `float` alone would also accept a string.
        size = float(value + 0)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number, but received {value!r}. {how_to_fix}"
        ) from None
    if not 0 < size < math.inf:
        raise ValueError(
            f"{name} must be positive and finite, but received {value!r}. "
            f"{how_to_fix}"
        )


def _named_tensors(pairs: Any) -> dict[str, Tensor]:
    """Returns a dict of the pairs, which may also be a dict or an iterator."""
    name = "delay_all_reduce_named_params"
    how_to_fix = "Pass pairs of named_parameters()."
    try:
        found = list(pairs.items() if isinstance(pairs, dict) else pairs)
    except TypeError:
        raise TypeError(
            f"{name} must be a list of (name, tensor) pairs, but received "
            f"{pairs!r}. {how_to_fix}"
        ) from None
    for each in found:
        if not _is_named_tensor(each):
            raise TypeError(
                f"{name} must contain (name, tensor) pairs, but contains "
                f"{each!r}. {how_to_fix}"
            )
    return dict(found)


def _is_named_tensor(value: object) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], paddle.Tensor)
    )


def _need_no_gradients(outputs: object) -> bool:
    from .unused_parameters import find_tensors

    tensors = list(find_tensors(outputs))
    return bool(tensors) and all(tensor.stop_gradient for tensor in tensors)


def _reduced_parameters(
    layer: Layer, delayed: dict[str, Tensor]
) -> Iterator[ReducedParameter]:
    from .buckets import ReducedParameter

    seen = set()
    for prefix, sublayer in layer.named_sublayers(include_self=True):
        sparse = isinstance(sublayer, paddle.nn.Embedding) and sublayer._sparse
        for name, tensor in sublayer.named_parameters(
            prefix, include_sublayers=False
        ):
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            if not getattr(tensor, "no_sync", False):
                yield ReducedParameter(
                    name,
                    tensor,
                    type(sublayer).__name__,
                    sparse,
                    name in delayed,
                )


def _trainable(parameters: list[ReducedParameter]) -> list[ReducedParameter]:
    return [each for each in parameters if not each.tensor.stop_gradient]


def _check_any_trainable(parameters: list[ReducedParameter]) -> None:
    if not parameters:
        raise ValueError(
            "The layer has no trainable parameters, so DataParallel has "
            "nothing to average. Use the layer itself, or make a parameter "
            "trainable first."
        )


def _check_delayed_names(
    delayed: Iterable[str], parameters: list[ReducedParameter]
) -> None:
    unknown = sorted(set(delayed) - {each.name for each in parameters})
    if unknown:
        raise ValueError(
            "delay_all_reduce_named_params must name trainable parameters of "
            f"the layer, but has {unknown}. Use names from named_parameters()."
        )
