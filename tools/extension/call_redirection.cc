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

#include "call_redirection.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

namespace {

#if defined(__x86_64__)
constexpr uint32_t kCallSlot = R_X86_64_JUMP_SLOT;
constexpr uint32_t kAddressSlot = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kCallSlot = R_AARCH64_JUMP_SLOT;
constexpr uint32_t kAddressSlot = R_AARCH64_GLOB_DAT;
#else
#error "The slots of calls are known for x86-64 and for AArch64 only."
#endif

using Relocation = ElfW(Rela);
using Symbol = ElfW(Sym);

struct Slot {
  void** address;
  const Redirection* redirection;
  bool is_read_only;
  // Whether the linker may write to the slot at the first call.
  bool is_lazy;
};

// A redirected function, where a library defines it.
struct Definition {
  const Redirection* redirection;
  void* function;
};

// The slots found in the libraries, written after all of them are validated.
struct Plan {
  std::vector<Slot> slots;
  std::vector<Definition> definitions;

  void Append(const Plan& other) {
    slots.insert(slots.end(), other.slots.begin(), other.slots.end());
    definitions.insert(
        definitions.end(), other.definitions.begin(), other.definitions.end());
  }
};

uintptr_t PageSize() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

std::string WholeName(const Redirection& redirection) {
  return std::string(redirection.name).append(redirection.arguments);
}

uint32_t GnuHash(std::string_view name) {
  uint32_t hash = 5381;
  for (const char character : name) {
    hash = hash * 33 + static_cast<unsigned char>(character);
  }
  return hash;
}

// The hash table of a library's defined symbols. Undefined symbols precede them
// in the symbol table and are in no hash table.
class GnuHashTable {
 public:
  explicit GnuHashTable(const uint32_t* header)
      : buckets_number_(header[0]),
        first_symbol_(header[1]),
        buckets_(header + 4 + header[2] * (sizeof(ElfW(Addr)) / 4)),
        chains_(buckets_ + buckets_number_) {}

  uint32_t FirstSymbol() const { return first_symbol_; }

  bool IsEmpty() const {
    return std::all_of(
        buckets_, chains_, [](uint32_t index) { return index == 0; });
  }

  // Calls `visit` with the index of each symbol that may have this name.
  template <typename Visit>
  void ForEachCandidate(std::string_view name, const Visit& visit) const {
    if (buckets_number_ == 0) return;
    const uint32_t hash = GnuHash(name);
    uint32_t index = buckets_[hash % buckets_number_];
    if (index < first_symbol_) return;
    // The lowest bit marks the end of a chain.
    for (;; ++index) {
      const uint32_t entry = chains_[index - first_symbol_];
      if ((entry | 1) == (hash | 1)) visit(index);
      if ((entry & 1) != 0) return;
    }
  }

  // Calls `visit` with the index of each symbol.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint32_t bucket = 0; bucket < buckets_number_; ++bucket) {
      uint32_t index = buckets_[bucket];
      if (index < first_symbol_) continue;
      do {
        visit(index);
      } while ((chains_[index++ - first_symbol_] & 1) == 0);
    }
  }

 private:
  uint32_t buckets_number_;
  uint32_t first_symbol_;
  const uint32_t* buckets_;
  const uint32_t* chains_;
};

// A symbol of a library whose calls are to be redirected.
struct Wanted {
  uint32_t symbol;
  const Redirection* redirection;
  bool is_defined;
  bool has_slot = false;
};

