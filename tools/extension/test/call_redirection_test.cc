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

// Each test runs in its own process, with the libraries that it loads.

#include "tools/extension/call_redirection.h"

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "test/cpp/isolated_test.h"

namespace {

class CallSlotsTest : public ::testing::Test {};

using Function = int (*)(int);

constexpr int kRedirected = 1000;
constexpr int kThreads = 8;
constexpr int kCalls = 2000;

int OfOurs(int value) { return value + kRedirected; }

const std::vector<Redirection>& Redirections() {
  static const std::vector<Redirection> redirections = {
      {"_ZN21call_redirection_test6TargetE",
       "i",
       reinterpret_cast<void*>(&OfOurs)}};
  return redirections;
}

void* reached = nullptr;

int AddedToReached(int value) {
  return reinterpret_cast<Function>(reached)(value) + kRedirected;
}

const std::vector<Redirection>& ThatAdd() {
  static const std::vector<Redirection> redirections = {
      {"_ZN21call_redirection_test6TargetE",
       "i",
       reinterpret_cast<void*>(&AddedToReached),
       &reached}};
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

// Returns the error that redirecting throws; empty if there is none.
std::string ErrorOf(const std::function<void()>& redirect) {
  try {
    redirect();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

// Calls the functions on many threads while `redirect` runs. Each call must
// reach one of the two targets; each call that starts after `redirect`, ours.
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
  EXPECT_EQ(error, "");
  EXPECT_EQ(wrong, 0);
}

ISOLATED_TEST(CallSlotsTest, CallsOfAllLibrariesAreRedirected) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  EXPECT_EQ(own(1), 1);
  EXPECT_EQ(call(1), 1);
  RedirectCalls(Redirections());
  EXPECT_EQ(own(1), 1 + kRedirected);
  EXPECT_EQ(call(1), 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest, TheOriginalIsKnown) {
  Open("callee", RTLD_NOW);
  void* original = nullptr;
  auto redirections = Redirections();
  redirections[0].original = &original;
  RedirectCalls(redirections);
  EXPECT_EQ(reinterpret_cast<Function>(original)(1), 1);
}

// The function of the other module doubles what it reaches, ours adds to it.
ISOLATED_TEST(CallSlotsTest, AModuleThatRedirectsLaterReachesOurFunction) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  const auto redirect = Find(Open("redirecting", RTLD_NOW), "Redirect");
  RedirectCalls(ThatAdd());
  redirect(0);
  EXPECT_EQ(call(1), 2 * (1 + kRedirected));
}

ISOLATED_TEST(CallSlotsTest, WeReachTheFunctionOfAModuleThatRedirectedEarlier) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  const auto redirect = Find(Open("redirecting", RTLD_NOW), "Redirect");
  redirect(0);
  RedirectCalls(ThatAdd());
  EXPECT_EQ(call(1), 2 * 1 + kRedirected);
}

// After an unload, the slots of all libraries are looked at again.
ISOLATED_TEST(CallSlotsTest, AnUnloadLeavesTheOrderOfTwoModulesAsItIs) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  const auto redirect = Find(Open("redirecting", RTLD_NOW), "Redirect");
  redirect(0);
  RedirectCalls(ThatAdd());
  for (int i = 0; i < 2; ++i) {
    dlclose(Open("caller_now", RTLD_NOW));
    redirect(0);
    RedirectCalls(ThatAdd());
    EXPECT_EQ(call(1), 2 * 1 + kRedirected);
    dlclose(Open("caller_now", RTLD_NOW));
    RedirectCalls(ThatAdd());
    redirect(0);
    EXPECT_EQ(call(1), 2 * 1 + kRedirected);
  }
}

ISOLATED_TEST(CallSlotsTest, ALibraryThatIsLoadedLaterReachesBothModules) {
  Open("callee", RTLD_NOW);
  const auto redirect = Find(Open("redirecting", RTLD_NOW), "Redirect");
  redirect(0);
  RedirectCalls(ThatAdd());
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  RedirectCalls(ThatAdd());
  EXPECT_EQ(call(1), 2 * 1 + kRedirected);
  redirect(0);
  EXPECT_EQ(call(1), 2 * 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest, SlotsInMemoryThatIsReadOnlyAreWritten) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller_now", RTLD_LAZY), "Call");
  RedirectCalls(Redirections());
  EXPECT_EQ(call(1), 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest, ALibraryThatDefinesNoSymbolIsRedirected) {
  void* const callee = Open("callee", RTLD_NOW);
  Open("caller_without_symbols", RTLD_NOW);
  const auto call =
      *reinterpret_cast<Function*>(dlsym(callee, "call_without_symbol"));
  EXPECT_EQ(call(1), 1);
  RedirectCalls(Redirections());
  EXPECT_EQ(call(1), 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest,
              ALibraryThatIsLoadedLaterIsRedirectedByTheNextCall) {
  Open("callee", RTLD_NOW);
  RedirectCalls(Redirections());
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  EXPECT_EQ(call(1), 1);
  RedirectCalls(Redirections());
  EXPECT_EQ(call(1), 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest,
              ALibraryAtTheAddressOfOneThatWasUnloadedIsRedirected) {
  Open("callee", RTLD_NOW);
  for (int i = 0; i < 3; ++i) {
    void* const library = Open("caller", RTLD_NOW);
    RedirectCalls(Redirections());
    EXPECT_EQ(Find(library, "Call")(1), 1 + kRedirected);
    dlclose(library);
  }
}

ISOLATED_TEST(CallSlotsTest,
              CallsThatAreBoundAtOnceStayRedirectedWhileThreadsMakeThem) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  CallWhile({own, call}, [] { RedirectCalls(Redirections()); });
}

ISOLATED_TEST(CallSlotsTest,
              CallsThatAreBoundLazilyStayRedirectedWhenThatCameFirst) {
  const auto own = Find(Open("callee", RTLD_LAZY), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_LAZY), "Call");
  RedirectLazyCalls(Redirections());
  CallWhile({own, call}, [] { RedirectCalls(Redirections()); });
}

ISOLATED_TEST(CallSlotsTest, CallsThatTheLinkerMayBeBindingAreRefused) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_LAZY), "Call");
  const auto redirect = [] { RedirectCalls(Redirections()); };
  const std::string error = ErrorOf(redirect);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "libcaller.so was loaded with RTLD_LAZY", error);
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "_ZN21call_redirection_test6TargetEi", error);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "LD_BIND_NOW", error);
  EXPECT_EQ(call(1), 1);
  // The linker may have bound the call by now, but another thread may still be
  // binding it.
  EXPECT_EQ(ErrorOf(redirect), error);
  EXPECT_EQ(call(1), 1);
}

