// What the packed attention kernels share: score panels and weighted sums of values.
//
// A panel is [keys][2 * kLanes]: the scores of up to 2 * kLanes consecutive queries, one query per lane.
// Query blocks start at their sequence's first row and keys are visited in an order of the sequence's own, so
// a sequence's result is the same to the last bit wherever it lies in the packed batch. No buffer is larger
// than one panel, or than the keys of one head.
#pragma once

#include "attention/rows_ahead_cpu.h"
#include "cpu/conversion.h"
#include "cpu/kernels.h"
#include "cpu/scratch_layout.h"
#include "cpu/simd.h"
#include "sparsegen_lin/sparsegen_threshold_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

constexpr int64_t kPanelVectors = 2;
constexpr int64_t kPanelQueries = kPanelVectors * kLanes;

// Queries are read kQueryRows at a time, keys kKeyRows. `buffer` below is where ReadRows converts either,
// RowsBufferFloats(kBufferRows, head_size) floats.
constexpr int64_t kQueryRows = kLanes;
constexpr int64_t kBufferRows = kQueryRows > kKeyRows ? kQueryRows : kKeyRows;

// Keys and values of one head of a sequence.
template <class Element>
struct KeysAndValues {
  const Element* key;
  const Element* value;
  ptrdiff_t stride;
};

template <class Element>
inline KeysAndValues<Element> KeysAndValuesOf(const PackedAttention<Element>& tensors,
                                              const QueryRange& range, int64_t head) {
  const ptrdiff_t stride = tensors.num_heads * tensors.head_size;
  const ptrdiff_t first = range.sequence_begin * stride + head * tensors.head_size;
  return {tensors.key + first, tensors.value + first, stride};
}

// A copy of a head's keys and values in float32, row on row, which a thread keeps until it goes on to another
// head. In the tensors each row of a head lies in a page of its own, and many keys need more pages than the
// processor's TLB holds; and rows of 16 bits would be converted anew for each block.
struct HeldHead {
  int64_t* number;    // of the head that is held, counted from 1 over all sequences; 0: none is
  int64_t* prepared;  // of the heads of which the kernel keeps something else, likewise, of two kinds
  float *keys, *values;

  void Allocate(ScratchLayout* layout, int64_t longest_sequence, int64_t head_size) {
    number = reinterpret_cast<int64_t*>(layout->Take(6));
    prepared = number + 1;
    const int64_t floats = longest_sequence < kHeldKeys ? 0 : longest_sequence * RoundUp(head_size, kLanes);
    keys = layout->Take(floats);
    values = layout->Take(floats);
  }
};

// Whether a copy is worth it.
inline bool IsHeld(int64_t keys, int64_t queries) { return keys >= kHeldKeys && queries >= kHeldQueries; }

// The number of a range's head as HeldHead has it.
template <class Element>
inline int64_t NumberOf(const PackedAttention<Element>& tensors, const QueryRange& range) {
  return range.sequence * tensors.num_heads + range.head + 1;
}

// The copy of a range's head, made if it is not held yet.
template <class Element>
inline KeysAndValues<float> Hold(const PackedAttention<Element>& tensors, const QueryRange& range,
                                 const HeldHead& held) {
  const ptrdiff_t stride = RoundUp(tensors.head_size, kLanes);
  const int64_t number = NumberOf(tensors, range);
  if (*held.number != number) {
    const KeysAndValues<Element> from = KeysAndValuesOf(tensors, range, range.head);
    for (int64_t j = 0; j < range.sequence_length; ++j) {
      CopyRow(from.key + j * from.stride, tensors.head_size, held.keys + j * stride);
      CopyRow(from.value + j * from.stride, tensors.head_size, held.values + j * stride);
    }
    *held.number = number;
  }
  return {held.keys, held.values, stride};
}

// Calls visit with the keys and values of a range's head: the copy, or where none is worth it, as they lie.
template <class Element, class Visit>
inline void VisitHead(const PackedAttention<Element>& tensors, const QueryRange& range, const HeldHead& held,
                      const Visit& visit) {
  if (IsHeld(range.sequence_length, range.sequence_queries)) return visit(Hold(tensors, range, held));
  *held.number = 0;  // scratch of shorter sequences is laid out over the copy
  visit(KeysAndValuesOf(tensors, range, range.head));
}

// queries (count, head_size) -> panel (head_size, kPanelQueries); 0 where there is no query.
template <class Element>
inline void PackQueries(const Element* query, ptrdiff_t stride, int64_t count, int64_t head_size,
                        float* buffer, float* panel) {
  for (int64_t q = 0; q < count; q += kQueryRows) {
    const int64_t rows = Min(kQueryRows, count - q);
    const FloatRows from = ReadRows(query + q * stride, stride, rows, head_size, buffer);
    Transpose(from.first, from.stride, rows, head_size, panel + q, kPanelQueries);
  }
  for (int64_t q = count; q < kPanelQueries; ++q) {
    for (int64_t d = 0; d < head_size; ++d) panel[d * kPanelQueries + q] = 0.0f;
  }
}

