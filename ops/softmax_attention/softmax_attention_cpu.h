#pragma once

#include "attention/packed_attention_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

struct SoftmaxAttentionScratch {
  HeldHead held;
  float *query_panel, *buffer, *scores, *maxima, *sums;

  int64_t Allocate(float* base, int64_t longest_sequence, int64_t head_size) {
    ScratchLayout layout(base);
    held.Allocate(&layout, longest_sequence, head_size);
    query_panel = layout.Take(head_size * kPanelQueries);
    buffer = layout.Take(RowsBufferFloats(kBufferRows, head_size));
    scores = layout.Take(longest_sequence * kPanelQueries);
    maxima = layout.Take(kMaxClasses * kPanelQueries);
    sums = layout.Take(RoundUp(head_size, kLanes) * kPanelQueries);
    return layout.used();
  }
};

inline size_t SoftmaxAttentionScratchFloats(int64_t longest_sequence, int64_t head_size) {
  return static_cast<size_t>(SoftmaxAttentionScratch{}.Allocate(nullptr, longest_sequence, head_size));
}

// Replaces the scores of a panel, whose first column is given, by exp(score - maximum); normalizer: 1 / their
// sums, 0 for a row of only -inf, NaN for a row with NaN or +inf.
template <int64_t Vectors>
inline void ExponentiatePanel(const ScoreColumn& first, Floats* normalizer) {
  Floats shift[Vectors], sum[Vectors] = {};
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) shift[v] = Shift(first.Beside(v));
  float* const scores = first.scores;
  const ptrdiff_t stride = first.stride;
  const int64_t keys = first.keys;
  for (int64_t j = 0; j < keys; ++j) {
    float* own = scores + j * stride;
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      const Floats weight = ExpNonPositive(Load(own + v * kLanes) - shift[v]);
      Store(own + v * kLanes, weight);
      sum[v] = sum[v] + weight;
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) {
    normalizer[v] = Select(NotAtMost(sum[v], Floats{}), Broadcast(1.0f) / sum[v], Floats{});
  }
}

// Attends to `head`, the keys and values of the range's head.
template <class Element, class Held>
inline void AttendDensely(const PackedAttention<Element>& tensors, const QueryRange& range,
                          RowsAhead<Element>& ahead, const KeysAndValues<Held>& head,
                          const SoftmaxAttentionScratch& at) {
  using Ahead = RowsAhead<Element>;
  const int64_t head_size = tensors.head_size;
  const ptrdiff_t stride = tensors.num_heads * head_size;
  const int64_t sums_stride = RoundUp(head_size, kLanes);
  const int64_t own = range.query_begin * stride + range.head * head_size;

  for (int64_t begin = range.first; begin < range.first + range.count; begin += kPanelQueries) {
    const int64_t queries = Min(kPanelQueries, range.first + range.count - begin);
    PackQueries(tensors.query + own + begin * stride, stride, queries, head_size, at.buffer, at.query_panel);
    const auto score = queries > kLanes ? ScorePanel<2, Held, Ahead> : ScorePanel<1, Held, Ahead>;
    const int64_t classes = score(at.query_panel, head.key, head.stride, range.sequence_length, head_size,
                                  tensors.scale, at.buffer, at.scores, at.maxima, ahead);

    Floats normalizer[kPanelVectors];
    const auto exponentiate = queries > kLanes ? ExponentiatePanel<2> : ExponentiatePanel<1>;
    exponentiate({at.scores, kPanelQueries, range.sequence_length, at.maxima, kPanelQueries, classes},
                 normalizer);
    for (int64_t i = 0; i < sums_stride * kPanelQueries; i += kLanes) Store(at.sums + i, Floats{});
    AddDense<false>(at.scores, kPanelQueries, nullptr, range.sequence_length, head.value, head.stride,
                    head_size, queries, at.sums, sums_stride);
    for (int64_t r = 0; r < queries; ++r) {
      WriteRow(at.sums + r * sums_stride, head_size, Broadcast(normalizer[r / kLanes][r % kLanes]),
               tensors.output + own + (begin + r) * stride);
      ahead.AfterSumming();
    }
  }
}

template <class Element>
inline void SoftmaxAttention(const PackedAttention<Element>& tensors, const QueryRange& range,
                             const QueryRange* next, float* scratch) {
  SoftmaxAttentionScratch at;
  at.Allocate(scratch, range.sequence_length, tensors.head_size);
  RowsAhead<Element> ahead = AheadOf(tensors, range, next);
  VisitHead(tensors, range, at.held,
            [&](const auto& head) { AttendDensely(tensors, range, ahead, head, at); });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
