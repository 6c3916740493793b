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

#include "paddle/phi/core/distributed/shared_memory/reduction.h"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "test/cpp/isolated_test.h"
#include "test/cpp/phi/shared_memory_collectives/reference_reduction.h"

namespace shared_memory_test {

using phi::distributed::CanReduce;
using phi::distributed::NameOf;
using phi::distributed::ReduceElements;
using phi::distributed::SizeOf;

std::string TextOf(const TypeAndReduction& both) {
  return std::string(NameOf(both.reduction)) + " of " + NameOf(both.type);
}

std::vector<const char*> AddressesOf(const std::vector<Buffer>& buffers) {
  std::vector<const char*> addresses;
  for (const Buffer& buffer : buffers) addresses.push_back(buffer.data());
  return addresses;
}

std::vector<Buffer> RandomInputs(ElementType type,
                                 uint64_t count,
                                 int ranks,
                                 Random* random) {
  std::vector<Buffer> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(RandomElements(type, count, random));
  }
  return inputs;
}

template <typename T>
Buffer BufferOf(const std::vector<T>& elements) {
  Buffer buffer(elements.size() * sizeof(T));
  std::memcpy(buffer.data(), elements.data(), buffer.size());
  return buffer;
}

template <typename T>
std::vector<T> Reduced(const std::vector<std::vector<T>>& inputs,
                       ElementType type,
                       Reduction reduction) {
  std::vector<Buffer> buffers;
  for (const auto& input : inputs) buffers.push_back(BufferOf(input));
  std::vector<T> result(inputs[0].size());
  ReduceElements(AddressesOf(buffers),
                 reinterpret_cast<char*>(result.data()),
                 result.size(),
                 type,
                 reduction);
  return result;
}

TEST(Reduction, EqualsTheReferenceForEveryTypeAndNumberOfRanks) {
  Random random(isolated_test::Seed());
  for (const auto& both : AllReductions()) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const uint64_t count : {0, 1, 2, 7, 511, 512, 513, 1025, 5000}) {
        const auto inputs = RandomInputs(both.type, count, ranks, &random);
        Buffer out(count * SizeOf(both.type));
        ReduceElements(
            AddressesOf(inputs), out.data(), count, both.type, both.reduction);
        const auto expected =
            ReferenceReduction(inputs, both.type, both.reduction);
        ASSERT_EQ(Difference(out, expected, both.type), "")
            << TextOf(both) << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(Reduction, MayWriteOverAnyOfItsInputs) {
  Random random(isolated_test::Seed());
  constexpr uint64_t kCount = 1500;
  for (const auto& both : AllReductions()) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int own = 0; own < ranks; ++own) {
        auto inputs = RandomInputs(both.type, kCount, ranks, &random);
        const auto expected =
            ReferenceReduction(inputs, both.type, both.reduction);
        ReduceElements(AddressesOf(inputs),
                       inputs[own].data(),
                       kCount,
                       both.type,
                       both.reduction);
        ASSERT_EQ(Difference(inputs[own], expected, both.type), "")
            << TextOf(both) << ", over input " << own << " of " << ranks;
      }
    }
  }
}

TEST(Reduction, NeedsNoAlignmentAndWritesNothingBeyondItsEnd) {
  Random random(isolated_test::Seed());
  constexpr uint64_t kCount = 700;
  for (const auto& both : AllReductions()) {
    const auto inputs = RandomInputs(both.type, kCount, 3, &random);
    const uint64_t bytes = inputs[0].size();
    std::vector<Buffer> shifted;
    std::vector<const char*> addresses;
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      shifted.emplace_back(rank + 1);
      shifted.back().insert(
          shifted.back().end(), inputs[rank].begin(), inputs[rank].end());
      addresses.push_back(shifted.back().data() + rank + 1);
    }
    Buffer out(bytes + 6, 'x');
    ReduceElements(
        addresses, out.data() + 3, kCount, both.type, both.reduction);
    const Buffer result(out.begin() + 3, out.end() - 3);
    ASSERT_EQ(Difference(result,
                         ReferenceReduction(inputs, both.type, both.reduction),
                         both.type),
              "")
        << TextOf(both);
    ASSERT_EQ(std::string(out.data(), 3), "xxx");
    ASSERT_EQ(std::string(out.data() + 3 + bytes, 3), "xxx");
  }
}

