// Copyright (c) 2026 PaddlePaddle Authors. All Rights Reserved.
//
// Licensed under the Apache License, Version 2.0 (the "License");
// you may not use this file except in compliance with the License.
// You may obtain a copy of the License at
//
//     http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS,
// WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
// See the License for the specific language governing permissions and
// limitations under the License.

#include "test/cpp/phi/shared_memory/intercepted_calls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <memory>
#include <utility>

namespace shared_memory_test {

namespace {

struct Plan {
  std::string function;
  int calls_left;  // until the interception; less than 1 afterwards
  Calls calls;
  std::function<int()> action;
};

// Null while no call is intercepted.
std::unique_ptr<Plan> plan;

// Calls that the action makes itself are not intercepted.
bool Fails(const char* function) {
  if (!plan || plan->function != function) return false;
  const int left = --plan->calls_left;
  if (left > 0 || (left < 0 && plan->calls == Calls::kOne)) return false;
  std::unique_ptr<Plan> current = std::move(plan);
  int error = 0;
  try {
    error = current->action();
  } catch (...) {
    plan = std::move(current);
    throw;
  }
  plan = std::move(current);
  if (error != 0) errno = error;
  return error != 0;
}

struct Range {
  const char* start;
  const char* end;
};

// Empty unless large pages are simulated.
Range large_pages = {};

// Rounds the length of a call up to large pages. Returns false, with the reason
// in errno, if the call does not start with such a page.
bool RoundToPages(const void* start, size_t* length) {
  const char* first = static_cast<const char*>(start);
  if (first < large_pages.start || first >= large_pages.end) return true;
  if ((first - large_pages.start) % LargePages::kBytes != 0) {
    errno = EINVAL;
    return false;
  }
  *length = (*length + LargePages::kBytes - 1) / LargePages::kBytes *
            LargePages::kBytes;
  return true;
}

// Returns the function to which the name would refer without this file.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

const std::vector<std::string>& InterceptedFunctions() {
  static const std::vector<std::string> names = {"open",
                                                 "fallocate",
                                                 "punch",
                                                 "mmap",
                                                 "fcntl",
                                                 "fchmod",
                                                 "linkat",
                                                 "unlink",
                                                 "syscall"};
  return names;
}

Interception::Interception(const std::string& function,
                           int n,
                           Calls calls,
                           const std::function<int()>& action) {
  plan = std::make_unique<Plan>(Plan{function, n, calls, action});
}

Interception::~Interception() { plan.reset(); }

bool Interception::Happened() const { return plan->calls_left < 1; }

LargePages::LargePages(const char* start, size_t length) {
  large_pages = {start, start + length};
}

LargePages::~LargePages() { large_pages = {}; }

}  // namespace shared_memory_test

using shared_memory_test::Fails;
using shared_memory_test::large_pages;
using shared_memory_test::LargePages;
using shared_memory_test::Next;
using shared_memory_test::RoundToPages;

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const next = Next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const unsigned mode = va_arg(arguments, unsigned);
  va_end(arguments);
  return Fails("open") ? -1 : next(path, flags, mode);
}

DIR* opendir(const char* path) {
  static auto* const next = Next<DIR*(const char*)>("opendir");
  return Fails("opendir") ? nullptr : next(path);
}

int fallocate(int fd, int mode, off_t offset, off_t length) {
  static auto* const next = Next<decltype(fallocate)>("fallocate");
  const bool punches = (mode & FALLOC_FL_PUNCH_HOLE) != 0;
  return Fails(punches ? "punch" : "fallocate")
             ? -1
             : next(fd, mode, offset, length);
}

void* mmap(void* at, size_t length, int access, int flags, int fd, off_t from)
    __THROW {
  static auto* const next = Next<decltype(mmap)>("mmap");
  return Fails("mmap") ? MAP_FAILED : next(at, length, access, flags, fd, from);
}

int munmap(void* start, size_t length) __THROW {
  static auto* const next = Next<decltype(munmap)>("munmap");
  return RoundToPages(start, &length) ? next(start, length) : -1;
}

int madvise(void* start, size_t length, int advice) __THROW {
  static auto* const next = Next<decltype(madvise)>("madvise");
  return RoundToPages(start, &length) ? next(start, length, advice) : -1;
}

long sysconf(int name) __THROW {                         // NOLINT(runtime/int)
  static auto* const next = Next<long(int)>("sysconf");  // NOLINT(runtime/int)
  const bool is_simulated =
      name == _SC_PAGESIZE && large_pages.start != nullptr;
  return is_simulated ? LargePages::kBytes : next(name);
}

// pthread_atfork is linked into each library, and calls this.
int __register_atfork(void (*prepare)(),
                      void (*parent)(),
                      void (*child)(),
                      void* library) {
  static auto* const next =
      Next<int(void (*)(), void (*)(), void (*)(), void*)>("__register_atfork");
  return Fails("pthread_atfork") ? errno
                                 : next(prepare, parent, child, library);
}

int fcntl(int fd, int command, ...) {
  static auto* const next = Next<int(int, int, ...)>("fcntl");
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  return Fails("fcntl") ? -1 : next(fd, command, argument);
}

int fchmod(int fd, mode_t mode) __THROW {
  static auto* const next = Next<int(int, mode_t)>("fchmod");
  return Fails("fchmod") ? -1 : next(fd, mode);
}

int linkat(
    int from, const char* path, int to, const char* name, int flags) __THROW {
  static auto* const next = Next<decltype(linkat)>("linkat");
  return Fails("linkat") ? -1 : next(from, path, to, name, flags);
}

int unlink(const char* path) __THROW {
  static auto* const next = Next<int(const char*)>("unlink");
  return Fails("unlink") ? -1 : next(path);
}

// No call that goes through here has more than three arguments.
long syscall(long number, ...) __THROW {  // NOLINT(runtime/int)
  static auto* const next = Next<long(long, ...)>("syscall");  // NOLINT
  va_list arguments;
  va_start(arguments, number);
  void* const first = va_arg(arguments, void*);
  void* const second = va_arg(arguments, void*);
  void* const third = va_arg(arguments, void*);
  void* const fourth = va_arg(arguments, void*);
  void* const fifth = va_arg(arguments, void*);
  void* const sixth = va_arg(arguments, void*);
  va_end(arguments);
  return Fails("syscall")
             ? -1
             : next(number, first, second, third, fourth, fifth, sixth);
}

}  // extern "C"
