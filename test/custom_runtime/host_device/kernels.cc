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

// The device's float32 kernels: `add`, `full`, `matmul`, `relu` and `scale`.
// They register themselves when Paddle loads the plugin.
//
// A kernel allocates its result and submits the computation to the stream of
// its context. Only the order of that stream prevents the operands' memory from
// being reused before the computation. As on any device, a program that uses a
// tensor on another stream must make the streams wait for each other.
//
// A registered kernel must be a template over an element type and a context.
// The type is always float.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "paddle/phi/backends/custom/custom_context.h"
#include "paddle/phi/common/int_array.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_registry.h"
#include "test/custom_runtime/host_device/control.h"

namespace host_device {

using phi::DenseTensor;
using Numbers = std::vector<int64_t>;  // An element for each dimension.

// Submits a call of `compute` to the stream of a context. The trace records it
// with `kind`.
template <typename Compute>
void Launch(const phi::CustomContext& context,
            const char* kind,
            Compute compute) {
  auto owned = std::make_unique<Compute>(std::move(compute));
  const auto run = [](void* argument) {
    const std::unique_ptr<Compute> own(static_cast<Compute*>(argument));
    (*own)();
  };
  PADDLE_ENFORCE_EQ(
      HostDeviceLaunch(
          static_cast<C_Stream>(context.stream()), kind, run, owned.get()),
      C_SUCCESS,
      common::errors::External("The device has refused to launch %s.", kind));
  owned.release();  // NOLINT: the submitted call owns it.
}

// Submits out[i] = function(x[i]) for each i.
template <typename Context, typename Function>
void LaunchForEach(const Context& context,
                   const char* kind,
                   const DenseTensor& x,
                   DenseTensor* out,
                   Function function) {
  float* const to = context.template Alloc<float>(out);
  const float* const from = x.data<float>();
  Launch(context, kind, [=, count = out->numel()] {
    for (int64_t i = 0; i < count; ++i) to[i] = function(from[i]);
  });
}

// Returns an operand's stride, in elements, along each dimension of the result
// that it is broadcast to; 0 where it is repeated. `step` is the stride of the
// operand's own last dimension.
Numbers BroadcastStrides(const Numbers& shape, size_t rank, int64_t step) {
  Numbers strides(rank, 0);
  for (size_t axis = 1; axis <= shape.size(); ++axis) {
    const int64_t size = shape[shape.size() - axis];
    if (size != 1) strides[rank - axis] = step;
    step *= size;
  }
  return strides;
}

// Returns the shape that both operands are broadcast to.
Numbers BroadcastShape(const Numbers& x, const Numbers& y) {
  const size_t rank = std::max(x.size(), y.size());
  Numbers shape(rank, 1);
  for (const Numbers* operand : {&x, &y}) {
    const size_t missing = rank - operand->size();
    for (size_t axis = missing; axis < rank; ++axis) {
      const int64_t size = (*operand)[axis - missing];
      if (size != 1) shape[axis] = size;
    }
  }
  return shape;
}

// Maps the elements of a result to the elements of its operands.
class Broadcast {
 public:
  // The strides are BroadcastStrides() of the operands.
  Broadcast(Numbers shape, Numbers x_strides, Numbers y_strides)
      : shape_(std::move(shape)),
        x_strides_(std::move(x_strides)),
        y_strides_(std::move(y_strides)) {}

  // Calls visit(i, the offset in x, the offset in y) for each element i.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    int64_t count = 1;
    for (const int64_t size : shape_) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i;
      int64_t x = 0;
      int64_t y = 0;
      for (size_t axis = shape_.size(); axis-- > 0; rest /= shape_[axis]) {
        const int64_t index = rest % shape_[axis];
        x += index * x_strides_[axis];
        y += index * y_strides_[axis];
      }
      visit(i, x, y);
    }
  }

 private:
  Numbers shape_;
  Numbers x_strides_;
  Numbers y_strides_;
};

template <typename T, typename Context>
void AddKernel(const Context& context,
               const DenseTensor& x,
               const DenseTensor& y,
               DenseTensor* out) {
  float* const to = context.template Alloc<float>(out);
  const float* const left = x.data<float>();
  const float* const right = y.data<float>();
  const Numbers shape = common::vectorize(out->dims());
  const auto strides_of = [&](const DenseTensor& operand) {
    return BroadcastStrides(common::vectorize(operand.dims()), shape.size(), 1);
  };
  const Broadcast elements(shape, strides_of(x), strides_of(y));
  Launch(context, "add", [=] {
    elements.ForEach([=](int64_t i, int64_t in_x, int64_t in_y) {
      to[i] = left[in_x] + right[in_y];
    });
  });
}