// A loaded library.
class Library {
 public:
  explicit Library(const dl_phdr_info& info)
      : base_(info.dlpi_addr), name_(info.dlpi_name) {
    if (name_.empty()) name_ = "the program";
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const auto& header = info.dlpi_phdr[i];
      if (header.p_type == PT_DYNAMIC) ReadDynamic(header);
      if (header.p_type == PT_GNU_RELRO) {
        relro_begin_ = base_ + header.p_vaddr;
        // The linker protects whole pages.
        relro_end_ = (relro_begin_ + header.p_memsz) & ~(PageSize() - 1);
      }
    }
  }

  uintptr_t Base() const { return base_; }

  // See call_redirection.h.
  bool IsLazy() const {
    return !is_bound_eagerly_ && tables_[0].bytes > 0 && slots_ != nullptr &&
           slots_[2] != nullptr;
  }

  // Adds the slots that are to be written.
  void AddTo(Plan* plan, const std::vector<Redirection>& redirections) const {
    std::vector<Wanted> wanted = Find(redirections);
    if (wanted.empty()) return;
    AddSlots(plan, &wanted);
    for (const auto& found : wanted) {
      const auto& redirection = *found.redirection;
      if (!found.is_defined) continue;
      if (redirection.called_where_defined && !found.has_slot) {
        throw std::runtime_error(
            name_ + " defines " + WholeName(redirection) +
            " and calls it without a slot, so only the calls of other "
            "libraries could be redirected. Please build the library without "
            "-Bsymbolic.");
      }
      plan->definitions.push_back(
          {&redirection,
           reinterpret_cast<void*>(base_ + symbols_[found.symbol].st_value)});
    }
  }

  // Returns a symbol that the library defines with a redirection's name and
  // other argument types; empty if there is none.
  std::string DefinedWithOtherArguments(const Redirection& redirection) const {
    std::string found;
    if (!IsReadable()) return found;
    GnuHashTable(hash_table_).ForEach([&](uint32_t index) {
      const std::string_view name = NameOf(index);
      if (HasOtherArguments(name, redirection)) found = name;
    });
    return found;
  }

  const std::string& Name() const { return name_; }

 private:
  struct Table {
    const Relocation* first;
    size_t bytes;
    size_t skipped;  // Leading relocations without a symbol.
  };

  // The kernel's own library (the vDSO) has no relocations, and the addresses
  // in its tables are not adjusted.
  bool IsReadable() const {
    return hash_table_ != nullptr && symbols_ != nullptr && names_ != nullptr &&
           (tables_[0].bytes > 0 || tables_[1].bytes > 0);
  }

  std::string_view NameOf(uint32_t symbol) const {
    return names_ + symbols_[symbol].st_name;
  }

  // Returns the number after the last symbol that a relocation refers to.
  uint32_t EndOfSymbolsInUse() const {
    uint32_t end = 0;
    for (const auto& table : tables_) {
      for (size_t i = 0; i < table.bytes / sizeof(Relocation); ++i) {
        const uint32_t symbol = ELF64_R_SYM(table.first[i].r_info);
        end = std::max(end, symbol + 1);
      }
    }
    return end;
  }

  static bool HasOtherArguments(std::string_view name,
                                const Redirection& redirection) {
    if (!StartsWith(name, redirection.name)) return false;
    const std::string_view arguments = name.substr(redirection.name.size());
    const auto& others = redirection.left_alone;
    return arguments != redirection.arguments &&
           std::find(others.begin(), others.end(), arguments) == others.end();
  }

  std::vector<Wanted> Find(const std::vector<Redirection>& redirections) const {
    std::vector<Wanted> wanted;
    if (!IsReadable()) return wanted;
    const GnuHashTable table(hash_table_);
    for (const auto& redirection : redirections) {
      const std::string whole = WholeName(redirection);
      table.ForEachCandidate(whole, [&](uint32_t index) {
        if (NameOf(index) == whole) {
          wanted.push_back({index, &redirection, /*is_defined=*/true});
        }
      });
    }
    // The hash table of a library that defines no symbol does not contain the
    // number of symbols.
    const uint32_t end =
        table.IsEmpty() ? EndOfSymbolsInUse() : table.FirstSymbol();
    for (uint32_t index = 1; index < end; ++index) {
      const char* const name = names_ + symbols_[index].st_name;
      for (const auto& redirection : redirections) {
        const auto& start = redirection.name;
        if (std::strncmp(name, start.data(), start.size()) != 0) continue;
        if (name + start.size() == redirection.arguments) {
          wanted.push_back({index, &redirection, /*is_defined=*/false});
        } else if (HasOtherArguments(name, redirection)) {
          throw std::runtime_error(
              name_ + " calls " + name + ", whose arguments differ from " +
              WholeName(redirection) +
              ", so its calls cannot be redirected. Please use the version of "
              "Paddle that this wheel was built for.");
        }
      }
    }
    return wanted;
  }

  void AddSlots(Plan* plan, std::vector<Wanted>* wanted) const {
    // A library may have hundreds of thousands of relocations. The last bits of
    // a symbol's number tell for most of them that it is not wanted.
    constexpr uint32_t kLastBits = 63;
    uint64_t endings = 0;
    for (const auto& found : *wanted) {
      endings |= uint64_t{1} << (found.symbol & kLastBits);
    }
    for (const auto& table : tables_) {
      const auto* const end = table.first + table.bytes / sizeof(Relocation);
      for (const auto* relocation = table.first + table.skipped;
           relocation < end;
           ++relocation) {
        const uint32_t symbol = ELF64_R_SYM(relocation->r_info);
        if ((endings >> (symbol & kLastBits) & 1) == 0) continue;
        for (auto& found : *wanted) {
          if (found.symbol == symbol) AddSlot(plan, *relocation, &found);
        }
      }
    }
  }

  void AddSlot(Plan* plan, const Relocation& relocation, Wanted* found) const {
    const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
    if (type != kCallSlot && type != kAddressSlot) {
      throw std::runtime_error(
          name_ + " keeps the address of " + WholeName(*found->redirection) +
          " outside of a slot (relocation type " + std::to_string(type) +
          "), so only some of its calls could be redirected. Please make the "
          "library call the function by its name.");
    }
    found->has_slot = true;
    const uintptr_t address = base_ + relocation.r_offset;
    plan->slots.push_back({reinterpret_cast<void**>(address),
                           found->redirection,
                           address >= relro_begin_ && address < relro_end_,
                           type == kCallSlot && IsLazy()});
  }

  void ReadDynamic(const ElfW(Phdr) & header) {
    const auto* entry =
        reinterpret_cast<const ElfW(Dyn)*>(base_ + header.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      const uintptr_t address = entry->d_un.d_ptr;
      switch (entry->d_tag) {
        case DT_SYMTAB:
          symbols_ = reinterpret_cast<const Symbol*>(address);
          break;
        case DT_STRTAB:
          names_ = reinterpret_cast<const char*>(address);
          break;
        case DT_GNU_HASH:
          hash_table_ = reinterpret_cast<const uint32_t*>(address);
          break;
        case DT_PLTGOT:
          slots_ = reinterpret_cast<void* const*>(address);
          break;
        case DT_BIND_NOW:
          is_bound_eagerly_ = true;
          break;
        case DT_FLAGS:
          if ((entry->d_un.d_val & DF_BIND_NOW) != 0) is_bound_eagerly_ = true;
          break;
        case DT_FLAGS_1:
          if ((entry->d_un.d_val & DF_1_NOW) != 0) is_bound_eagerly_ = true;
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
  std::string name_;
  const Symbol* symbols_ = nullptr;
  const char* names_ = nullptr;
  const uint32_t* hash_table_ = nullptr;
  void* const* slots_ = nullptr;
  bool is_bound_eagerly_ = false;
  Table tables_[2] = {};
  uintptr_t relro_begin_ = 0;
  uintptr_t relro_end_ = 0;
};

// The loaded libraries, and the process's counts of loads and unloads.
struct Loaded {
  std::vector<Library> libraries;
  uint64_t additions = 0;
  uint64_t removals = 0;
};

uintptr_t BaseOfThisModule() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&RedirectCalls), &info);
  return reinterpret_cast<uintptr_t>(info.dli_fbase);
}

