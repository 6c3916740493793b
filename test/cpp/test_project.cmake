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

# What the stand-alone projects of C++ tests are built with: C++17, all warnings,
# and the sanitizer that -DSANITIZE names. `launcher` is what a test program
# then has to be started by.

set(SANITIZE
    ""
    CACHE STRING "Sanitizer to build with: address, thread or none (empty).")
set_property(CACHE SANITIZE PROPERTY STRINGS "" address thread)
if(NOT SANITIZE MATCHES "^(address|thread|)$")
  message(FATAL_ERROR "SANITIZE is \"${SANITIZE}\". Pass -DSANITIZE=address, "
                      "-DSANITIZE=thread or nothing.")
endif()
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

find_package(Threads REQUIRED)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
add_compile_options(-Wall -Wextra -Werror)

# To look at the type of an object takes a file descriptor, and some tests leave
# none; of Paddle's objects it is in libraries that no sanitizer knows.
set(sanitize_address -fsanitize=address,undefined -fno-sanitize=vptr
                     -fno-sanitize-recover=all)
set(sanitize_thread -fsanitize=thread)
if(SANITIZE)
  add_compile_options(${sanitize_${SANITIZE}} -fno-omit-frame-pointer)
  add_link_options(${sanitize_${SANITIZE}})
endif()

# Of another kind of processor; see aarch64_linux.cmake.
set(launcher ${CMAKE_CROSSCOMPILING_EMULATOR})

# GCC 12's thread sanitizer does not start where the kernel randomizes more bits
# of an address than it knows of. Containers may forbid to turn that off.
if(SANITIZE STREQUAL "thread")
  execute_process(
    COMMAND setarch -R true
    RESULT_VARIABLE refusal
    OUTPUT_QUIET ERROR_QUIET)
  if(refusal EQUAL 0)
    set(launcher setarch -R)
  endif()
endif()
