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

# Builds extension modules for an installed Paddle.

set(PADDLE_ROOT
    ""
    CACHE PATH "The folder of the Paddle package; it has base/libpaddle.so.")
set(PYBIND_ABI
    ""
    CACHE STRING "Platform name in the key of libpaddle's pybind11 internals.")

foreach(file base/libpaddle.so include/third_party/pybind11/pybind11.h)
  if(NOT EXISTS "${PADDLE_ROOT}/${file}")
    message(
      FATAL_ERROR
        "PADDLE_ROOT is \"${PADDLE_ROOT}\", which has no ${file}. Pass the "
        "package of a Paddle wheel: -DPADDLE_ROOT=.../site-packages/paddle")
  endif()
endforeach()
if(NOT PYBIND_ABI)
  message(
    FATAL_ERROR
      "PYBIND_ABI is empty. Pass the text in libpaddle.so between "
      "__pybind11_internals_v4 (v5 from Python 3.12 on) and the next two "
      "underscores: -DPYBIND_ABI=_gcc_libstdcpp_cxxabi1016")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

get_filename_component(repo "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

# Paddle's headers support either CUDA or custom devices. They must be compiled
# for the same one as Paddle itself: inline functions and class sizes depend on
# it. A Paddle for CUDA needs the headers of CUDA and cuDNN.
set(version_file "${PADDLE_ROOT}/version/__init__.py")
if(NOT EXISTS "${version_file}")
  message(
    FATAL_ERROR "PADDLE_ROOT has no version/__init__.py, which says which "
                "devices Paddle was built for. Pass the package of a wheel.")
endif()
file(STRINGS "${version_file}" cuda_version REGEX "^cuda_version *= *'[0-9]")
if(cuda_version)
  find_package(CUDAToolkit REQUIRED)
  set(paddle_device PADDLE_WITH_CUDA)
else()
  set(paddle_device PADDLE_WITH_CUSTOM_DEVICE)
endif()

# Adds an extension module. It is a unity build: most of the compile time of a
# source is spent on headers that the other sources also include.
function(paddle_module name)
  python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  use_paddle(${name})
  set_target_properties(
    ${name}
    PROPERTIES CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               UNITY_BUILD ON)
endfunction()

# Compiles a target with Paddle's headers, and links it to the Paddle libraries
# that it calls.
function(use_paddle name)
  # Error messages contain source paths: make them relative to this repository.
  target_compile_options(${name} PRIVATE -Wall -Wextra
                                         "-ffile-prefix-map=${repo}/=")
  target_include_directories(${name} PRIVATE "${repo}")
  target_include_directories(
    ${name} SYSTEM PRIVATE "${PADDLE_ROOT}/include"
                           "${PADDLE_ROOT}/include/third_party")

  # Modules with the same ABI name share their pybind11 types. By default the
  # name contains the compiler version, but the types shared with libpaddle have
  # the same layout with each version.
  target_compile_definitions(
    ${name} PRIVATE ${paddle_device} PYBIND11_COMPILER_TYPE=\"\"
                    PYBIND11_STDLIB=\"\" PYBIND11_BUILD_ABI=\"${PYBIND_ABI}\")
  if(cuda_version)
    # Paddle's CUDA headers include ATen's headers.
    target_include_directories(
      ${name} SYSTEM
      PRIVATE "${PADDLE_ROOT}/include/paddle/phi/api/include/compat")
    # Resolved by the library that Paddle has loaded; dropped if not needed.
    target_link_libraries(${name} PRIVATE CUDA::cudart)
  endif()

  target_link_libraries(
    ${name}
    PRIVATE "${PADDLE_ROOT}/base/libpaddle.so"
            "${PADDLE_ROOT}/libs/libphi_core.so"
            "${PADDLE_ROOT}/libs/libcommon.so" ${CMAKE_DL_LIBS})
  # A symbol that libpaddle lacks is an error at import, not at the call.
  target_link_options(${name} PRIVATE LINKER:-z,now LINKER:--as-needed
                      LINKER:--strip-all)
endfunction()
