// Attention to the keys of axis_keys_cpu.h. A panel holds the scores of a block as in packed_attention_cpu.h,
// but its rows are slots: first the columns, gathered once for each head, then the band, the diagonals and
// the pairs. The score of a key that a lane does not attend to is -inf, so that both normalizers work as they
// do on all keys.
#pragma once

#include "axis_attention/axis_diagonals_cpu.h"
#include "axis_attention/axis_full_rows_cpu.h"
#include "axis_attention/axis_head_cpu.h"
#include "softmax_attention/softmax_attention_cpu.h"
#include "sparsegen_lin/sparsegen_threshold_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

static_assert(kKeyRows <= kColumnPadding, "columns are scored kKeyRows at a time");

// How many keys or values of a band are computed with at a time: all of them where they lie row on row.
template <class Element, class Held>
inline int64_t BandPart(const AxisHead<Element, Held>& head, int64_t keys) {
  constexpr int64_t kBandKeys = 128;
  return head.keys.stride == head.padded ? keys : Min(keys, kBandKeys);
}

// Calls visit(first, count) for every part of one head's band, and prefetches the part after it: its rows lie
// too far apart for the processor to predict them.
template <class Element, class Held, class Visit>
inline void ForEachBandPart(const AxisHead<Element, Held>& head, const Held* band, int64_t keys,
                            const Visit& visit) {
  const int64_t part = BandPart(head, keys);
  for (int64_t j = 0; j < keys; j += part) {
    const int64_t next = Min(part, keys - j - part);
    for (int64_t t = 0; t < next; ++t) {
      Prefetch(band + (j + part + t) * head.keys.stride, head.head_size);
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

// Scores all columns in groups of about the same size, of which the last may reach into the padding.
template <int64_t Vectors, class Element, class Held>
inline void ScoreColumns(const AxisHead<Element, Held>& head, int64_t columns, const AxisScratch& at,
                         BlockAhead* ahead) {
  for (int64_t v = 0; v < Vectors; ++v) Store(at.maxima + v * kLanes, Broadcast(-kInfinity));
  const int64_t groups = (columns + kKeyRows - 1) / kKeyRows;
  const int64_t rows = (columns + groups - 1) / groups;
  for (int64_t c = 0; c < columns; c += rows) {
    VisitCount<kKeyRows>(rows, [&](auto some) {
      ScoreKeys<some.kCount, Vectors>(at.query_panel, at.column_keys + c * head.padded, head.padded,
                                      head.head_size, head.scale, at.buffer, at.scores + c * kPanelQueries,
                                      at.maxima);
    });
    ahead->Step();
  }
}

// Scores all pairs, (pairs, kPanelQueries).
template <class Element, class Held>
inline void ScorePairs(const AxisHead<Element, Held>& head, const AxisBlock& block, const FloatRows& queries,
                       float* scores) {
  constexpr int64_t kTogether = 4;
  for (int64_t lane = 0; lane < block.count; lane += kLanes) {
    for (int64_t p = 0; p < block.pairs; ++p) {
      Floats products[kLanes];
      SPARSE_OPS_UNROLL
      for (int64_t first = 0; first < kLanes; first += kTogether) {
        const int32_t* keys = block.pair_keys + p * kPanelQueries + lane + first;
        const float* query = queries.first + (lane + first) * queries.stride;
        Floats sum[kTogether] = {};
        ForEachVector(head.head_size, [&](int64_t d, int64_t columns) {
          SPARSE_OPS_UNROLL
          for (int64_t i = 0; i < kTogether; ++i) {
            const Floats key = LoadFirst(head.keys.key + keys[i] * head.keys.stride + d, columns);
            sum[i] = MulAdd(Load(query + i * queries.stride + d), key, sum[i]);
          }
        });
        SPARSE_OPS_UNROLL
        for (int64_t i = 0; i < kTogether; ++i) products[first + i] = sum[i];
      }
      Store(scores + p * kPanelQueries + lane,
            Select(MaskOf(block.pair_words[p] >> lane), SumEach(products) * Broadcast(head.scale),
                   Broadcast(-kInfinity)));
    }
  }
}

// Whether the queries of a block can be read where they lie: in every lane there is that of its row, asked
// for or not.
template <class Element>
inline bool AreInPlace(const QueryRange& range, const AxisBlock& block, int64_t head_size) {
  if (sizeof(Element) != sizeof(float) || head_size % kLanes != 0) return false;
  if (block.count < kPanelQueries || block.rows[0] + kPanelQueries > range.sequence_queries) return false;
  for (int64_t i = 0; i < kPanelQueries; ++i) {
    if (block.rows[i] != block.rows[0] + i) return false;
    if (block.queries[i] >= 0 && block.queries[i] != block.rows[i]) return false;
  }
  return true;
}

// The queries of all lanes, of the padded head size. In place, lanes that are not asked for have those of
// their rows too, else 0.
template <class Element, class Held>
inline FloatRows LoadQueries(const AxisHead<Element, Held>& head, const AxisBlock& block, bool in_place,
                             const AxisScratch& at) {
  if constexpr (sizeof(Element) == sizeof(float)) {
    if (in_place) return {head.query + block.rows[0] * head.stride, head.stride};
  }
  for (int64_t i = 0; i < kPanelQueries; ++i) {
    float* lane = at.queries + i * head.padded;
    if (i < block.count && block.queries[i] >= 0) {
      CopyRow(head.query + block.queries[i] * head.stride, head.head_size, lane);
    } else {
      for (int64_t d = 0; d < head.padded; ++d) lane[d] = 0.0f;
    }
  }
  return {at.queries, head.padded};
}

// Computes the panel of a block, (slots, kPanelQueries). Returns the number of classes whose maxima it has
// computed, or 0.
template <int64_t Vectors, class Element, class Held>
inline int64_t ScoreBlock(const AxisHead<Element, Held>& head, const AxisBlock& block,
                          const FloatRows& queries, const AxisScratch& at, BlockAhead* ahead) {
  if (block.columns + block.band_keys > 0) {
    Transpose(queries.first, queries.stride, kPanelQueries, head.head_size, at.query_panel, kPanelQueries);
  }
  if (block.columns > 0) ScoreColumns<Vectors>(head, block.columns, at, ahead);
  float* band = at.scores + block.columns * kPanelQueries;
  const Held* band_key = head.keys.key + block.band_begin * head.keys.stride;
  int64_t classes = 0;
  NoRowsAhead none;  // the next block is prefetched by BlockAhead
  ForEachBandPart(head, band_key, block.band_keys, [&](int64_t j, int64_t count) {
    classes =
        ScorePanel<Vectors>(at.query_panel, band_key + j * head.keys.stride, head.keys.stride, count,
                            head.head_size, head.scale, at.buffer, band + j * kPanelQueries, at.maxima, none);
  });
  for (int64_t j = 0; block.band_words != nullptr && j < block.band_keys; ++j) {
    for (int64_t v = 0; v < Vectors; ++v) {
      float* score = band + j * kPanelQueries + v * kLanes;
      Store(score, Select(MaskOf(block.band_words[j] >> v * kLanes), Load(score), Broadcast(-kInfinity)));
    }
  }
  float* diagonals = band + block.band_keys * kPanelQueries;
  ScoreDiagonals(head, block, queries, at, diagonals, ahead);
  ScorePairs(head, block, queries, diagonals + block.diagonals * kPanelQueries);
  const bool is_one_part = block.columns + block.diagonals + block.pairs == 0 &&
                           block.band_words == nullptr && block.band_keys == BandPart(head, block.band_keys);
  return is_one_part ? classes : 0;
}

// Computes the maxima of classes of slots, (classes, kPanelQueries); returns the number of classes.
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
  for (int64_t t = 0; t < block.diagonals; ++t) {
    count = CountIf(MaskOf(block.diagonal_words[t] >> first), count);
  }
  for (int64_t p = 0; p < block.pairs; ++p) {
    count = CountIf(MaskOf(block.pair_words[p] >> first), count);
  }
  const int64_t by_all = block.columns + (block.band_words == nullptr ? block.band_keys : 0);
  return count + static_cast<int>(by_all);
}

// Replaces the scores of a column by weights. Returns for each row the factor that its weights are still to
// be multiplied by.
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

// Lanes that are summed at a time: they share the loads of values.
constexpr int64_t kSummedLanes = kLanes == 16 ? 4 : 2;
static_assert(kPanelQueries % kSummedLanes == 0, "no group reaches beyond the lanes");

// Columns whose values are summed in a step of BlockAhead.
constexpr int64_t kStepColumns = 12;

// How many steps a block takes, about, in each head.
inline int64_t StepsOf(const AxisBlock& block, bool full_rows) {
  const int64_t scoring = (block.columns + kKeyRows - 1) / kKeyRows + block.count / kStripLanes;
  const int64_t summing =
      block.count / kSummedLanes * (1 + (block.columns + kStepColumns - 1) / kStepColumns);
  return Max(scoring + summing + (full_rows ? 2 : 0), 1);
}

// Writes Vectors * kLanes columns from d on of the outputs of kSummedLanes lanes, `lane` the first: the sums
// of their bands (at.sums), plus those of their other keys. count: how many columns exist from d on.
template <int64_t Vectors, class Element, class Held>
inline void SumLanesTile(const AxisHead<Element, Held>& head, const AxisBlock& block, int64_t lane,
                         const float* normalizer, int64_t d, int64_t count, const AxisScratch& at,
                         BlockAhead* ahead) {
  Floats sum[kSummedLanes][Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < kSummedLanes; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      sum[r][v] = block.band_keys > 0 ? Load(at.sums + (lane + r) * head.padded + d + v * kLanes) : Floats{};
    }
  }
  const float* weights = at.scores;
  SumDiagonals(head, block, weights + (block.columns + block.band_keys) * kPanelQueries, lane, d, count, sum);
  for (int64_t begin = 0; begin < block.columns; begin += kStepColumns) {
    ahead->Step();
    for (int64_t c = begin; c < Min(begin + kStepColumns, block.columns); ++c) {
      Floats x[Vectors];
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) x[v] = Load(at.column_values + c * head.padded + d + v * kLanes);
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < kSummedLanes; ++r) {
        const Floats weight = Broadcast(weights[c * kPanelQueries + lane + r]);
        SPARSE_OPS_UNROLL
        for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = MulAdd(weight, x[v], sum[r][v]);
      }
    }
  }
  weights += (block.columns + block.band_keys + block.diagonals) * kPanelQueries;
  for (int64_t p = 0; p < block.pairs; ++p) {
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < kSummedLanes; ++r) {
      const int64_t pair = p * kPanelQueries + lane + r;
      if (weights[pair] == 0.0f) continue;  // the lane may have no key there
      const Held* value = head.keys.value + block.pair_keys[pair] * head.keys.stride + d;
      const Floats weight = Broadcast(weights[pair]);
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) {
        sum[r][v] = MulAdd(weight, LoadTile<Vectors>(value, v, count), sum[r][v]);
      }
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < kSummedLanes; ++r) {
    if (lane + r >= block.count || block.queries[lane + r] < 0) continue;
    Element* output = head.output + block.queries[lane + r] * head.stride + d;
    const Floats factor = Broadcast(normalizer[lane + r]);
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) StoreTile<Vectors>(output, v, count, sum[r][v] * factor);
  }
}

