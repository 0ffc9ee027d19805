// One head of a sequence in axis attention, and the scratch memory that it is computed in.
#pragma once

#include "axis_attention/axis_keys_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

struct AxisScratch {
  HeldHead held;
  float *column_keys, *column_values;  // (columns, padded head size)
  float* queries;                      // (kPanelQueries, padded head size)
  float *query_panel, *buffer, *scores, *maxima, *sums, *weights;
  int32_t *survivors, *positive;
  AxisKeysScratch keys;

  int64_t Allocate(float* base, const AxisExtent& extent) {
    const int64_t padded = RoundUp(extent.head_size, kLanes);
    ScratchLayout layout(base);
    held.Allocate(&layout, extent.held_keys, extent.head_size);
    column_keys = layout.Take(extent.columns * padded);
    column_values = layout.Take(extent.columns * padded);
    queries = layout.Take(kPanelQueries * padded);
    query_panel = layout.Take(extent.head_size * kPanelQueries);
    buffer = layout.Take(RowsBufferFloats(kBufferRows, extent.head_size));
    // Columns are scored kKeyRows at a time, and keys that are in the lanes kLanes at a time.
    scores = layout.Take(RoundUp(extent.slots + kKeyRows, kLanes) * kPanelQueries);
    maxima = layout.Take(kMaxClasses * kPanelQueries);
    sums = layout.Take(padded * kPanelQueries);
    const int64_t solved = extent.sparsegen ? extent.slots : 0;
    weights = layout.Take(solved * kLanes);
    survivors = reinterpret_cast<int32_t*>(layout.Take(solved));
    positive = reinterpret_cast<int32_t*>(layout.Take(RoundUp(solved, 32) / 32 * kLanes));
    keys.Allocate(&layout, extent);
    return layout.used();
  }
};

inline size_t AxisAttentionScratchFloats(const AxisExtent& extent) {
  return static_cast<size_t>(AxisScratch{}.Allocate(nullptr, extent));
}

// One head of one sequence.
template <class Element, class Held>
struct AxisHead {
  const Element* query;
  KeysAndValues<Held> keys;
  Element* output;
  int32_t* support;
  ptrdiff_t stride;  // of queries and outputs
  ptrdiff_t support_stride;
  int64_t head_size;
  int64_t padded;  // head size, rounded up to a multiple of kLanes
  float scale;     // of the scores
};

// The first head of a range: its queries, and where its keys and values are.
template <class Element, class Held>
inline AxisHead<Element, Held> HeadOf(const PackedAttention<Element>& tensors, const QueryRange& range,
                                      const KeysAndValues<Held>& keys) {
  const ptrdiff_t stride = tensors.num_heads * tensors.head_size;
  const ptrdiff_t queries = range.query_begin * stride + range.head * tensors.head_size;
  int32_t* support = tensors.support;
  if (support != nullptr) support += range.query_begin * tensors.num_heads + range.head;
  return {tensors.query + queries,
          keys,
          tensors.output + queries,
          support,
          stride,
          tensors.num_heads,
          tensors.head_size,
          RoundUp(tensors.head_size, kLanes),
          tensors.scale};
}

template <class Element>
inline AxisHead<Element, Element> HeadOf(const PackedAttention<Element>& tensors, const QueryRange& range) {
  return HeadOf(tensors, range, KeysAndValuesOf(tensors, range, range.head));
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
