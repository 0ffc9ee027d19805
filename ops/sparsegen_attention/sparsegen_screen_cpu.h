// Finds the keys that a query can attend to at all by products of bytes, which take a quarter to two thirds
// of the time of products in float32. The products of the few keys that are left are then computed in
// float32.
//
// The screen is exact. Keys k of a head are rounded to k' by one scale, queries q to q' each by its own, so
// that by Cauchy and Schwarz no score is further from that of k' and q' than
//
//   error(q) = scale (|q| max |k - k'| + |q - q'| max |k'|)
//
// Moving scores moves the root over them by no more than the scores themselves. With the root over the scores
// of k' and q', or over the maxima of classes of those, a key whose score is below root - 2 error(q) weighs
// nothing.
//
// All of it depends on a query's own numbers and those of its keys alone. A query with many keys left, or
// with a number that is not finite, is computed as if there were no screen.
#pragma once

#include "cpu/integer_products.h"
#include "sparsegen_attention/query_rows_cpu.h"

#if defined(SPARSE_OPS_HAS_INTEGER_PRODUCTS)

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Sequences of this many keys and more are screened.
constexpr int64_t kScreenedKeys = 256;
// Largest length of a row, and largest product: beyond them scores may not be finite.
constexpr float kLongest = 0x1p60f;
constexpr float kLargestProduct = 0x1p120f;
// The largest length of a row whose squares are all too small for float32.
constexpr float kVanished = 0x1p-57f;

// A sequence is divided into this many parts. The first keys of each tell whether the screen is worth it.
constexpr int64_t kProbes = 4;
// Of normally distributed scores a fifteenth weighs something where their standard deviation is this times
// the divisor over the number of keys.
constexpr float kDenseSpread = 32.0f;

// The most keys of a query that are computed one by one.
constexpr int64_t MostCandidates(int64_t keys) { return keys / 4; }

// Rows of 8-bit integers.
struct Int8Rows {
  int8_t* values;  // (rows, stride)
  int64_t stride;
};

struct Screen {
  Int8Rows keys;
  int32_t* shift;  // (keys, rounded up to kLanes) where sums of products begin, to cancel kQueryOffset
  float* norms;    // max |k - k'|, max |k'| and the scale of the keys
  Int8Rows queries;
  float* query_scale;       // (kPanelQueries)
  int32_t* query_panel;     // (stride / kPacked, kPanelQueries) packed numbers, shifted
  float* errors;            // (kPanelQueries)
  int32_t* candidates;      // (ceil(keys / 32), kPanelQueries): bit i of word w is key 32 * w + i
  int32_t* candidate_keys;  // (kLanes, capacity), and room: the candidates of each query, rising
  float* candidate_scores;  // (kLanes, capacity)
  float* slots;             // (capacity, kLanes)
  int64_t capacity;

  void Allocate(ScratchLayout* layout, int64_t longest_sequence, int64_t head_size) {
    const int64_t stride = RoundUp(head_size, kPacked * kPacksTogether);
    keys = AllocateRows(layout, longest_sequence, stride);
    shift = reinterpret_cast<int32_t*>(layout->Take(RoundUp(longest_sequence, kLanes)));
    norms = layout->Take(3);
    queries = AllocateRows(layout, kPanelQueries, stride);
    query_scale = layout->Take(kPanelQueries);
    query_panel = reinterpret_cast<int32_t*>(layout->Take(stride / kPacked * kPanelQueries));
    errors = layout->Take(kPanelQueries);
    candidates = reinterpret_cast<int32_t*>(layout->Take(RoundUp(longest_sequence, 32) / 32 * kPanelQueries));
    capacity = RoundUp(MostCandidates(longest_sequence), kLanes);
    candidate_keys = reinterpret_cast<int32_t*>(layout->Take(kLanes * capacity + kLanes));
    candidate_scores = layout->Take(kLanes * capacity);
    slots = layout->Take(kLanes * capacity);
  }