template <class Element, class Held>
inline void SumLanes(const AxisHead<Element, Held>& head, const AxisBlock& block, int64_t lane,
                     const float* normalizer, const AxisScratch& at, BlockAhead* ahead) {
  constexpr int64_t kVectors = 4;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= head.head_size; d += kVectors * kLanes) {
    SumLanesTile<kVectors>(head, block, lane, normalizer, d, kVectors * kLanes, at, ahead);
  }
  for (; d < head.head_size; d += kLanes) {
    SumLanesTile<1>(head, block, lane, normalizer, d, head.head_size - d, at, ahead);
  }
}

template <class Element, class Held>
inline void SumBand(const AxisHead<Element, Held>& head, const AxisBlock& block, int64_t rows,
                    const AxisScratch& at) {
  for (int64_t i = 0; i < head.padded * kPanelQueries; i += kLanes) Store(at.sums + i, Floats{});
  const float* weights = at.scores + block.columns * kPanelQueries;
  const Held* value = head.keys.value + block.band_begin * head.keys.stride;
  ForEachBandPart(head, value, block.band_keys, [&](int64_t j, int64_t count) {
    AddDense<false>(weights + j * kPanelQueries, kPanelQueries, nullptr, count, value + j * head.keys.stride,
                    head.keys.stride, head.head_size, rows, at.sums, head.padded);
  });
}

