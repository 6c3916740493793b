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

#pragma once

#include <memory>
#include <random>

namespace phi {

class Generator;

// Keeps other threads from the CPU engine of a generator. A thread may lock a
// generator again while it has locked it; the second lock then does nothing.
//
// A draw needs nothing of Python, so a thread may wait for it with the GIL. The
// Python methods for the state have to: they also lock the mutex inside of the
// generator, and a child of a fork, which needs the GIL, must not find that
// locked.
//
// In the child of a fork, no generator is locked by a thread that the child
// lacks. An engine that such a thread was using has the numbers that it had
// reached, or arbitrary ones.
//
// Thread-safe. Requires: destroyed on the thread that created it, and after the
// locks of that thread that were created later. While a thread has locked a
// generator, it neither waits for the GIL nor locks another generator.
class GeneratorLock {
 public:
  explicit GeneratorLock(const Generator* generator);
  ~GeneratorLock();
  GeneratorLock(const GeneratorLock&) = delete;
  GeneratorLock& operator=(const GeneratorLock&) = delete;

  // Returns a pointer to the generator's engine, which takes the place of this
  // lock: the generator is locked until the last copy of the pointer is
  // dropped. So a kernel that has it in a local variable draws its numbers
  // alone. If this thread had locked the generator before, returns `engine`.
  //
  // Requires: called once, and the last copy is dropped on this thread.
  std::shared_ptr<std::mt19937_64> KeepIn(
      std::shared_ptr<std::mt19937_64> engine);

  // Opaque; defined in the source file.
  struct Mutex;

 private:
  // Null if there is nothing to unlock.
  Mutex* mutex_;
};

}  // namespace phi
