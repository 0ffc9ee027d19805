// Rows that attend to every key, computed along with the blocks of the other rows: the keys and values that a
// block brings to the caches are added to each full row's softmax, relative to the greatest score so far
// (Milakov and Gimelshein, 2018). Keys are in the lanes, not queries. What comes of a chunk's blocks is
// joined to what comes of the others at the end, so that a row's result does not depend on who computes which
// chunk, nor on which queries are asked for.
#pragma once

#include "axis_attention/axis_head_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Up to this many full rows are scored by products of rows. For more of them the keys are transposed.
constexpr int64_t kFewRows = kLanes < 8 ? 2 : 6;
// Full rows that are computed at a time: they share the loads of keys and values.
constexpr int64_t kRowsAtOnce = kLanes == 16 ? 6 : 3;

static_assert(kLanes <= kPartialLanes, "a partial result has a sum of weights for each lane");

// See PartialFloats.
struct PartialRow {
  float* sums;     // (padded head size) of weighted values
  float* totals;   // (kLanes) of weights
  float* maximum;  // that weights are relative to

  PartialRow(float* base, int64_t head_size)
      : sums(base), totals(base + RoundUp(head_size, kPartialLanes)), maximum(totals + kPartialLanes) {}

  void Clear(int64_t padded) const {
    for (int64_t d = 0; d < padded; d += kLanes) Store(sums + d, Floats{});
    Store(totals, Floats{});
    *maximum = -kInfinity;
  }
};

// The full rows of one head of a sequence.
template <class Element>
struct FullRows {
  AxisHead<Element, Element> head;
  const float* queries;  // (count, padded head size)
  int64_t count;
  bool few;
  float* partials;  // (count, PartialFloats) of a chunk

  PartialRow Partial(int64_t r) const {
    return {partials + r * PartialFloats(head.head_size), head.head_size};
  }
  void Clear() const {
    for (int64_t r = 0; r < count; ++r) Partial(r).Clear(head.padded);
  }
};

// Calls visit(Constant, first) for up to Most rows at a time.
template <int64_t Most, class Visit>
inline void ForEachRows(int64_t count, const Visit& visit) {
  for (int64_t first = 0; first < count; first += Most) {
    VisitCount<Most>(Min(Most, count - first), [&](auto some) { visit(some, first); });
  }
}

// SumQuads of quads[r] are the products of the r-th query and `count` keys, kLanes at most; beyond `count`
// they are those of the last key.
template <int64_t Rows, class Element>
inline void MultiplyRows(const AxisHead<Element, Element>& head, const float* queries, const Element* key,
                         int64_t count, Floats (&quads)[Rows][kLanes / 4]) {
  constexpr int64_t kKeys = 4;  // at a time: their sums fill the registers
  SPARSE_OPS_UNROLL
  for (int64_t quad = 0; quad < kLanes / kKeys; ++quad) {
    const Element* keys[kKeys];
    SPARSE_OPS_UNROLL
    for (int64_t t = 0; t < kKeys; ++t) keys[t] = key + Min(quad * kKeys + t, count - 1) * head.keys.stride;
    Floats sum[Rows][kKeys] = {};
    ForEachVector(head.head_size, [&](int64_t d, int64_t columns) {
      Floats query[Rows];
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < Rows; ++r) query[r] = Load(queries + r * head.padded + d);
      SPARSE_OPS_UNROLL
      for (int64_t t = 0; t < kKeys; ++t) {
        const Floats k = LoadFirst(keys[t] + d, columns);
        SPARSE_OPS_UNROLL
        for (int64_t r = 0; r < Rows; ++r) sum[r][t] = MulAdd(query[r], k, sum[r][t]);
      }
    });
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) quads[r][quad] = SumFour(sum[r]);
  }
}