  static Int8Rows AllocateRows(ScratchLayout* layout, int64_t rows, int64_t stride) {
    return {reinterpret_cast<int8_t*>(layout->Take(rows * stride / kPacked)), stride};
  }
};

inline bool IsScreened(int64_t keys, float divisor) {
  return keys >= kScreenedKeys && divisor <= kLargestDivisor;
}

// The group of keys that a part of the sequence begins with.
constexpr int64_t ProbedGroup(int64_t probe, int64_t groups) { return probe * groups / kProbes; }

// Scores the first group of each part, as ScorePanel would. Returns the queries, a bit each, of which many
// keys seem to weigh something.
template <int64_t Vectors, class Element>
inline unsigned ProbePanel(const float* query_panel, const KeysAndValues<Element>& head, int64_t keys,
                           int64_t head_size, float scale, float divisor, float* buffer, float* scores,
                           float* maxima) {
  const int64_t groups = keys / kKeyRows;
  for (int64_t i = 0; i < Min(groups, kMaxClasses) * kPanelQueries; i += kLanes) {
    Store(maxima + i, Broadcast(-kInfinity));
  }
  Floats sum[Vectors] = {}, squares[Vectors] = {};
  for (int64_t probe = 0; probe < kProbes; ++probe) {
    const int64_t group = ProbedGroup(probe, groups);
    const int64_t j = group * kKeyRows;
    float* own = scores + j * kPanelQueries;
    ScoreKeys<kKeyRows, Vectors>(query_panel, head.key + j * head.stride, head.stride, head_size, scale,
                                 buffer, own, maxima + group % kMaxClasses * kPanelQueries);
    for (int64_t r = 0; r < kKeyRows; ++r) {
      for (int64_t v = 0; v < Vectors; ++v) {
        const Floats score = Load(own + r * kPanelQueries + v * kLanes);
        sum[v] = sum[v] + score;
        squares[v] = MulAdd(score, score, squares[v]);
      }
    }
  }
  const Floats each = Broadcast(1.0f / static_cast<float>(kProbes * kKeyRows));
  const float spread = kDenseSpread * divisor / static_cast<float>(keys);
  unsigned many = 0;
  for (int64_t v = 0; v < Vectors; ++v) {
    const Floats mean = sum[v] * each;
    const Mask is_dense = Above(Broadcast(spread * spread), squares[v] * each - mean * mean);
    many |= Bits(is_dense) << (v * kLanes);
  }
  return many;
}

// Scores what ProbePanel has left; returns what ScorePanel does.
template <int64_t Vectors, class Held, class Ahead>
inline int64_t ScoreRest(const float* query_panel, const KeysAndValues<Held>& head, int64_t keys,
                         int64_t head_size, float scale, float* buffer, float* scores, float* maxima,
                         Ahead& ahead) {
  const int64_t groups = keys / kKeyRows;
  const auto score = [&](int64_t j, int64_t group) {
    ScoreKeys<kKeyRows, Vectors>(query_panel, head.key + j * head.stride, head.stride, head_size, scale,
                                 buffer, scores + j * kPanelQueries,
                                 maxima + group % kMaxClasses * kPanelQueries);
    ahead.AfterScoring();
  };
  for (int64_t probe = 0; probe < kProbes; ++probe) {
    for (int64_t group = ProbedGroup(probe, groups) + 1; group < ProbedGroup(probe + 1, groups); ++group) {
      score(group * kKeyRows, group);
    }
  }
  if (keys % kKeyRows != 0) score(keys - kKeyRows, groups - 1);
  return Min(groups, kMaxClasses);
}

inline Floats Length(Floats squares) { return Sqrt(squares) + Broadcast(kVanished); }

// Of up to kLanes rows, one in each lane: the least scale with which its numbers fit, 0 where they vanish,
// and its length.
struct Measured {
  Floats scale, length;
};