TEST(Reduction, KeepsEachValueOfThe16BitTypes) {
  std::vector<uint16_t> all;
  for (int bits = 0; bits < 1 << 16; ++bits) all.push_back(bits);
  const std::vector<uint16_t> zeros(all.size(), 0x8000);  // -0 keeps the sign
  const auto float16 =
      Reduced<uint16_t>({all, zeros}, ElementType::kFloat16, Reduction::kSum);
  const auto bfloat16 =
      Reduced<uint16_t>({all, zeros}, ElementType::kBFloat16, Reduction::kSum);
  for (int bits = 0; bits < 1 << 16; ++bits) {
    if (std::isnan(ValueOfFloat16(bits))) {
      ASSERT_TRUE(std::isnan(ValueOfFloat16(float16[bits]))) << bits;
    } else {
      ASSERT_EQ(float16[bits], bits);
    }
    if (std::isnan(ValueOfBFloat16(bits))) {
      ASSERT_TRUE(std::isnan(ValueOfBFloat16(bfloat16[bits]))) << bits;
    } else {
      ASSERT_EQ(bfloat16[bits], bits);
    }
  }
}

// 2048 + 1 is not a float16: rounded after each step, the sum would stay 2048.
TEST(Reduction, Rounds16BitTypesOnce) {
  const std::vector<uint16_t> k2048{0x6800};
  const std::vector<uint16_t> kOne{0x3c00};
  const auto sum = Reduced<uint16_t>(
      {k2048, kOne, kOne, kOne, kOne}, ElementType::kFloat16, Reduction::kSum);
  EXPECT_EQ(ValueOfFloat16(sum[0]), 2052);
}

TEST(Reduction, GoesInTheOrderOfRanks) {
  const std::vector<float> large{1e8f};
  const std::vector<float> opposite{-1e8f};
  const std::vector<float> one{1};
  const auto type = ElementType::kFloat32;
  EXPECT_EQ(Reduced<float>({large, opposite, one}, type, Reduction::kSum)[0],
            1);
  EXPECT_EQ(Reduced<float>({large, one, opposite}, type, Reduction::kSum)[0],
            0);
}

TEST(Reduction, DoesNotDependOnTheThreadsRoundingMode) {
  const std::vector<float> third{1.0f / 3};
  const std::vector<float> tenth{0.1f};
  const auto sum = [&] {
    return Reduced<float>(
        {third, tenth}, ElementType::kFloat32, Reduction::kSum)[0];
  };
  const float expected = sum();
  for (const int rounding : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(rounding);
    const float actual = sum();
    const int still = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(actual, expected);
    EXPECT_EQ(still, rounding);
  }
}

TEST(Reduction, WrapsIntegersAround) {
  const std::vector<int16_t> a{-32768, 32767};
  const std::vector<int16_t> b{-32768, 32767};
  const auto type = ElementType::kInt16;
  EXPECT_EQ(Reduced<int16_t>({a, b}, type, Reduction::kSum),
            (std::vector<int16_t>{0, -2}));
  EXPECT_EQ(Reduced<int16_t>({a, b}, type, Reduction::kProduct),
            (std::vector<int16_t>{0, 1}));
}

TEST(Reduction, TakesASumOfBooleansAsOrAndAProductAsAnd) {
  const std::vector<uint8_t> a{0, 0, 1, 1};
  const std::vector<uint8_t> b{0, 1, 0, 1};
  const auto type = ElementType::kBool;
  EXPECT_EQ(Reduced<uint8_t>({a, b}, type, Reduction::kSum),
            (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(Reduced<uint8_t>({a, b}, type, Reduction::kProduct),
            (std::vector<uint8_t>{0, 0, 0, 1}));
}

TEST(Reduction, HasNoOrderOfComplexNumbersAndNoAverageOfIntegers) {
  EXPECT_FALSE(CanReduce(ElementType::kComplex64, Reduction::kMinimum));
  EXPECT_FALSE(CanReduce(ElementType::kComplex128, Reduction::kMaximum));
  EXPECT_FALSE(CanReduce(ElementType::kInt64, Reduction::kAverage));
  EXPECT_FALSE(CanReduce(ElementType::kBool, Reduction::kAverage));
  EXPECT_TRUE(CanReduce(ElementType::kComplex64, Reduction::kAverage));
}

}  // namespace shared_memory_test
