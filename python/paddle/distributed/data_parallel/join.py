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
"""Training when ranks have different numbers of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import paddle
import paddle.distributed as dist

from .reducer_methods import ReducerMethods

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from paddle import DataParallel


class Join:
    """Lets ranks finish the loop over their inputs at different times.

    A rank that leaves the `with` block takes part in the communication of the
    other ranks, without gradients, until all have left. Then all ranks receive
    the parameters and buffers of a rank that left last. All ranks must enter
    the block. In each step, forward and then backward must run once for each
    layer, in the order of `layers`. To train layers with one loss, wrap one
    Layer that contains them.

    Optimizer state, such as momentum, is not synchronized, because a Join does
    not know the optimizers: a rank that left early has made fewer updates.
    Before training continues, give all processes the state of the first rank
    with the most inputs: after ``state = [optimizer.state_dict()]`` call
    ``paddle.distributed.broadcast_object_list(state, that_rank)``, then
    ``optimizer.set_state_dict(state[0])``.

    The idea is that of torch's ``torch.distributed.algorithms.Join``.

    Args:
        layers (list[DataParallel]): The layers to train, all of one group.
        divide_by_initial_world_size (bool, optional): Whether to divide
            gradients by the number of all ranks, so that each input has the
            same weight in the sum over the block. Otherwise gradients are
            divided by the number of ranks that have inputs left. Default: True.
        enable (bool, optional): Whether joining is enabled. Default: True.
        throw_on_early_termination (bool, optional): Whether all ranks raise
            a RuntimeError when one rank has no inputs left. Default: False.

    Raises:
        ValueError: ``layers`` is empty, has a layer twice, or has layers of
            different groups.
        TypeError: ``layers`` has a layer that is no ``DataParallel``.

    Examples:
        .. code-block:: python

            >>> import paddle
            >>> import paddle.distributed as dist
            >>> import paddle.multiprocessing as mp
            >>> groups = dist.new_thread_groups(2)
            >>> found = {}
            >>> def train(rank):
            ...     ones = paddle.nn.initializer.Constant(1.0)
            ...     layer = paddle.nn.Linear(1, 1, ones, bias_attr=False)
            ...     model = paddle.DataParallel(layer, group=groups[rank])
            ...     sgd = paddle.optimizer.SGD(0.5, model.parameters())
            ...     with dist.Join([model]):
            ...         for _ in range(rank + 1):  # rank 1 has more inputs
            ...             model(paddle.ones([1, 1])).sum().backward()
            ...             sgd.step()
            ...             sgd.clear_grad()
            ...     found[rank] = layer.weight.item()
            >>> mp.start_threads(train, nthreads=2, devices="cpu")
            >>> # The gradients were (1 + 1) / 2 and (0 + 1) / 2.
            >>> print(sorted(found.items()))
            [(0, 0.25), (1, 0.25)]
    """

    def __init__(
        self,
        layers: Sequence[DataParallel],
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ):
        _check_layers(layers)
        self._layers = [each for each in layers if each._reducer is not None]
        self._is_enabled = enable and bool(self._layers)
        self._divides_by_all = divide_by_initial_world_size
        self._throws = throw_on_early_termination
        self._source = 0
        # The layer whose forward ran last in the block.
        self._last: DataParallel | None = None

    def __enter__(self) -> Self:
        if self._is_enabled:
            for layer in self._layers:
                layer._join = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_enabled:
            return
        try:
            if error is None:
                self._wait_for_others()
        finally:
            self._last = None
            for layer in self._layers:
                layer._join = None
                layer._reducer.factor = 1.0

    def begin_step(self, layer: DataParallel) -> int:
        """Returns the group rank that broadcasts its buffers in this step.

        Raises if the step of another layer has not ended: the ranks without
        inputs take part in the steps of one layer after the other.
        """
        last, self._last = self._last, layer
        if last not in (None, layer) and last._reducer.may_get_gradients():
            raise RuntimeError(
                f"Forward of {self._name_of(layer)} of this Join ran before "
                f"backward of {self._name_of(last)}. Run forward and backward "
                "of one layer before forward of the next, or, to train them "
                "with one loss, pass Join one DataParallel of a Layer that "
                "contains both."
            )
        if layer is self._layers[0]:
            self._exchange(True)
        return self._source

    def _name_of(self, layer: DataParallel) -> str:
        kind = type(layer._layers).__name__
        return f"layer {self._layers.index(layer)} (a {kind})"

    def _wait_for_others(self) -> None:
        while self._exchange(False):
            for layer in self._layers:
                layer._take_part_without_inputs(self._source)
        # All ranks have left. The source of the last step has every update.
        for layer in self._layers:
            _broadcast_model(layer, self._source)

    def _exchange(self, has_inputs: bool) -> bool:
        """Exchanges `has_inputs`; returns whether any rank has inputs left."""
        # Every import of Paddle imports this module.
        from .communication import gather

        first = self._layers[0]
        group, place = first.group, first._reducer.place
        flags = gather(paddle.to_tensor([has_inputs], "int32", place), group)
        active = [rank for rank, flag in enumerate(flags) if flag.item()]
        if not active:
            return False
        if self._throws and len(active) < group.nranks:
            left = sorted(set(range(group.nranks)) - set(active))
            raise RuntimeError(
                f"Ranks {left} have no inputs left, but other ranks have. Give "
                "all ranks the same number of inputs, or leave out "
                "throw_on_early_termination."
            )
        self._source = active[0]
        if not self._divides_by_all:
            for layer in self._layers:
                layer._reducer.factor = group.nranks / len(active)
        return True


def _check_layers(layers: Sequence[DataParallel]) -> None:
    if not layers:
        raise ValueError(
            "Join needs at least one layer, but received an empty list. Pass "
            "the DataParallel layers to train."
        )
    for layer in layers:
        if not isinstance(layer, ReducerMethods):
            raise TypeError(
                "Join needs layers of type DataParallel, but received a "
                f"{type(layer).__name__}. Wrap it with paddle.DataParallel."
            )
    if len(set(map(id, layers))) < len(layers):
        raise ValueError(
            "Join got a layer more than once. Pass each DataParallel once, "
            "because its forward must run once in each step."
        )
    groups = [each.group for each in layers if each._reducer is not None]
    if any(group is not groups[0] for group in groups):
        raise ValueError(
            "Join needs layers of one group, but got layers of different "
            "groups. Pass the same group to each DataParallel."
        )


def _broadcast_model(layer: DataParallel, source: int) -> None:
    with paddle.no_grad():
        for tensor in layer._layers.state_dict().values():
            if getattr(tensor, "no_sync", False):
                continue
            dist.broadcast(
                tensor.detach(), layer.group.ranks[source], group=layer.group
            )