// Scores of Rows keys against Vectors * kLanes queries, each a chain of fused multiply-adds over the head
// size. The scale comes last: a query alone, multiplied by it, may leave the range of float32.
template <int64_t Rows, int64_t Vectors, class Element>
inline void ScoreKeys(const float* query_panel, const Element* key, ptrdiff_t stride, int64_t head_size,
                      float scale, float* buffer, float* scores, float* maxima) {
  const FloatRows keys = ReadRows(key, stride, Rows, head_size, buffer);
  Floats sum[Rows][Vectors] = {};
  for (int64_t d = 0; d < head_size; ++d) {
    Floats query[Vectors];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) query[v] = Load(query_panel + d * kPanelQueries + v * kLanes);
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      const Floats k = Broadcast(keys.first[r * keys.stride + d]);
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = MulAdd(k, query[v], sum[r][v]);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) {
    Floats maximum = Load(maxima + v * kLanes);
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      const Floats score = sum[r][v] * Broadcast(scale);
      Store(scores + r * kPanelQueries + v * kLanes, score);
      maximum = Max(score, maximum);
    }
    Store(maxima + v * kLanes, maximum);
  }
}

// Has all keys of a sequence scored, of which there are at least kKeyRows: score(j, class_maxima) must score
// kKeyRows of them from j on. maxima is [kMaxClasses][kPanelQueries]. After each group, `ahead` prefetches.
// Returns the number of classes in use.
template <class Ahead, class Score>
inline int64_t ScoreGroups(int64_t keys, float* maxima, Ahead& ahead, const Score& score) {
  const int64_t groups = keys / kKeyRows;
  const int64_t classes = Min(groups, kMaxClasses);
  for (int64_t i = 0; i < classes * kPanelQueries; i += kLanes) Store(maxima + i, Broadcast(-kInfinity));
  for (int64_t group = 0; group < groups; ++group) {
    score(group * kKeyRows, maxima + group % kMaxClasses * kPanelQueries);
    ahead.AfterScoring();
  }
  if (keys % kKeyRows != 0) {
    // The remainder reaches back over keys already scored, to the same scores. It shares the class of those
    // keys: a key in two classes would count twice in the bound.
    score(keys - kKeyRows, maxima + (groups - 1) % kMaxClasses * kPanelQueries);
  }
  return classes;
}

// Scores all keys of a sequence; returns what ScoreGroups does.
template <int64_t Vectors, class Element, class Ahead>
inline int64_t ScorePanel(const float* query_panel, const Element* key, ptrdiff_t stride, int64_t keys,
                          int64_t head_size, float scale, float* buffer, float* scores, float* maxima,
                          Ahead& ahead) {
  if (keys >= kKeyRows) {
    return ScoreGroups(keys, maxima, ahead, [&](int64_t j, float* class_maxima) {
      ScoreKeys<kKeyRows, Vectors>(query_panel, key + j * stride, stride, head_size, scale, buffer,
                                   scores + j * kPanelQueries, class_maxima);
    });
  }
  for (int64_t i = 0; i < kPanelQueries; i += kLanes) Store(maxima + i, Broadcast(-kInfinity));
  for (int64_t j = 0; j < keys; ++j) {
    ScoreKeys<1, Vectors>(query_panel, key + j * stride, stride, head_size, scale, buffer,
                          scores + j * kPanelQueries, maxima);
  }
  ahead.AfterScoring();
  return 1;
}

// RowsAhead of a kernel that scores each panel's keys in groups and sums query by query.
template <class Element>
inline RowsAhead<Element> AheadOf(const PackedAttention<Element>& tensors, const QueryRange& range,
                                  const QueryRange* next) {
  const int64_t panels = (range.count + kPanelQueries - 1) / kPanelQueries;
  return {tensors, range, next, panels * Max(range.sequence_length / kKeyRows, 1), range.count};
}

