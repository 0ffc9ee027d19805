#pragma once

#include "cpu/conversion.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Whether bias + <weight, hidden> is above 0; NaN is not.
template <class Element>
inline uint8_t IsOn(const Element* hidden, const Element* weight, const Element* bias, int64_t width) {
  constexpr int64_t kSums = 4;  // so many hide the latency of the additions
  Floats sums[kSums] = {};
  int64_t d = 0;
  for (; d + kSums * kLanes <= width; d += kSums * kLanes) {
    SPARSE_OPS_UNROLL
    for (int64_t s = 0; s < kSums; ++s) {
      sums[s] = MulAdd(Load(weight + d + s * kLanes), Load(hidden + d + s * kLanes), sums[s]);
    }
  }
  for (; d + kLanes <= width; d += kLanes) sums[0] = MulAdd(Load(weight + d), Load(hidden + d), sums[0]);
  if (d < width) {
    sums[1] = MulAdd(LoadPartial(weight + d, width - d), LoadPartial(hidden + d, width - d), sums[1]);
  }
  const Floats lanes = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = ReadOne(bias);
  for (int64_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
  return total > 0.0f;
}

template <class Element>
inline void AxisMask(const Element* hidden, int64_t count, int64_t width, const Element* weight,
                     const Element* bias, uint8_t* rows, uint8_t* columns) {
  for (int64_t t = 0; t < count; ++t) {
    rows[t] = IsOn(hidden + t * width, weight, bias, width);
    columns[t] = IsOn(hidden + t * width, weight + width, bias + 1, width);
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
