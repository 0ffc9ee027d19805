// Attention on the keys of axis_keys_cpu.h. A panel holds the scores of a block as in packed_attention_cpu.h,
// but a row of it is a slot: first the columns, gathered once for each head, then the band, then the pairs.
// What a lane does not attend to scores -inf, so that both normalizers work as they do on all keys.
#pragma once

#include "axis_attention/axis_keys_cpu.h"
#include "softmax_attention/softmax_attention_cpu.h"
#include "sparsegen_lin/sparsegen_threshold_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

static_assert(kKeyRows <= kColumnPadding, "columns are scored kKeyRows at a time");

struct AxisScratch {
  HeldHead held;
  float *column_keys, *column_values;  // (columns, padded head size)
  float* queries;                      // (kPanelQueries, padded head size)
  float *query_panel, *room, *scores, *maxima, *sums, *weights;
  int32_t *survivors, *positive;
  AxisKeysScratch keys;

  int64_t Lay(float* base, const AxisExtent& extent) {
    const int64_t padded = RoundUp(extent.head_size, kLanes);
    ScratchLayout layout(base);
    held.Lay(&layout, extent.held_keys, extent.head_size);
    column_keys = layout.Take(extent.columns * padded);
    column_values = layout.Take(extent.columns * padded);
    queries = layout.Take(kPanelQueries * padded);
    query_panel = layout.Take(extent.head_size * kPanelQueries);
    room = layout.Take(RowsRoom(kRoomRows, extent.head_size));
    scores = layout.Take((extent.slots + kKeyRows) * kPanelQueries);  // columns are scored kKeyRows at a time
    maxima = layout.Take(kMaxClasses * kPanelQueries);
    sums = layout.Take(padded * kPanelQueries);
    const int64_t solved = extent.sparsegen ? extent.slots : 0;
    weights = layout.Take(solved * kLanes);
    survivors = reinterpret_cast<int32_t*>(layout.Take(solved));
    positive = reinterpret_cast<int32_t*>(layout.Take(RoundUp(solved, 32) / 32 * kLanes));
    keys.Lay(&layout, extent);
    return layout.used();
  }
};

inline size_t AxisAttentionScratchFloats(const AxisExtent& extent) {
  return static_cast<size_t>(AxisScratch{}.Lay(nullptr, extent));
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
  int64_t padded;  // head size
  float scale;     // of the scores
};

// Keys or values of a band that are worked through at a time: all where they lie row on row.
template <class Element, class Held>
inline int64_t BandPart(const AxisHead<Element, Held>& head, int64_t keys) {
  constexpr int64_t kBandKeys = 128;
  return head.keys.stride == head.padded ? keys : Min(keys, kBandKeys);
}

// Calls visit(first, count) for every part of one head's band. The keys of the next are asked for meanwhile:
// they lie too far apart for the processor to guess.
template <class Element, class Held, class Visit>
inline void ForEachBandPart(const AxisHead<Element, Held>& head, const Held* band, int64_t keys,
                            const Visit& visit) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Held));
  const int64_t part = BandPart(head, keys);
  for (int64_t j = 0; j < keys; j += part) {
    const int64_t next = Min(part, keys - j - part);
    for (int64_t t = 0; t < next; ++t) {
      const Held* row = band + (j + part + t) * head.keys.stride;
      for (int64_t d = 0; d < head.head_size; d += kLine) __builtin_prefetch(row + d, 0, 2);
    }
    visit(j, Min(part, keys - j));
  }
}

template <class Element, class Held>
inline void GatherColumns(const AxisHead<Element, Held>& head, const int32_t* columns, int64_t count,
                          const AxisScratch& at) {
  for (int64_t c = 0; c < count; ++c) {
    const ptrdiff_t row = columns[c] * head.keys.stride;
    CopyRow(head.keys.key + row, head.head_size, at.column_keys + c * head.padded);
    CopyRow(head.keys.value + row, head.head_size, at.column_values + c * head.padded);
  }
  for (int64_t i = count * head.padded; i < (count + kColumnPadding) * head.padded; ++i) {
    at.column_keys[i] = 0.0f;
  }
}

