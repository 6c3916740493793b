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
"""Test helpers for predictors on threads: models, and calls of a predictor."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import unittest
from typing import TYPE_CHECKING, Any, Callable

import paddle
from paddle.base import core
from paddle.inference import (
    Config,
    Predictor,
    Tensor,
    create_predictor,
    wrapper,
)
from paddle.utils import flatten

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

IMAGE, IMAGE_LEGACY, PAIR = "image.pir", "image.legacy", "pair.pir"


class Convolution(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = paddle.nn.Conv2D(3, 8, 3, padding=1)
        self.linear = paddle.nn.Linear(8, 16)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        found = paddle.nn.functional.relu(self.convolution(x))
        return self.linear(found.mean([2, 3]))


class Difference(paddle.nn.Layer):
    """A layer whose two outputs show which inputs were used."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = self.create_parameter([1])

    def forward(self, x: paddle.Tensor, y: paddle.Tensor) -> Any:
        return x - y + 0 * self.factor, x * 2 + 0 * self.factor


def save_layer(layer: paddle.nn.Layer, path: str, **shapes: list) -> None:
    """Saves a layer in PIR format."""
    layer.eval()
    specs = [
        paddle.static.InputSpec(shape, "float32", name)
        for name, shape in shapes.items()
    ]
    program = paddle.jit.to_static(layer, full_graph=True, input_spec=specs)
    paddle.jit.save(program, path)


def save_legacy(
    build: Callable[[paddle.static.Variable], Any], path: str, shape: list
) -> None:
    """Saves a model in the older format. `build` takes the input variable `x`
    and returns the output, or several in a list."""
    paddle.enable_static()
    try:
        with paddle.pir_utils.OldIrGuard():
            main, startup = paddle.static.Program(), paddle.static.Program()
            with paddle.static.program_guard(main, startup):
                x = paddle.static.data("x", shape, "float32")
                y = build(x)
                executor = paddle.static.Executor(paddle.CPUPlace())
                executor.run(startup)
                paddle.static.save_inference_model(
                    path, [x], flatten(y), executor, program=main
                )
    finally:
        paddle.disable_static()


def _legacy_convolution(x: paddle.static.Variable) -> Any:
    found = paddle.static.nn.conv2d(x, 8, 3, padding=1, act="relu")
    return paddle.static.nn.fc(paddle.mean(found, [2, 3]), 16)


def call(predictor: Predictor, *arrays: np.ndarray) -> np.ndarray:
    """Runs a predictor through its handles, and returns the first output."""
    for name, array in zip(predictor.get_input_names(), arrays):
        predictor.get_input_handle(name).copy_from_cpu(array)
    predictor.run()
    return output(predictor)


def output(predictor: Predictor, index: int = 0) -> np.ndarray:
    name = predictor.get_output_names()[index]
    return predictor.get_output_handle(name).copy_to_cpu()


class PredictorTestCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = folder = temporary.name
        image = [None, 3, None, None]
        save_layer(Convolution(), os.path.join(folder, "image.pir"), x=image)
        save_legacy(
            _legacy_convolution, os.path.join(folder, "image.legacy"), image
        )
        save_layer(
            Difference(), os.path.join(folder, "pair.pir"), x=[None], y=[None]
        )
        # Even if there are other devices: disable_static has set one.
        paddle.set_device("cpu")

    def config(self, model: str = IMAGE, onednn: bool = False) -> Config:
        path = os.path.join(self.folder, model)
        suffix = ".json" if model.endswith("pir") else ".pdmodel"
        config = Config(path + suffix, path + ".pdiparams")
        config.disable_glog_info()
        if onednn:
            config.enable_mkldnn()
        else:
            config.disable_mkldnn()
        return config

    def predictor(self, *args: Any, **kwargs: Any) -> Predictor:
        return create_predictor(self.config(*args, **kwargs))


def wrap_on_another_system(function: Callable[..., Any]) -> list[Callable]:
    """
    Replaces the methods of predictors in C++ with `function`, and returns the
    methods with which Paddle wraps them on a system for which it has no
    pybind/predictor_threads.cc. For a process that uses no predictors later.
    """
    core.create_predictor = function
    for name in ("__init__", "clone", "run"):
        setattr(Predictor, name, function)
    for name in ("_copy_from_cpu_bind", "copy_to_cpu"):
        setattr(Tensor, name, function)
    sys.platform = "win32"
    importlib.reload(wrapper)
    return [
        wrapper.create_predictor,
        Predictor.__init__,
        Predictor.clone,
        Predictor.run,
        Tensor._copy_from_cpu_bind,
        Tensor.copy_to_cpu,
    ]


@contextlib.contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def hook_once(function: Callable[[], Any]) -> Callable[..., None]:
    """Returns a hook that calls `function` only the first time."""
    calls = iter([function])

    def hook(*_: Any) -> None:
        for call_now in calls:
            call_now()

    return hook