// Returns no libraries if none was loaded since `additions`.
Loaded LoadedSince(uint64_t additions) {
  Loaded loaded{{}, additions, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* const loaded = static_cast<Loaded*>(data);
        if (loaded->libraries.empty() && loaded->additions == info->dlpi_adds) {
          return 1;
        }
        loaded->additions = info->dlpi_adds;
        loaded->removals = info->dlpi_subs;
        loaded->libraries.emplace_back(*info);
        return 0;
      },
      &loaded);
  // Calls from this module must reach the original functions.
  static const uintptr_t own_base = BaseOfThisModule();
  auto& libraries = loaded.libraries;
  libraries.erase(std::remove_if(libraries.begin(),
                                 libraries.end(),
                                 [](const Library& library) {
                                   return library.Base() == own_base;
                                 }),
                  libraries.end());
  return loaded;
}

// Sets the protection of the slot's whole page.
bool Protect(const Slot& slot, int protection) {
  const auto page =
      reinterpret_cast<uintptr_t>(slot.address) & ~(PageSize() - 1);
  return mprotect(reinterpret_cast<void*>(page),  // NOLINT
                  PageSize(),
                  protection) == 0;
}

// The functions that this module has redirected, by those that replace them.
// Accessed with the linker's lock.
std::map<void*, void*>* defined_functions() {
  static std::map<void*, void*> functions;
  return &functions;
}

// Returns whether another module has redirected a slot's calls since this
// module did. Its function calls the one of this module.
bool WasRedirectedSince(const Slot& slot) {
  const Redirection& redirection = *slot.redirection;
  if (slot.is_lazy || redirection.original == nullptr ||
      *redirection.original == nullptr) {
    return false;
  }
  const auto defined = defined_functions()->find(redirection.function);
  const void* const reached = *slot.address;
  return reached != redirection.function && reached != *redirection.original &&
         defined != defined_functions()->end() && reached != defined->second;
}

// Returns what the calls of a function reach: the function itself, or the one
// that another module has redirected them to.
void* Reached(const Definition& definition, const std::vector<Slot>& slots) {
  for (const auto& slot : slots) {
    if (slot.redirection != definition.redirection || slot.is_lazy) continue;
    if (*slot.address != slot.redirection->function) return *slot.address;
  }
  return definition.function;
}

