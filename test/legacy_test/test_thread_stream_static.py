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
"""Per-thread streams: static graph programs and predictors."""

from __future__ import annotations

import tempfile
import unittest

import numpy as np
from concurrent_base import in_thread
from thread_device_base import StreamTestCase, on_every_device_list

import paddle


@on_every_device_list
class TestPrograms(StreamTestCase):
    def test_static_executor(self):
        place = paddle.device._convert_to_place(self.devices[0])
        main, startup = paddle.static.Program(), paddle.static.Program()

        def build_and_run():
            paddle.enable_static()
            with paddle.static.program_guard(main, startup):
                x = paddle.static.data("x", [None, 2], "float32")
                fetched = paddle.nn.functional.relu(x * 2 + x)
            executor = paddle.static.Executor(place)
            executor.run(startup)
            return executor, fetched, run(executor, fetched)

        def run(executor, fetched):
            paddle.enable_static()
            feed = {"x": np.array([[-1.0, 2.0]], "float32")}
            (out,) = executor.run(main, feed=feed, fetch_list=[fetched])
            return out.tolist()

        executor, fetched, first = in_thread(self.on_new_stream, build_and_run)
        self.assertEqual(first, [[0.0, 6.0]])
        again = [
            in_thread(run, executor, fetched),
            in_thread(self.on_new_stream, run, executor, fetched),
        ]
        self.assertEqual(again, [first, first])

    def test_inference_predictor(self):
        def save(path):
            net = paddle.jit.to_static(
                paddle.nn.ReLU(),
                full_graph=True,
                input_spec=[paddle.static.InputSpec([None, 2], "float32")],
            )
            paddle.jit.save(net, path)

        def build(path):
            config = paddle.inference.Config(
                path + ".json", path + ".pdiparams"
            )
            kind, _, index = self.devices[0].partition(":")
            if kind == "gpu":
                config.enable_use_gpu(100, int(index))
            else:
                config.enable_custom_device(kind, int(index))
            config.disable_glog_info()
            return paddle.inference.create_predictor(config)

        def run(predictor):
            (name,) = predictor.get_input_names()
            given = np.array([[-1.0, 2.0]], "float32")
            predictor.get_input_handle(name).copy_from_cpu(given)
            predictor.run()
            (name,) = predictor.get_output_names()
            return predictor.get_output_handle(name).copy_to_cpu().tolist()

        def build_and_run(path):
            predictor = build(path)
            return predictor, run(predictor)

        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/model"
            in_thread(save, path)
            predictor, first = in_thread(
                self.on_new_stream, build_and_run, path
            )
            clone = in_thread(self.on_new_stream, predictor.clone)
        self.assertEqual(first, [[0.0, 2.0]])
        for each in (predictor, clone):
            again = [
                in_thread(run, each),
                in_thread(self.on_new_stream, run, each),
            ]
            self.assertEqual(again, [first, first])


if __name__ == "__main__":
    unittest.main()
