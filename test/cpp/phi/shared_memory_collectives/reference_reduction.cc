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

#include "test/cpp/phi/shared_memory_collectives/reference_reduction.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include "paddle/phi/core/distributed/shared_memory/reduction.h"

namespace shared_memory_test {

namespace {

using phi::distributed::CanReduce;
using phi::distributed::kElementTypes;
using phi::distributed::kReductions;
using phi::distributed::SizeOf;

// A 16-bit type: the number of fraction bits, and the exponent of the smallest
// normal number.
struct SmallFloat {
  int fraction_bits;
  int min_exponent;
  uint16_t infinite;
};
constexpr SmallFloat kFloat16{10, -14, 0x7c00};
constexpr SmallFloat kBFloat16{7, -126, 0x7f80};

double ValueOf(uint16_t bits, const SmallFloat& format) {
  const int magnitude = bits & 0x7fff;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (magnitude == format.infinite) {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (magnitude > format.infinite) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const int exponent = magnitude >> format.fraction_bits;
  const int fraction = magnitude & ((1 << format.fraction_bits) - 1);
  const int implied = exponent > 0 ? 1 << format.fraction_bits : 0;
  return sign * std::ldexp(fraction + implied,
                           format.min_exponent - format.fraction_bits +
                               std::max(exponent - 1, 0));
}

// Rounds to nearest, ties to even.
uint16_t BitsOf(double value, const SmallFloat& format) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return format.infinite + 1;
  if (std::isinf(value)) return sign | format.infinite;
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double units = std::nearbyint(
      std::ldexp(std::abs(value), format.fraction_bits - exponent));
  // The bit patterns of positive numbers are ordered like their values.
  const double bits =
      units + std::ldexp(exponent - format.min_exponent, format.fraction_bits);
  return sign | static_cast<uint16_t>(std::min<double>(bits, format.infinite));
}

template <typename T>
T Combine(T a, T b, Reduction reduction) {
  if (reduction == Reduction::kProduct) return a * b;
  return a + b;
}

template <typename T>
T CombineOrdered(T a, T b, Reduction reduction) {
  if (a != a) return a;
  if (b != b) return b;
  if (reduction == Reduction::kMinimum) return std::min(b, a);
  if (reduction == Reduction::kMaximum) return std::max(b, a);
  return Combine(a, b, reduction);
}

template <typename T>
T CombineAny(T a, T b, Reduction reduction) {
  if constexpr (std::is_same_v<T, bool>) {
    const bool any =
        reduction == Reduction::kSum || reduction == Reduction::kMaximum;
    return any ? a || b : a && b;
  } else if constexpr (std::is_integral_v<T>) {
    // Computed unsigned, because signed overflow is undefined.
    if (reduction == Reduction::kMinimum || reduction == Reduction::kMaximum) {
      return CombineOrdered(a, b, reduction);
    }
    return static_cast<T>(Combine<uint64_t>(a, b, reduction));
  } else if constexpr (std::is_floating_point_v<T>) {
    return CombineOrdered(a, b, reduction);
  } else {
    return Combine(a, b, reduction);
  }
}

// Reduces elements that are stored as `Stored` and computed as `Computed`.
template <typename Stored, typename Computed, typename Widen, typename Narrow>
Buffer ReduceAs(const std::vector<Buffer>& inputs,
                Reduction reduction,
                const Widen& widen,
                const Narrow& narrow) {
  Buffer result(inputs[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(Stored)) {
    Computed reduced{};
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      Stored stored;
      std::memcpy(&stored, inputs[rank].data() + at, sizeof(Stored));
      const Computed element = widen(stored);
      reduced = rank == 0 ? element : CombineAny(reduced, element, reduction);
    }
    if constexpr (!std::is_integral_v<Computed>) {
      if (reduction == Reduction::kAverage) {
        reduced /= static_cast<decltype(std::real(reduced))>(inputs.size());
      }
    }
    const Stored stored = narrow(reduced);
    std::memcpy(result.data() + at, &stored, sizeof(Stored));
  }
  return result;
}

template <typename T>
Buffer ReducePlain(const std::vector<Buffer>& inputs, Reduction reduction) {
  const auto same = [](T value) { return value; };
  return ReduceAs<T, T>(inputs, reduction, same, same);
}

Buffer ReduceSmall(const std::vector<Buffer>& inputs,
                   Reduction reduction,
                   const SmallFloat& format) {
  return ReduceAs<uint16_t, float>(
      inputs,
      reduction,
      [&](uint16_t bits) { return static_cast<float>(ValueOf(bits, format)); },
      [&](float value) { return BitsOf(value, format); });
}

// Knuth's generator for MMIX. With large buffers, a Mersenne twister would take
// most of a test's time.
using FastRandom = std::linear_congruential_engine<uint64_t,
                                                   6364136223846793005,
                                                   1442695040888963407,
                                                   0>;

template <typename T>
void FillWith(Buffer* buffer, const std::vector<T>& special, Random* random) {
  FastRandom fast((*random)());
  for (size_t at = 0; at < buffer->size(); at += sizeof(T)) {
    // The low bits have a short period.
    const uint64_t number = fast();
    const uint64_t bits = number ^ number >> 32;
    T value;
    if (bits % 8 == 0 && !special.empty()) {
      value = special[(bits >> 8) % special.size()];
    } else if constexpr (std::is_floating_point_v<T>) {
      value = std::ldexp(static_cast<T>(static_cast<int64_t>(bits)), -54);
    } else {
      value = static_cast<T>(bits >> 8);
    }
    std::memcpy(buffer->data() + at, &value, sizeof(T));
  }
}

template <typename T>
std::vector<T> SpecialFloats(bool infinite) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> special{0, -T{0}, 1, Limits::denorm_min(), -Limits::min()};
  if (infinite) {
    special.insert(special.end(),
                   {Limits::infinity(),
                    -Limits::infinity(),
                    Limits::quiet_NaN(),
                    Limits::max()});
  }
  return special;
}

template <typename T>
std::vector<T> SpecialIntegers() {
  return {0,
          1,
          static_cast<T>(-1),
          std::numeric_limits<T>::max(),
          std::numeric_limits<T>::min()};
}

template <typename T>
bool IsNan(const char* element) {
  T value;
  std::memcpy(&value, element, sizeof(T));
  return value != value;
}

bool IsNanOf(const char* element, ElementType type) {
  uint16_t bits;
  std::memcpy(&bits, element, std::min(sizeof(bits), SizeOf(type)));
  switch (type) {
    case ElementType::kFloat16:
      return std::isnan(ValueOfFloat16(bits));
    case ElementType::kBFloat16:
      return std::isnan(ValueOfBFloat16(bits));
    case ElementType::kFloat32:
      return IsNan<float>(element);
    case ElementType::kFloat64:
      return IsNan<double>(element);
    default:
      return false;
  }
}

}  // namespace

