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
"""A pool of predictors of one model, for many threads."""

from __future__ import annotations

import math
import operator
import os
from typing import TYPE_CHECKING

import numpy as np

from paddle.base import core
from paddle.base.data_feeder import convert_dtype
from paddle.pir import Program

from .wrapper import create_predictor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .wrapper import Config, Predictor

__all__ = []


def _input_types(config: Config, predictor: Predictor) -> dict[str, str]:
    """Returns the known input types, as NumPy names, by input name."""
    path = "" if config.model_from_memory() else config.prog_file()
    if not path and config.model_dir():
        path = os.path.join(config.model_dir(), "__model__.json")
    if not path.endswith(".json") or not os.path.exists(path):
        return predictor._input_types()
    # Paddle does not report the types of a program in PIR format.
    if config.use_gpu():
        return {}  # mixed precision may change them
    program = Program()
    core.deserialize_pir_program(path, program, 1)
    return {
        op.attrs()["name"]: convert_dtype(op.result(0).dtype)
        for op in program.global_block().ops
        if op.name() in ("pd_op.data", "pd_op.feed")
    }


def _as_integer(value: int, what: str, range_text: str) -> int:
    """Returns an argument as an int. Raises TypeError if it is not an integer,
    or is True or False, which are integers in Python."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except (TypeError, AssertionError):  # a Tensor raises the latter
        raise TypeError(
            f"The {what} of a PredictorPool is {value!r}, of type "
            f"{type(value).__name__}. Pass an integer {range_text}."
        ) from None


class PredictorPool:
    """
    A pool of predictors of one model, for threads that run it in parallel.

    Each predictor has its own inputs, outputs and intermediate tensors.
    Predictors of a model in PIR format (`.json`) also have their own copies of
    the parameters; predictors of a model in the older format share them.

    Thread-safe. A forked child has the predictors that were idle at the fork.

    Args:
        config (Config): the model, and how to run it.
        size (int): the number of predictors, which is the number of threads
            that can run concurrently.

    Raises:
        TypeError: the size is not an integer.
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
        size = _as_integer(size, "size", "of 1 or more")
        if size < 1:
            raise ValueError(
                f"A PredictorPool cannot have {size} predictors. Pass a size "
                "of 1 or more."
            )
        first = create_predictor(config)
        self._predictors = [first, *(first.clone() for _ in range(size - 1))]
        self._input_names: list[str] = first.get_input_names()
        self._idle = self._input_shapes = self._input_types = None
        native = getattr(core.libpaddle, "_predictor_threads", None)
        if native is not None:
            self._idle = native.IdlePredictors(size)
            self._input_shapes = first._input_shapes()
            self._input_types = _input_types(config, first)
        self._retrieved: dict[int, Predictor] = {}

    def retrieve(self, idx: int) -> Predictor:
        """
        Takes a predictor out of the pool and returns it: `predict` no longer
        uses it. The same index returns the same predictor again. A predictor
        whose last run raised an error is first replaced with a clone.

        Args:
            idx (int): the index of the predictor, less than the pool's size.

        Returns:
            Predictor: the predictor, which the caller uses alone from now on.

        Raises:
            IndexError: the index is out of range.
            TypeError: the index is not an integer.
            RuntimeError: `predict` is using the predictor.
        """
        idx = _as_integer(idx, "index", "from 0")
        if not 0 <= idx < len(self._predictors):
            raise IndexError(
                f"There is no predictor {idx} in a PredictorPool of "
                f"{len(self._predictors)}. Pass an index from 0 to "
                f"{len(self._predictors) - 1}."
            )
        if self._idle is None:
            return self._predictors[idx]
        if idx not in self._retrieved:
            has_failed = self._idle.remove(idx)
            if has_failed is None:
                raise RuntimeError(
                    f"Predictor {idx} of the PredictorPool cannot be retrieved:"
                    " predict() is using it. Retrieve predictors before the "
                    "first predict(), or use only predict()."
                )
            predictor = self._predictors[idx]
            if has_failed:
                predictor = predictor.clone()
            # Other threads may be here, too. All get the same one.
            self._predictors[idx] = self._retrieved.setdefault(idx, predictor)
        return self._retrieved[idx]

    def predict(
        self,
        inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray],
        timeout: float | None = None,
    ) -> list[np.ndarray]:
        """
        Runs the model on arrays, with a predictor that no other thread uses.
        Waits for one if all are in use.

        A predictor whose run raised an error is not used again. The next call
        that needs it replaces it with a clone. Wrong types, ranks and sizes
        raise before the run.

        Args:
            inputs (list|dict): all inputs as NumPy arrays, by name or in the
                order of `get_input_names()`.
            timeout (float, optional): how many seconds to wait for a predictor.
                Default: None, no limit.

        Returns:
            list: the outputs, in the order of `get_output_names()`. The arrays
                belong to the caller.

        Raises:
            NotImplementedError: this Paddle was built without `predict`.
            TimeoutError: no predictor became idle in time.
            RuntimeError: the pool has no predictors left.
            ValueError: the names, number or shapes of the inputs do not match
                the model, or the timeout is NaN.
            TypeError: the inputs are not a list or dict, an input is not a
                numpy array, its type does not match the model, or the timeout
                is not a number.
        """
        if self._idle is None:
            raise NotImplementedError(
                "This Paddle was built without PredictorPool.predict, a part "
                "in C++ for Linux. Give each thread a predictor: call "
                "retrieve() once per thread."
            )
        if timeout is not None and not hasattr(timeout, "__float__"):
            raise TypeError(
                f"The timeout of predict() is {timeout!r}, of type "
                f"{type(timeout).__name__}. Pass a number of seconds, or None "
                "for no limit."
            )
        if timeout is not None and math.isnan(timeout):
            raise ValueError(
                f"The timeout of predict() is {timeout!r}. Pass a number of "
                "seconds, or None for no limit."
            )
        arrays = self._by_name(inputs)
        lease = self._idle.take(timeout)
        if lease is None:
            raise self._none_idle(timeout)
        try:
            if lease.has_failed:
                self._replace(lease.number)
            predictor = self._predictors[lease.number]
            for name, array in arrays.items():
                predictor.get_input_handle(name).copy_from_cpu(array)
            # Until all outputs are copied: a device may report the error of a
            # run there, and a KeyboardInterrupt may come at any time.
            lease.has_failed = True
            predictor.run()
            outputs = [
                predictor.get_output_handle(name).copy_to_cpu()
                for name in predictor.get_output_names()
            ]
            lease.has_failed = False
            return outputs
        finally:
            lease.release()

    def _replace(self, number: int) -> None:
        self._predictors[number] = self._predictors[number].clone()

    def _none_idle(self, timeout: float | None) -> Exception:
        size = self._idle.size
        if size:
            return TimeoutError(
                f"All {size} predictors of the pool were in use for {timeout} "
                "s. Create a larger pool, pass a longer timeout, or send fewer "
                "concurrent requests."
            )
        return RuntimeError(
            f"None of the {len(self._predictors)} predictors of the pool is "
            "left: they were retrieved, or in use when this process was "
            "forked. Create a new PredictorPool."
        )

    def _by_name(
        self, inputs: Sequence[np.ndarray] | Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        names = self._input_names
        if not hasattr(inputs, "keys"):
            try:
                count = len(inputs)
            except TypeError:  # also for an array without dimensions
                raise TypeError(
                    f"The inputs of predict() are {inputs!r}, of type "
                    f"{type(inputs).__name__}. Pass a list of numpy arrays in "
                    f"the order {names}, or a dict of them by name."
                ) from None
            if count != len(names):
                raise ValueError(
                    f"The model has {len(names)} inputs, {names}, but "
                    f"{count} arrays were passed. Pass one per input."
                )
            inputs = dict(zip(names, inputs))
        elif set(inputs) != set(names):
            raise ValueError(
                f"The inputs of the model are {names}, but the passed names "
                f"are {list(inputs)}. Pass one array per input."
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
                    f"incompatible with {dtype}, the type with which the model "
                    f"was saved. Convert it with array.astype({dtype!r})."
                )
            shape = self._input_shapes[name]
            if len(shape) != array.ndim or any(
                size not in (-1, actual)
                for size, actual in zip(shape, array.shape)
            ):
                raise ValueError(
                    f"The input {name!r} has the shape {list(array.shape)}, "
                    f"but the model was saved for {shape}, where -1 is any "
                    "size. Pass an array with a matching shape, or save the "
                    "model with None for the sizes that vary."
                )
        return dict(inputs)
