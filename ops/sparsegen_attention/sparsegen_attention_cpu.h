#pragma once

#include "attention/packed_attention_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

struct SparsegenAttentionScratch {
  HeldHead held;
  float *query_panel, *room, *scores, *maxima, *weights, *sums;
  int32_t *keys, *positive;

  int64_t Lay(float* base, int64_t longest_sequence, int64_t head_size) {
    ScratchLayout layout(base);
    held.Lay(&layout, longest_sequence, head_size);
    query_panel = layout.Take(head_size * kPanelQueries);
    room = layout.Take(RowsRoom(kRoomRows, head_size));
    scores = layout.Take(longest_sequence * kPanelQueries);
    maxima = layout.Take(kMaxClasses * kPanelQueries);
    weights = layout.Take(longest_sequence * kLanes);
    sums = layout.Take(RoundUp(head_size, kLanes) * kLanes);
    keys = reinterpret_cast<int32_t*>(layout.Take(longest_sequence));
    positive = reinterpret_cast<int32_t*>(layout.Take(RoundUp(longest_sequence, 32) / 32 * kLanes));
    return layout.used();
  }
};

inline size_t SparsegenAttentionScratchFloats(int64_t longest_sequence, int64_t head_size) {
  return static_cast<size_t>(SparsegenAttentionScratch{}.Lay(nullptr, longest_sequence, head_size));
}

// A weight above 0 costs SumSparse about this many times what any weight, zero or not, costs AddDense:
// measured 5, 3 and 2 on 16, 8 and 4 lanes.
constexpr int64_t kSparseCost = kLanes / 4 + 1;

// Weighted sums of the values for kLanes queries, whose first output row is `output`.
template <class Value, class Element>
inline void SumValues(const Survivors& survivors, const Value* value, ptrdiff_t value_stride,
                      int64_t head_size, int64_t rows, float* sums, Element* output,
                      ptrdiff_t output_stride) {
  int64_t pairs = 0;
  for (int64_t r = 0; r < rows; ++r) pairs += survivors.support[r];
  if (pairs * kSparseCost <= survivors.count * kLanes) {
    for (int64_t r = 0; r < rows; ++r) {
      SumSparse(survivors, r, value, value_stride, head_size, output + r * output_stride);
    }
    return;
  }
  const int64_t sums_stride = RoundUp(head_size, kLanes);
  for (int64_t i = 0; i < sums_stride * kLanes; i += kLanes) Store(sums + i, Floats{});
  AddDense<true>(survivors.weights, kLanes, survivors.keys, survivors.count, value, value_stride, head_size,
                 rows, sums, sums_stride);
  for (int64_t r = 0; r < rows; ++r) {
    WriteRow(sums + r * sums_stride, head_size, Broadcast(1.0f), output + r * output_stride);
  }
}

// The queries of a range, of whose head keys and values are given.
template <class Element, class Held>
inline void AttendSparsely(const PackedAttention<Element>& tensors, const QueryRange& range,
                           const KeysAndValues<Held>& head, const SparsegenAttentionScratch& at) {
  const int64_t head_size = tensors.head_size;
  const ptrdiff_t stride = tensors.num_heads * head_size;
  const int64_t own = range.query_begin * stride + range.head * head_size;

  for (int64_t begin = range.first; begin < range.first + range.count; begin += kPanelQueries) {
    const int64_t queries = Min(kPanelQueries, range.first + range.count - begin);
    PackQueries(tensors.query + own + begin * stride, stride, queries, head_size, at.room, at.query_panel);
    const auto score = queries > kLanes ? ScorePanel<2, Held> : ScorePanel<1, Held>;
    const int64_t classes = score(at.query_panel, head.key, head.stride, range.sequence_length, head_size,
                                  tensors.scale, at.room, at.scores, at.maxima);

    for (int64_t column = 0; column < queries; column += kLanes) {
      const int64_t rows = Min(kLanes, queries - column);
      Survivors survivors{at.weights, at.keys, at.positive, 0, Ints{}, Mask{}};
      SolveSparsegen({at.scores + column, kPanelQueries, range.sequence_length, at.maxima + column,
                      kPanelQueries, classes},
                     tensors.divisor, rows, &survivors);
      Element* output = tensors.output + own + (begin + column) * stride;
      SumValues(survivors, head.value, head.stride, head_size, rows, at.sums, output, stride);

      const int64_t row = range.query_begin + begin + column;
      const unsigned nan = Bits(survivors.nan);
      for (int64_t r = 0; r < rows; ++r) {
        const bool is_nan = nan >> r & 1;  // NaN weights are not zero: all of them count
        tensors.support[(row + r) * tensors.num_heads + range.head] =
            is_nan ? static_cast<int32_t>(range.sequence_length) : survivors.support[r];
        for (int64_t d = 0; is_nan && d < head_size; ++d)
          WriteOne(output + r * stride + d, __builtin_nanf(""));
      }
    }
  }
}

template <class Element>
inline void SparsegenAttention(const PackedAttention<Element>& tensors, const QueryRange& range,
                               float* scratch) {
  SparsegenAttentionScratch at;
  at.Lay(scratch, range.sequence_length, tensors.head_size);
  VisitHead(tensors, range, at.held, [&](const auto& head) { AttendSparsely(tensors, range, head, at); });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