// Scores all full rows of a head, (rows, kPanelQueries), for the keys of a block; -inf behind the last key.
template <class Element>
inline void ScoreFew(const FullRows<Element>& rows, const Element* key, int64_t keys, float* scores) {
  ForEachRows<kRowsAtOnce>(rows.count, [&](auto some, int64_t first) {
    float* own = scores + first * kPanelQueries;
    for (int64_t j = 0; j < kPanelQueries; j += kLanes) {
      Floats quads[some.kCount][kLanes / 4];
      MultiplyRows<some.kCount>(rows.head, rows.queries + first * rows.head.padded,
                                key + Min(j, keys - 1) * rows.head.keys.stride, Max(Min(kLanes, keys - j), 1),
                                quads);
      const Mask exists = MaskOf(OfFirst(keys) >> j);
      for (int64_t r = 0; r < some.kCount; ++r) {
        Store(own + r * kPanelQueries + j,
              Select(exists, SumQuads(quads[r]) * Broadcast(rows.head.scale), Broadcast(-kInfinity)));
      }
    }
  });
}

// The same, with the keys where a panel has its queries.
template <class Element>
inline void ScoreMany(const FullRows<Element>& rows, const Element* key, int64_t keys,
                      const AxisScratch& at) {
  const AxisHead<Element, Element>& head = rows.head;
  PackQueries(key, head.keys.stride, keys, head.head_size, at.buffer, at.query_panel);
  for (int64_t v = 0; v < kPanelVectors; ++v) Store(at.maxima + v * kLanes, Broadcast(-kInfinity));
  ForEachRows<kKeyRows>(rows.count, [&](auto some, int64_t first) {
    ScoreKeys<some.kCount, kPanelVectors>(at.query_panel, rows.queries + first * head.padded, head.padded,
                                          head.head_size, head.scale, at.buffer,
                                          at.scores + first * kPanelQueries, at.maxima);
  });
  for (int64_t r = 0; keys < kPanelQueries && r < rows.count; ++r) {
    for (int64_t j = keys; j < kPanelQueries; ++j) at.scores[r * kPanelQueries + j] = -kInfinity;
  }
}

// Replaces the scores of a block's keys by weights, relative to the greatest score of the row so far. Returns
// what the sums of the blocks before are to be multiplied by.
inline Floats Exponentiate(const PartialRow& row, float* scores) {
  Floats score[kPanelVectors], top = Broadcast(-kInfinity);
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < kPanelVectors; ++v) {
    score[v] = Load(scores + v * kLanes);
    top = Max(score[v], top);
  }
  const float before = *row.maximum;
  const float largest = LargestLane(top);
  const float maximum = largest > before ? largest : before;
  *row.maximum = maximum;
  const Floats factor = ExpNonPositive(Broadcast(before > -kInfinity ? before - maximum : before));
  const Floats shift = Broadcast(maximum > -kInfinity ? maximum : 0.0f);
  Floats total = Load(row.totals) * factor;
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < kPanelVectors; ++v) {
    const Floats weight = ExpNonPositive(score[v] - shift);
    Store(scores + v * kLanes, weight);
    total = total + weight;
  }
  Store(row.totals, total);
  return factor;
}

// Multiplies Vectors * kLanes columns of the sums of Rows rows by their factors and adds the weighted values
// of `count` keys; columns: how many of them exist. The weights of a row's keys lie beside each other;
// AddPanelTile adds where those of a key's queries do.
template <int64_t Rows, int64_t Vectors, class Element>
inline void AddRowTile(const float* weights, ptrdiff_t weights_stride, int64_t count, const Element* value,
                       ptrdiff_t stride, int64_t columns, const Floats (&factors)[Rows], float* sums,
                       ptrdiff_t sums_stride) {
  Floats sum[Rows][Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = Load(sums + r * sums_stride + v * kLanes) * factors[r];
  }
  for (int64_t j = 0; j < count; ++j) {
    Floats weight[Rows];
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) weight[r] = Broadcast(weights[r * weights_stride + j]);
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      const Floats x = LoadTile<Vectors>(value + j * stride, v, columns);
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < Rows; ++r) sum[r][v] = MulAdd(weight[r], x, sum[r][v]);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) Store(sums + r * sums_stride + v * kLanes, sum[r][v]);
  }
}

