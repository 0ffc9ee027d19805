#pragma once

#include "sparsegen_attention/query_rows_cpu.h"
#include "sparsegen_attention/sparsegen_screen_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

struct SparsegenAttentionScratch {
  HeldHead held;
  float *query_panel, *buffer, *scores, *maxima, *weights, *sums;
  int32_t *keys, *positive;
#if defined(SPARSE_OPS_HAS_INTEGER_PRODUCTS)
  Screen screen;
#endif

  int64_t Allocate(float* base, int64_t longest_sequence, int64_t head_size) {
    ScratchLayout layout(base);
    held.Allocate(&layout, longest_sequence, head_size);
    query_panel = layout.Take(head_size * kPanelQueries);
    buffer = layout.Take(RowsBufferFloats(kBufferRows, head_size));
    scores = layout.Take(longest_sequence * kPanelQueries);
    maxima = layout.Take(kMaxClasses * kPanelQueries);
    // Weights that are solved at once: those of one column of a panel, or of all columns where keys are few.
    const int64_t words = RoundUp(longest_sequence, 32) / 32;
    weights = layout.Take(Max(longest_sequence, kPanelVectors * Min(longest_sequence, kWholeKeys)) * kLanes);
    sums = layout.Take(RoundUp(head_size, kLanes) * kLanes);
    keys = reinterpret_cast<int32_t*>(layout.Take(longest_sequence));
    positive = reinterpret_cast<int32_t*>(
        layout.Take(Max(words, kPanelVectors * Min(words, kWholeKeys / 32)) * kLanes));
#if defined(SPARSE_OPS_HAS_INTEGER_PRODUCTS)
    if (longest_sequence >= kScreenedKeys) screen.Allocate(&layout, longest_sequence, head_size);
#endif
    return layout.used();
  }
};

inline size_t SparsegenAttentionScratchFloats(int64_t longest_sequence, int64_t head_size) {
  return static_cast<size_t>(SparsegenAttentionScratch{}.Allocate(nullptr, longest_sequence, head_size));
}

// SumSparse takes about this many times as long for a weight above 0 as AddDense for any weight: measured 5,
// 3 and 2 with 16, 8 and 4 lanes.
constexpr int64_t kSparseCost = kLanes / 4 + 1;

// Weighted sums of the values for up to kLanes queries.
template <class Value, class Element>
inline void SumValues(const Survivors& survivors, const KeysAndValues<Value>& head, float* sums,
                      const QueryRows<Element>& queries) {
  const int64_t head_size = queries.tensors.head_size;
  int64_t pairs = 0;
  for (int64_t r = 0; r < queries.count; ++r) pairs += survivors.support[r];
  if (pairs * kSparseCost <= survivors.count * kLanes) {
    for (int64_t r = 0; r < queries.count; ++r) {
      SumSparse(survivors, r, head.value, head.stride, head_size, queries.output(r));
      queries.ahead.AfterSumming();
    }
    return;
  }
  const int64_t sums_stride = RoundUp(head_size, kLanes);
  for (int64_t i = 0; i < sums_stride * kLanes; i += kLanes) Store(sums + i, Floats{});
  AddDense<true>(survivors.weights, kLanes, survivors.keys, survivors.count, head.value, head.stride,
                 head_size, queries.count, sums, sums_stride);
  for (int64_t r = 0; r < queries.count; ++r) {
    WriteRow(sums + r * sums_stride, head_size, Broadcast(1.0f), queries.output(r));
    queries.ahead.AfterSumming();
  }
}

// Writes the answers of up to kLanes queries whose weights are known. Not inlined, so that AddDense keeps its
// sums in registers wherever this is called.
template <class Element, class Held>
[[gnu::noinline]] void WriteSolved(const QueryRows<Element>& queries, const KeysAndValues<Held>& head,
                                   const Survivors& survivors, const SparsegenAttentionScratch& at) {
  const int64_t head_size = queries.tensors.head_size;
  SumValues(survivors, head, at.sums, queries);
  const unsigned nan = Bits(survivors.nan);
  for (int64_t r = 0; r < queries.count; ++r) {
    const bool is_nan = nan >> r & 1;  // NaN weights are not zero: all of them count
    *queries.support(r) = is_nan ? static_cast<int32_t>(queries.range.sequence_length) : survivors.support[r];
    for (int64_t d = 0; is_nan && d < head_size; ++d) WriteOne(queries.output(r) + d, __builtin_nanf(""));
  }
}

// Answers a panel of queries with few keys, whose scores are computed.
template <int64_t Columns, class Element, class Held>
inline void AttendToWhole(const QueryRows<Element>& panel, const KeysAndValues<Held>& head,
                          const ScoreColumn& first, const SparsegenAttentionScratch& at) {
  Survivors survivors[Columns] = {{at.weights, at.keys, at.positive, 0, Ints{}, Mask{}}};
  SolveWhole(first, panel.tensors.divisor, panel.count, survivors);
  for (int64_t c = 0; c < Columns; ++c) {
    const int64_t lane = c * kLanes;
    WriteSolved(panel.Part(lane, Min(kLanes, panel.count - lane)), head, survivors[c], at);
  }
}

