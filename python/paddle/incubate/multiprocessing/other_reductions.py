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
"""Pickles places, generators and subclasses of Tensor for other processes.

Compiled functions are refused with an error that gives the reason.
"""

from __future__ import annotations

import copyreg
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Callable

from paddle.base import core
from paddle.base.fork_preload import load_before_fork
from paddle.jit.dy2static.program_translator import (
    ASTStaticFunction,
    StaticFunction,
    SymbolicStaticFunction,
)

from .feeder_errors import reduce_error

if TYPE_CHECKING:
    import paddle

_PLACES = (
    core.Place,
    core.CPUPlace,
    core.CUDAPinnedPlace,
    core.CUDAPlace,
    core.CustomPlace,
    core.XPUPlace,
)


def _rebuild_place(device: str) -> core.Place:
    from .device_names import place_of

    place = core.Place()
    place.set_place(place_of(device))
    return place


def _reduce_place(place: core.Place) -> tuple:
    from .device_names import name_of, place_of

    # Tensor.place is a core.Place for every device.
    rebuild = _rebuild_place if type(place) is core.Place else place_of
    return rebuild, (name_of(place),)


def _rebuild_generator(state: core.GeneratorState) -> core.Generator:
    generator = core.Generator()
    generator.set_state(state)
    return generator


def _reduce_generator(generator: core.Generator) -> tuple:
    return _rebuild_generator, (generator.get_state(),)


def _refuse_compiled(function: StaticFunction) -> tuple:
    layer = function.class_instance
    if layer is None:
        owner = f"the function {function.dygraph_function.__name__!r}"
        cure = "Send its `dygraph_function` instead"
    else:
        owner = f"a {type(layer).__name__}"
        cure = "Call layer.forward.rollback() first"
    error = TypeError(
        "A layer or function that is sent to another process must not be "
        f"compiled, but paddle.jit.to_static has compiled {owner}. {cure}, and "
        "compile it in the receiver."
    )
    return reduce_error(error, "a compiled layer or function")


def _register_subclasses(reduce_tensor: Callable) -> None:
    """
    Registers how `multiprocessing` pickles tensors of each subclass of Tensor
    that is defined from now on, unless the class defines its own pickling.
    """
    tensor = core.eager.Tensor

    def reduce_subclass(value: paddle.Tensor) -> Any:
        # This pickler prefers its own table to that of copyreg.
        return copyreg.dispatch_table.get(type(value), reduce_tensor)(value)

    def init_subclass(cls: type[paddle.Tensor], **options: Any) -> None:
        super(tensor, cls).__init_subclass__(**options)
        if all(
            getattr(cls, name) is getattr(tensor, name)
            for name in ("__reduce__", "__reduce_ex__")
        ):
            # A pickler looks up the class itself, not its bases.
            ForkingPickler.register(cls, reduce_subclass)

    tensor.__init_subclass__ = classmethod(init_subclass)


def register(reduce_tensor: Callable) -> None:
    """
    Registers the reductions of this module with the pickler of
    `multiprocessing`, and `reduce_tensor` for subclasses of Tensor.
    """
    # Otherwise, the first send would load this module.
    package = __name__.rpartition(".")[0]
    load_before_fork(f"{package}.tensor_reductions")
    _register_subclasses(reduce_tensor)
    for kind in (StaticFunction, ASTStaticFunction, SymbolicStaticFunction):
        ForkingPickler.register(kind, _refuse_compiled)
    for kind in _PLACES:
        ForkingPickler.register(kind, _reduce_place)
    ForkingPickler.register(core.Generator, _reduce_generator)
