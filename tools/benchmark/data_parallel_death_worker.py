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
"""A rank that trains until a rank is killed, for data_parallel_death.py.

    python data_parallel_death_worker.py RANK SIZE PORT BACKEND

Prints the version of Paddle, then a time of the clock that all processes share.
The last rank prints the time at which it kills itself in the middle of
backward. Each other rank prints the time at which its backward raises, and the
error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from importlib import metadata

STEPS_BEFORE = 20


def main(rank, size, port, backend):
    import paddle

    endpoints = [f"127.0.0.1:{int(port) + each}" for each in range(int(size))]
    os.environ.update(
        PADDLE_TRAINER_ID=rank,
        PADDLE_TRAINERS_NUM=size,
        PADDLE_CURRENT_ENDPOINT=endpoints[int(rank)],
        PADDLE_TRAINER_ENDPOINTS=",".join(endpoints),
        PADDLE_MASTER=endpoints[0],
        PADDLE_DISTRI_BACKEND=backend,
    )
    paddle.set_device("cpu")
    paddle.distributed.init_parallel_env()
    print(json.dumps(f"paddlepaddle {metadata.version('paddlepaddle')}"))
    layers = [paddle.nn.Linear(256, 256) for _ in range(8)]
    parallel = paddle.DataParallel(
        paddle.nn.Sequential(*layers), comm_buffer_size=0.3
    )

    def kill_this_process(gradient):
        print(json.dumps([time.monotonic(), ""]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    for step in range(2 * STEPS_BEFORE):
        loss = parallel(paddle.ones([32, 256])).mean()
        if step == STEPS_BEFORE and int(rank) == int(size) - 1:
            layers[4].weight.register_hook(kill_this_process)
        try:
            loss.backward()
        except RuntimeError as error:
            answer = [time.monotonic(), str(error)]
            print(json.dumps(answer), flush=True)
            return
        parallel.clear_gradients()


if __name__ == "__main__":
    main(*sys.argv[1:])
