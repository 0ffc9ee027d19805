// Rows that attend to every key, where they are few. Keys are in the lanes, not queries, and a few heads are
// computed side by side, so that what lies beside each other in memory is read together.
#pragma once

#include "axis_attention/axis_head_cpu.h"
#include "softmax_attention/softmax_attention_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Up to this many full rows are cheaper this way than in a panel.
constexpr int64_t kFewRows = kLanes < 8 ? 2 : 6;
// Full rows that are computed at a time: they share the loads of keys and values.
constexpr int64_t kRowsAtOnce = kLanes == 16 ? 6 : 3;
// Keys whose values are added up at a time.
constexpr int64_t kKeysAtOnce = 32;

// Some full rows in `heads` consecutive heads, from `head` on. The scores of row r in head h are the (h *
// count + r)-th of at.scores, its sums likewise of at.sums.
template <class Element>
struct FullRows {
  AxisHead<Element, Element> head;
  int64_t heads;
  int64_t count;
  int64_t keys;
  const Element* queries[kFewRows];  // of the first head
  Element* outputs[kFewRows];

  int64_t scores_stride() const { return RoundUp(keys, kLanes); }
};

// SumQuads of quads[r] are the products of the r-th query and `count` keys, kLanes at most; beyond `count`
// they are those of the last key.
template <int64_t Rows, class Element>
inline void MultiplyRows(const AxisHead<Element, Element>& head, const Element* const* queries,
                         ptrdiff_t own_head, const Element* key, int64_t count,
                         Floats (&quads)[Rows][kLanes / 4]) {
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
      for (int64_t r = 0; r < Rows; ++r) query[r] = LoadFirst(queries[r] + own_head + d, columns);
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

// Scores kLanes keys from the j-th on, for Rows rows of one head from row `first` on.
template <int64_t Rows, class Element>
inline void ScoreFull(const FullRows<Element>& rows, int64_t h, int64_t first, int64_t j, float* scores) {
  const ptrdiff_t own_head = h * rows.head.head_size;
  const int64_t count = Min(kLanes, rows.keys - j);
  Floats quads[Rows][kLanes / 4];
  MultiplyRows<Rows>(rows.head, rows.queries + first, own_head,
                     rows.head.keys.key + own_head + j * rows.head.keys.stride, count, quads);
  const Mask exists = MaskOf((1u << count) - 1);
  for (int64_t r = 0; r < Rows; ++r) {
    Store(scores + (h * rows.count + first + r) * rows.scores_stride() + j,
          Select(exists, SumQuads(quads[r]) * Broadcast(rows.head.scale), Broadcast(-kInfinity)));
  }
}

// Replaces scores by exp(score - maximum); returns 1 / their sum. It is ExponentiatePanel for one row.
inline Floats ExponentiateRow(float* scores, int64_t keys) {
  Floats maxima = Broadcast(-kInfinity);
  for (int64_t j = 0; j < keys; j += kLanes) maxima = Max(Load(scores + j), maxima);
  float maximum = -kInfinity;
  for (int64_t lane = 0; lane < kLanes; ++lane) maximum = maxima[lane] > maximum ? maxima[lane] : maximum;
  const Floats shift = Broadcast(maximum > -kInfinity ? maximum : 0.0f);
  Floats sums = {};
  for (int64_t j = 0; j < keys; j += kLanes) {
    const Floats weights = ExpNonPositive(Load(scores + j) - shift);
    Store(scores + j, weights);
    sums = sums + weights;
  }
  float total = 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += sums[lane];
  return Broadcast(total <= 0.0f ? 0.0f : 1.0f / total);
}

// Adds the weighted values of `count` keys to Vectors * kLanes columns of the sums of Rows rows; columns: how
// many of them exist. The weights of a row's keys lie beside each other; AddPanelTile does the same where
// those of a key's queries do.
template <int64_t Rows, int64_t Vectors, class Element>
inline void AddRowTile(const float* weights, ptrdiff_t weights_stride, int64_t count, const Element* value,
                       ptrdiff_t stride, int64_t columns, float* sums, ptrdiff_t sums_stride) {
  Floats sum[Rows][Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = Load(sums + r * sums_stride + v * kLanes);
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

// Adds the weighted values of `count` keys from the j-th on to the sums of Rows rows of one head, from row
// `first` on.
template <int64_t Rows, class Element>
inline void AddFull(const FullRows<Element>& rows, int64_t h, int64_t first, int64_t j, int64_t count,
                    const AxisScratch& at) {
  constexpr int64_t kVectors = 4;
  const AxisHead<Element, Element>& head = rows.head;
  const int64_t row = h * rows.count + first;
  const float* weights = at.scores + row * rows.scores_stride() + j;
  const Element* value = head.keys.value + h * head.head_size + j * head.keys.stride;
  float* sums = at.sums + row * head.padded;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= head.head_size; d += kVectors * kLanes) {
    AddRowTile<Rows, kVectors>(weights, rows.scores_stride(), count, value + d, head.keys.stride,
                               kVectors * kLanes, sums + d, head.padded);
  }
  for (; d < head.head_size; d += kLanes) {
    AddRowTile<Rows, 1>(weights, rows.scores_stride(), count, value + d, head.keys.stride, head.head_size - d,
                        sums + d, head.padded);
  }
}

// Calls visit(Constant, first) for kRowsAtOnce rows at a time, then for those that are left.
template <class Visit>
inline void ForEachRows(int64_t count, const Visit& visit) {
  for (int64_t first = 0; first < count; first += kRowsAtOnce) {
    VisitCount<kRowsAtOnce>(Min(kRowsAtOnce, count - first), [&](auto some) { visit(some, first); });
  }
}

// Softmax over all keys. A row's result does not depend on which rows and heads are computed together.
template <class Element>
inline void AttendFull(const FullRows<Element>& rows, const AxisScratch& at) {
  for (int64_t j = 0; j < rows.keys; j += kLanes) {
    for (int64_t h = 0; h < rows.heads; ++h) {
      ForEachRows(rows.count,
                  [&](auto some, int64_t first) { ScoreFull<some.kCount>(rows, h, first, j, at.scores); });
    }
  }
  Floats normalizer[kPanelQueries];
  for (int64_t i = 0; i < rows.heads * rows.count; ++i) {
    normalizer[i] = ExponentiateRow(at.scores + i * rows.scores_stride(), rows.keys);
  }
  for (int64_t i = 0; i < rows.heads * rows.count * rows.head.padded; i += kLanes)
    Store(at.sums + i, Floats{});
  for (int64_t j = 0; j < rows.keys; j += kKeysAtOnce) {
    for (int64_t h = 0; h < rows.heads; ++h) {
      ForEachRows(rows.count, [&](auto some, int64_t first) {
        AddFull<some.kCount>(rows, h, first, j, Min(kKeysAtOnce, rows.keys - j), at);
      });
    }
  }
  for (int64_t i = 0; i < rows.heads * rows.count; ++i) {
    WriteRow(at.sums + i * rows.head.padded, rows.head.head_size, normalizer[i],
             rows.outputs[i % rows.count] + i / rows.count * rows.head.head_size);
  }
}

// Computes a block of few full rows, in all heads of a range.
template <class Element>
inline void AttendFew(const PackedAttention<Element>& tensors, const QueryRange& range,
                      const AxisBlock& block, const AxisScratch& at) {
  FullRows<Element> rows{HeadOf(tensors, range), range.heads, 0, block.band_keys, {}, {}};
  const AxisHead<Element, Element>& head = rows.head;
  for (int64_t i = 0; i < block.count; ++i) {
    const int32_t query = block.queries[i];
    if (query < 0) continue;
    rows.queries[rows.count] = head.query + query * head.stride;
    rows.outputs[rows.count++] = head.output + query * head.stride;
    for (int64_t h = 0; head.support != nullptr && h < range.heads; ++h) {
      head.support[query * head.support_stride + h] = static_cast<int32_t>(block.band_keys);
    }
  }
  AttendFull(rows, at);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