// products[t * stride] is the sum so far of the products of query and keys[t], each lane apart; columns from
// d on are added, Vectors * kLanes of them.
template <int64_t Vectors, class Element>
inline void AddProducts(const float* query, const Element* const* keys, int64_t count, int64_t d,
                        Floats* products, ptrdiff_t stride) {
  Floats q[Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) q[v] = Load(query + d + v * kLanes);
  for (int64_t t = 0; t < count; ++t) {
    Floats sum = d == 0 ? Floats{} : products[t * stride];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum = MulAdd(q[v], Load(keys[t] + d + v * kLanes), sum);
    products[t * stride] = sum;
  }
}

// The products of query (padded head size) and some keys, one key every `stride`: SumEach makes scores of
// them.
template <class Element>
inline void Multiply(const float* query, const Element* const* keys, int64_t count, int64_t head_size,
                     Floats* products, ptrdiff_t stride) {
  int64_t d = 0;
  for (; d + 4 * kLanes <= head_size; d += 4 * kLanes)
    AddProducts<4>(query, keys, count, d, products, stride);
  for (; d + kLanes <= head_size; d += kLanes) AddProducts<1>(query, keys, count, d, products, stride);
  if (d == head_size) return;
  for (int64_t t = 0; t < count; ++t) {
    const Floats sum = d == 0 ? Floats{} : products[t * stride];
    products[t * stride] = MulAdd(Load(query + d), LoadPartial(keys[t] + d, head_size - d), sum);
  }
}

template <int64_t Vectors, class Element, class Held>
inline void ScoreColumns(const AxisHead<Element, Held>& head, int64_t columns, const AxisScratch& at) {
  for (int64_t v = 0; v < Vectors; ++v) Store(at.maxima + v * kLanes, Broadcast(-kInfinity));
  constexpr int64_t kHalf = kKeyRows / 2;
  int64_t c = 0;
  for (; columns - c > kHalf; c += kKeyRows) {
    ScoreKeys<kKeyRows, Vectors>(at.query_panel, at.column_keys + c * head.padded, head.padded,
                                 head.head_size, head.scale, at.room, at.scores + c * kPanelQueries,
                                 at.maxima);
  }
  if (c < columns) {
    ScoreKeys<kHalf, Vectors>(at.query_panel, at.column_keys + c * head.padded, head.padded, head.head_size,
                              head.scale, at.room, at.scores + c * kPanelQueries, at.maxima);
  }
}

// Row by row, as the pairs of neighbouring rows have keys in common.
template <class Element, class Held>
inline void ScorePairs(const AxisHead<Element, Held>& head, const AxisBlock& block, const AxisScratch& at,
                       float* scores) {
  constexpr int64_t kTogether = 8;
  Floats products[kTogether][kLanes];
  const Held* keys[kTogether];
  for (int64_t lane = 0; lane < block.count; lane += kLanes) {
    for (int64_t p = 0; p < block.pairs; p += kTogether) {
      const int64_t pairs = Min(kTogether, block.pairs - p);
      for (int64_t i = 0; i < kLanes; ++i) {
        const int32_t* own = block.pair_keys + p * kPanelQueries + lane + i;
        for (int64_t t = 0; t < pairs; ++t)
          keys[t] = head.keys.key + own[t * kPanelQueries] * head.keys.stride;
        Multiply(at.queries + (lane + i) * head.padded, keys, pairs, head.head_size, &products[0][i], kLanes);
      }
      for (int64_t t = 0; t < pairs; ++t) {
        const Mask mask = MaskOf(block.pair_words[p + t] >> lane);
        Store(scores + (p + t) * kPanelQueries + lane,
              Select(mask, SumEach(products[t]) * Broadcast(head.scale), Broadcast(-kInfinity)));
      }
    }
  }
}