// Adds a block's keys to the partial results of all full rows of a head. scores: (rows, kPanelQueries).
template <class Element>
inline void AddValues(const FullRows<Element>& rows, const Element* value, int64_t keys, float* scores) {
  constexpr int64_t kVectors = 4;
  const AxisHead<Element, Element>& head = rows.head;
  const int64_t partial = PartialFloats(head.head_size);
  ForEachRows<kRowsAtOnce>(rows.count, [&](auto some, int64_t first) {
    float* own = scores + first * kPanelQueries;
    Floats factors[some.kCount];
    for (int64_t r = 0; r < some.kCount; ++r) {
      factors[r] = Exponentiate(rows.Partial(first + r), own + r * kPanelQueries);
    }
    float* sums = rows.Partial(first).sums;
    int64_t d = 0;
    for (; d + kVectors * kLanes <= head.head_size; d += kVectors * kLanes) {
      AddRowTile<some.kCount, kVectors>(own, kPanelQueries, keys, value + d, head.keys.stride,
                                        kVectors * kLanes, factors, sums + d, partial);
    }
    for (; d < head.head_size; d += kLanes) {
      AddRowTile<some.kCount, 1>(own, kPanelQueries, keys, value + d, head.keys.stride, head.head_size - d,
                                 factors, sums + d, partial);
    }
  });
}

// Adds `keys` keys from the first-th on, those of a block, to the full rows of a head.
template <class Element>
inline void AddBlock(const FullRows<Element>& rows, int64_t first, int64_t keys, const AxisScratch& at,
                     BlockAhead* ahead) {
  const KeysAndValues<Element>& from = rows.head.keys;
  if (rows.few) {
    ScoreFew(rows, from.key + first * from.stride, keys, at.scores);
  } else {
    ScoreMany(rows, from.key + first * from.stride, keys, at);
  }
  ahead->Step();
  AddValues(rows, from.value + first * from.stride, keys, at.scores);
  ahead->Step();
}

// Writes the output of a full row. chunks: its partial results, `count` of them `stride` floats apart, of
// which the first is written to.
template <class Element>
inline void JoinChunks(const AxisHead<Element, Element>& head, float* chunks, int64_t count, ptrdiff_t stride,
                       Element* output) {
  const PartialRow first(chunks, head.head_size);
  float maximum = -kInfinity;
  for (int64_t c = 0; c < count; ++c) {
    const float own = *PartialRow(chunks + c * stride, head.head_size).maximum;
    maximum = own > maximum ? own : maximum;
  }
  const float shift = maximum > -kInfinity ? maximum : 0.0f;
  Floats factors[kMostChunks], totals = {};
  for (int64_t c = 0; c < count; ++c) {
    const PartialRow own(chunks + c * stride, head.head_size);
    factors[c] = ExpNonPositive(Broadcast(*own.maximum - shift));
    totals = MulAdd(factors[c], Load(own.totals), totals);
  }
  float total = 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += totals[lane];
  for (int64_t d = 0; d < head.padded; d += kLanes) {
    Floats sum = {};
    for (int64_t c = 0; c < count; ++c) {
      sum = MulAdd(factors[c], Load(first.sums + c * stride + d), sum);
    }
    Store(first.sums + d, sum);
  }
  WriteRow(first.sums, head.head_size, Broadcast(total <= 0.0f ? 0.0f : 1.0f / total), output);
}

// See ElementKernels.
template <class Element>
inline void JoinFullRows(const PackedAttention<Element>& tensors, const AxisPattern& pattern,
                         const QueryRange& range) {
  const AxisSequence& sequence = pattern.sequences[range.sequence];
  const int64_t chunks = (range.sequence_length + sequence.chunk - 1) / sequence.chunk;
  const int64_t partial = PartialFloats(tensors.head_size);
  const int64_t of_chunk = tensors.num_heads * sequence.full_rows;
  QueryRange of_head = range;
  for (int64_t h = 0; h < range.heads; ++h, ++of_head.head) {
    const AxisHead<Element, Element> head = HeadOf(tensors, of_head);
    for (int64_t r = 0; r < sequence.full_rows; ++r) {
      const int32_t query = pattern.queries[sequence.order + r];
      const int64_t number = sequence.partials + of_head.head * sequence.full_rows + r;
      JoinChunks(head, pattern.partials + number * partial, chunks, of_chunk * partial,
                 head.output + query * head.stride);
      if (head.support == nullptr) continue;
      head.support[query * head.support_stride] = static_cast<int32_t>(range.sequence_length);
    }
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
