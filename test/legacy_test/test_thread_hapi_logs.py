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

from __future__ import annotations

import threading
import unittest

import numpy as np
from concurrent_base import WAIT_S, Worker

import paddle


class Constant(paddle.io.Dataset):
    def __init__(self, value: float, count: int = 2):
        self.value, self.count = value, count

    def __getitem__(self, index):
        item = np.full([1], self.value, "float32")
        return item, np.zeros([1], "float32")

    def __len__(self):
        return self.count


def model_of_squares():
    """Returns a model whose loss is the square of its input."""
    model = paddle.Model(paddle.nn.Identity())
    model.prepare(loss=paddle.nn.MSELoss())
    return model


class KeepLogs(paddle.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.at_begin, self.at_end = [], None

    def on_eval_batch_begin(self, step, logs=None):
        self.at_begin.append(dict(logs))

    def on_train_end(self, logs=None):
        self.at_end = dict(logs)


class TestLogsOfModels(unittest.TestCase):
    def evaluate(self, value, callbacks=None):
        result = model_of_squares().evaluate(
            Constant(value), batch_size=1, verbose=0, callbacks=callbacks
        )
        return result["loss"]

    def test_evaluate_returns_the_loss_of_its_own_model(self):
        inside, may_go_on = threading.Event(), threading.Event()

        class WaitAtTheEnd(paddle.callbacks.Callback):
            def on_eval_batch_end(self, step, logs=None):
                if step == 1:
                    inside.set()
                    if not may_go_on.wait(WAIT_S):
                        raise TimeoutError("the other model has not ended")

        worker = Worker(self.evaluate, 1.0, [WaitAtTheEnd()])
        self.assertTrue(inside.wait(WAIT_S))
        self.assertEqual(self.evaluate(10.0), [100.0])
        may_go_on.set()
        self.assertEqual(worker.result(), [1.0])

    def test_evaluate_begins_without_the_logs_of_another_model(self):
        self.evaluate(1.0)
        logs = KeepLogs()
        self.evaluate(2.0, [logs])
        self.assertEqual(logs.at_begin[0], {})

    def test_a_training_ends_with_the_logs_of_its_own_batches(self):
        layer = paddle.nn.Linear(1, 1)
        layer.weight.set_value(paddle.ones([1, 1]))
        model = paddle.Model(layer)
        model.prepare(
            paddle.optimizer.SGD(0.0, parameters=layer.parameters()),
            paddle.nn.MSELoss(),
        )
        logs = KeepLogs()
        model.fit(
            Constant(1.0),
            Constant(3.0),
            batch_size=1,
            verbose=0,
            callbacks=[logs],
        )
        self.assertEqual(logs.at_end["loss"], [1.0])


if __name__ == "__main__":
    unittest.main()
