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
#include <cstring>
#include <type_traits>

#include "paddle/phi/core/distributed/shared_memory/collective_types.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(REDUCTION_PORTABLE)
#include <immintrin.h>
#define REDUCTION_WITH_AVX2
#endif

// Code that is inlined into a function with a target attribute is compiled for
// that target.
#define REDUCTION_INLINE inline __attribute__((always_inline))

// The output may equal one of the inputs, but does not overlap the inputs
// otherwise. The compiler must know this to vectorize.
#ifdef __clang__
#define REDUCTION_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define REDUCTION_VECTORIZE _Pragma("GCC ivdep")
#endif

namespace phi {
namespace distributed {

namespace {

// The loops have a constant length, so they are vectorized at every
// optimization level. Intermediate values stay in the L1 cache.
constexpr int kTile = 512;

template <typename To, typename From>
REDUCTION_INLINE To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename T>
REDUCTION_INLINE T LoadAt(const char* address, int i) {
  T value;
  std::memcpy(&value, address + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
REDUCTION_INLINE void StoreAt(char* address, int i, T value) {
  std::memcpy(address + i * sizeof(T), &value, sizeof(T));
}

// A format defines the types in which elements are stored and computed.

template <typename T>
struct Plain {
  using Stored = T;
  using Computed = T;
  static REDUCTION_INLINE T Widen(T value) { return value; }
  static REDUCTION_INLINE T Narrow(T value) { return value; }
};

struct Boolean {
  using Stored = uint8_t;
  using Computed = uint8_t;
  static REDUCTION_INLINE uint8_t Widen(uint8_t value) { return value != 0; }
  static REDUCTION_INLINE uint8_t Narrow(uint8_t value) { return value != 0; }
};

// The conversions of both 16-bit types have no branches, so that the compiler
// vectorizes them.

// Selects without a branch, so that computing the values is vectorized.
REDUCTION_INLINE uint32_t Choose(bool condition, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

struct Float16 {
  using Stored = uint16_t;
  using Computed = float;

  static REDUCTION_INLINE float Widen(uint16_t half) {
    const uint32_t magnitude = half & 0x7fff;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t infinite_or_nan = (magnitude << 13) | 0x7f800000;
    const uint32_t denormal = BitCast<uint32_t>(
        static_cast<float>(static_cast<int>(magnitude)) * (1.0f / (1 << 24)));
    uint32_t bits = Choose(magnitude < 0x0400, denormal, normal);
    bits = Choose(magnitude >= 0x7c00, infinite_or_nan, bits);
    return BitCast<float>(bits | (half & 0x8000u) << 16);
  }

  // Rounds to nearest, ties to even.
  static REDUCTION_INLINE uint16_t Narrow(float value) {
    const uint32_t bits = BitCast<uint32_t>(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal =
        (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    // The last bit of 0.5 is worth as much as that of a denormal float16.
    const uint32_t denormal =
        BitCast<uint32_t>(BitCast<float>(magnitude) + 0.5f) -
        BitCast<uint32_t>(0.5f);
    uint32_t half = Choose(magnitude < 113u << 23, denormal, normal);
    half = Choose(magnitude >= 0x477ff000, 0x7c00, half);  // 65520 and more
    half = Choose(magnitude > 0x7f800000, 0x7e00, half);
    return static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
  }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Computed = float;

  static REDUCTION_INLINE float Widen(uint16_t value) {
    return BitCast<float>(static_cast<uint32_t>(value) << 16);
  }

  // Rounds to nearest, ties to even.
  static REDUCTION_INLINE uint16_t Narrow(float value) {
    const uint32_t bits = BitCast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan
                                                                  : rounded);
  }
};

template <typename T>
struct Complex {
  T real;
  T imaginary;
};

// Integers are computed unsigned and with at least 32 bits, so they wrap
// around: C++ would promote smaller types to signed integers, which must not
// overflow.
template <typename T>
REDUCTION_INLINE auto Arithmetic(T value) {
  if constexpr (std::is_integral_v<T> && sizeof(T) < sizeof(uint32_t)) {
    return static_cast<uint32_t>(value);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(value);
  } else {
    return value;
  }
}

struct Sum {
  template <typename T>
  static REDUCTION_INLINE T Combine(T a, T b) {
    return static_cast<T>(Arithmetic(a) + Arithmetic(b));
  }
};

struct Product {
  template <typename T>
  static REDUCTION_INLINE T Combine(T a, T b) {
    return static_cast<T>(Arithmetic(a) * Arithmetic(b));
  }
  template <typename T>
  static REDUCTION_INLINE Complex<T> Combine(Complex<T> a, Complex<T> b) {
    return {a.real * b.real - a.imaginary * b.imaginary,
            a.real * b.imaginary + a.imaginary * b.real};
  }
};

struct Minimum {
  template <typename T>
  static REDUCTION_INLINE T Combine(T a, T b) {
    return (a < b) | (a != a) ? a : b;
  }
};

struct Maximum {
  template <typename T>
  static REDUCTION_INLINE T Combine(T a, T b) {
    return (a > b) | (a != a) ? a : b;
  }
};

// Booleans are added and multiplied as C++ does it.
struct Or {
  static REDUCTION_INLINE uint8_t Combine(uint8_t a, uint8_t b) {
    return a | b;
  }
};

struct And {
  static REDUCTION_INLINE uint8_t Combine(uint8_t a, uint8_t b) {
    return a & b;
  }
};

template <typename Format>
REDUCTION_INLINE typename Format::Computed Load(const char* input, int i) {
  return Format::Widen(LoadAt<typename Format::Stored>(input, i));
}

template <typename Format, bool kDivided, typename Computed>
REDUCTION_INLINE void Store(char* out,
                            int i,
                            Computed value,
                            Computed divisor) {
  if constexpr (kDivided) value = value / divisor;
  StoreAt<typename Format::Stored>(out, i, Format::Narrow(value));
}

// Reduces one tile of the inputs, which starts at the byte `offset` in each. If
// `kDivided`, divides the result by `divisor`.
template <typename Format, typename Operation, bool kDivided>
REDUCTION_INLINE void ReduceTile(const std::vector<const char*>& inputs,
                                 uint64_t offset,
                                 char* out,
                                 typename Format::Computed divisor) {
  using Computed = typename Format::Computed;
  const char* first = inputs[0] + offset;
  const char* second = inputs[1] + offset;
  if (inputs.size() == 2) {
    REDUCTION_VECTORIZE
    for (int i = 0; i < kTile; ++i) {
      const Computed reduced =
          Operation::Combine(Load<Format>(first, i), Load<Format>(second, i));
      Store<Format, kDivided>(out, i, reduced, divisor);
    }
    return;
  }
  Computed partial[kTile];
  REDUCTION_VECTORIZE
  for (int i = 0; i < kTile; ++i) {
    partial[i] =
        Operation::Combine(Load<Format>(first, i), Load<Format>(second, i));
  }
  for (size_t rank = 2; rank < inputs.size(); ++rank) {
    const char* input = inputs[rank] + offset;
    REDUCTION_VECTORIZE
    for (int i = 0; i < kTile; ++i) {
      partial[i] = Operation::Combine(partial[i], Load<Format>(input, i));
    }
  }
  REDUCTION_VECTORIZE
  for (int i = 0; i < kTile; ++i) {
    Store<Format, kDivided>(out, i, partial[i], divisor);
  }
}

template <typename Format, typename Operation, bool kDivided>
REDUCTION_INLINE void ReduceTiles(const std::vector<const char*>& inputs,
                                  char* out,
                                  uint64_t count,
                                  typename Format::Computed divisor) {
  constexpr uint64_t kElement = sizeof(typename Format::Stored);
  for (uint64_t offset = 0; offset < count * kElement;
       offset += kTile * kElement) {
    ReduceTile<Format, Operation, kDivided>(
        inputs, offset, out + offset, divisor);
  }
}

#ifdef REDUCTION_WITH_AVX2
template <typename Format, typename Operation, bool kDivided>
__attribute__((target("avx2"))) void ReduceTilesWithAvx2(
    const std::vector<const char*>& inputs,
    char* out,
    uint64_t count,
    typename Format::Computed divisor) {
  ReduceTiles<Format, Operation, kDivided>(inputs, out, count, divisor);
}

constexpr int kLanes = 8;

__attribute__((target("avx2,f16c"))) inline void WidenTile(const char* halves,
                                                           float* floats) {
  for (int i = 0; i < kTile; i += kLanes) {
    _mm256_storeu_ps(
        floats + i,
        _mm256_cvtph_ps(_mm_loadu_si128(
            reinterpret_cast<const __m128i*>(halves) + i / kLanes)));
  }
}

__attribute__((target("avx2,f16c"))) inline void NarrowTile(const float* floats,
                                                            char* halves) {
  for (int i = 0; i < kTile; i += kLanes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(halves) + i / kLanes,
                     _mm256_cvtps_ph(_mm256_loadu_ps(floats + i),
                                     _MM_FROUND_TO_NEAREST_INT));
  }
}

// The processor's conversion instructions are several times as fast as Float16.
template <typename Operation, bool kDivided>
__attribute__((target("avx2,f16c"))) void ReduceFloat16TilesWithF16c(
    const std::vector<const char*>& inputs,
    char* out,
    uint64_t count,
    float divisor) {
  float reduced[kTile];
  float input[kTile];
  for (uint64_t offset = 0; offset < count * sizeof(uint16_t);
       offset += kTile * sizeof(uint16_t)) {
    WidenTile(inputs[0] + offset, reduced);
    for (size_t rank = 1; rank < inputs.size(); ++rank) {
      WidenTile(inputs[rank] + offset, input);
      REDUCTION_VECTORIZE
      for (int i = 0; i < kTile; ++i) {
        reduced[i] = Operation::Combine(reduced[i], input[i]);
      }
    }
    if constexpr (kDivided) {
      for (int i = 0; i < kTile; ++i) reduced[i] = reduced[i] / divisor;
    }
    NarrowTile(reduced, out + offset);
  }
}
#endif

// Requires: `count` is a multiple of the tile size.
template <typename Format, typename Operation, bool kDivided>
void ReduceWholeTiles(const std::vector<const char*>& inputs,
                      char* out,
                      uint64_t count,
                      typename Format::Computed divisor) {
#ifdef REDUCTION_WITH_AVX2
  if constexpr (std::is_same_v<Format, Float16>) {
    static const bool has_f16c =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    if (has_f16c) {
      return ReduceFloat16TilesWithF16c<Operation, kDivided>(
          inputs, out, count, divisor);
    }
  }
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) {
    return ReduceTilesWithAvx2<Format, Operation, kDivided>(
        inputs, out, count, divisor);
  }
#endif
  ReduceTiles<Format, Operation, kDivided>(inputs, out, count, divisor);
}

template <typename Format, typename Operation, bool kDivided = false>
void ReduceAs(const std::vector<const char*>& inputs,
              char* out,
              uint64_t count) {
  constexpr uint64_t kElement = sizeof(typename Format::Stored);
  typename Format::Computed divisor{};
  if constexpr (kDivided) {
    divisor = static_cast<typename Format::Computed>(inputs.size());
  }
  ReduceWholeTiles<Format, Operation, kDivided>(
      inputs, out, count - count % kTile, divisor);

  // The elements that fill no tile.
  const uint64_t left = count % kTile * kElement;
  if (left == 0) return;
  const uint64_t offset = count / kTile * kTile * kElement;
  std::vector<char> tiles((inputs.size() + 1) * kTile * kElement);
  std::vector<const char*> padded;
  char* tile = tiles.data();
  for (const char* input : inputs) {
    std::memcpy(tile, input + offset, left);
    padded.push_back(tile);
    tile += kTile * kElement;
  }
  ReduceWholeTiles<Format, Operation, kDivided>(padded, tile, kTile, divisor);
  std::memcpy(out + offset, tile, left);
}

template <typename Format>
void ReduceOrdered(const std::vector<const char*>& inputs,
                   char* out,
                   uint64_t count,
                   Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return ReduceAs<Format, Sum>(inputs, out, count);
    case Reduction::kProduct:
      return ReduceAs<Format, Product>(inputs, out, count);
    case Reduction::kMinimum:
      return ReduceAs<Format, Minimum>(inputs, out, count);
    case Reduction::kMaximum:
      return ReduceAs<Format, Maximum>(inputs, out, count);
    case Reduction::kAverage:
      if constexpr (std::is_floating_point_v<typename Format::Computed>) {
        return ReduceAs<Format, Sum, true>(inputs, out, count);
      }
  }
}

// The sum and the average of complex numbers are computed on their real and
// imaginary parts.
template <typename T>
void ReduceComplex(const std::vector<const char*>& inputs,
                   char* out,
                   uint64_t count,
                   Reduction reduction) {
  if (reduction == Reduction::kProduct) {
    ReduceAs<Plain<Complex<T>>, Product>(inputs, out, count);
  } else {
    ReduceOrdered<Plain<T>>(inputs, out, 2 * count, reduction);
  }
}

void ReduceBooleans(const std::vector<const char*>& inputs,
                    char* out,
                    uint64_t count,
                    Reduction reduction) {
  if (reduction == Reduction::kSum || reduction == Reduction::kMaximum) {
    ReduceAs<Boolean, Or>(inputs, out, count);
  } else {
    ReduceAs<Boolean, And>(inputs, out, count);
  }
}

// RAII guard: while it lives, the thread rounds to nearest and keeps denormal
// numbers, whatever its floating-point environment was. All ranks must compute
// the same results.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_;
};

bool IsComplex(ElementType type) {
  return type == ElementType::kComplex64 || type == ElementType::kComplex128;
}

bool IsFloatingPoint(ElementType type) {
  return type == ElementType::kFloat16 || type == ElementType::kBFloat16 ||
         type == ElementType::kFloat32 || type == ElementType::kFloat64;
}

struct TypeFacts {
  const char* name;
  uint64_t bytes;
};

// In the order of ElementType.
constexpr TypeFacts kTypes[kElementTypes] = {{"bool", 1},
                                             {"int8", 1},
                                             {"uint8", 1},
                                             {"int16", 2},
                                             {"int32", 4},
                                             {"int64", 8},
                                             {"float16", 2},
                                             {"bfloat16", 2},
                                             {"float32", 4},
                                             {"float64", 8},
                                             {"complex64", 8},
                                             {"complex128", 16}};

// In the order of Reduction.
constexpr const char* kReductionNames[kReductions] = {
    "sum", "average", "product", "minimum", "maximum"};

}  // namespace

uint64_t SizeOf(ElementType type) {
  return kTypes[static_cast<int>(type)].bytes;
}

const char* NameOf(ElementType type) {
  return kTypes[static_cast<int>(type)].name;
}

const char* NameOf(Reduction reduction) {
  return kReductionNames[static_cast<int>(reduction)];
}

bool CanReduce(ElementType type, Reduction reduction) {
  switch (reduction) {
    case Reduction::kAverage:
      return IsFloatingPoint(type) || IsComplex(type);
    case Reduction::kMinimum:
    case Reduction::kMaximum:
      return !IsComplex(type);
    default:
      return true;
  }
}

void ReduceElements(const std::vector<const char*>& inputs,
                    char* out,
                    uint64_t count,
                    ElementType type,
                    Reduction reduction) {
  if (inputs.size() == 1) {
    if (inputs[0] != out) std::memcpy(out, inputs[0], count * SizeOf(type));
    return;
  }
  const DefaultArithmetic arithmetic;
  switch (type) {
    case ElementType::kBool:
      return ReduceBooleans(inputs, out, count, reduction);
    case ElementType::kInt8:
      return ReduceOrdered<Plain<int8_t>>(inputs, out, count, reduction);
    case ElementType::kUInt8:
      return ReduceOrdered<Plain<uint8_t>>(inputs, out, count, reduction);
    case ElementType::kInt16:
      return ReduceOrdered<Plain<int16_t>>(inputs, out, count, reduction);
    case ElementType::kInt32:
      return ReduceOrdered<Plain<int32_t>>(inputs, out, count, reduction);
    case ElementType::kInt64:
      return ReduceOrdered<Plain<int64_t>>(inputs, out, count, reduction);
    case ElementType::kFloat16:
      return ReduceOrdered<Float16>(inputs, out, count, reduction);
    case ElementType::kBFloat16:
      return ReduceOrdered<BFloat16>(inputs, out, count, reduction);
    case ElementType::kFloat32:
      return ReduceOrdered<Plain<float>>(inputs, out, count, reduction);
    case ElementType::kFloat64:
      return ReduceOrdered<Plain<double>>(inputs, out, count, reduction);
    case ElementType::kComplex64:
      return ReduceComplex<float>(inputs, out, count, reduction);
    case ElementType::kComplex128:
      return ReduceComplex<double>(inputs, out, count, reduction);
  }
}

}  // namespace distributed
}  // namespace phi
