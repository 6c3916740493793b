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
"""Pickles optimizers, with their state, for other processes."""

from __future__ import annotations

import copyreg
from collections import defaultdict
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from ..base import core, framework

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paddle import Tensor

    from .optimizer import Optimizer

__all__ = []

_PICKLE_METHODS = ("__reduce__", "__reduce_ex__", "__getstate__")


# The names that received parameters have from their sender. Parameters of this
# process may have the same ones.
_names_of_senders: set[str] = set()


def enforce_own_names(parameters: list[Tensor | dict[str, Any]]) -> None:
    """
    Enforces that no parameter of a new optimizer has the name of one that came
    with an optimizer of another process: they would have one state.

    Raises:
        ValueError: two parameters have the same name.
    """
    if not _names_of_senders:
        return
    by_name: dict[str, Tensor] = {}
    for each in parameters:
        for parameter in each["params"] if isinstance(each, dict) else [each]:
            name = parameter.name
            other = by_name.setdefault(name, parameter)
            if other is not parameter and name in _names_of_senders:
                raise ValueError(
                    f"Two parameters of this optimizer are named {name!r}: one "
                    "of them came with an optimizer of another process. Set "
                    "the `name` of the other one before any optimizer gets it."
                )


def make_sendable(kind: type[Optimizer]) -> None:
    """
    Registers how `multiprocessing` pickles the optimizers of a class, unless
    the class defines its own pickling.
    """
    if all(
        getattr(kind, name, None) is getattr(object, name, None)
        for name in _PICKLE_METHODS
    ):
        ForkingPickler.register(kind, _reduce)


def _reduce(optimizer: Optimizer) -> Any:
    # This pickler prefers its own table to that of copyreg.
    if registered := copyreg.dispatch_table.get(type(optimizer)):
        return registered(optimizer)
    new, args, state = optimizer.__reduce_ex__(4)[:3]
    if not isinstance(state, dict) or "_accumulators" not in state:
        # A subclass that keeps its state elsewhere.
        return optimizer.__reduce_ex__(4)
    state = {
        **state,
        # A defaultdict whose factory is a lambda, which cannot be pickled.
        "_accumulators": dict(state["_accumulators"]),
        # Each step refills it with variables of this process's programs.
        "_learning_rate_map": {},
    }
    # A received tensor has a new name, but the state of a parameter is looked
    # up by its name: restore the names.
    names = [(tensor, tensor.name) for tensor in _tensors_in(state)]
    return new, args, (state, names), None, None, _restore


def _restore(optimizer: Optimizer, received: tuple) -> None:
    state, names = received
    for tensor, name in names:
        tensor.name = name
        if isinstance(tensor, framework.EagerParamBase):
            _names_of_senders.add(name)
    state["_accumulators"] = defaultdict(dict, state["_accumulators"])
    set_state = getattr(optimizer, "__setstate__", optimizer.__dict__.update)
    set_state(state)


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Yields the tensors in nested containers, which may contain themselves."""
    remaining, containers = [value], set()
    while remaining:
        value = remaining.pop()
        if isinstance(value, core.eager.Tensor):
            yield value
        elif (
            isinstance(value, (dict, list, tuple))
            and id(value) not in containers
        ):
            containers.add(id(value))
            remaining += value.values() if isinstance(value, dict) else value
