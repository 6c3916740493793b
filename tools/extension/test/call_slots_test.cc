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

// Each test runs in a process of its own, with the libraries that it loads.

#include "../call_slots.h"

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../../test/cpp/phi/shared_memory/testing.h"

namespace {

using namespace shared_memory_test;  // NOLINT(build/namespaces)

using Function = int (*)(int);

constexpr int kRedirected = 1000;
constexpr int kThreads = 8;
constexpr int kCalls = 2000;

int OfOurs(int value) { return value + kRedirected; }

const std::vector<Redirection>& Redirections() {
  static const std::vector<Redirection> redirections = {
      {"_ZN15call_slots_test6TargetE", "i", reinterpret_cast<void*>(&OfOurs)}};
  return redirections;
}

std::vector<Redirection> WithAnotherLeftAlone() {
  auto redirections = Redirections();
  redirections[0].left_alone = {"ii"};
  return redirections;
}

void* Open(const std::string& name, int binding) {
  const std::string path = std::string(LIBRARIES) + "/lib" + name + ".so";
  void* const library = dlopen(path.c_str(), binding | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return library;
}

Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// What redirecting throws; empty if nothing.
std::string ErrorOf(const std::function<void()>& redirect) {
  try {
    redirect();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Calls on many threads while `redirect` runs: each call goes to one of the two
// functions, and each that begins after it to ours.
void CallWhile(const std::vector<Function>& functions,
               const std::function<void()>& redirect) {
  std::atomic<int> ready{0};
  std::atomic<bool> is_redirected{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ++ready;
      for (int calls_after = 0; calls_after < kCalls;) {
        const bool is_after = is_redirected;
        for (const auto function : functions) {
          const int result = function(7);
          if (result != 7 + kRedirected && (is_after || result != 7)) ++wrong;
        }
        if (is_after) ++calls_after;
      }
    });
  }
  while (ready < kThreads) std::this_thread::yield();
  const std::string error = ErrorOf(redirect);
  is_redirected = true;
  for (auto& thread : threads) thread.join();
  CHECK(error.empty());
  CHECK(wrong == 0);
}

TEST(CallsOfAllLibrariesAreRedirected) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  CHECK(own(1) == 1);
  CHECK(call(1) == 1);
  RedirectCalls(Redirections());
  CHECK(own(1) == 1 + kRedirected);
  CHECK(call(1) == 1 + kRedirected);
}

TEST(TheOriginalIsKnown) {
  Open("callee", RTLD_NOW);
  void* original = nullptr;
  auto redirections = Redirections();
  redirections[0].original = &original;
  RedirectCalls(redirections);
  CHECK(reinterpret_cast<Function>(original)(1) == 1);
}

TEST(SlotsInMemoryThatIsReadOnlyAreWritten) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller_now", RTLD_LAZY), "Call");
  RedirectCalls(Redirections());
  CHECK(call(1) == 1 + kRedirected);
}

TEST(ALibraryThatDefinesNoSymbolIsRedirected) {
  void* const callee = Open("callee", RTLD_NOW);
  Open("caller_without_symbols", RTLD_NOW);
  const auto call =
      *reinterpret_cast<Function*>(dlsym(callee, "call_without_symbol"));
  CHECK(call(1) == 1);
  RedirectCalls(Redirections());
  CHECK(call(1) == 1 + kRedirected);
}

TEST(ALibraryThatIsLoadedLaterIsRedirectedByTheNextCall) {
  Open("callee", RTLD_NOW);
  RedirectCalls(Redirections());
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  CHECK(call(1) == 1);
  RedirectCalls(Redirections());
  CHECK(call(1) == 1 + kRedirected);
}

TEST(ALibraryAtTheAddressOfOneThatWasUnloadedIsRedirected) {
  Open("callee", RTLD_NOW);
  for (int i = 0; i < 3; ++i) {
    void* const library = Open("caller", RTLD_NOW);
    RedirectCalls(Redirections());
    CHECK(Find(library, "Call")(1) == 1 + kRedirected);
    dlclose(library);
  }
}