// What a lane of the next block reads first, and what it reads and writes last.
template <class Element, class Held>
[[gnu::always_inline]] inline void BringScored(const AxisHead<Element, Held>& head, const AxisBlock& block,
                                               int64_t lane) {
  const AxisLane next = NextLane(block, lane);
  if (next.query < 0) return;
  Bring(head.query + next.query * head.stride, head.head_size);
  Bring(head.keys.key + next.row * head.keys.stride, head.head_size);
}
template <class Element, class Held>
[[gnu::always_inline]] inline void BringSummed(const AxisHead<Element, Held>& head, const AxisBlock& block,
                                               int64_t lane) {
  const AxisLane next = NextLane(block, lane);
  if (next.query < 0) return;
  Bring(head.keys.value + next.row * head.keys.stride, head.head_size);
  Bring(head.output + next.query * head.stride, head.head_size);
}

template <class Element, class Held>
inline void LoadQueries(const AxisHead<Element, Held>& head, const AxisBlock& block, const AxisScratch& at) {
  for (int64_t i = 0; i < kPanelQueries; ++i) {
    BringScored(head, block, i);
    float* lane = at.queries + i * head.padded;
    if (i < block.count && block.queries[i] >= 0) {
      CopyRow(head.query + block.queries[i] * head.stride, head.head_size, lane);
    } else {
      for (int64_t d = 0; d < head.padded; ++d) lane[d] = 0.0f;
    }
  }
}

// The panel of a block: (slots, kPanelQueries). Returns the number of classes whose maxima are known, or 0.
template <int64_t Vectors, class Element, class Held>
inline int64_t ScoreBlock(const AxisHead<Element, Held>& head, const AxisBlock& block,
                          const AxisScratch& at) {
  if (block.columns + block.band_keys > 0) {
    Transpose(at.queries, head.padded, kPanelQueries, head.head_size, at.query_panel, kPanelQueries);
  }
  if (block.columns > 0) ScoreColumns<Vectors>(head, block.columns, at);
  float* band = at.scores + block.columns * kPanelQueries;
  const Held* band_key = head.keys.key + block.band_begin * head.keys.stride;
  int64_t classes = 0;
  NoRowsAhead ahead;  // its lanes are brought one by one
  ForEachBandPart(head, band_key, block.band_keys, [&](int64_t j, int64_t count) {
    classes =
        ScorePanel<Vectors>(at.query_panel, band_key + j * head.keys.stride, head.keys.stride, count,
                            head.head_size, head.scale, at.room, band + j * kPanelQueries, at.maxima, ahead);
  });
  for (int64_t j = 0; block.band_words != nullptr && j < block.band_keys; ++j) {
    for (int64_t v = 0; v < Vectors; ++v) {
      float* score = band + j * kPanelQueries + v * kLanes;
      Store(score, Select(MaskOf(block.band_words[j] >> v * kLanes), Load(score), Broadcast(-kInfinity)));
    }
  }
  ScorePairs(head, block, at, band + block.band_keys * kPanelQueries);
  const bool is_one_part = block.columns == 0 && block.pairs == 0 && block.band_words == nullptr &&
                           block.band_keys == BandPart(head, block.band_keys);
  return is_one_part ? classes : 0;
}

// Maxima of classes of slots, (classes, kPanelQueries); returns how many there are.
template <int64_t Vectors>
inline int64_t ClassMaxima(const float* scores, int64_t slots, float* maxima) {
  const int64_t classes = Min(slots, kMaxClasses);
  for (int64_t c = 0; c < classes; ++c) {
    Floats maximum[Vectors];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) maximum[v] = Broadcast(-kInfinity);
    for (int64_t s = c; s < slots; s += kMaxClasses) {
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) {
        maximum[v] = Max(Load(scores + s * kPanelQueries + v * kLanes), maximum[v]);
      }
    }
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) Store(maxima + c * kPanelQueries + v * kLanes, maximum[v]);
  }
  return classes;
}