// How many lanes there are from `first` up to the last one before `end` that is asked for.
inline int64_t AskedLanes(const int32_t* queries, int64_t first, int64_t end) {
  while (end > first && queries[end - 1] < 0) --end;
  return end - first;
}

// Writes the outputs of the lanes that are asked for, whose weights are in the panel.
template <class Element, class Held>
inline void SumBlock(const AxisHead<Element, Held>& head, const AxisBlock& block, int64_t rows,
                     const float* normalizer, const AxisScratch& at, BlockAhead* ahead) {
  if (block.band_keys > 0) SumBand(head, block, rows, at);
  for (int64_t lane = 0; lane < rows; lane += kSummedLanes) {
    ahead->Step();
    if (AskedLanes(block.queries, lane, Min(lane + kSummedLanes, rows)) > 0)
      SumLanes(head, block, lane, normalizer, at, ahead);
  }
}

template <int64_t Vectors, class Element, class Held>
inline void AttendBlock(const AxisHead<Element, Held>& head, const AxisBlock& block, const FloatRows& queries,
                        const AxisPattern& pattern, float divisor, const AxisScratch& at, BlockAhead* ahead) {
  const int64_t slots = block.slots();
  const bool sparsegen = pattern.extent.sparsegen;
  int64_t classes = ScoreBlock<Vectors>(head, block, queries, at, ahead);
  // Newton's method starts at the root over the maxima, and where it ends in float32 may hang on that: its
  // classes may not hang on whether a copy of the head is held, which other queries decide.
  if (sparsegen || classes == 0) classes = ClassMaxima<Vectors>(at.scores, slots, at.maxima);
  const ScoreColumn panel{at.scores, kPanelQueries, slots, at.maxima, kPanelQueries, classes};
  Floats normalizer[kPanelVectors] = {};
  if (!sparsegen) ExponentiatePanel<Vectors>(panel, normalizer);
  for (int64_t v = 0; v < Vectors; ++v) {
    const int64_t first = v * kLanes;
    const int64_t rows = AskedLanes(block.queries, first, Min(first + kLanes, block.count));
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
  float factors[kPanelQueries];
  for (int64_t v = 0; v < kPanelVectors; ++v) Store(factors + v * kLanes, normalizer[v]);
  SumBlock(head, block, AskedLanes(block.queries, 0, block.count), factors, at, ahead);
}

// Computes a block in one head.
template <class Element, class Held>
inline void AttendLanes(const AxisHead<Element, Held>& head, const AxisBlock& block, bool in_place,
                        const AxisPattern& pattern, float divisor, const AxisScratch& at, BlockAhead* ahead) {
  const FloatRows queries = LoadQueries(head, block, in_place, at);
  if (block.count > kLanes) {
    AttendBlock<2>(head, block, queries, pattern, divisor, at, ahead);
  } else {
    AttendBlock<1>(head, block, queries, pattern, divisor, at, ahead);
  }
}

inline QueryRange OfHead(QueryRange range, int64_t h) {
  range.head += h;
  return range;
}

// Computes full rows in blocks of their own.
template <class Element>
inline void AttendFull(const PackedAttention<Element>& tensors, const AxisKeys& keys, const QueryRange& range,
                       const AxisScratch& at) {
  const AxisPattern& pattern = keys.pattern;
  const bool is_held = range.sequence_length <= pattern.extent.held_keys &&
                       IsHeld(range.sequence_length, keys.sequence.full_rows);
  for (int64_t i = 0; i < range.count; i += kPanelQueries) {
    const int64_t place = keys.sequence.order + range.first + i;
    const int64_t count = Min(kPanelQueries, range.count - i);
    if (AskedLanes(pattern.queries + place, 0, count) == 0) continue;
    const AxisBlock block = MakeBlock(keys, pattern.order + place, pattern.queries + place, count, true);
    const bool in_place = AreInPlace<Element>(range, block, tensors.head_size);
    BlockAhead none;
    const auto attend = [&](const auto& head) {
      AttendLanes(head, block, in_place, pattern, tensors.divisor, at, &none);
    };
    for (int64_t h = 0; h < range.heads; ++h) {
      const QueryRange of_head = OfHead(range, h);
      if (is_held) {
        attend(HeadOf(tensors, of_head, Hold(tensors, of_head, at.held)));
      } else {
        attend(HeadOf(tensors, of_head));
      }
    }
  }
}

// The columns and the queries of full rows of a sequence, gathered for the heads of a range.
template <class Element>
class GatheredHeads {
 public:
  GatheredHeads(const PackedAttention<Element>& tensors, const AxisKeys& keys, const QueryRange& range,
                const AxisScratch& at)
      : tensors_(tensors), keys_(keys), range_(range), at_(at) {
    const int64_t padded = RoundUp(tensors.head_size, kLanes);
    of_columns_ = (keys.sequence.columns + kColumnPadding) * padded;
    of_queries_ = keys.sequence.full_rows * padded;
  }

  void NeedFullQueries() const {
    const int32_t* queries = keys_.pattern.queries + keys_.sequence.order;
    Need(0, [&](const AxisHead<Element, Element>& head, const AxisScratch& own) {
      for (int64_t r = 0; r < keys_.sequence.full_rows; ++r) {
        CopyRow(head.query + queries[r] * head.stride, head.head_size, own.full_queries + r * head.padded);
      }
    });
  }

  void NeedColumns() const {
    const int64_t count = keys_.sequence.columns;
    if (count == 0) return;
    Need(1, [&](const AxisHead<Element, Element>& head, const AxisScratch& own) {
      GatherColumns(head, keys_.pattern.columns + range_.sequence_begin, count, own);
    });
  }

  // The scratch of the h-th head: what is gathered of it, and what all heads share.
  AxisScratch Of(int64_t h) const {
    AxisScratch own = at_;
    own.column_keys += h * of_columns_;
    own.column_values += h * of_columns_;
    own.full_queries += h * of_queries_;
    return own;
  }

 private:
  // Calls gather(head, scratch) for each head, if the last range that needed this kind was of other heads.
  template <class Gather>
  void Need(int64_t kind, const Gather& gather) const {
    const int64_t number = NumberOf(tensors_, range_);
    if (at_.held.prepared[kind] == number) return;
    at_.held.prepared[kind] = number;
    for (int64_t h = 0; h < range_.heads; ++h) gather(HeadOf(tensors_, OfHead(range_, h)), Of(h));
  }

  const PackedAttention<Element>& tensors_;
  const AxisKeys& keys_;
  const QueryRange& range_;
  const AxisScratch& at_;
  int64_t of_columns_, of_queries_;
};

// The full rows of a range's h-th head, and their partial results of the chunk that holds the row-th row.
template <class Element>
inline FullRows<Element> FullRowsOf(const PackedAttention<Element>& tensors, const AxisKeys& keys,
                                    const QueryRange& range, int64_t h, int64_t row, const AxisScratch& at) {
  const AxisPattern& pattern = keys.pattern;
  const AxisSequence& sequence = keys.sequence;
  const int64_t of_chunks = row / sequence.chunk * tensors.num_heads + range.head + h;
  const int64_t partial = sequence.partials + of_chunks * sequence.full_rows;
  return {HeadOf(tensors, OfHead(range, h)), at.full_queries, sequence.full_rows,
          sequence.full_tokens <= kFewRows, pattern.partials + partial * PartialFloats(tensors.head_size)};
}

// Prefetches the block that comes after the i-th row of a range: one of the same range, or of the next.
template <class Element>
inline BlockAhead AheadOfBlock(const PackedAttention<Element>& tensors, const AxisPattern& pattern,
                               const QueryRange& range, int64_t i, const QueryRange* next, int64_t steps) {
  const bool is_inside = i < range.count;
  const QueryRange& of = is_inside || next == nullptr ? range : *next;
  const int64_t first = is_inside ? range.first + i : of.first;
  const AxisSequence& sequence = pattern.sequences[of.sequence];
  const int32_t row = pattern.order[sequence.order + first];
  const bool is_consecutive = first >= sequence.full_rows && row >= 0;
  const bool is_known = is_consecutive && (is_inside || next != nullptr);
  const int64_t count = Min(kPanelQueries, of.first + of.count - first);
  return {tensors, of, row, is_known ? count : 0, steps};
}

// Computes rows that are not full in blocks of consecutive ones, and full rows along with them.
template <class Element>
inline void AttendBlocks(const PackedAttention<Element>& tensors, const AxisKeys& keys,
                         const QueryRange& range, const QueryRange* next, const AxisScratch& at) {
  const AxisPattern& pattern = keys.pattern;
  const AxisSequence& sequence = keys.sequence;
  const GatheredHeads<Element> gathered(tensors, keys, range, at);
  const int64_t first_row = range.first - sequence.full_rows;
  const bool with_full = sequence.chunk > 0;
  if (with_full) gathered.NeedFullQueries();
  for (int64_t i = 0; i < range.count; i += kPanelQueries) {
    const int32_t* rows = pattern.order + sequence.order + range.first + i;
    const int32_t* queries = pattern.queries + sequence.order + range.first + i;
    const int64_t count = Min(kPanelQueries, range.count - i);
    const bool is_asked = AskedLanes(queries, 0, count) > 0;
    if (!is_asked && !with_full) continue;
    if (is_asked) gathered.NeedColumns();
    const AxisBlock block = is_asked ? MakeBlock(keys, rows, queries, count, false) : AxisBlock{};
    const bool in_place = is_asked && AreInPlace<Element>(range, block, tensors.head_size);
    const int64_t steps = range.heads * StepsOf(block, with_full);
    BlockAhead ahead = AheadOfBlock(tensors, pattern, range, i + count, next, steps);
    for (int64_t h = 0; h < range.heads; ++h) {
      const AxisScratch own = gathered.Of(h);
      if (is_asked) {
        AttendLanes(HeadOf(tensors, OfHead(range, h)), block, in_place, pattern, tensors.divisor, own,
                    &ahead);
      }
      if (!with_full) continue;
      const FullRows<Element> full = FullRowsOf(tensors, keys, range, h, first_row + i, own);
      if ((first_row + i) % sequence.chunk == 0) full.Clear();
      AddBlock(full, rows[0], count, own, &ahead);
    }
  }
}

template <class Element>
inline void AxisAttention(const PackedAttention<Element>& tensors, const AxisPattern& pattern,
                          const QueryRange& range, const QueryRange* next, float* scratch) {
  AxisScratch at;
  at.Allocate(scratch, pattern.extent);
  const int64_t begin = range.sequence_begin;
  const AxisKeys keys{pattern,
                      pattern.sequences[range.sequence],
                      pattern.is_row + begin,
                      pattern.is_column + begin,
                      range.sequence_length,
                      Mix(pattern.seed),
                      at.keys};
  for (int64_t j = 0; pattern.random_keys > 0 && j < range.sequence_length; ++j) at.keys.drawn[j] = 0;
  if (range.first < keys.sequence.full_rows) return AttendFull(tensors, keys, range, at);
  AttendBlocks(tensors, keys, range, next, at);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
