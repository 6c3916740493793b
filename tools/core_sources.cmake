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

# The C++ sources of shared memory, for the projects under tools/. For Paddle's
# build, paddle/phi/core/memory/allocation/CMakeLists.txt lists the same files.
#
# core_sources do not need Paddle. storage_sources, the tensor storages in shared
# memory, do.
#
# collective_sources, the collective operations in shared memory, need
# core_sources but not Paddle.

if(NOT PADDLE_SOURCE_DIR)
  get_filename_component(PADDLE_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/.."
                         ABSOLUTE)
endif()

# A tree with only a part of the series has only a part of the files.
set(allocation "${PADDLE_SOURCE_DIR}/paddle/phi/core/memory/allocation")
file(GLOB core_sources "${allocation}/shared_memory/*.cc")
set(storage_sources ${core_sources})
set(storages "/(cuda_ipc_storage|shared_handle|shared_storage)\\.cc$")
list(FILTER core_sources EXCLUDE REGEX "${storages}")
list(FILTER storage_sources INCLUDE REGEX "${storages}")
file(GLOB recorded_sources "${allocation}/recorded_storage.cc"
     "${allocation}/storage_watcher.cc")
list(APPEND storage_sources ${recorded_sources})

file(GLOB collective_sources
     "${PADDLE_SOURCE_DIR}/paddle/phi/core/distributed/shared_memory/*.cc")
