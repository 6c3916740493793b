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
"""Per-thread state: devices, streams, and memory and random numbers on the CPU.

| module | what it holds |
|---|---|
| `main_thread` | which thread is the main one |
| `thread_value` | `ThreadValue`: a thread's own value, else the process's |
| `devices` | the current place, and the tracer to match |
| `device_scope` | what context managers restore when a thread leaves them |
| `operator_device` | the device of `static.device_guard` |
| `streams` | the current streams, and the device contexts to match |
| `stream_scope` | what guards of streams set, and put back when they are left |
| `stream_pool` | streams that are made once and handed out in turn |
| `host_context` | memory and random numbers on the CPU |
| `names` | the namespace in which a thread numbers the names that it makes up |
| `programs` | programs of `to_static` and `jit.load`, built one at a time |
| `fork` | the steps that a child takes after a fork, in their order |

Import the modules themselves. This file imports none of them, since a Paddle
with the first patches alone has the first modules alone.
"""
