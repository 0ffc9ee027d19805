#pragma once

#include "cpu/conversion.h"
#include "cpu/kernels.h"
#include "cpu/scratch_layout.h"
#include "sparsegen_lin/sparsegen_threshold_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

struct SparsegenLinScratch {
  float *scores, *maxima, *weights;
  int32_t *keys, *positive;

  int64_t Allocate(float* base, int64_t length) {
    ScratchLayout layout(base);
    scores = layout.Take(length * kLanes);
    maxima = layout.Take(kMaxClasses * kLanes);
    weights = layout.Take(length * kLanes);
    keys = reinterpret_cast<int32_t*>(layout.Take(length));
    positive = reinterpret_cast<int32_t*>(layout.Take(RoundUp(length, 32) / 32 * kLanes));
    return layout.used();
  }
};

inline size_t SparsegenLinScratchFloats(int64_t length) {
  return static_cast<size_t>(SparsegenLinScratch{}.Allocate(nullptr, length));
}

// Up to kLanes rows; element j of row i lies at offset[i] + j * inner.
struct RowBlock {
  ptrdiff_t offset[kLanes];
  int64_t count;
};

template <class Element>
inline RowBlock LocateRows(const AxisRows<Element>& rows, int64_t first_row, int64_t count) {
  RowBlock block{{}, count};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = first_row + i;
    block.offset[i] = row / rows.inner * rows.length * rows.inner + row % rows.inner;
  }
  return block;
}

// Loads the scores, (length, kLanes): one row per lane, 0 where there is none.
template <class Element>
inline void GatherRows(const AxisRows<Element>& rows, const RowBlock& block, float* scores) {
  if (block.count < kLanes) {
    for (int64_t j = 0; j < rows.length; ++j) Store(scores + j * kLanes, Floats{});
  }
  if (rows.inner == 1) {
    constexpr int64_t kColumns = 64;  // that are converted at a time
    alignas(64) float buffer[RowsBufferFloats(kLanes, kColumns)];
    for (int64_t j = 0; j < rows.length; j += kColumns) {
      const int64_t columns = Min(kColumns, rows.length - j);
      const FloatRows from =
          ReadRows(rows.input + block.offset[0] + j, rows.length, block.count, columns, buffer);
      Transpose(from.first, from.stride, block.count, columns, scores + j * kLanes, kLanes);
    }
    return;
  }
  for (int64_t j = 0; j < rows.length; ++j) {
    for (int64_t i = 0; i < block.count; ++i) {
      scores[j * kLanes + i] = ReadOne(rows.input + block.offset[i] + j * rows.inner);
    }
  }
}

template <class Element>
inline void ScatterRows(const AxisRows<Element>& rows, const RowBlock& block, const Survivors& survivors) {
  Element filler[kLanes];
  const unsigned nan = Bits(survivors.nan);
  for (int64_t i = 0; i < kLanes; ++i) WriteOne(filler + i, nan >> i & 1 ? __builtin_nanf("") : 0.0f);
  if (rows.inner == 1) {
    for (int64_t i = 0; i < block.count; ++i) {
      for (int64_t j = 0; j < rows.length; ++j) rows.output[block.offset[i] + j] = filler[i];
    }
  } else {
    for (int64_t j = 0; j < rows.length; ++j) {
      for (int64_t i = 0; i < block.count; ++i) rows.output[block.offset[i] + j * rows.inner] = filler[i];
    }
  }
  for (int64_t i = 0; i < block.count; ++i) {
    if (nan >> i & 1) continue;
    Element* output = rows.output + block.offset[i];
    ForEachPositive(survivors, i, [&](int64_t t) {
      WriteOne(output + survivors.keys[t] * rows.inner, survivors.weights[t * kLanes + i]);
    });
  }
}

template <class Element>
inline void SparsegenLin(const AxisRows<Element>& rows, float divisor, int64_t first_row, int64_t count,
                         float* scratch) {
  SparsegenLinScratch at;
  at.Allocate(scratch, rows.length);
  const RowBlock block = LocateRows(rows, first_row, count);
  GatherRows(rows, block, at.scores);

  const int64_t classes = Min(rows.length, kMaxClasses);
  for (int64_t c = 0; c < classes; ++c) {
    Floats maximum = Broadcast(-kInfinity);
    for (int64_t j = c; j < rows.length; j += kMaxClasses)
      maximum = Max(Load(at.scores + j * kLanes), maximum);
    Store(at.maxima + c * kLanes, maximum);
  }
  Survivors survivors{at.weights, at.keys, at.positive, 0, Ints{}, Mask{}};
  SolveSparsegen({at.scores, kLanes, rows.length, at.maxima, kLanes, classes}, divisor, count, &survivors);
  ScatterRows(rows, block, survivors);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