TEST(CallsThatAreBoundAtOnceStayRedirectedWhileThreadsMakeThem) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  CallWhile({own, call}, [] { RedirectCalls(Redirections()); });
}

TEST(CallsThatAreBoundLazilyStayRedirectedWhenThatCameFirst) {
  const auto own = Find(Open("callee", RTLD_LAZY), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_LAZY), "Call");
  RedirectLazyCalls(Redirections());
  CallWhile({own, call}, [] { RedirectCalls(Redirections()); });
}

TEST(CallsThatTheLinkerMayBeBindingAreRefused) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_LAZY), "Call");
  const auto redirect = [] { RedirectCalls(Redirections()); };
  const std::string error = ErrorOf(redirect);
  CHECK(Has(error, "libcaller.so was loaded with RTLD_LAZY"));
  CHECK(Has(error, "_ZN15call_slots_test6TargetEi"));
  CHECK(Has(error, "LD_BIND_NOW"));
  CHECK(call(1) == 1);
  // By now the linker may have bound it; another thread may yet be at it.
  CHECK(ErrorOf(redirect) == error);
  CHECK(call(1) == 1);
}

TEST(LazyLibrariesAloneAreRedirectedWhereThatIsAsked) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_LAZY), "Call");
  RedirectLazyCalls(Redirections());
  CHECK(own(1) == 1);
  CHECK(call(1) == 1 + kRedirected);
}

TEST(AFunctionThatNobodyCallsIsAnError) {
  CHECK(Has(ErrorOf([] { RedirectCalls(Redirections()); }),
            "No library of this Paddle calls _ZN15call_slots_test6TargetEi"));
}

TEST(TheErrorNamesWhatIsThereWithOtherArguments) {
  Open("callee", RTLD_NOW);
  auto redirections = Redirections();
  redirections[0].arguments = "d";
  const std::string error =
      ErrorOf([&redirections] { RedirectCalls(redirections); });
  CHECK(Has(error, "calls _ZN15call_slots_test6TargetEd through a slot"));
  CHECK(Has(error, "libcallee.so has _ZN15call_slots_test6TargetEi"));
}

TEST(ALibraryThatCallsItWithOtherArgumentsIsAnError) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  Open("caller_of_another", RTLD_NOW);
  const std::string error = ErrorOf([] { RedirectCalls(Redirections()); });
  CHECK(Has(error,
            "libcaller_of_another.so calls _ZN15call_slots_test6TargetEii"));
  CHECK(own(1) == 1);
}

TEST(CallsWithArgumentsThatAreLeftAloneGoWhereTheyWent) {
  Open("callee", RTLD_NOW);
  const auto another = Find(Open("caller_of_another", RTLD_NOW), "CallAnother");
  RedirectCalls(WithAnotherLeftAlone());
  CHECK(another(1) == 2);
}

TEST(AnAddressThatIsKeptElsewhereIsAnError) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller_by_pointer", RTLD_NOW), "CallByName");
  const std::string error = ErrorOf([] { RedirectCalls(Redirections()); });
  CHECK(Has(error, "libcaller_by_pointer.so keeps the address of"));
  CHECK(call(1) == 1);
}

TEST(ALibraryThatCallsItsOwnFunctionDirectlyIsAnError) {
  Open("callee_direct", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  const std::string error = ErrorOf([] { RedirectCalls(Redirections()); });
  CHECK(Has(error, "libcallee_direct.so defines"));
  CHECK(Has(error, "without a slot"));
  CHECK(call(1) == 1);
}

TEST(WhereItIsDefinedItNeedNotBeCalled) {
  Open("callee_direct", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  auto redirections = Redirections();
  redirections[0].called_where_defined = false;
  RedirectCalls(redirections);
  CHECK(call(1) == 1 + kRedirected);
}

}  // namespace