// How many keys each lane from `first` on attends to.
inline Ints CountAllowed(const AxisBlock& block, int64_t first) {
  Ints count = Ints{};
  for (int64_t j = 0; block.band_words != nullptr && j < block.band_keys; ++j) {
    count = CountIf(MaskOf(block.band_words[j] >> first), count);
  }
  for (int64_t p = 0; p < block.pairs; ++p) {
    count = CountIf(MaskOf(block.pair_words[p] >> first), count);
  }
  const int64_t by_all = block.columns + (block.band_words == nullptr ? block.band_keys : 0);
  return count + static_cast<int>(by_all);
}

// Replaces the scores of a column by weights, all of a row still to be multiplied by what is returned for it.
inline Floats SparsegenColumn(const AxisScratch& at, const ScoreColumn& column, float divisor, int64_t rows,
                              Survivors* survivors) {
  *survivors = {at.weights, at.survivors, at.positive, 0, Ints{}, Mask{}};
  SolveSparsegen(column, divisor, rows, survivors);
  for (int64_t s = 0; s < column.keys; ++s) Store(column.scores + s * column.stride, Floats{});
  for (int64_t t = 0; t < survivors->count; ++t) {
    Store(column.scores + survivors->keys[t] * column.stride, Load(survivors->weights + t * kLanes));
  }
  return Select(survivors->nan, Broadcast(__builtin_nanf("")), Broadcast(1.0f));
}

// The pairs of one row, one every kPanelQueries. Without a weight it may be none of it.
struct RowPairs {
  const float* weights;
  const int32_t* keys;
  int64_t count;

  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (int64_t p = 0; p < count * kPanelQueries; p += kPanelQueries) {
      if (weights[p] != 0.0f) visit(Broadcast(weights[p]), keys[p]);
    }
  }
};

// Vectors * kLanes columns of one row's output: what its sums hold and its own keys add.
template <int64_t Vectors, class Value, class Element>
inline void FinishTile(const RowPairs& keys, const Value* value, ptrdiff_t stride, const float* sums,
                       Floats normalizer, Element* output) {
  Floats sum[Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) sum[v] = Load(sums + v * kLanes);
  keys.ForEach([&](Floats weight, int64_t key) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      sum[v] = MulAdd(weight, Load(value + key * stride + v * kLanes), sum[v]);
    }
  });
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) Store(output + v * kLanes, sum[v] * normalizer);
}

template <class Element, class Held>
inline void FinishRow(const RowPairs& keys, const AxisHead<Element, Held>& head, const float* sums,
                      Floats normalizer, Element* output) {
  const Held* value = head.keys.value;
  const ptrdiff_t stride = head.keys.stride;
  int64_t d = 0;
  for (; d + 4 * kLanes <= head.head_size; d += 4 * kLanes) {
    FinishTile<4>(keys, value + d, stride, sums + d, normalizer, output + d);
  }
  for (; d + kLanes <= head.head_size; d += kLanes) {
    FinishTile<1>(keys, value + d, stride, sums + d, normalizer, output + d);
  }
  const int64_t rest = head.head_size - d;
  if (rest == 0) return;
  Floats sum = Load(sums + d);
  keys.ForEach([&](Floats weight, int64_t key) {
    sum = MulAdd(weight, LoadPartial(value + d + key * stride, rest), sum);
  });
  StorePartial(output + d, rest, sum * normalizer);
}