// Measures `count` rows; from(r) is where the r-th lies.
template <bool kIsKey, class RowAt>
inline Measured MeasureRows(const RowAt& from, int64_t count, int64_t columns) {
  Floats largest[kLanes] = {}, norm[kLanes] = {}, half[kLanes] = {};
  for (int64_t r = 0; r < count; ++r) {
    const auto* row = from(r);
    Floats most{}, squares{};
    HalfSums sums;
    for (int64_t d = 0; d < columns; d += kLanes) {
      const Floats x = LoadFirst(row + d, columns - d);
      most = Max(Max(x, Floats{} - x), most);
      squares = MulAdd(x, x, squares);
      if (kIsKey) sums.Add(x, d);
    }
    sums.Close();
    largest[r] = most;
    norm[r] = squares;
    half[r] = sums.largest;
  }
  const Floats magnitude = LargestEach(largest);
  const Floats scale = Max(magnitude / Broadcast(static_cast<float>(kIsKey ? kLargestKey : kLargestQuery)),
                           LargestEach(half) / Broadcast(static_cast<float>(kLargestHalf)));
  return {Select(Above(Broadcast(0x1p-100f), magnitude), Floats{}, scale), Length(SumEach(norm))};
}

// Of rows likewise: the length of what rounding takes away, and the sum of the rounded numbers.
struct Rounded {
  Floats lost, sum;
};

// Rounds `count` rows by a scale each into `rows` from row `first` on, with zeros up to the stride.
template <class RowAt>
inline Rounded RoundRows(const RowAt& from, int64_t count, int64_t columns, Floats scale,
                         const Int8Rows& rows, int64_t first) {
  alignas(64) float factor[kLanes], width[kLanes];
  Store(factor, Select(Above(scale, Floats{}), Broadcast(1.0f) / scale, Floats{}));
  Store(width, scale);
  Floats lost[kLanes] = {}, sum[kLanes] = {};
  for (int64_t r = 0; r < count; ++r) {
    const auto* row = from(r);
    int8_t* to = rows.values + (first + r) * rows.stride;
    const Floats times = Broadcast(factor[r]), back = Broadcast(-width[r]);
    Floats squares{}, total{};  // in registers, as the stored bytes may alias memory
    for (int64_t d = 0; d < columns; d += kLanes) {
      const Floats x = LoadFirst(row + d, columns - d);
      const Ints whole = ToInts(x * times);
      const Floats rounded = ToFloats(whole);
      const Floats y = MulAdd(rounded, back, x);
      squares = MulAdd(y, y, squares);
      total = total + rounded;
      StoreBytes(to + d, Min(RoundUp(columns - d, kPacked), kLanes), whole);
    }
    lost[r] = squares;
    sum[r] = total;
    for (int64_t d = RoundUp(columns, kPacked); d < rows.stride; ++d) to[d] = 0;
  }
  return {Length(SumEach(lost)), SumEach(sum)};
}

// Rounds the keys of a head. A row that is not finite makes the norms infinite.
template <class Element>
inline void RoundKeys(const KeysAndValues<Element>& head, int64_t keys, int64_t head_size,
                      const Screen& screen) {
  Floats longest{}, scales{}, lost_most{};
  Mask odd{};
  // visit(begin, count, row): up to kLanes keys from the begin-th on, of which row(r) is where the r-th lies.
  const auto by_lanes = [&](const auto& visit) {
    for (int64_t begin = 0; begin < keys; begin += kLanes) {
      visit(begin, Min(kLanes, keys - begin),
            [&](int64_t r) { return head.key + (begin + r) * head.stride; });
    }
  };
  by_lanes([&](int64_t, int64_t count, const auto& row) {
    const Measured measured = MeasureRows<true>(row, count, head_size);
    odd = Or(odd, NotAtMost(measured.length, Broadcast(kLongest)));
    longest = Max(longest, measured.length);
    scales = Max(scales, measured.scale);
  });
  const float scale = LargestLane(scales);
  by_lanes([&](int64_t begin, int64_t count, const auto& row) {
    const Rounded rounded = RoundRows(row, count, head_size, Broadcast(scale), screen.keys, begin);
    lost_most = Max(lost_most, rounded.lost);
    StoreInts(screen.shift + begin, ToInts(rounded.sum * Broadcast(-static_cast<float>(kQueryOffset))));
  });
  const float lost = LargestLane(lost_most);
  screen.norms[0] = Any(odd) ? kInfinity : lost;
  screen.norms[1] = Any(odd) ? kInfinity : LargestLane(longest) + lost;
  screen.norms[2] = scale;
}

