// One head of a sequence in axis attention, and the scratch memory that it is computed in.
#pragma once

#include "axis_attention/axis_keys_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Lanes whose diagonals are scored together, as many as SumFour adds up, and the diagonals: their sums fill
// the registers.
constexpr int64_t kStripLanes = 4;
constexpr int64_t kStripDiagonals = kLanes == 16 ? 5 : 2;

struct AxisScratch {
  HeldHead held;
  float *column_keys, *column_values;  // (columns, padded head size)
  float* full_queries;                 // (full rows, padded head size)
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
    full_queries = layout.Take(extent.full_rows * padded);
    queries = layout.Take(kPanelQueries * padded);
    query_panel = layout.Take(extent.head_size * kPanelQueries);
    constexpr int64_t kStripKeys = kStripDiagonals + kStripLanes - 1;
    buffer = layout.Take(RowsBufferFloats(Max(kBufferRows, kStripKeys), extent.head_size));
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

// A number that is known when compiled.
template <int64_t Count>
struct Constant {
  static constexpr int64_t kCount = Count;
};

// Calls visit(Constant<count>), 0 < count <= Most.
template <int64_t Most, class Visit>
inline void VisitCount(int64_t count, const Visit& visit) {
  if constexpr (Most > 1) {
    if (count < Most) return VisitCount<Most - 1>(count, visit);
  }
  visit(Constant<Most>{});
}

// The v-th vector of a tile of a row. A tile of several vectors is full; of one of a single vector `count`
// columns exist.
template <int64_t Vectors, class Element>
inline Floats LoadTile(const Element* tile, int64_t v, int64_t count) {
  if constexpr (Vectors > 1) return Load(tile + v * kLanes);
  return LoadFirst(tile, count);
}

template <int64_t Vectors, class Element>
inline void StoreTile(Element* tile, int64_t v, int64_t count, Floats a) {
  if constexpr (Vectors > 1) return Store(tile + v * kLanes, a);
  StoreFirst(tile, count, a);
}

// Prefetches what the next block reads and writes, piece by piece in the order in which it lies in memory:
// the processor then fetches what follows by itself. It can wait for about twenty cache lines at a time, so
// that the pieces are spread over the steps of the block before.
class BlockAhead {
 public:
  BlockAhead() = default;  // prefetches nothing

  // The rows from the row-th on of a range's sequence, in all of its heads; the kernel takes `steps` steps
  // until they are needed.
  template <class Element>
  BlockAhead(const PackedAttention<Element>& tensors, const QueryRange& range, int64_t row, int64_t count,
             int64_t steps) {
    const ptrdiff_t stride = tensors.num_heads * tensors.head_size;
    const ptrdiff_t head = range.head * tensors.head_size;
    if (count == 0) return;
    const ptrdiff_t token = (range.sequence_begin + row) * stride + head;
    Add(tensors.key + token);
    Add(tensors.value + token);
    if (range.sequence_queries == range.sequence_length) {  // else queries are not those of the tokens
      const ptrdiff_t query = (range.query_begin + row) * stride + head;
      Add(tensors.query + query);
      Add(tensors.output + query);
    }
    row_bytes_ = range.heads * tensors.head_size * static_cast<int64_t>(sizeof(Element));
    stride_ = stride * static_cast<ptrdiff_t>(sizeof(Element));
    rows_ = count;
    const int64_t pieces = tensors_ * count * ((row_bytes_ + kPiece - 1) / kPiece);
    pieces_ = (pieces + steps - 1) / steps;
  }

  void Step() {
    for (int64_t i = 0; i < pieces_ && tensor_ < tensors_; ++i) PrefetchPiece();
  }

 private:
  void Add(const void* begin) { begins_[tensors_++] = static_cast<const char*>(begin); }

  [[gnu::always_inline]] void PrefetchPiece() {
    const char* piece = begins_[tensor_] + row_ * stride_ + byte_;
    SPARSE_OPS_UNROLL
    for (int64_t i = 0; i < kPiece; i += kLine) __builtin_prefetch(piece + i, 0, 2);
    byte_ += kPiece;
    if (byte_ < row_bytes_) return;
    byte_ = 0;
    if (++row_ < rows_) return;
    row_ = 0;
    ++tensor_;
  }

  static constexpr int64_t kTensors = 4;
  static constexpr int64_t kLine = 64, kPiece = 4 * kLine;  // bytes

  const char* begins_[kTensors];
  int64_t tensors_ = 0, rows_ = 0, row_bytes_ = 0;
  ptrdiff_t stride_ = 0;
  int64_t pieces_ = 0;  // of a step
  int64_t tensor_ = 0, row_ = 0, byte_ = 0;
};

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
