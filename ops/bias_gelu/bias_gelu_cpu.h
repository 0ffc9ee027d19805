#pragma once

#include "cpu/conversion.h"
#include "cpu/gelu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

inline void BiasGelu(const float* input, int64_t count, int64_t columns, const float* bias, float* output) {
  for (int64_t row = 0; row < count; ++row, input += columns, output += columns) {
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) Store(output + j, Gelu(Load(input + j) + Load(bias + j)));
    if (j < columns) {
      const int64_t left = columns - j;
      StorePartial(output + j, left, Gelu(LoadPartial(input + j, left) + LoadPartial(bias + j, left)));
    }
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
