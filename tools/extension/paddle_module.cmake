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
    CACHE STRING "The platform that libpaddle gives pybind11's internals.")

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
      "PYBIND_ABI is empty. Pass what libpaddle.so has between "
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

# Paddle's headers know either CUDA or custom devices. They have to be
# compiled as Paddle itself was: inline functions and the sizes of classes
# depend on that. A Paddle for CUDA needs the headers of CUDA and of cuDNN.
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

# Adds an extension module. Several of its sources are compiled as one: most of
# the time of each is that of headers that others include, too.
function(paddle_module name)
  python_add_library(${name} MODULE WITH_SOABI ${ARGN})
  use_paddle(${name})
  set_target_properties(
    ${name}
    PROPERTIES CXX_VISIBILITY_PRESET hidden
               VISIBILITY_INLINES_HIDDEN ON
               UNITY_BUILD ON)
endfunction()

# Has a target compiled with Paddle's headers, and linked to those of Paddle's
# libraries that it calls.
function(use_paddle name)
  # Errors name the file that they were raised in: by its path in this
  # repository.
  target_compile_options(${name} PRIVATE -Wall -Wextra
                                         "-ffile-prefix-map=${repo}/=")
  target_include_directories(${name} PRIVATE "${repo}")
  target_include_directories(
    ${name} SYSTEM PRIVATE "${PADDLE_ROOT}/include"
                           "${PADDLE_ROOT}/include/third_party")

  # Modules that name the same ABI share their types. pybind11 names the version
  # of the compiler as well; what the module shares with libpaddle has the same
  # layout under each.
  target_compile_definitions(
    ${name} PRIVATE ${paddle_device} PYBIND11_COMPILER_TYPE=\"\"
                    PYBIND11_STDLIB=\"\" PYBIND11_BUILD_ABI=\"${PYBIND_ABI}\")
  if(cuda_version)
    # Those of Paddle's headers that are for CUDA include ATen's.
    target_include_directories(
      ${name} SYSTEM
      PRIVATE "${PADDLE_ROOT}/include/paddle/phi/api/include/compat")
    # By the library that Paddle has loaded, if it is used at all.
    target_link_libraries(${name} PRIVATE CUDA::cudart)
  endif()

  target_link_libraries(
    ${name}
    PRIVATE "${PADDLE_ROOT}/base/libpaddle.so"
            "${PADDLE_ROOT}/libs/libphi_core.so"
            "${PADDLE_ROOT}/libs/libcommon.so" ${CMAKE_DL_LIBS})
  # A symbol that a libpaddle does not have is an error at import, not at the
  # call.
  target_link_options(${name} PRIVATE LINKER:-z,now LINKER:--as-needed
                      LINKER:--strip-all)
endfunction()
