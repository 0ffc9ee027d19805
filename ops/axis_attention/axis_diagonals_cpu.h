// The diagonals of a block. Where their distances are consecutive, they are a strip: consecutive rows have
// all but one of its keys in common, which are then read once for a few rows.
#pragma once

#include "axis_attention/axis_head_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

static_assert(kPanelQueries % kStripLanes == 0, "no strip reaches beyond the lanes");

// Calls visit(first, count) for the diagonals of each strip, up to kStripDiagonals of them at a time.
template <class Visit>
inline void ForEachStrip(const AxisBlock& block, const Visit& visit) {
  int64_t count = 0;
  for (int64_t first = 0; first < block.diagonals; first += count) {
    count = 1;
    while (count < kStripDiagonals && first + count < block.diagonals &&
           block.distances[first + count] == block.distances[first] + count) {
      ++count;
    }
    visit(first, count);
  }
}

inline bool IsKey(const AxisBlock& block, int64_t position) { return position >= 0 && position < block.keys; }

// `count` consecutive keys from position `first` on. Those before the sequence and behind it are not attended
// to: its nearest stands in their place.
template <class Element, class Held>
inline FloatRows StripKeys(const AxisHead<Element, Held>& head, const AxisBlock& block, int64_t first,
                           int64_t count, float* buffer) {
  if (IsKey(block, first) && IsKey(block, first + count - 1)) {
    return ReadRows(head.keys.key + first * head.keys.stride, head.keys.stride, count, head.head_size,
                    buffer);
  }
  for (int64_t j = 0; j < count; ++j) {
    const int64_t nearest = Min(Max(first + j, 0), block.keys - 1);
    CopyRow(head.keys.key + nearest * head.keys.stride, head.head_size, buffer + j * head.padded);
  }
  return {buffer, head.padded};
}

// Products of kStripLanes consecutive queries and their keys on consecutive diagonals: the first query's are
// the first of `keys` and those after it, the next query's begin one key later. queries: (kStripLanes, padded
// head size), 0 beyond the head size. products: (Diagonals, kPanelQueries), from the first lane on.
template <int64_t Diagonals>
inline void MultiplyStrip(const FloatRows& queries, const FloatRows& keys, int64_t head_size,
                          float* products) {
  Floats sum[Diagonals][kStripLanes] = {};
  ForEachVector(head_size, [&](int64_t d, int64_t columns) {
    Floats query[kStripLanes];
    SPARSE_OPS_UNROLL
    for (int64_t i = 0; i < kStripLanes; ++i) query[i] = Load(queries.first + i * queries.stride + d);
    SPARSE_OPS_UNROLL
    for (int64_t j = 0; j < Diagonals + kStripLanes - 1; ++j) {
      const Floats key = LoadFirst(keys.first + j * keys.stride + d, columns);
      SPARSE_OPS_UNROLL
      for (int64_t i = 0; i < kStripLanes; ++i) {
        const int64_t diagonal = j - i;
        if (diagonal < 0 || diagonal >= Diagonals) continue;
        sum[diagonal][i] = MulAdd(query[i], key, sum[diagonal][i]);
      }
    }
  });
  constexpr int64_t kQuads = kLanes / 4;
  SPARSE_OPS_UNROLL
  for (int64_t first = 0; first < Diagonals; first += kQuads) {
    Floats quads[kQuads];
    SPARSE_OPS_UNROLL
    for (int64_t i = 0; i < kQuads; ++i) quads[i] = SumFour(sum[Min(first + i, Diagonals - 1)]);
    float sums[kLanes];
    Store(sums, SumQuads(quads));
    for (int64_t i = 0; i < Min(kQuads, Diagonals - first); ++i) {
      __builtin_memcpy(products + (first + i) * kPanelQueries, sums + 4 * i, 4 * sizeof(float));
    }
  }
}

// Scores all diagonals, (diagonals, kPanelQueries).
template <class Element, class Held>
inline void ScoreDiagonals(const AxisHead<Element, Held>& head, const AxisBlock& block,
                           const FloatRows& queries, const AxisScratch& at, float* scores,
                           BlockAhead* ahead) {
  for (int64_t lane = 0; lane < block.count; lane += kStripLanes) {
    ahead->Step();
    ForEachStrip(block, [&](int64_t first, int64_t count) {
      const FloatRows keys = StripKeys(head, block, block.rows[0] + lane + block.distances[first],
                                       count + kStripLanes - 1, at.buffer);
      VisitCount<kStripDiagonals>(count, [&](auto some) {
        MultiplyStrip<some.kCount>({queries.first + lane * queries.stride, queries.stride}, keys,
                                   head.head_size, scores + first * kPanelQueries + lane);
      });
    });
  }
  for (int64_t t = 0; t < block.diagonals; ++t) {
    for (int64_t lane = 0; lane < block.count; lane += kLanes) {
      float* score = scores + t * kPanelQueries + lane;
      Store(score, Select(MaskOf(block.diagonal_words[t] >> lane), Load(score) * Broadcast(head.scale),
                          Broadcast(-kInfinity)));
    }
  }
}

// Vectors * kLanes columns of the weighted values of some diagonals of Rows consecutive rows, added to sums.
// The first row's first key stands at `position`. weights: (Diagonals, kPanelQueries), from the first row's
// on.
template <int64_t Diagonals, int64_t Rows, int64_t Vectors, class Element, class Held>
inline void AddStrip(const AxisHead<Element, Held>& head, const AxisBlock& block, const float* weights,
                     int64_t position, int64_t d, int64_t count, Floats (&sums)[Rows][Vectors]) {
  Floats sum[Rows][Vectors];  // in registers, where sums are in memory
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = sums[r][v];
  }
  SPARSE_OPS_UNROLL
  for (int64_t j = 0; j < Diagonals + Rows - 1; ++j) {
    if (!IsKey(block, position + j)) continue;
    const Held* value = head.keys.value + (position + j) * head.keys.stride + d;
    Floats x[Vectors];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) x[v] = LoadTile<Vectors>(value, v, count);
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      const int64_t diagonal = j - r;
      if (diagonal < 0 || diagonal >= Diagonals) continue;
      const Floats weight = Broadcast(weights[diagonal * kPanelQueries + r]);
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = MulAdd(weight, x[v], sum[r][v]);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sums[r][v] = sum[r][v];
  }
}

// Adds the weighted values of all diagonals to Vectors * kLanes columns from d on of the sums of Rows
// consecutive lanes, `lane` the first. weights: (diagonals, kPanelQueries). count: how many columns exist
// from d on.
template <int64_t Rows, int64_t Vectors, class Element, class Held>
inline void SumDiagonals(const AxisHead<Element, Held>& head, const AxisBlock& block, const float* weights,
                         int64_t lane, int64_t d, int64_t count, Floats (&sums)[Rows][Vectors]) {
  ForEachStrip(block, [&](int64_t first, int64_t diagonals) {
    VisitCount<kStripDiagonals>(diagonals, [&](auto some) {
      AddStrip<some.kCount>(head, block, weights + first * kPanelQueries + lane,
                            block.rows[0] + lane + block.distances[first], d, count, sums);
    });
  });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
