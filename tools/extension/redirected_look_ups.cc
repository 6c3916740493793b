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

#include "redirected_look_ups.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "paddle/phi/api/include/context_pool.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/thread_contexts.h"
#include "paddle/phi/core/memory/allocation/allocator_facade.h"

namespace {

using paddle::memory::allocation::AllocationPtr;
using paddle::memory::allocation::AllocatorFacade;
using ExperimentalPool = paddle::experimental::DeviceContextPool;

#if defined(__x86_64__)
constexpr uint32_t kSlotTypes[] = {R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT};
#elif defined(__aarch64__)
constexpr uint32_t kSlotTypes[] = {R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT};
#else
#error "The slots of calls are known for x86-64 and for AArch64 only."
#endif

phi::DeviceContext* Get(phi::DeviceContextPool* pool, const phi::Place& place) {
  // Paddle's first look-up comes before any call of
  // DeviceContextPool::SetDeviceContexts.
  static const auto* const of_process = &pool->device_contexts();
  auto* const context = phi::FindThreadContext(place);
  if (context == nullptr) return pool->Get(place);
  // What was set by SetDeviceContexts comes before all else.
  const auto& set = pool->device_contexts();
  return &set != of_process && set.count(place) > 0 ? pool->Get(place)
                                                    : context;
}

const phi::DeviceContext* ExperimentalGet(ExperimentalPool* pool,
                                          const phi::Place& place) {
  if (const auto* context = phi::FindThreadContext(place)) return context;
  // Only a context of the process may go into what all threads read.
  const phi::ProcessContextsGuard guard;
  return pool->Get(place);
}

void SyncDeviceContext(ExperimentalPool* pool, const phi::Place& place) {
  const phi::ProcessContextsGuard guard;
  pool->SyncDeviceContext(place);
}

AllocationPtr Alloc(AllocatorFacade* facade,
                    const phi::Place& place,
                    size_t size) {
  auto* allocator = size > 0 ? phi::FindThreadAllocator(place) : nullptr;
  return allocator == nullptr ? facade->Alloc(place, size)
                              : allocator->Allocate(size);
}

// Paddle has no header for the backward pass of programs: all is passed on as
// it is. Its interpreter keeps contexts, whichever thread runs it.
using RunGradient =
    void (*)(void*, void*, void*, void*, void*, void*, const int64_t&);
using RunLegacyGradient =
    void (*)(void*, void*, void*, void*, void*, const int64_t&);

void* run_gradient = nullptr;
void* run_legacy_gradient = nullptr;

void RunGradientOfThread(void* output_gradients,
                         void* scopes,
                         void* attributes,
                         void* cuda_graph_attributes,
                         void* input_gradients,
                         void* parameter_gradients,
                         const int64_t& key) {
  const phi::OrderedProcessContextsGuard guard;
  reinterpret_cast<RunGradient>(run_gradient)(output_gradients,
                                              scopes,
                                              attributes,
                                              cuda_graph_attributes,
                                              input_gradients,
                                              parameter_gradients,
                                              key);
}

void RunLegacyGradientOfThread(void* output_gradients,
                               void* scopes,
                               void* attributes,
                               void* input_gradients,
                               void* parameter_gradients,
                               const int64_t& key) {
  const phi::OrderedProcessContextsGuard guard;
  reinterpret_cast<RunLegacyGradient>(run_legacy_gradient)(output_gradients,
                                                           scopes,
                                                           attributes,
                                                           input_gradients,
                                                           parameter_gradients,
                                                           key);
}

// Also tells it from the one that takes a stream: the name ends here.
constexpr char kAllocName[] =
    "_ZN6paddle6memory10allocation15AllocatorFacade5AllocERKN3phi5PlaceEm";
constexpr std::string_view kAlloc(kAllocName, sizeof(kAllocName));

struct Redirection {
  // The mangled name begins with it; the rest are the types of arguments.
  std::string_view symbol;
  void* function;
  // Where it is wanted, and known in the library that has the slot.
  void** original = nullptr;
  int slots = 0;
};

// Writes to a slot, which may be in memory that is read-only.
void Write(uintptr_t slot, void* value, bool read_only) {
  const auto page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  auto* const page = reinterpret_cast<void*>(slot & ~(page_size - 1));
  if (read_only && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) {
    throw std::runtime_error(std::string("cannot write to a slot of a call: ") +
                             std::strerror(errno));
  }
  // Other threads may call through the slot. They need no order: either of the
  // two functions will do.
  __atomic_store_n(
      reinterpret_cast<void**>(slot), value, __ATOMIC_RELAXED);  // NOLINT
  if (read_only) mprotect(page, page_size, PROT_READ);
}

// A loaded library.
class Library {
 public:
  explicit Library(const dl_phdr_info& info) : base_(info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const auto& header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) ReadDynamic(header);
      if (header.p_type == PT_GNU_RELRO) {
        relro_begin_ = base_ + header.p_vaddr;
        // The linker protects whole pages.
        relro_end_ = (relro_begin_ + header.p_memsz) &
                     ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
      }
    }
  }

  uintptr_t Base() const { return base_; }

  void Redirect(std::vector<Redirection>* redirections) const {
    for (const auto& table : tables_) {
      for (size_t i = table.skipped; i < table.bytes / sizeof(Relocation);
           ++i) {
        const auto& relocation = table.first[i];
        if (!IsOfSlot(relocation)) continue;
        const auto& symbol = symbols_[ELF64_R_SYM(relocation.r_info)];
        const char* const name = names_ + symbol.st_name;
        for (auto& redirection : *redirections) {
          const std::string_view wanted = redirection.symbol;
          if (std::strncmp(name, wanted.data(), wanted.size()) != 0) continue;
          if (redirection.original != nullptr) {
            if (symbol.st_value == 0) continue;
            *redirection.original =
                reinterpret_cast<void*>(base_ + symbol.st_value);
          }
          const uintptr_t slot = base_ + relocation.r_offset;
          Write(slot,
                redirection.function,
                slot >= relro_begin_ && slot < relro_end_);
          ++redirection.slots;
        }
      }
    }
  }

 private:
  using Relocation = ElfW(Rela);
  struct Table {
    const Relocation* first;
    size_t bytes;
    size_t skipped;  // Leading ones that are of no symbol.
  };

  static bool IsOfSlot(const Relocation& relocation) {
    const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
    return type == kSlotTypes[0] || type == kSlotTypes[1];
  }

  void ReadDynamic(const ElfW(Phdr) & header) {
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(base_ + header.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      const uintptr_t address = entry->d_un.d_ptr;
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols_ = reinterpret_cast<const ElfW(Sym)*>(address);
          break;
        case DT_STRTAB:
          names_ = reinterpret_cast<const char*>(address);
          break;
        case DT_JMPREL:
          tables_[0].first = reinterpret_cast<const Relocation*>(address);
          break;
        case DT_PLTRELSZ:
          tables_[0].bytes = entry->d_un.d_val;
          break;
        case DT_RELA:
          tables_[1].first = reinterpret_cast<const Relocation*>(address);
          break;
        case DT_RELASZ:
          tables_[1].bytes = entry->d_un.d_val;
          break;
        case DT_RELACOUNT:
          tables_[1].skipped = entry->d_un.d_val;
          break;
        default:
          break;
      }
    }
  }

  uintptr_t base_;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  Table tables_[2] = {};
  uintptr_t relro_begin_ = 0;
  uintptr_t relro_end_ = 0;
};