// Rounds up to kPanelQueries queries. Their errors are infinite where the screen cannot be trusted.
template <class Element>
inline void RoundQueries(const QueryRows<Element>& panel, const Screen& screen) {
  const int64_t head_size = panel.tensors.head_size;
  const int64_t packs = screen.queries.stride / kPacked;
  for (int64_t begin = 0; begin < panel.count; begin += kLanes) {
    const int64_t rows = Min(kLanes, panel.count - begin);
    const auto row = [&](int64_t r) { return panel.query(begin + r); };
    const Measured measured = MeasureRows<false>(row, rows, head_size);
    const Rounded rounded = RoundRows(row, rows, head_size, measured.scale, screen.queries, begin);
    Store(screen.query_scale + begin, measured.scale);
    const PackedAttention<Element>& tensors = panel.tensors;
    // Besides what rounding to bytes takes away, the rounding of the products themselves.
    const float per_length = screen.norms[0] + screen.norms[1] * 6e-8f * static_cast<float>(head_size + 64);
    const Floats error = measured.length * Broadcast(per_length) + rounded.lost * Broadcast(screen.norms[1]);
    const Floats padded =
        error * Broadcast(1.001f * tensors.scale) + Broadcast(kBoundSlack * tensors.divisor);
    const float largest = kLargestProduct / (tensors.scale > 1.0f ? tensors.scale : 1.0f);
    const Mask trusted = Above(Broadcast(largest), measured.length * Broadcast(screen.norms[1]));
    Store(screen.errors + begin, Select(trusted, padded, Broadcast(kInfinity)));
    const int64_t stride = screen.queries.stride;
    Transpose(reinterpret_cast<const float*>(screen.queries.values + begin * stride), packs, rows, packs,
              reinterpret_cast<float*>(screen.query_panel) + begin, kPanelQueries);
    for (int64_t d = 0; d < packs; ++d) {
      int32_t* pack = screen.query_panel + d * kPanelQueries + begin;
      for (int64_t r = rows; r < kLanes; ++r) pack[r] = 0;
      StoreInts(pack, ShiftPacked(LoadInts(pack)));
    }
  }
}

// ScoreKeys for integers: scores and maxima are sums of products.
template <int64_t Rows, int64_t Vectors>
inline void ScreenKeys(const Screen& screen, int64_t first, int32_t* scores, int32_t* maxima) {
  const int64_t packs = screen.keys.stride / kPacked;
  const int8_t* key = screen.keys.values + first * screen.keys.stride;
  Ints sum[Rows][Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = Ints{} + screen.shift[first + r];
  }
  const auto add = [&](int64_t d, Ints(&to)[Rows][Vectors]) {
    Ints query[Vectors];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      query[v] = LoadInts(screen.query_panel + d * kPanelQueries + v * kLanes);
    }
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      int32_t pack;
      __builtin_memcpy(&pack, key + r * screen.keys.stride + d * kPacked, sizeof(pack));
      const Ints k = Ints{} + pack;
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) to[r][v] = AddProducts(to[r][v], query[v], k);
    }
  };
  if constexpr (kAddsHalves) {
    for (int64_t d = 0; d < packs; d += kPacksTogether) {
      Ints halves[Rows][Vectors] = {};
      SPARSE_OPS_UNROLL
      for (int64_t p = 0; p < kPacksTogether; ++p) add(d + p, halves);
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < Rows; ++r) {
        SPARSE_OPS_UNROLL
        for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = AddHalves(sum[r][v], halves[r][v]);
      }
    }
  } else {
    for (int64_t d = 0; d < packs; ++d) add(d, sum);
  }
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) {
    Ints maximum = LoadInts(maxima + v * kLanes);
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      StoreInts(scores + r * kPanelQueries + v * kLanes, sum[r][v]);
      maximum = MaxInts(sum[r][v], maximum);
    }
    StoreInts(maxima + v * kLanes, maximum);
  }
}

