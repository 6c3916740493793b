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
"""Per-thread state: devices, streams, host allocators and host generators.

| module | contents |
|---|---|
| `main_thread` | the identity of the main thread |
| `thread_value` | `ThreadValue`: a thread's own value, else the process's |
| `devices` | the current place, and the matching tracer |
| `device_scope` | the state that context managers restore on exit |
| `operator_device` | the device of `static.device_guard` |
| `streams` | the current streams, and the matching device contexts |
| `stream_scope` | the state that stream guards set and restore |
| `stream_pool` | streams that are created once and handed out round-robin |
| `host_context` | the host allocator and the host random number generator |
| `names` | the namespace in which a thread numbers generated names |
| `programs` | programs of `to_static` and `jit.load`, built one at a time |
| `fork` | the steps of a child after a fork, in their order |

Import the modules themselves. This file imports none of them, since a Paddle
with only the first patches has only the first modules.
"""
