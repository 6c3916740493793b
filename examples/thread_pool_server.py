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
"""A web server whose threads share a pool of predictors, or one layer.

    python thread_pool_server.py [--layer] [--requests 200]

It serves a small model, sends itself requests, and compares the results with
those of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import paddle
from paddle.inference import Config, PredictorPool

WIDTH = 16
PREDICTORS = 2  # One per available core.
CLIENTS = 8
TIMEOUT_S = 30


def make_pool(net: paddle.nn.Layer, folder: str) -> PredictorPool:
    path = os.path.join(folder, "model")
    spec = paddle.static.InputSpec([None, WIDTH], "float32", "x")
    program = paddle.jit.to_static(net, full_graph=True, input_spec=[spec])
    paddle.jit.save(program, path)
    config = Config(path + ".json", path + ".pdiparams")
    config.disable_glog_info()
    return PredictorPool(config, PREDICTORS)


def predictor_call(pool: PredictorPool):
    """Each call uses a predictor exclusively, or waits if all are in use."""
    return lambda x: pool.predict([x], timeout=TIMEOUT_S)[0]


def layer_call(net: paddle.nn.Layer):
    """Threads may share a layer for inference: a call changes nothing in it."""

    def forward(x: np.ndarray) -> np.ndarray:
        # no_grad applies to the calling thread only.
        with paddle.no_grad():
            return net(paddle.to_tensor(x)).numpy()

    return forward


def respond(model, request: bytes) -> tuple[int, bytes]:
    """Returns the HTTP status and the JSON of the response to a request."""
    try:
        x = np.array(json.loads(request), "float32")
        status, answer = 200, model(x).tolist()
    except TimeoutError as error:
        status, answer = 503, str(error)
    except (TypeError, ValueError) as error:
        status, answer = 400, str(error)
    except Exception as error:  # The client waits for a response in any case.
        status, answer = 500, str(error)
    return status, json.dumps(answer).encode()


def handler(model) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            status, body = respond(model, self.rfile.read(size))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def request(port: int, text: str) -> tuple[int, object]:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.request("POST", "/", text)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layer", action="store_true")
    parser.add_argument("--requests", type=int, default=200)
    args = parser.parse_args()

    net = paddle.nn.Sequential(paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.ReLU())
    net.eval()
    with tempfile.TemporaryDirectory() as folder:
        model = (
            layer_call(net)
            if args.layer
            else predictor_call(make_pool(net, folder))
        )
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(model))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        inputs = [
            np.random.rand(1 + i % 5, WIDTH).astype("float32")
            for i in range(args.requests)
        ]
        texts = [json.dumps(x.tolist()) for x in inputs]
        with ThreadPoolExecutor(CLIENTS) as clients:
            answers = [
                np.array(answer, "float32")
                for _, answer in clients.map(
                    lambda text: request(server.server_port, text), texts
                )
            ]
        status, _ = request(server.server_port, '["not a number"]')
        server.shutdown()
    expected = [layer_call(net)(x) for x in inputs]
    wrong = sum(
        a.shape != e.shape or not np.allclose(a, e, rtol=1e-4, atol=1e-5)
        for a, e in zip(answers, expected)
    )
    print(f"{len(answers)} answers, {wrong} wrong; a bad request: {status}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