// Marks the candidates of kLanes queries, from lane `lane` of a panel on: keys whose sum, times `factor`, is
// `least` or more, and few whose is not. Returns how many there are.
inline Ints MarkCandidates(const Screen& screen, int64_t lane, const ScoreColumn& column, Floats factor,
                           Floats least) {
  // One less, for what the division rounds away. Where it is no integer of 32 bits, all keys are candidates.
  const Ints bound = ToInts(least / factor - Broadcast(1.0f));
  const int32_t* sums = reinterpret_cast<const int32_t*>(column.scores);
  Ints count{};
  for (int64_t begin = 0; begin < column.keys; begin += 32) {
    Ints word{}, own{};
    for (int64_t j = Min(column.keys, begin + 32) - 1; j >= begin; --j) {
      const Mask in = NotBelow(LoadInts(sums + j * column.stride), bound);
      word = CountIf(in, reinterpret_cast<Ints>(reinterpret_cast<Words>(word) << 1));
      own = CountIf(in, own);
    }
    count = count + own;
    StoreInts(screen.candidates + begin / 32 * kPanelQueries + lane, word);
  }
  return count;
}

// Marks the candidates of a panel, whose scores are sums of products, to be multiplied by `factor`. Returns
// the queries, a bit each, that have few.
template <int64_t Vectors>
inline unsigned FewCandidates(const Screen& screen, const ScoreColumn& first, const Floats (&factor)[Vectors],
                              float divisor) {
  for (int64_t c = 0; c < first.classes; ++c) {
    for (int64_t v = 0; v < Vectors; ++v) {
      float* maxima = first.maxima + c * first.maxima_stride + v * kLanes;
      Store(maxima, ToFloats(LoadInts(reinterpret_cast<const int32_t*>(maxima))) * factor[v]);
    }
  }
  Floats shift[Vectors], root[Vectors];
  for (int64_t v = 0; v < Vectors; ++v) root[v] = Broadcast(-1.0f);
  RootsOfMaxima(first, Broadcast(1.0f / divisor), shift, root);
  unsigned few = 0;
  for (int64_t v = 0; v < Vectors; ++v) {
    const int64_t lane = v * kLanes;
    const Floats error = Load(screen.errors + lane);
    const Floats least = shift[v] + root[v] * Broadcast(divisor) - (error + error);
    const Ints count = MarkCandidates(screen, lane, first.Beside(v), factor[v], least);
    // Where the screen cannot be trusted, its count means nothing: all scores may seem to be -inf.
    const Mask trusted = Above(Broadcast(kInfinity), error);
    const Floats counted = Select(trusted, ToFloats(count), Broadcast(kInfinity));
    const float most = static_cast<float>(MostCandidates(first.keys)) + 0.5f;
    few |= Bits(Above(Broadcast(most), counted)) << lane;
  }
  return few;
}

// ScorePanel for integers, which also marks candidates. Returns the queries, a bit each, that have few.
template <int64_t Vectors, class Ahead>
inline unsigned ScreenPanel(const Screen& screen, int64_t keys, float scale, float divisor, float* scores,
                            float* maxima, Ahead& ahead) {
  Floats factor[Vectors];
  for (int64_t v = 0; v < Vectors; ++v) {
    factor[v] = Load(screen.query_scale + v * kLanes) * Broadcast(scale) * Broadcast(screen.norms[2]);
  }
  // Maxima begin at -inf, whose bits are an integer below any sum of products.
  static_assert(kLargestQuery * kLargestKey * kMaxHeadSize < 0x800000, "a sum may be below the bits of -inf");
  const int64_t classes = ScoreGroups(keys, maxima, ahead, [&](int64_t j, float* class_maxima) {
    static_assert(kKeyRows % kScreenRows == 0, "a group of keys is of whole tiles");
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < kKeyRows; r += kScreenRows) {
      ScreenKeys<kScreenRows, Vectors>(screen, j + r,
                                       reinterpret_cast<int32_t*>(scores + (j + r) * kPanelQueries),
                                       reinterpret_cast<int32_t*>(class_maxima));
    }
  });
  return FewCandidates<Vectors>(screen, {scores, kPanelQueries, keys, maxima, kPanelQueries, classes}, factor,
                                divisor);
}

