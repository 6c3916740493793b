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
"""An asyncio server that stays responsive while predictors run.

    python asyncio_server.py [--layer] [--requests 200]

A request is a line of JSON, and so is its response. Executor threads call the
model, while the event loop serves connections. The script sends itself requests
and compares the results with those of one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from thread_pool_server import (
    PREDICTORS,
    WIDTH,
    layer_call,
    make_pool,
    predictor_call,
)

import paddle

CLIENTS = 8


def connection_handler(model, executor: ThreadPoolExecutor):
    """Returns a handler that serves one connection."""

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while line := await reader.readline():
            x = np.array(json.loads(line), "float32")
            # One thread does the whole request, including inputs and outputs.
            answer = await loop.run_in_executor(executor, model, x)
            writer.write(json.dumps(answer.tolist()).encode() + b"\n")
            await writer.drain()
        writer.close()

    return serve


async def ask(port: int, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Sends requests over one connection, and returns the results."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = []
    for x in inputs:
        writer.write(json.dumps(x.tolist()).encode() + b"\n")
        answers.append(np.array(json.loads(await reader.readline()), "float32"))
    writer.close()
    return answers


async def serve_and_ask(model, inputs: list[np.ndarray]) -> list[np.ndarray]:
    # One thread per predictor: more threads would only wait for a predictor.
    with ThreadPoolExecutor(PREDICTORS) as executor:
        server = await asyncio.start_server(
            connection_handler(model, executor), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        found = await asyncio.gather(
            *[ask(port, inputs[i::CLIENTS]) for i in range(CLIENTS)]
        )
        server.close()
    answers = [None] * len(inputs)
    for i, some in enumerate(found):
        answers[i::CLIENTS] = some
    return answers


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layer", action="store_true")
    parser.add_argument("--requests", type=int, default=200)
    args = parser.parse_args()

    net = paddle.nn.Sequential(paddle.nn.Linear(WIDTH, WIDTH), paddle.nn.ReLU())
    net.eval()
    inputs = [
        np.random.rand(1 + i % 5, WIDTH).astype("float32")
        for i in range(args.requests)
    ]
    with tempfile.TemporaryDirectory() as folder:
        model = (
            layer_call(net)
            if args.layer
            else predictor_call(make_pool(net, folder))
        )
        answers = asyncio.run(serve_and_ask(model, inputs))
    expected = [layer_call(net)(x) for x in inputs]
    wrong = sum(
        a.shape != e.shape or not np.allclose(a, e, rtol=1e-4, atol=1e-5)
        for a, e in zip(answers, expected)
    )
    print(f"{len(answers)} answers, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