// Sets each original when its function is first found: later, another module's
// function may be in the slots, and may call ours.
void SetOriginals(const Plan& plan) {
  for (const auto& definition : plan.definitions) {
    const Redirection& redirection = *definition.redirection;
    (*defined_functions())[redirection.function] = definition.function;
    if (redirection.original != nullptr && *redirection.original == nullptr) {
      *redirection.original = Reached(definition, plan.slots);
    }
  }
}

void WriteSlots(Plan plan) {
  auto& slots = plan.slots;
  slots.erase(std::remove_if(slots.begin(), slots.end(), WasRedirectedSince),
              slots.end());
  std::stable_sort(
      slots.begin(), slots.end(), [](const Slot& one, const Slot& other) {
        return one.redirection < other.redirection;
      });
  // Steps that can fail come first.
  for (const auto& slot : slots) {
    if (!slot.is_read_only || Protect(slot, PROT_READ | PROT_WRITE)) continue;
    throw std::runtime_error(
        "Cannot write to the slot of " + WholeName(*slot.redirection) + ": " +
        std::strerror(errno) +
        ". Redirecting its calls needs mprotect: please allow it.");
  }
  SetOriginals(plan);
  for (const auto& slot : slots) {
    // Release: a thread that calls through the slot sees the original, and the
    // slots of earlier redirections.
    __atomic_store_n(
        slot.address, slot.redirection->function, __ATOMIC_RELEASE);
  }
  for (const auto& slot : slots) {
    if (slot.is_read_only) Protect(slot, PROT_READ);
  }
}

// Writes while it holds the linker's lock. All modules that this file is linked
// into share that lock; otherwise, one of them could make a page read-only that
// another one is about to write to.
void Write(const Plan& plan) {
  struct Work {
    const Plan& plan;
    std::exception_ptr error;
  } work{plan, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info*, size_t, void* data) {
        auto* const work = static_cast<Work*>(data);
        try {
          WriteSlots(work->plan);
        } catch (...) {
          // An exception must not leave a function of the C library.
          work->error = std::current_exception();
        }
        return 1;
      },
      &work);
  if (work.error) std::rethrow_exception(work.error);
}

void EnforceBound(const Library& library, const Plan& plan) {
  for (const auto& slot : plan.slots) {
    if (!slot.is_lazy || *slot.address == slot.redirection->function) continue;
    throw std::runtime_error(
        library.Name() + " was loaded with RTLD_LAZY, and calls " +
        WholeName(*slot.redirection) +
        ": its calls cannot be redirected while another thread may be making "
        "the first of them. Please load it with RTLD_NOW or before Paddle, or "
        "set the environment variable LD_BIND_NOW to 1.");
  }
}

void EnforceCalled(const std::vector<Library>& libraries,
                   const Plan& plan,
                   const Redirection& redirection) {
  for (const auto& slot : plan.slots) {
    if (slot.redirection == &redirection) return;
  }
  std::string error = "No library of this Paddle calls " +
                      WholeName(redirection) +
                      " through a slot, so no calls can be redirected";
  for (const auto& library : libraries) {
    const std::string other = library.DefinedWithOtherArguments(redirection);
    if (other.empty()) continue;
    error += "; " + library.Name() + " has " + other + ", with other arguments";
  }
  throw std::runtime_error(
      error +
      ". Please use the version of Paddle that this wheel was built for.");
}

}  // namespace

void RedirectCalls(const std::vector<Redirection>& redirections,
                   const std::string& folder) {
  static uint64_t additions = 0;
  static uint64_t removals = 0;
  static std::set<uintptr_t> seen;
  const Loaded loaded = LoadedSince(additions);
  if (loaded.libraries.empty()) return;
  // After an unload, a new library may be at a known address.
  const bool is_first = additions == 0;
  if (loaded.removals != removals) seen.clear();
  Plan all;
  for (const auto& library : loaded.libraries) {
    if (seen.count(library.Base()) > 0) continue;
    if (!StartsWith(library.Name(), folder)) continue;
    Plan plan;
    library.AddTo(&plan, redirections);
    EnforceBound(library, plan);
    all.Append(plan);
  }
  if (is_first) {
    for (const auto& redirection : redirections) {
      EnforceCalled(loaded.libraries, all, redirection);
    }
  }
  Write(all);
  for (const auto& library : loaded.libraries) seen.insert(library.Base());
  additions = loaded.additions;
  removals = loaded.removals;
}

std::string PackageFolder() {
  Dl_info module;
  dladdr(reinterpret_cast<void*>(&PackageFolder), &module);
  return std::filesystem::path(module.dli_fname).parent_path().parent_path() /
         "";
}

void RedirectLazyCalls(const std::vector<Redirection>& redirections) {
  Plan plan;
  for (const auto& library : LoadedSince(0).libraries) {
    if (library.IsLazy()) library.AddTo(&plan, redirections);
  }
  Write(plan);
}
