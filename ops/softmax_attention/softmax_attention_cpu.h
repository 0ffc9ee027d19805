#pragma once

#include "attention/packed_attention_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

struct SoftmaxAttentionScratch {
  HeldHead held;
  float *query_panel, *room, *scores, *maxima, *sums;

  int64_t Lay(float* base, int64_t longest_sequence, int64_t head_size) {
    ScratchLayout layout(base);
    held.Lay(&layout, longest_sequence, head_size);
    query_panel = layout.Take(head_size * kPanelQueries);
    room = layout.Take(RowsRoom(kRoomRows, head_size));
    scores = layout.Take(longest_sequence * kPanelQueries);
    maxima = layout.Take(kMaxClasses * kPanelQueries);
    sums = layout.Take(RoundUp(head_size, kLanes) * kLanes);
    return layout.used();
  }
};

inline size_t SoftmaxAttentionScratchFloats(int64_t longest_sequence, int64_t head_size) {
  return static_cast<size_t>(SoftmaxAttentionScratch{}.Lay(nullptr, longest_sequence, head_size));
}

// Replaces kLanes rows of scores by exp(score - maximum) and returns 1 / their sums: 0 for a row of only
// -inf, NaN for a row with NaN or +inf.
inline Floats ExponentiateColumn(float* scores, int64_t keys, const float* maxima, int64_t classes) {
  Floats maximum = Broadcast(-kInfinity);
  for (int64_t c = 0; c < classes; ++c) maximum = Max(Load(maxima + c * kPanelQueries), maximum);
  const Floats shift = Select(Above(maximum, Broadcast(-kInfinity)), maximum, Floats{});
  Floats sum[2] = {};
  for (int64_t j = 0; j < keys; ++j) {
    const Floats weight = ExpNonPositive(Load(scores + j * kPanelQueries) - shift);
    Store(scores + j * kPanelQueries, weight);
    sum[j % 2] = sum[j % 2] + weight;
  }
  const Floats total = sum[0] + sum[1];
  return Select(NotAtMost(total, Floats{}), Broadcast(1.0f) / total, Floats{});
}

// The queries of a range, of whose head keys and values are given.
template <class Element, class Held>
inline void AttendDensely(const PackedAttention<Element>& tensors, const QueryRange& range,
                          const KeysAndValues<Held>& head, const SoftmaxAttentionScratch& at) {
  const int64_t head_size = tensors.head_size;
  const ptrdiff_t stride = tensors.num_heads * head_size;
  const int64_t sums_stride = RoundUp(head_size, kLanes);
  const int64_t own = range.query_begin * stride + range.head * head_size;

  for (int64_t begin = range.first; begin < range.first + range.count; begin += kPanelQueries) {
    const int64_t queries = Min(kPanelQueries, range.first + range.count - begin);
    PackQueries(tensors.query + own + begin * stride, stride, queries, head_size, at.room, at.query_panel);
    const auto score = queries > kLanes ? ScorePanel<2, Held> : ScorePanel<1, Held>;
    const int64_t classes = score(at.query_panel, head.key, head.stride, range.sequence_length, head_size,
                                  tensors.scale, at.room, at.scores, at.maxima);

    for (int64_t column = 0; column < queries; column += kLanes) {
      const int64_t rows = Min(kLanes, queries - column);
      const Floats normalizer =
          ExponentiateColumn(at.scores + column, range.sequence_length, at.maxima + column, classes);
      for (int64_t i = 0; i < sums_stride * kLanes; i += kLanes) Store(at.sums + i, Floats{});
      AddDense<false>(at.scores + column, kPanelQueries, nullptr, range.sequence_length, head.value,
                      head.stride, head_size, rows, at.sums, sums_stride);
      for (int64_t r = 0; r < rows; ++r) {
        WriteRow(at.sums + r * sums_stride, head_size, Broadcast(normalizer[r]),
                 tensors.output + own + (begin + column + r) * stride);
      }
    }
  }
}

template <class Element>
inline void SoftmaxAttention(const PackedAttention<Element>& tensors, const QueryRange& range,
                             float* scratch) {
  SoftmaxAttentionScratch at;
  at.Lay(scratch, range.sequence_length, tensors.head_size);
  VisitHead(tensors, range, at.held, [&](const auto& head) { AttendDensely(tensors, range, head, at); });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