// Answers a panel of queries whose scores are computed.
template <class Element, class Held>
inline void AttendToScored(const QueryRows<Element>& panel, const KeysAndValues<Held>& head, int64_t classes,
                           const SparsegenAttentionScratch& at) {
  const int64_t keys = panel.range.sequence_length;
  const float divisor = panel.tensors.divisor;
  const ScoreColumn first{at.scores, kPanelQueries, keys, at.maxima, kPanelQueries, classes};
  if (keys <= kWholeKeys && divisor <= kLargestDivisor) {
    return panel.count > kLanes ? AttendToWhole<2>(panel, head, first, at)
                                : AttendToWhole<1>(panel, head, first, at);
  }
  for (int64_t lane = 0; lane < panel.count; lane += kLanes) {
    const QueryRows<Element> queries = panel.Part(lane, Min(kLanes, panel.count - lane));
    Survivors survivors{at.weights, at.keys, at.positive, 0, Ints{}, Mask{}};
    SolveSparsegen(first.Beside(lane / kLanes), divisor, queries.count, &survivors);
    WriteSolved(queries, head, survivors, at);
  }
}

// Answers a panel of queries that is packed.
template <class Element, class Held>
inline void AttendToPacked(const QueryRows<Element>& panel, const KeysAndValues<Held>& head,
                           const SparsegenAttentionScratch& at) {
  using Ahead = RowsAhead<Element>;
  const auto score = panel.count > kLanes ? ScorePanel<2, Held, Ahead> : ScorePanel<1, Held, Ahead>;
  const PackedAttention<Element>& tensors = panel.tensors;
  const int64_t classes =
      score(at.query_panel, head.key, head.stride, panel.range.sequence_length, tensors.head_size,
            tensors.scale, at.buffer, at.scores, at.maxima, panel.ahead);
  AttendToScored(panel, head, classes, at);
}

#if defined(SPARSE_OPS_HAS_INTEGER_PRODUCTS)
// Answers the `wanted` ones, a bit each, of up to kLanes queries, whose candidates are marked from lane
// `lane` of a panel on.
template <class Element, class Held>
[[gnu::noinline]] void AttendToCandidates(const QueryRows<Element>& queries, const KeysAndValues<Held>& head,
                                          int64_t lane, unsigned wanted,
                                          const SparsegenAttentionScratch& at) {
  const Screen& screen = at.screen;
  const int64_t head_size = queries.tensors.head_size;
  int64_t counts[kLanes] = {};
  int64_t slots = 0;
  for (unsigned left = wanted; left != 0; left &= left - 1) {
    const int64_t r = __builtin_ctz(left);
    int32_t* list = screen.candidate_keys + r * screen.capacity;
    counts[r] = ListCandidates(screen, lane + r, queries.range.sequence_length, list);
    ScoreCandidatesOf(queries.query(r), head, head_size, queries.tensors.scale, list, counts[r],
                      screen.candidate_scores + r * screen.capacity);
    slots = counts[r] > slots ? counts[r] : slots;
  }
  slots = RoundUp(slots, kLanes);
  for (int64_t r = 0; r < kLanes; ++r) {
    for (int64_t t = RoundUp(counts[r], kLanes); t < slots; t += kLanes) {
      Store(screen.candidate_scores + r * screen.capacity + t, Broadcast(-kInfinity));
    }
  }
  Transpose(screen.candidate_scores, screen.capacity, kLanes, slots, screen.slots, kLanes);
  Survivors survivors{screen.slots, nullptr, at.positive, slots, Ints{}, Mask{}};
  SolveSlots(queries.tensors.divisor, wanted, &survivors);
  for (unsigned left = wanted; left != 0; left &= left - 1) {
    const int64_t r = __builtin_ctz(left);
    survivors.keys = screen.candidate_keys + r * screen.capacity;
    SumSparse(survivors, r, head.value, head.stride, head_size, queries.output(r));
    queries.ahead.AfterSumming();
    *queries.support(r) = survivors.support[r];
  }
}

// Queries that wait until enough of their kind for a panel have come.
struct WaitingRows {
  int32_t rows[2 * kPanelQueries];
  int64_t count = 0;

  // Adds those rows of a panel whose bit is set.
  void Add(const int32_t* panel, unsigned wanted) {
    for (unsigned left = wanted; left != 0; left &= left - 1) rows[count++] = panel[__builtin_ctz(left)];
  }
  // Removes the first ones.
  void Drop(int64_t first) {
    count -= first;
    for (int64_t i = 0; i < count; ++i) rows[i] = rows[first + i];
  }
};