// sums[q][d] += weight[t][q] * value[key(t)][d] for Queries queries and Vectors * kLanes columns, t in
// [begin, end). columns: how many of the last vector's columns exist. The weights of a key's queries lie
// beside each other, as in a panel.
template <int64_t Queries, int64_t Vectors, bool Indexed, class Element>
inline void AddPanelTile(const float* weights, ptrdiff_t weight_stride, const int32_t* keys, int64_t begin,
                         int64_t end, const Element* value, ptrdiff_t value_stride, int64_t columns,
                         float* sums, ptrdiff_t sums_stride) {
  Floats sum[Queries][Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t q = 0; q < Queries; ++q) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[q][v] = Load(sums + q * sums_stride + v * kLanes);
  }
  for (int64_t t = begin; t < end; ++t) {
    const Element* row = value + (Indexed ? keys[t] : t) * value_stride;
    Floats x[Vectors];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors - 1; ++v) x[v] = Load(row + v * kLanes);
    x[Vectors - 1] = LoadFirst(row + (Vectors - 1) * kLanes, columns);
    SPARSE_OPS_UNROLL
    for (int64_t q = 0; q < Queries; ++q) {
      const Floats w = Broadcast(weights[t * weight_stride + q]);
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) sum[q][v] = MulAdd(w, x[v], sum[q][v]);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t q = 0; q < Queries; ++q) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) Store(sums + q * sums_stride + v * kLanes, sum[q][v]);
  }
}

// Queries and vectors of a tile at most. Their sums hide the latency of an addition, and each load serves a
// few of them: some processors load but one AVX-512 vector in the time of two multiplications.
constexpr int64_t kTileQueries = 4;
constexpr int64_t kTileVectors = kLanes == 16 ? 4 : kLanes == 8 ? 3 : 2;

// Sums of up to kPanelQueries queries over all weights, zero or not. keys: which value row each weight
// belongs to (Indexed).
template <bool Indexed, class Element>
inline void AddDense(const float* weights, ptrdiff_t weight_stride, const int32_t* keys, int64_t count,
                     const Element* value, ptrdiff_t value_stride, int64_t head_size, int64_t queries,
                     float* sums, ptrdiff_t sums_stride) {
  // Values and weights of this many keys stay in the first cache.
  constexpr int64_t kKeyBlock = kLanes == 8 ? 64 : 128;
  for (int64_t begin = 0; begin < count; begin += kKeyBlock) {
    const int64_t end = Min(count, begin + kKeyBlock);
    int64_t vectors = 0;
    for (int64_t d = 0; d < head_size; d += vectors * kLanes) {
      const int64_t left = RoundUp(head_size - d, kLanes) / kLanes;
      // Four vectors are two tiles of 2 where no tile has all.
      vectors = left == 4 && kTileVectors < 4 ? 2 : Min(left, kTileVectors);
      const auto add = vectors == 1   ? AddPanelTile<kTileQueries, 1, Indexed, Element>
                       : vectors == 2 ? AddPanelTile<kTileQueries, 2, Indexed, Element>
                       : vectors < kTileVectors
                           ? AddPanelTile<kTileQueries, kTileVectors - 1, Indexed, Element>
                           : AddPanelTile<kTileQueries, kTileVectors, Indexed, Element>;
      const int64_t columns = Min(head_size - d - (vectors - 1) * kLanes, kLanes);
      for (int64_t q = 0; q < queries; q += kTileQueries) {
        add(weights + q, weight_stride, keys, begin, end, value + d, value_stride, columns,
            sums + q * sums_stride + d, sums_stride);
      }
    }
  }
}

// Vectors * kLanes columns of one query's weighted sum of values, over its weights above 0. It makes the same
// additions in the same order as AddDense.
template <int64_t Vectors, class Value, class Element>
inline void SumSparseTile(const Survivors& survivors, int64_t row, const Value* value, ptrdiff_t value_stride,
                          Element* output) {
  Floats sum[Vectors] = {};
  ForEachPositive(survivors, row, [&](int64_t t) {
    const Floats weight = Broadcast(survivors.weights[t * kLanes + row]);
    const Value* x = value + survivors.keys[t] * value_stride;
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[v] = MulAdd(weight, Load(x + v * kLanes), sum[v]);
  });
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) Store(output + v * kLanes, sum[v]);
}

// One query's output (head_size), summed over its weights above 0.
template <class Value, class Element>
[[gnu::always_inline]] inline void SumSparse(const Survivors& survivors, int64_t row, const Value* value,
                                             ptrdiff_t value_stride, int64_t head_size, Element* output) {
  int64_t d = 0;
  for (; d + 8 * kLanes <= head_size; d += 8 * kLanes) {
    SumSparseTile<8>(survivors, row, value + d, value_stride, output + d);
  }
  for (; d + 4 * kLanes <= head_size; d += 4 * kLanes) {
    SumSparseTile<4>(survivors, row, value + d, value_stride, output + d);
  }
  for (; d + kLanes <= head_size; d += kLanes) {
    SumSparseTile<1>(survivors, row, value + d, value_stride, output + d);
  }
  if (d < head_size) {
    Floats sum = {};
    ForEachPositive(survivors, row, [&](int64_t t) {
      const Floats weight = Broadcast(survivors.weights[t * kLanes + row]);
      const Value* x = value + survivors.keys[t] * value_stride + d;
      sum = MulAdd(weight, LoadPartial(x, head_size - d), sum);
    });
    StorePartial(output + d, head_size - d, sum);
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
