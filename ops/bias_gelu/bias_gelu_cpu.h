#pragma once

#include "cpu/conversion.h"
#include "cpu/gelu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

inline void BiasGelu(const float* input, int64_t count, int64_t columns, const float* bias, float* output) {
  for (int64_t row = 0; row < count; ++row, input += columns, output += columns) {
    ForEachVector(columns, [&](int64_t j, int64_t vector) {
      StorePartial(output + j, vector, Gelu(LoadFirst(input + j, vector) + LoadFirst(bias + j, vector)));
    });
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