// Answers those queries of a panel that have few candidates; adds the others to `many`.
template <class Element, class Held>
inline void AttendToFew(const QueryRows<Element>& panel, const KeysAndValues<Held>& head, WaitingRows* many,
                        const SparsegenAttentionScratch& at) {
  const PackedAttention<Element>& tensors = panel.tensors;
  const int64_t keys = panel.range.sequence_length;
  if (*at.held.prepared == 0) RoundKeys(head, keys, tensors.head_size, at.screen);
  *at.held.prepared = NumberOf(tensors, panel.range);
  RoundQueries(panel, at.screen);
  using Ahead = RowsAhead<Element>;
  const auto screen = panel.count > kLanes ? ScreenPanel<2, Ahead> : ScreenPanel<1, Ahead>;
  const unsigned few =
      screen(at.screen, keys, tensors.scale, tensors.divisor, at.scores, at.maxima, panel.ahead);
  for (int64_t lane = 0; lane < panel.count; lane += kLanes) {
    const QueryRows<Element> column = panel.Part(lane, Min(kLanes, panel.count - lane));
    const unsigned wanted = few >> lane & OfFirst(column.count);
    if (wanted != 0) AttendToCandidates(column, head, lane, wanted, at);
  }
  many->Add(panel.rows, ~few & OfFirst(panel.count));
}

// AttendSparsely with the screen. Queries with few keys left, and those with many, are gathered in panels of
// their own.
template <class Element, class Held>
inline void AttendScreened(const PackedAttention<Element>& tensors, const QueryRange& range,
                           RowsAhead<Element>& ahead, const KeysAndValues<Held>& head,
                           const SparsegenAttentionScratch& at) {
  WaitingRows few, many;
  // Answers what waits, until at most `left` queries of either kind do. Full panels of `many` come first:
  // every other panel may add one to it, and it has room for two.
  const auto attend = [&](int64_t left) {
    while (few.count > left || many.count > left) {
      if (many.count >= kPanelQueries || few.count <= left) {
        const QueryRows<Element> panel{tensors, range, ahead, many.rows, Min(many.count, kPanelQueries)};
        PackGathered(panel, at.buffer, at.query_panel);
        AttendToPacked(panel, head, at);
        many.Drop(panel.count);
      } else {
        const QueryRows<Element> panel{tensors, range, ahead, few.rows, Min(few.count, kPanelQueries)};
        AttendToFew(panel, head, &many, at);
        few.Drop(panel.count);
      }
    }
  };
  for (int64_t begin = range.first; begin < range.first + range.count; begin += kPanelQueries) {
    int32_t rows[kPanelQueries];
    const QueryRows<Element> panel = PackFrom(tensors, range, ahead, begin, rows, at.buffer, at.query_panel);
    const auto probe = panel.count > kLanes ? ProbePanel<2, Held> : ProbePanel<1, Held>;
    const unsigned seem_many = probe(at.query_panel, head, range.sequence_length, tensors.head_size,
                                     tensors.scale, tensors.divisor, at.buffer, at.scores, at.maxima);
    const unsigned all = OfFirst(panel.count);
    if ((seem_many & all) == all) {
      using Ahead = RowsAhead<Element>;
      const auto score = panel.count > kLanes ? ScoreRest<2, Held, Ahead> : ScoreRest<1, Held, Ahead>;
      const int64_t classes = score(at.query_panel, head, range.sequence_length, tensors.head_size,
                                    tensors.scale, at.buffer, at.scores, at.maxima, ahead);
      AttendToScored(panel, head, classes, at);
    } else if ((seem_many & all) == 0) {
      AttendToFew(panel, head, &many, at);
    } else {
      few.Add(rows, all & ~seem_many);
      many.Add(rows, all & seem_many);
    }
    attend(kPanelQueries - 1);
  }
  attend(0);
}
#endif

// Answers the queries of a range; `head` has the keys and values of its head.
template <class Element, class Held>
inline void AttendSparsely(const PackedAttention<Element>& tensors, const QueryRange& range,
                           RowsAhead<Element>& ahead, const KeysAndValues<Held>& head,
                           const SparsegenAttentionScratch& at) {
#if defined(SPARSE_OPS_HAS_INTEGER_PRODUCTS)
  // Scratch of another sequence may be laid out over the rounded keys, whether it rounds its own or not.
  if (*at.held.prepared != NumberOf(tensors, range)) *at.held.prepared = 0;
  if (IsScreened(range.sequence_length, tensors.divisor)) {
    return AttendScreened(tensors, range, ahead, head, at);
  }
#endif
  for (int64_t begin = range.first; begin < range.first + range.count; begin += kPanelQueries) {
    int32_t rows[kPanelQueries];
    const QueryRows<Element> panel = PackFrom(tensors, range, ahead, begin, rows, at.buffer, at.query_panel);
    AttendToPacked(panel, head, at);
  }
}

template <class Element>
inline void SparsegenAttention(const PackedAttention<Element>& tensors, const QueryRange& range,
                               const QueryRange* next, float* scratch) {
  SparsegenAttentionScratch at;
  at.Allocate(scratch, range.sequence_length, tensors.head_size);
  RowsAhead<Element> ahead = AheadOf(tensors, range, next);
  VisitHead(tensors, range, at.held,
            [&](const auto& head) { AttendSparsely(tensors, range, ahead, head, at); });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