// Lists the candidates of the query in lane `lane` of the panel; returns how many there are. What lies behind
// them in the list is lost.
inline int64_t ListCandidates(const Screen& screen, int64_t lane, int64_t keys, int32_t* list) {
  int64_t count = 0;
  const int32_t* word = screen.candidates + lane;
  for (int64_t begin = 0; begin < keys; begin += 32, word += kPanelQueries) {
    count += ListBits(static_cast<uint32_t>(*word), static_cast<int32_t>(begin), list + count);
  }
  return count;
}

// Scores a query's candidates, of which there is at least one, with -inf up to a multiple of kLanes. Vectors:
// those of the head size, or 0 for any head size.
template <int64_t Vectors, class Element, class Held>
inline void ScoreCandidates(const Element* query, const KeysAndValues<Held>& head, int64_t head_size,
                            float scale, const int32_t* keys, int64_t count, float* scores) {
  constexpr int64_t kTogether = 4;  // keys whose sums are computed together, which hides latency
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    Floats sum[kLanes] = {};
    SPARSE_OPS_UNROLL
    for (int64_t first = 0; first < kLanes; first += kTogether) {
      const Held* key[kTogether];
      SPARSE_OPS_UNROLL
      for (int64_t t = 0; t < kTogether; ++t) {
        key[t] = head.key + keys[Min(begin + first + t, count - 1)] * head.stride;
      }
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) {
        const Floats own = Load(query + v * kLanes);
        SPARSE_OPS_UNROLL
        for (int64_t t = 0; t < kTogether; ++t) {
          sum[first + t] = MulAdd(own, Load(key[t] + v * kLanes), sum[first + t]);
        }
      }
      for (int64_t d = Vectors == 0 ? 0 : head_size; d < head_size; d += kLanes) {
        const Floats own = LoadFirst(query + d, head_size - d);
        SPARSE_OPS_UNROLL
        for (int64_t t = 0; t < kTogether; ++t) {
          sum[first + t] = MulAdd(own, LoadFirst(key[t] + d, head_size - d), sum[first + t]);
        }
      }
    }
    const Mask real = MaskOf(OfFirst(Min(kLanes, count - begin)));
    Store(scores + begin, Select(real, SumEach(sum) * Broadcast(scale), Broadcast(-kInfinity)));
  }
}

// Turns scores into weights, in the rows that are wanted.
inline void SolveSlots(float divisor, unsigned wanted, Survivors* survivors) {
  Floats maximum = Broadcast(-kInfinity);
  for (int64_t t = 0; t < survivors->count; ++t)
    maximum = Max(Load(survivors->weights + t * kLanes), maximum);
  const Floats scale = Broadcast(1.0f / divisor);
  for (int64_t t = 0; t < survivors->count; ++t) {
    float* value = survivors->weights + t * kLanes;
    Store(value, (Load(value) - maximum) * scale);
  }
  Floats tau[1] = {Start(wanted)};
  RootsFromLeft(survivors->weights, 0, survivors->count, tau);
  WeighSurvivors(tau[0], survivors);
}

template <class Element, class Held>
inline void ScoreCandidatesOf(const Element* query, const KeysAndValues<Held>& head, int64_t head_size,
                              float scale, const int32_t* keys, int64_t count, float* scores) {
  const auto score = head_size == 8 * kLanes   ? ScoreCandidates<8, Element, Held>
                     : head_size == 4 * kLanes ? ScoreCandidates<4, Element, Held>
                     : head_size == 2 * kLanes ? ScoreCandidates<2, Element, Held>
                                               : ScoreCandidates<0, Element, Held>;
  score(query, head, head_size, scale, keys, count, scores);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops

#endif