struct Loaded {
  std::vector<Library> libraries;
  uint64_t additions = 0;  // How often a library was loaded so far.
};

// Without libraries when none was loaded since `additions`.
Loaded LoadedSince(uint64_t additions) {
  Loaded loaded{{}, additions};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* const loaded = static_cast<Loaded*>(data);
        if (loaded->libraries.empty() && loaded->additions == info->dlpi_adds) {
          return 1;
        }
        loaded->additions = info->dlpi_adds;
        loaded->libraries.emplace_back(*info);
        return 0;
      },
      &loaded);
  return loaded;
}

uintptr_t BaseOfThisModule() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&RedirectLookUps), &info);
  return reinterpret_cast<uintptr_t>(info.dli_fbase);
}

}  // namespace

void RedirectLookUps() {
  static std::atomic<uint64_t> seen_additions{0};
  const Loaded loaded = LoadedSince(seen_additions);
  if (loaded.libraries.empty()) return;
  std::vector<Redirection> redirections = {
      {"_ZN3phi17DeviceContextPool3GetE", reinterpret_cast<void*>(&Get)},
      {"_ZN6paddle12experimental17DeviceContextPool3GetE",
       reinterpret_cast<void*>(&ExperimentalGet)},
      {"_ZN6paddle12experimental17DeviceContextPool17SyncDeviceContextE",
       reinterpret_cast<void*>(&SyncDeviceContext)},
      {kAlloc, reinterpret_cast<void*>(&Alloc)},
      {"_ZN3egr9to_static18RunProgramGradImplE",
       reinterpret_cast<void*>(&RunGradientOfThread),
       &run_gradient},
      {"_ZN3egr9to_static24LegacyRunProgramGradImplE",
       reinterpret_cast<void*>(&RunLegacyGradientOfThread),
       &run_legacy_gradient}};
  const uintptr_t own_base = BaseOfThisModule();
  for (const auto& library : loaded.libraries) {
    if (library.Base() != own_base) library.Redirect(&redirections);
  }
  for (const auto& redirection : redirections) {
    if (redirection.slots > 0) continue;
    throw std::runtime_error(
        "no library of this Paddle calls " + std::string(redirection.symbol) +
        " through a slot, so that threads cannot have streams of their own");
  }
  seen_additions = loaded.additions;
}
