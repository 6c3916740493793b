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
"""Predictors of one model for many threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from paddle.base import core
from paddle.base.cpp_module import find_cpp_module
from paddle.base.data_feeder import convert_dtype
from paddle.pir import Program

from .wrapper import create_predictor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .wrapper import Config, Predictor

__all__ = []


def _input_types(config: Config, predictor: Predictor) -> dict[str, str]:
    """Returns NumPy's names of the types that are known, by input."""
    path = "" if config.model_from_memory() else config.prog_file()
    if not path and config.model_dir():
        path = os.path.join(config.model_dir(), "__model__.json")
    if not path.endswith(".json") or not os.path.exists(path):
        return predictor._input_types()
    # Paddle does not tell those of a program in PIR's format.
    if config.use_gpu():
        return {}  # a mixed precision may change them
    program = Program()
    core.deserialize_pir_program(path, program, 1)
    return {
        op.attrs()["name"]: convert_dtype(op.result(0).dtype)
        for op in program.global_block().ops
        if op.name() in ("pd_op.data", "pd_op.feed")
    }


class PredictorPool:
    """
    Predictors of one model, for threads that run it side by side.

    Each has inputs, outputs and intermediate tensors of its own. Those of a
    model in PIR's format (`.json`) have a copy of the parameters each; those of
    a model in the format before it share them.

    Thread-safe. A child of a fork has the predictors that were idle at the
    fork.

    Args:
        config (Config): the model, and how to run it.
        size (int): the number of predictors, which is how many threads can run
            at the same time.

    Raises:
        ValueError: the size is less than 1.

    Examples:
        .. code-block:: python

            >>> # doctest: +SKIP('it needs a model')
            >>> import numpy as np
            >>> from paddle.inference import Config, PredictorPool
            >>> pool = PredictorPool(Config("model.json", "model.pdiparams"), 2)
            >>> image = np.zeros([1, 3, 224, 224], "float32")
            >>> (scores,) = pool.predict([image], timeout=10)
    """

    def __init__(self, config: Config, size: int) -> None:
        if size < 1:
            raise ValueError(
                f"A PredictorPool cannot have {size} predictors. Pass a size "
                "of at least 1."
            )
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]
        self._input_names: list[str] = first.get_input_names()
        self._idle = self._input_shapes = self._input_types = None
        native = find_cpp_module("_predictor_threads")
        if native is not None:
            self._idle = native.IdlePredictors(size)
            self._input_shapes = first._input_shapes()
            self._input_types = _input_types(config, first)
        self._retrieved: set[int] = set()

    def retrieve(self, idx: int) -> Predictor:
        """
        Returns a predictor, which is the caller's from then on: `predict` does
        not use it. The same index gives the same predictor again.

        Raises:
            IndexError: there are not so many.
            RuntimeError: `predict` is using it.
        """
        if not 0 <= idx < len(self._predictors):
            raise IndexError(
                f"There is no predictor {idx} in a PredictorPool of "
                f"{len(self._predictors)}. Pass an index from 0 to "
                f"{len(self._predictors) - 1}."
            )
        if self._idle is not None and idx not in self._retrieved:
            if not self._idle.remove(idx):
                raise RuntimeError(
                    f"Predictor {idx} of the PredictorPool cannot be retrieved:"
                    " predict() is using it. Retrieve predictors before the "
                    "first predict(), or use predict() alone."
                )
            self._retrieved.add(idx)
        return self._predictors[idx]

    def predict(
        self,
        inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray],
        timeout: float | None = None,
    ) -> list[np.ndarray]:
        """
        Runs the model on arrays, with a predictor that no other thread uses.
        Waits for one if all are in use.

        A predictor whose run raised an error is not used again. A clone takes
        its place, which the call makes that needs it. Wrong types, ranks and
        sizes raise before the run.

        Args:
            inputs: all inputs, by name or in the order of `get_input_names()`.
            timeout: how many seconds to wait for a predictor; None waits for as
                long as it takes.

        Returns:
            The outputs, in the order of `get_output_names()`. The arrays are
            the caller's.

        Raises:
            NotImplementedError: this Paddle was built without it.
            TimeoutError: no predictor was free in time.
            RuntimeError: the pool has no predictors left.
            ValueError: inputs are missing, are not the model's, or have other
                shapes than the model's.
            TypeError: an input is not a numpy array, or of another type than
                the model's.
        """
        if self._idle is None:
            raise NotImplementedError(
                "This Paddle was built without PredictorPool.predict, a part "
                "in C++ for Linux. Give each thread a predictor of retrieve()."
            )
        arrays = self._by_name(inputs)
        lease = self._idle.take(timeout)
        if lease is None:
            raise self._none_idle(timeout)
        try:
            if lease.has_failed:
                failed = self._predictors[lease.number]
                self._predictors[lease.number] = failed.clone()
                lease.has_failed = False
            predictor = self._predictors[lease.number]
            for name, array in arrays.items():
                predictor.get_input_handle(name).copy_from_cpu(array)
            # Also while an interrupt comes.
            lease.has_failed = True
            predictor.run()
            lease.has_failed = False
            return [
                predictor.get_output_handle(name).copy_to_cpu()
                for name in predictor.get_output_names()
            ]
        finally:
            lease.release()

    def _none_idle(self, timeout: float | None) -> Exception:
        size = self._idle.size
        if size:
            return TimeoutError(
                f"All {size} predictors of the pool were in use for {timeout} "
                "s. Make a larger pool, wait for longer, or send fewer "
                "requests at a time."
            )
        return RuntimeError(
            f"None of the {len(self._predictors)} predictors of the pool is "
            "left: they were retrieved, or in use when this process was "
            "forked. Make a new PredictorPool."
        )

    def _by_name(
        self, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        names = self._input_names
        if not hasattr(inputs, "keys"):
            if len(inputs) != len(names):
                raise ValueError(
                    f"The model has {len(names)} inputs, {names}, but "
                    f"{len(inputs)} arrays were passed. Pass one for each."
                )
            inputs = dict(zip(names, inputs))
        elif set(inputs) != set(names):
            raise ValueError(
                f"The inputs of the model are {names}, but those passed are "
                f"{sorted(inputs)}. Pass one array for each name."
            )
        for name, array in inputs.items():
            if not isinstance(array, np.ndarray):
                raise TypeError(
                    f"The input {name!r} is a {type(array).__name__}, not a "
                    "numpy array. Convert it with numpy.asarray."
                )
            dtype = self._input_types.get(name, array.dtype)
            if array.dtype.newbyteorder("=") != dtype:
                raise TypeError(
                    f"The input {name!r} has the type {array.dtype}, which is "
                    f"incompatible with {dtype}, the type that the model was "
                    f"saved for. Convert it with array.astype({dtype!r})."
                )
            shape = self._input_shapes[name]
            if len(shape) != array.ndim or any(
                size not in (-1, actual)
                for size, actual in zip(shape, array.shape)
            ):
                raise ValueError(
                    f"The input {name!r} has the shape {list(array.shape)}, "
                    f"but the model was saved for {shape}, where -1 is any "
                    "size. Pass an array of such a shape, or save the model "
                    "with None for the sizes that vary."
                )
        return dict(inputs)
