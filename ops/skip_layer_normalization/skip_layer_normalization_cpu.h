#pragma once

#include "cpu/conversion.h"
#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// The sum of term(j, count) over a row. A term is a vector of `count` columns from the j-th on, its other
// lanes 0. The order of additions is the same for every row.
template <class Term>
inline float SumOfTerms(int64_t columns, const Term& term) {
  constexpr int64_t kChains = 4;
  Floats sum[kChains] = {};
  int64_t j = 0;
  for (; j + kChains * kLanes <= columns; j += kChains * kLanes) {
    SPARSE_OPS_UNROLL
    for (int64_t c = 0; c < kChains; ++c) sum[c] = sum[c] + term(j + c * kLanes, kLanes);
  }
  for (; j + kLanes <= columns; j += kLanes) sum[0] = sum[0] + term(j, kLanes);
  if (j < columns) sum[0] = sum[0] + term(j, columns - j);
  const Floats all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  float total = 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += all[lane];
  return total;
}

// The sum of a row is stored in its output until it is normalized.
inline void NormalizeRow(const SumRows& rows, const float* input, const float* skip, float* output) {
  const float columns = static_cast<float>(rows.columns);
  const Floats mean = Broadcast(SumOfTerms(rows.columns,
                                           [&](int64_t j, int64_t count) {
                                             const Floats biased = LoadFirst(input + j, count) +
                                                                   LoadFirst(rows.bias + j, count);
                                             const Floats sum = biased + LoadFirst(skip + j, count);
                                             StorePartial(output + j, count, sum);
                                             return sum;
                                           }) /
                                columns);
  const float variance =
      SumOfTerms(rows.columns,
                 [&](int64_t j, int64_t count) {
                   const Floats apart = LoadFirst(output + j, count) - mean;
                   const Floats own =
                       count == kLanes ? apart : Select(MaskOf(OfFirst(count)), apart, Floats{});
                   return own * own;
                 }) /
      columns;
  const Floats factor = Broadcast(1.0f / __builtin_sqrtf(variance + rows.epsilon));
  ForEachVector(rows.columns, [&](int64_t j, int64_t count) {
    const Floats normalized = (LoadFirst(output + j, count) - mean) * factor;
    StorePartial(output + j, count,
                 MulAdd(normalized, LoadFirst(rows.gamma + j, count), LoadFirst(rows.beta + j, count)));
  });
}

inline void SkipLayerNormalization(const SumRows& rows, int64_t count, float* output) {
  for (int64_t row = 0; row < count; ++row) {
    const int64_t first = row * rows.columns;
    NormalizeRow(rows, rows.input + first, rows.skip + first, output + first);
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