double ValueOfFloat16(uint16_t bits) { return ValueOf(bits, kFloat16); }

double ValueOfBFloat16(uint16_t bits) { return ValueOf(bits, kBFloat16); }

std::vector<TypeAndReduction> AllReductions() {
  std::vector<TypeAndReduction> all;
  for (int type = 0; type < kElementTypes; ++type) {
    for (int reduction = 0; reduction < kReductions; ++reduction) {
      const TypeAndReduction both{static_cast<ElementType>(type),
                                  static_cast<Reduction>(reduction)};
      if (CanReduce(both.type, both.reduction)) all.push_back(both);
    }
  }
  return all;
}

Buffer RandomElements(ElementType type, uint64_t count, Random* random) {
  Buffer buffer(count * SizeOf(type));
  switch (type) {
    case ElementType::kBool:
      FillWith<uint8_t>(&buffer, {}, random);
      for (char& element : buffer) element &= 1;
      break;
    case ElementType::kInt8:
      FillWith(&buffer, SpecialIntegers<int8_t>(), random);
      break;
    case ElementType::kUInt8:
      FillWith(&buffer, SpecialIntegers<uint8_t>(), random);
      break;
    case ElementType::kInt16:
      FillWith(&buffer, SpecialIntegers<int16_t>(), random);
      break;
    case ElementType::kInt32:
      FillWith(&buffer, SpecialIntegers<int32_t>(), random);
      break;
    case ElementType::kInt64:
      FillWith(&buffer, SpecialIntegers<int64_t>(), random);
      break;
    case ElementType::kFloat16:
    case ElementType::kBFloat16:
      FillWith<uint16_t>(&buffer, {}, random);
      break;
    case ElementType::kFloat32:
      FillWith(&buffer, SpecialFloats<float>(true), random);
      break;
    case ElementType::kFloat64:
      FillWith(&buffer, SpecialFloats<double>(true), random);
      break;
    case ElementType::kComplex64:
      FillWith(&buffer, SpecialFloats<float>(false), random);
      break;
    case ElementType::kComplex128:
      FillWith(&buffer, SpecialFloats<double>(false), random);
      break;
  }
  return buffer;
}

Buffer ReferenceReduction(const std::vector<Buffer>& inputs,
                          ElementType type,
                          Reduction reduction) {
  if (inputs.size() == 1) return inputs[0];
  switch (type) {
    case ElementType::kBool:
      return ReducePlain<bool>(inputs, reduction);
    case ElementType::kInt8:
      return ReducePlain<int8_t>(inputs, reduction);
    case ElementType::kUInt8:
      return ReducePlain<uint8_t>(inputs, reduction);
    case ElementType::kInt16:
      return ReducePlain<int16_t>(inputs, reduction);
    case ElementType::kInt32:
      return ReducePlain<int32_t>(inputs, reduction);
    case ElementType::kInt64:
      return ReducePlain<int64_t>(inputs, reduction);
    case ElementType::kFloat16:
      return ReduceSmall(inputs, reduction, kFloat16);
    case ElementType::kBFloat16:
      return ReduceSmall(inputs, reduction, kBFloat16);
    case ElementType::kFloat32:
      return ReducePlain<float>(inputs, reduction);
    case ElementType::kFloat64:
      return ReducePlain<double>(inputs, reduction);
    case ElementType::kComplex64:
      return ReducePlain<std::complex<float>>(inputs, reduction);
    case ElementType::kComplex128:
      return ReducePlain<std::complex<double>>(inputs, reduction);
  }
  return {};
}

std::string Difference(const Buffer& actual,
                       const Buffer& expected,
                       ElementType type) {
  if (actual.size() != expected.size()) return "The sizes differ.";
  const uint64_t element_bytes = SizeOf(type);
  for (size_t at = 0; at < actual.size(); at += element_bytes) {
    const char* const one = actual.data() + at;
    const char* const other = expected.data() + at;
    if (std::memcmp(one, other, element_bytes) == 0) continue;
    if (IsNanOf(one, type) && IsNanOf(other, type)) continue;
    return std::string("Element ") + std::to_string(at / element_bytes) +
           " of " + std::to_string(actual.size() / element_bytes) + " " +
           NameOf(type) + " elements differs.";
  }
  return "";
}

}  // namespace shared_memory_test
