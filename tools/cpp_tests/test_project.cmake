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

# Common settings of the C++ test projects under tools/: C++17, all warnings,
# GoogleTest, and the sanitizer in -DSANITIZE. `launcher` is set to the command
# that must start a test program. Paddle's build has its own GoogleTest.

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

# -g1: a stack trace needs only line numbers. -O1: a sanitizer more than doubles
# the compile time of -O2.
if(SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -DNDEBUG")
else()
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
endif()

find_package(Threads REQUIRED)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

# No vptr check: it needs a file descriptor, and some tests use up all of them.
# Also, Paddle's type information is in libraries built without a sanitizer.
set(sanitize_address -fsanitize=address,undefined -fno-sanitize=vptr
                     -fno-sanitize-recover=all)
set(sanitize_thread -fsanitize=thread)
if(SANITIZE)
  add_compile_options(${sanitize_${SANITIZE}} -fno-omit-frame-pointer)
  add_link_options(${sanitize_${SANITIZE}})
endif()

# The emulator of another processor; see aarch64_linux.cmake.
set(launcher ${CMAKE_CROSSCOMPILING_EMULATOR})

# GCC 12's thread sanitizer does not start if the kernel randomizes more address
# bits than it supports. Containers may forbid disabling the randomization.
if(SANITIZE STREQUAL "thread")
  execute_process(
    COMMAND setarch -R true
    RESULT_VARIABLE refusal
    OUTPUT_QUIET ERROR_QUIET)
  if(refusal EQUAL 0)
    set(launcher setarch -R)
  endif()
endif()

# GoogleTest: an installed library, otherwise the sources that Debian installs,
# otherwise a downloaded release.
set(googletest_release 1.15.2)
set(googletest_url
    "https://github.com/google/googletest/releases/download/v${googletest_release}/googletest-${googletest_release}.tar.gz"
)
set(googletest_sha256
    7b42b4d6ed48810c5362c265a17faebe90dc2373c885e5216439d37927f02926)
find_package(GTest QUIET)
if(NOT TARGET GTest::gtest)
  set(googletest /usr/src/googletest)
  if(NOT EXISTS "${googletest}/CMakeLists.txt")
    set(archive "${CMAKE_BINARY_DIR}/googletest.tar.gz")
    file(
      DOWNLOAD "${googletest_url}" "${archive}"
      INACTIVITY_TIMEOUT 60
      STATUS status)
    list(GET status 0 failed)
    if(NOT failed)
      file(SHA256 "${archive}" sha256)
    endif()
    if(NOT sha256 STREQUAL googletest_sha256)
      message(
        FATAL_ERROR
          "The C++ tests need GoogleTest, which is not installed, and downloading "
          "${googletest_url} failed (${status}). Install GoogleTest; on Debian and "
          "Ubuntu it is the package libgtest-dev.")
    endif()
    file(ARCHIVE_EXTRACT INPUT "${archive}" DESTINATION "${CMAKE_BINARY_DIR}")
    set(googletest "${CMAKE_BINARY_DIR}/googletest-${googletest_release}")
  endif()
  set(BUILD_GMOCK OFF)
  set(INSTALL_GTEST OFF)
  add_subdirectory("${googletest}" "${CMAKE_BINARY_DIR}/googletest"
                   EXCLUDE_FROM_ALL)
  if(NOT TARGET GTest::gtest)
    add_library(GTest::gtest ALIAS gtest)
    add_library(GTest::gtest_main ALIAS gtest_main)
  endif()
endif()

add_compile_options(-Wall -Wextra -Werror)
