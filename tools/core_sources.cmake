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
# memory, do. A tree with only a part of the series has only a part of the files.
#
# collective_sources, the collective operations in shared memory, need
# core_sources but not Paddle.

if(NOT PADDLE_SOURCE_DIR)
  get_filename_component(PADDLE_SOURCE_DIR "${CMAKE_CURRENT_LIST_DIR}/.."
                         ABSOLUTE)
endif()

function(sources_that_exist variable)
  set(found)
  foreach(source ${ARGN})
    set(file "${PADDLE_SOURCE_DIR}/paddle/phi/core/memory/allocation/${source}")
    if(EXISTS "${file}")
      list(APPEND found "${file}")
    endif()
  endforeach()
  set(${variable}
      ${found}
      PARENT_SCOPE)
endfunction()

sources_that_exist(
  core_sources
  cuda_interprocess_event.cc
  cuda_ipc_chunks.cc
  cuda_ipc_driver.cc
  cuda_ipc_events.cc
  cuda_ipc_handles.cc
  cuda_ipc_heap.cc
  default_memory_limit.cc
  file_descriptor.cc
  process_status.cc
  random_bits.cc
  shared_blocks.cc
  shared_family.cc
  shared_heap.cc
  shared_ledger.cc
  shared_memory_error.cc
  shared_records.cc
  shared_segment.cc
  shared_segment_file.cc
  shared_slots.cc
  starting_processes.cc)

sources_that_exist(storage_sources cuda_ipc_storage.cc recorded_storage.cc
                   shared_handle.cc shared_storage.cc storage_watcher.cc)

file(GLOB collective_sources
     "${PADDLE_SOURCE_DIR}/paddle/phi/core/distributed/shared_memory/*.cc")