ISOLATED_TEST(CallSlotsTest, LazyLibrariesAloneAreRedirectedWhereThatIsAsked) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  const auto call = Find(Open("caller", RTLD_LAZY), "Call");
  RedirectLazyCalls(Redirections());
  EXPECT_EQ(own(1), 1);
  EXPECT_EQ(call(1), 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest, OnlyTheLibrariesOfAFolderAreRedirected) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  const auto redirect = [](const std::string& folder) {
    return ErrorOf([&] { RedirectCalls(Redirections(), folder); });
  };
  EXPECT_NE(redirect("/folder/of/other/libraries"), "");
  EXPECT_EQ(call(1), 1);
  EXPECT_EQ(redirect(LIBRARIES), "");
  EXPECT_EQ(call(1), 1 + kRedirected);
}

ISOLATED_TEST(CallSlotsTest, AFunctionThatNobodyCallsIsAnError) {
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring,
      "No library of this Paddle calls _ZN21call_redirection_test6TargetEi",
      ErrorOf([] { RedirectCalls(Redirections()); }));
}

ISOLATED_TEST(CallSlotsTest, TheErrorNamesWhatIsThereWithOtherArguments) {
  Open("callee", RTLD_NOW);
  auto redirections = Redirections();
  redirections[0].arguments = "d";
  const std::string error =
      ErrorOf([&redirections] { RedirectCalls(redirections); });
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring,
      "calls _ZN21call_redirection_test6TargetEd through a slot",
      error);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "libcallee.so has _ZN21call_redirection_test6TargetEi",
                      error);
}

ISOLATED_TEST(CallSlotsTest, ALibraryThatCallsItWithOtherArgumentsIsAnError) {
  const auto own = Find(Open("callee", RTLD_NOW), "CallFromWhereItIsDefined");
  Open("caller_of_another", RTLD_NOW);
  const std::string error = ErrorOf([] { RedirectCalls(Redirections()); });
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring,
      "libcaller_of_another.so calls _ZN21call_redirection_test6TargetEii",
      error);
  EXPECT_EQ(own(1), 1);
}

ISOLATED_TEST(CallSlotsTest,
              CallsWithArgumentsThatAreLeftAloneGoWhereTheyWent) {
  Open("callee", RTLD_NOW);
  const auto another = Find(Open("caller_of_another", RTLD_NOW), "CallAnother");
  RedirectCalls(WithAnotherLeftAlone());
  EXPECT_EQ(another(1), 2);
}

ISOLATED_TEST(CallSlotsTest, AnAddressThatIsKeptElsewhereIsAnError) {
  Open("callee", RTLD_NOW);
  const auto call = Find(Open("caller_by_pointer", RTLD_NOW), "CallByName");
  const std::string error = ErrorOf([] { RedirectCalls(Redirections()); });
  EXPECT_PRED_FORMAT2(::testing::IsSubstring,
                      "libcaller_by_pointer.so keeps the address of",
                      error);
  EXPECT_EQ(call(1), 1);
}

ISOLATED_TEST(CallSlotsTest, ALibraryThatCallsItsOwnFunctionDirectlyIsAnError) {
  Open("callee_direct", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  const std::string error = ErrorOf([] { RedirectCalls(Redirections()); });
  EXPECT_PRED_FORMAT2(
      ::testing::IsSubstring, "libcallee_direct.so defines", error);
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, "without a slot", error);
  EXPECT_EQ(call(1), 1);
}

ISOLATED_TEST(CallSlotsTest, WhereItIsDefinedItNeedNotBeCalled) {
  Open("callee_direct", RTLD_NOW);
  const auto call = Find(Open("caller", RTLD_NOW), "Call");
  auto redirections = Redirections();
  redirections[0].called_where_defined = false;
  RedirectCalls(redirections);
  EXPECT_EQ(call(1), 1 + kRedirected);
}

}  // namespace