// The outputs of the first `rows` lanes, whose weights stand in the panel.
template <class Element, class Held>
inline void SumBlock(const AxisHead<Element, Held>& head, const AxisBlock& block, int64_t rows,
                     const Floats (&normalizer)[kPanelVectors], const AxisScratch& at) {
  float* sums = at.sums;
  for (int64_t i = 0; i < head.padded * kPanelQueries; i += kLanes) Store(sums + i, Floats{});
  const float* weights = at.scores;
  AddDense<false>(weights, kPanelQueries, nullptr, block.columns, at.column_values, head.padded,
                  head.head_size, rows, sums, head.padded);
  weights += block.columns * kPanelQueries;
  const Held* band_value = head.keys.value + block.band_begin * head.keys.stride;
  ForEachBandPart(head, band_value, block.band_keys, [&](int64_t j, int64_t count) {
    AddDense<false>(weights + j * kPanelQueries, kPanelQueries, nullptr, count,
                    band_value + j * head.keys.stride, head.keys.stride, head.head_size, rows, sums,
                    head.padded);
  });
  weights += block.band_keys * kPanelQueries;
  for (int64_t r = 0; r < rows; ++r) {
    BringSummed(head, block, r);
    if (block.queries[r] < 0) continue;
    FinishRow(RowPairs{weights + r, block.pair_keys + r, block.pairs}, head, sums + r * head.padded,
              Broadcast(normalizer[r / kLanes][r % kLanes]), head.output + block.queries[r] * head.stride);
  }
}

// How many of a block's lanes from `first` to `end` there are up to the last that is asked for.
inline int64_t AskedLanes(const AxisBlock& block, int64_t first, int64_t end) {
  while (end > first && block.queries[end - 1] < 0) --end;
  return end - first;
}

template <int64_t Vectors, class Element, class Held>
inline void AttendBlock(const AxisHead<Element, Held>& head, const AxisBlock& block,
                        const AxisPattern& pattern, float divisor, const AxisScratch& at) {
  const int64_t slots = block.slots();
  int64_t classes = ScoreBlock<Vectors>(head, block, at);
  if (classes == 0) classes = ClassMaxima<Vectors>(at.scores, slots, at.maxima);
  const ScoreColumn panel{at.scores, kPanelQueries, slots, at.maxima, kPanelQueries, classes};
  Floats normalizer[kPanelVectors] = {};
  const bool sparsegen = pattern.extent.sparsegen;
  if (!sparsegen) ExponentiatePanel<Vectors>(panel, normalizer);
  for (int64_t v = 0; v < Vectors; ++v) {
    const int64_t first = v * kLanes;
    const int64_t rows = AskedLanes(block, first, Min(first + kLanes, block.count));
    if (rows == 0) continue;
    Survivors survivors{};
    if (sparsegen) normalizer[v] = SparsegenColumn(at, panel.Beside(v), divisor, rows, &survivors);
    if (head.support == nullptr) continue;
    const Ints allowed = CountAllowed(block, first);
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t query = block.queries[first + r];
      if (query < 0) continue;
      // NaN weights are not zero: all of them count.
      const bool solved = sparsegen && !(Bits(survivors.nan) >> r & 1);
      head.support[query * head.support_stride] = solved ? survivors.support[r] : allowed[r];
    }
  }
  SumBlock(head, block, AskedLanes(block, 0, block.count), normalizer, at);
}

// Up to this many full rows are cheaper with keys in the lanes than in a panel.
constexpr int64_t kFewRows = kLanes < 8 ? 2 : 6;
// So many of them are computed at a time: they share what is loaded of keys and values.
constexpr int64_t kRowsAtOnce = 3;

// products[r][t] is the sum of the products of the r-th query and the t-th of `count` keys, or the last of
// them, each lane apart.
template <int64_t Rows, class Element, class Held>
inline void MultiplyRows(const AxisHead<Element, Held>& head, const float* const* queries, const Held* key,
                         int64_t count, Floats (&products)[Rows][kLanes]) {
  constexpr int64_t kKeys = 4;  // whose sums fill the registers
  SPARSE_OPS_UNROLL
  for (int64_t first = 0; first < kLanes; first += kKeys) {
    const Held* keys[kKeys];
    SPARSE_OPS_UNROLL
    for (int64_t t = 0; t < kKeys; ++t) keys[t] = key + Min(first + t, count - 1) * head.keys.stride;
    Floats sum[Rows][kKeys] = {};
    ForEachVector(head.head_size, [&](int64_t d, int64_t columns) {
      Floats query[Rows];
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < Rows; ++r) query[r] = Load(queries[r] + d);
      SPARSE_OPS_UNROLL
      for (int64_t t = 0; t < kKeys; ++t) {
        const Floats k = LoadFirst(keys[t] + d, columns);
        SPARSE_OPS_UNROLL
        for (int64_t r = 0; r < Rows; ++r) sum[r][t] = MulAdd(query[r], k, sum[r][t]);
      }
    });
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      SPARSE_OPS_UNROLL
      for (int64_t t = 0; t < kKeys; ++t) products[r][first + t] = sum[r][t];
    }
  }
}

