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

A request is a line of JSON. So is its response: an HTTP status and the result.
Executor threads call the model, while the event loop serves connections. The
script sends itself requests and compares the results with those of one thread.
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
    TIMEOUT_S,
    WIDTH,
    layer_call,
    make_pool,
    predictor_call,
    respond,
)

import paddle

CLIENTS = 8


def connection_handler(model, executor: ThreadPoolExecutor):
    """Returns a handler that serves one connection."""
    # The executor's queue has no bound, so requests wait here.
    idle = asyncio.Semaphore(PREDICTORS)

    async def answer(line: bytes) -> bytes:
        try:
            await asyncio.wait_for(idle.acquire(), TIMEOUT_S)
        except asyncio.TimeoutError:
            return json.dumps([503, f"busy for {TIMEOUT_S} s"]).encode()
        try:
            # One thread does the whole request, including inputs and outputs.
            status, body = await asyncio.get_running_loop().run_in_executor(
                executor, respond, model, line
            )
        finally:
            idle.release()
        return b"[%d, %s]" % (status, body)

    async def serve(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while line := await reader.readline():
            writer.write(await answer(line) + b"\n")
            await writer.drain()
        writer.close()

    return serve


async def ask(port: int, lines: list[str]) -> list[list]:
    """Sends requests over one connection. Returns each status and answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    responses = []
    for line in lines:
        writer.write(line.encode() + b"\n")
        responses.append(json.loads(await reader.readline()))
    writer.write_eof()
    await reader.read()  # until the server has closed its side
    writer.close()
    return responses


async def serve_and_ask(
    model, inputs: list[np.ndarray]
) -> tuple[list[np.ndarray], int]:
    """Returns the answers, and the status of the response to a bad request."""
    # One thread per predictor: more threads would only wait for a predictor.
    with ThreadPoolExecutor(PREDICTORS) as executor:
        server = await asyncio.start_server(
            connection_handler(model, executor), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        lines = [json.dumps(x.tolist()) for x in inputs]
        found = await asyncio.gather(
            *[ask(port, lines[i::CLIENTS]) for i in range(CLIENTS)]
        )
        ((status, _),) = await ask(port, ['["not a number"]'])
        server.close()
    answers = [None] * len(inputs)
    for i, some in enumerate(found):
        answers[i::CLIENTS] = [np.array(a, "float32") for _, a in some]
    return answers, status


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
        answers, status = asyncio.run(serve_and_ask(model, inputs))
    expected = [layer_call(net)(x) for x in inputs]
    wrong = sum(
        a.shape != e.shape or not np.allclose(a, e, rtol=1e-4, atol=1e-5)
        for a, e in zip(answers, expected)
    )
    print(f"{len(answers)} answers, {wrong} wrong; a bad request: {status}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