template <typename T, typename Context>
void FullKernel(const Context& context,
                const phi::IntArray&,
                const phi::Scalar& value,
                phi::DataType,
                DenseTensor* out) {
  float* const to = context.template Alloc<float>(out);
  Launch(context, "full", [=, count = out->numel(), x = value.to<float>()] {
    std::fill_n(to, count, x);
  });
}

// The memory layout of a matrix.
struct Matrix {
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;
};

// An operand of matmul: a batch of matrices with the same layout.
struct Batch {
  // A vector is one row or one column, and never transposed.
  Batch(const DenseTensor& operand, bool transpose, bool vector_is_row)
      : shape(common::vectorize(operand.dims())), is_vector(shape.size() == 1) {
    if (is_vector) shape.insert(vector_is_row ? shape.begin() : shape.end(), 1);
    const int64_t columns = shape.back();
    shape.pop_back();
    const int64_t rows = shape.back();
    shape.pop_back();
    matrix = {rows, columns, columns, 1};
    if (transpose && !is_vector) matrix = {columns, rows, 1, columns};
  }

  Numbers StridesIn(size_t rank) const {
    return BroadcastStrides(shape, rank, matrix.rows * matrix.columns);
  }

  Numbers shape;  // Of the batch, not of the matrices.
  bool is_vector;
  Matrix matrix;
};

// out = x y, where `out` is contiguous.
void Multiply(const float* x,
              const Matrix& x_form,
              const float* y,
              const Matrix& y_form,
              float* out) {
  std::fill_n(out, x_form.rows * y_form.columns, 0.0F);
  for (int64_t row = 0; row < x_form.rows; ++row, out += y_form.columns) {
    for (int64_t k = 0; k < x_form.columns; ++k) {
      const float factor =
          x[row * x_form.row_stride + k * x_form.column_stride];
      const float* const y_row = y + k * y_form.row_stride;
      for (int64_t column = 0; column < y_form.columns; ++column) {
        out[column] += factor * y_row[column * y_form.column_stride];
      }
    }
  }
}

template <typename T, typename Context>
void MatmulKernel(const Context& context,
                  const DenseTensor& x,
                  const DenseTensor& y,
                  bool transpose_x,
                  bool transpose_y,
                  DenseTensor* out) {
  const Batch x_batch(x, transpose_x, /*vector_is_row=*/true);
  const Batch y_batch(y, transpose_y, /*vector_is_row=*/false);
  Numbers batch = BroadcastShape(x_batch.shape, y_batch.shape);
  Numbers shape = batch;
  if (!x_batch.is_vector) shape.push_back(x_batch.matrix.rows);
  if (!y_batch.is_vector) shape.push_back(y_batch.matrix.columns);
  // Paddle omits the leading dimensions of the operand with fewer dimensions.
  out->Resize(common::make_ddim(shape));
  float* const to = context.template Alloc<float>(out);
  const float* const left = x.data<float>();
  const float* const right = y.data<float>();
  const size_t rank = batch.size();
  const Broadcast matrices(
      std::move(batch), x_batch.StridesIn(rank), y_batch.StridesIn(rank));
  Launch(
      context, "matmul", [=, x_form = x_batch.matrix, y_form = y_batch.matrix] {
        const int64_t size = x_form.rows * y_form.columns;
        matrices.ForEach([&](int64_t i, int64_t in_x, int64_t in_y) {
          Multiply(left + in_x, x_form, right + in_y, y_form, to + i * size);
        });
      });
}

template <typename T, typename Context>
void ReluKernel(const Context& context,
                const DenseTensor& x,
                DenseTensor* out) {
  // Not std::max, which would turn NaN into 0.
  LaunchForEach(
      context, "relu", x, out, [](float each) { return each < 0 ? 0 : each; });
}

template <typename T, typename Context>
void ScaleKernel(const Context& context,
                 const DenseTensor& x,
                 const phi::Scalar& scale,
                 const phi::Scalar& bias,
                 bool bias_after_scale,
                 DenseTensor* out) {
  const float factor = scale.to<float>();
  const float offset = bias.to<float>() * (bias_after_scale ? 1.0F : factor);
  LaunchForEach(context, "scale", x, out, [=](float each) {
    return each * factor + offset;
  });
}

}  // namespace host_device

#define REGISTER(name, kernel) \
  PD_REGISTER_PLUGIN_KERNEL(   \
      name, custom_cpu, ALL_LAYOUT, host_device::kernel, float) {}

REGISTER(add, AddKernel)
REGISTER(full, FullKernel)
REGISTER(matmul, MatmulKernel)
REGISTER(relu, ReluKernel)
REGISTER(scale, ScaleKernel)