// Replaces scores by exp(score - maximum); returns 1 / their sum, as ExponentiatePanel.
inline Floats ExponentiateRow(float* scores, int64_t keys, Floats maxima) {
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

// Vectors * kLanes columns from d on of each row's sum over all values; columns: how many there are from d
// on.
template <int64_t Rows, int64_t Vectors, class Element, class Held>
inline void SumTile(const AxisHead<Element, Held>& head, const float* weights, ptrdiff_t stride, int64_t keys,
                    int64_t d, int64_t columns, float* sums) {
  Floats sum[Rows][Vectors] = {};
  for (int64_t j = 0; j < keys; ++j) {
    const Held* value = head.keys.value + j * head.keys.stride + d;
    Floats weight[Rows];
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) weight[r] = Broadcast(weights[r * stride + j]);
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      const Floats x =
          v + 1 < Vectors ? Load(value + v * kLanes) : LoadFirst(value + v * kLanes, columns - v * kLanes);
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < Rows; ++r) sum[r][v] = MulAdd(weight[r], x, sum[r][v]);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) Store(sums + r * head.padded + d + v * kLanes, sum[r][v]);
  }
}

// Softmax over all keys of a sequence for some queries, with keys in the lanes. Whichever queries are
// computed together, each is as if alone.
template <int64_t Rows, class Element, class Held>
inline void AttendRows(const AxisHead<Element, Held>& head, const float* const* queries, int64_t keys,
                       const AxisScratch& at, Element* const* outputs) {
  const int64_t stride = RoundUp(keys, kLanes);
  Floats maxima[Rows];
  for (int64_t r = 0; r < Rows; ++r) maxima[r] = Broadcast(-kInfinity);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const int64_t count = Min(kLanes, keys - j);
    Floats products[Rows][kLanes];
    MultiplyRows<Rows>(head, queries, head.keys.key + j * head.keys.stride, count, products);
    const Mask exists = MaskOf((1u << count) - 1);
    for (int64_t r = 0; r < Rows; ++r) {
      const Floats scores =
          Select(exists, SumEach(products[r]) * Broadcast(head.scale), Broadcast(-kInfinity));
      Store(at.scores + r * stride + j, scores);
      maxima[r] = Max(scores, maxima[r]);
    }
  }
  Floats normalizer[Rows];
  for (int64_t r = 0; r < Rows; ++r) {
    normalizer[r] = ExponentiateRow(at.scores + r * stride, keys, maxima[r]);
  }
  constexpr int64_t kVectors = 4;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= head.padded; d += kVectors * kLanes) {
    SumTile<Rows, kVectors>(head, at.scores, stride, keys, d, head.head_size - d, at.sums);
  }
  for (; d < head.padded; d += kLanes) {
    SumTile<Rows, 1>(head, at.scores, stride, keys, d, head.head_size - d, at.sums);
  }
  for (int64_t r = 0; r < Rows; ++r) {
    WriteRow(at.sums + r * head.padded, head.head_size, normalizer[r], outputs[r]);
  }
}

// A block of full rows, few of them.
template <class Element, class Held>
inline void AttendFew(const AxisHead<Element, Held>& head, const AxisBlock& block, const AxisScratch& at) {
  const float* queries[kFewRows];
  Element* outputs[kFewRows];
  int64_t count = 0;
  for (int64_t i = 0; i < block.count; ++i) {
    const int32_t query = block.queries[i];
    if (query < 0) continue;
    queries[count] = at.queries + i * head.padded;
    outputs[count++] = head.output + query * head.stride;
    if (head.support != nullptr) {
      head.support[query * head.support_stride] = static_cast<int32_t>(block.band_keys);
    }
  }
  for (int64_t i = 0; i < count; i += kRowsAtOnce) {
    const int64_t left = count - i;
    const auto attend = left == 1   ? AttendRows<1, Element, Held>
                        : left == 2 ? AttendRows<2, Element, Held>
                                    : AttendRows<kRowsAtOnce, Element, Held>;
    attend(head, queries + i, block.band_keys, at, outputs + i);
  }
}

