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
"""Two threads inside device contexts that overlap in time.

Prints a line per tensor: the thread that created it, the device that the
thread requested, and the device of the tensor.
"""

import threading

import paddle

accelerator = next(
    name
    for name in [
        *(["gpu"] if paddle.device.cuda.device_count() else []),
        *paddle.device.get_all_custom_device_type(),
    ]
)
DEVICE = f"{accelerator}:0"
printing = threading.Lock()


def show(thread, asked, tensor):
    place = str(tensor.place)[len("Place(") : -1]
    with printing:
        print(thread, asked, place, sep="\t", flush=True)


def on_cpu(inside_cpu, inside_device, may_leave_device):
    with paddle.device.device("cpu"):
        inside_cpu.set()
        inside_device.wait(60)
        show("CPU thread, to_tensor", "cpu", paddle.to_tensor([1.0]))
        show("CPU thread, zeros", "cpu", paddle.zeros([1]))
        may_leave_device.set()


def on_device(inside_cpu, inside_device, may_leave_device):
    inside_cpu.wait(60)
    with paddle.device.device(DEVICE):
        inside_device.set()
        may_leave_device.wait(60)
        show("device thread, to_tensor", DEVICE, paddle.to_tensor([2.0]))


def run(*functions):
    events = [threading.Event() for _ in range(3)]
    threads = [
        threading.Thread(target=function, args=events) for function in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


paddle.set_device("cpu")
run(on_cpu, on_device)
show("main thread, afterwards", "cpu", paddle.rand([1]))

child = threading.Thread(target=paddle.set_device, args=[DEVICE])
child.start()
child.join(60)
show("main thread, after a child's set_device", "cpu", paddle.rand([1]))