// One head of a range's sequence: its queries, and where its keys and values are.
template <class Element, class Held>
inline AxisHead<Element, Held> HeadOf(const PackedAttention<Element>& tensors, const QueryRange& range,
                                      int64_t head, const KeysAndValues<Held>& keys) {
  const ptrdiff_t stride = tensors.num_heads * tensors.head_size;
  const ptrdiff_t queries = range.query_begin * stride + head * tensors.head_size;
  int32_t* support = tensors.support;
  if (support != nullptr) support += range.query_begin * tensors.num_heads + head;
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
inline AxisHead<Element, Element> HeadOf(const PackedAttention<Element>& tensors, const QueryRange& range,
                                         int64_t head) {
  return HeadOf(tensors, range, head, KeysAndValuesOf(tensors, range, head));
}

template <class Element>
inline void AxisAttention(const PackedAttention<Element>& tensors, const AxisPattern& pattern,
                          const QueryRange& range, float* scratch) {
  AxisScratch at;
  at.Lay(scratch, pattern.extent);
  const int64_t begin = range.sequence_begin;
  const AxisKeys keys{pattern,
                      pattern.sequences[range.sequence],
                      pattern.is_row + begin,
                      pattern.is_column + begin,
                      range.sequence_length,
                      Mix(pattern.seed),
                      at.keys};
  const bool full = range.first < keys.sequence.full_rows;
  const bool is_held = full && range.sequence_length <= pattern.extent.held_keys &&
                       IsHeld(range.sequence_length, keys.sequence.full_rows);
  const int64_t columns = full ? 0 : keys.sequence.columns;
  const int64_t gathered = (columns + kColumnPadding) * RoundUp(tensors.head_size, kLanes);
  const auto of_head = [&](int64_t h) {
    AxisScratch own = at;
    own.column_keys += h * gathered;
    own.column_values += h * gathered;
    return own;
  };
  for (int64_t h = 0; columns > 0 && h < range.heads; ++h) {
    GatherColumns(HeadOf(tensors, range, range.head + h), pattern.columns + begin, columns, of_head(h));
  }
  for (int64_t j = 0; pattern.random_keys > 0 && j < range.sequence_length; ++j) at.keys.drawn[j] = 0;

  const int32_t* rows = pattern.order + keys.sequence.order;
  const int32_t* queries = pattern.queries + keys.sequence.order;
  const int64_t end = range.first + range.count;
  for (int64_t first = range.first; first < end; first += kPanelQueries) {
    const int64_t count = Min(kPanelQueries, end - first);
    AxisBlock block = LayBlock(keys, rows + first, queries + first, count, full);
    block.next = Min(kPanelQueries, end - first - count);
    const auto attend_block = [&](const auto& head, const AxisScratch& own) {
      if (count > kLanes) return AttendBlock<2>(head, block, pattern, tensors.divisor, own);
      AttendBlock<1>(head, block, pattern, tensors.divisor, own);
    };
    for (int64_t h = 0; h < range.heads; ++h) {
      const AxisHead<Element, Element> head = HeadOf(tensors, range, range.head + h);
      LoadQueries(head, block, at);
      if (full && count <= kFewRows && !pattern.extent.sparsegen) {
        AttendFew(head, block, at);
      } else if (is_held) {
        const auto keys_of_head = Hold(tensors, range, at.held);
        attend_block(HeadOf(tensors, range, range.head, keys_of_head), at);
      } else {
        attend_block(head, of_head(h));
      }
    }
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
