// The threshold of sparsegen-lin for kLanes rows at once: a vector holds the scores of kLanes rows for one
// key, so nothing is ever added or compared across lanes and a row's result cannot depend on its neighbours.
//
// With v_j = (e_j - max e) / (1 - lambda), tau is the root of f(t) = sum max(0, v_j - t) - 1 (SSAF, Eq. 6).
// Newton's method from the left, t <- (sum_{v_j > t} v_j - 1) / #{v_j > t}, rises monotonically and ends
// at the root, as float32 has it, once the set no longer changes. Every step at least quarters the product of
// f and its slope, so float32 with 2^31 keys cannot need more than log4(2^24 * 2^31 * 2^31) = 43 steps;
// kMaxSteps bounds the loop should rounding interfere.
//
// The root over any subset of the keys is a lower bound of tau. The caller passes the maxima of classes of
// keys, which are such a subset. Their root discards almost every key, and the exact root needs only the
// rest.
#pragma once

#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

constexpr int kMaxSteps = 64;
// Slack of the lower bound: far above the rounding of a root over kMaxClasses values in [-1, 0], and far
// below what would let extra keys through.
constexpr float kBoundSlack = 1e-5f;
constexpr int64_t kMaxClasses = 64;

// A step of Newton's method. The values are added up in two parts, which hides the latency of the additions.
// A value that is not above tau changes no sum, so a row's root depends on its own values in either part,
// never on those that are kept for its neighbours.
struct NewtonStep {
  Floats tau;
  Floats sum[2] = {};
  Ints above[2] = {};

  void Add(int part, Floats value) {
    const Mask in = Above(value, tau);
    sum[part] = AddIf(in, sum[part], value);
    above[part] = CountIf(in, above[part]);
  }
  // Moves tau where it rises: an empty set gives -inf, which never does.
  Mask Rise() {
    const Floats next =
        (sum[0] + sum[1] - Broadcast(1.0f)) / __builtin_convertvector(above[0] + above[1], Floats);
    const Mask rises = Above(next, tau);
    tau = Select(rises, next, tau);
    return rises;
  }
};

// Where Newton's method starts in the rows whose bit is set; +inf in the others, which hold no row.
inline Floats Start(unsigned rows) { return Select(MaskOf(rows), Broadcast(-1.0f), Broadcast(kInfinity)); }

// values: count vectors, the first `first` of which are one part; start: at most the root, or +inf in lanes
// that hold no row.
inline Floats RootFromLeft(const float* values, int64_t first, int64_t count, Floats start) {
  const int64_t both = Min(first, count - first);
  Floats tau = start;
  for (int i = 0; i < kMaxSteps; ++i) {
    NewtonStep step{tau};
    for (int64_t t = 0; t < both; ++t) {
      step.Add(0, Load(values + t * kLanes));
      step.Add(1, Load(values + (first + t) * kLanes));
    }
    for (int64_t t = both; t < first; ++t) step.Add(0, Load(values + t * kLanes));
    for (int64_t t = first + both; t < count; ++t) step.Add(1, Load(values + t * kLanes));
    if (!Any(step.Rise())) break;
    tau = step.tau;
  }
  return tau;
}

// RootFromLeft for several columns of kLanes rows at once, which hides more of the latency. Column c is at
// values + c * column, and every second of its values is one part.
template <int64_t Columns>
inline void RootsFromLeft(const float* values, ptrdiff_t column, int64_t count, Floats (&tau)[Columns]) {
  for (int i = 0; i < kMaxSteps; ++i) {
    NewtonStep step[Columns];
    SPARSE_OPS_UNROLL
    for (int64_t c = 0; c < Columns; ++c) step[c].tau = tau[c];
    for (int64_t t = 0; t + 2 <= count; t += 2) {
      SPARSE_OPS_UNROLL
      for (int64_t c = 0; c < Columns; ++c) {
        step[c].Add(0, Load(values + c * column + t * kLanes));
        step[c].Add(1, Load(values + c * column + (t + 1) * kLanes));
      }
    }
    unsigned rises = 0;
    SPARSE_OPS_UNROLL
    for (int64_t c = 0; c < Columns; ++c) {
      if (count % 2 != 0) step[c].Add(0, Load(values + c * column + (count - 1) * kLanes));
      rises |= Bits(step[c].Rise());
      tau[c] = step[c].tau;
    }
    if (rises == 0) break;
  }
}

// Scores of kLanes rows: vector j, at scores + j * stride, belongs to key j. Class maxima likewise.
struct ScoreColumn {
  float* scores;
  ptrdiff_t stride;
  int64_t keys;
  float* maxima;
  ptrdiff_t maxima_stride;
  int64_t classes;

  // Column c of several that lie beside each other, of which this is the first.
  ScoreColumn Beside(int64_t c) const {
    return {scores + c * kLanes, stride, keys, maxima + c * kLanes, maxima_stride, classes};
  }
};

// The keys that at least one of the rows attends to: the even ones in rising order, then the odd ones. Each
// array has room for all keys.
struct Survivors {
  float* weights;     // count vectors: max(0, v - tau)
  int32_t* keys;      // count: to which key each belongs
  int32_t* positive;  // ceil(count / 32) vectors: bit i of vector w says that the row's weight 32 * w + i is
                      // above 0
  int64_t count;
  Ints support;  // weights above 0 of each row
  Mask nan;      // rows with a NaN or +inf score: their result is NaN, whatever stands in their weights
};

// The reciprocal of a larger divisor is subnormal, which some threads treat as 0.
constexpr float kLargestDivisor = 0x1p126f;

// Divides scores and maxima by 4.
inline void QuarterScores(const ScoreColumn& column) {
  const Floats quarter = Broadcast(0.25f);
  for (int64_t j = 0; j < column.keys; ++j) {
    float* scores = column.scores + j * column.stride;
    Store(scores, Load(scores) * quarter);
  }
  for (int64_t c = 0; c < column.classes; ++c) {
    float* maxima = column.maxima + c * column.maxima_stride;
    Store(maxima, Load(maxima) * quarter);
  }
}

// The score that v is relative to: the largest one, or 0 where all are -inf.
inline Floats Shift(const ScoreColumn& column) {
  Floats maximum = Broadcast(-kInfinity);
  for (int64_t c = 0; c < column.classes; ++c) {
    maximum = Max(Load(column.maxima + c * column.maxima_stride), maximum);
  }
  return Select(Above(maximum, Broadcast(-kInfinity)), maximum, Floats{});
}

// Turns the class maxima into v.
inline void ScaleMaxima(const ScoreColumn& column, Floats shift, Floats scale, float* values) {
  for (int64_t c = 0; c < column.classes; ++c) {
    Store(values + c * kLanes, (Load(column.maxima + c * column.maxima_stride) - shift) * scale);
  }
}

// The root over the class maxima, from the left.
inline Floats RootOfMaxima(const ScoreColumn& column, Floats shift, Floats scale, Floats start) {
  alignas(64) float values[kMaxClasses * kLanes];
  ScaleMaxima(column, shift, scale, values);
  return RootFromLeft(values, column.classes / 2, column.classes, start);
}

// Turns v into weights: max(0, v - tau).
inline void WeighSurvivors(Floats tau, Survivors* survivors) {
  const int64_t count = survivors->count;
  float* const weights = survivors->weights;
  Ints support = Ints{};
  Mask nan = Mask{};
  for (int64_t begin = 0; begin < count; begin += 32) {
    Ints positive = Ints{};
    Ints bit = Ints{} + 1;
    for (int64_t t = begin; t < Min(count, begin + 32); ++t) {
      const Floats v = Load(weights + t * kLanes);
      const Mask in = Above(v, tau);
      nan = Or(nan, IsNan(v));
      support = CountIf(in, support);
      positive = SetIf(in, positive, bit);
      bit = bit << 1;
      Store(weights + t * kLanes, Select(in, v - tau, Floats{}));
    }
    StoreInts(survivors->positive + begin / 32 * kLanes, positive);
  }
  survivors->support = support;
  survivors->nan = nan;
}

// divisor = 1 - lambda; rows beyond `rows` hold nothing. A score of -inf weighs 0, and so does every score of
// a row that has no other. The scores of the column may be lost.
inline void SolveSparsegen(const ScoreColumn& column, float divisor, int64_t rows, Survivors* survivors) {
  if (divisor > kLargestDivisor) {
    QuarterScores(column);
    divisor *= 0.25f;
  }
  const Floats shift = Shift(column);
  const Floats scale = Broadcast(1.0f / divisor);
  const Floats bound = RootOfMaxima(column, shift, scale, Start(OfFirst(rows))) - Broadcast(kBoundSlack);

  // Without a branch: whether a key is kept is close to random. Even keys first, then odd ones: the parts
  // must not depend on what the neighbours keep. The first step is taken meanwhile.
  const int64_t odd_begin = (column.keys + 1) / 2;
  int64_t even = 0;
  int64_t odd = 0;
  NewtonStep step{bound};
  // Copies of the pointers: else the compiler would read them again for each key, as what is stored could be
  // them.
  float* const weights = survivors->weights;
  int32_t* const kept_keys = survivors->keys;
  const ptrdiff_t stride = column.stride;
  const int64_t keys = column.keys;
  const auto keep = [=, &step](int part, int64_t kept, const float* score, int64_t j) {
    const Floats v = (Load(score) - shift) * scale;
    step.Add(part, v);
    const int64_t t = part * odd_begin + kept;
    Store(weights + t * kLanes, v);
    kept_keys[t] = static_cast<int32_t>(j);
    return kept + (Any(NotAtMost(v, bound)) ? 1 : 0);
  };
  const float* score = column.scores;
  for (int64_t j = 0; j + 2 <= keys; j += 2, score += 2 * stride) {
    even = keep(0, even, score, j);
    odd = keep(1, odd, score + stride, j + 1);
  }
  if (keys % 2 != 0) even = keep(0, even, score, keys - 1);
  for (int64_t t = 0; t < odd; ++t) {
    Store(weights + (even + t) * kLanes, Load(weights + (odd_begin + t) * kLanes));
    kept_keys[even + t] = kept_keys[odd_begin + t];
  }
  const int64_t count = even + odd;
  step.Rise();
  const Floats tau = RootFromLeft(weights, even, count, step.tau);

  survivors->count = count;
  WeighSurvivors(tau, survivors);
}

// RootOfMaxima for several columns beside each other. `shift` takes what the v of each are relative to; tau
// is the start, then the root.
template <int64_t Columns>
inline void RootsOfMaxima(const ScoreColumn& first, Floats scale, Floats (&shift)[Columns],
                          Floats (&tau)[Columns]) {
  alignas(64) float values[Columns * kMaxClasses * kLanes];
  SPARSE_OPS_UNROLL
  for (int64_t c = 0; c < Columns; ++c) {
    shift[c] = Shift(first.Beside(c));
    ScaleMaxima(first.Beside(c), shift[c], scale, values + c * kMaxClasses * kLanes);
  }
  RootsFromLeft(values, kMaxClasses * kLanes, first.classes, tau);
}

// Up to this many keys of a row are solved without discarding any: one of kLanes rows or another would keep
// most of them.
constexpr int64_t kWholeKeys = 96;

// SolveSparsegen for several columns beside each other, `rows` rows in all, with at most kWholeKeys keys and
// a divisor up to kLargestDivisor. Every key is a survivor, in rising order. The weights lie column after
// column.
template <int64_t Columns>
inline void SolveWhole(const ScoreColumn& first, float divisor, int64_t rows,
                       Survivors (&survivors)[Columns]) {
  const Floats scale = Broadcast(1.0f / divisor);
  Floats shift[Columns], tau[Columns];
  SPARSE_OPS_UNROLL
  for (int64_t c = 0; c < Columns; ++c) tau[c] = Start(OfFirst(rows) >> (c * kLanes));
  RootsOfMaxima(first, scale, shift, tau);

  NewtonStep step[Columns];
  SPARSE_OPS_UNROLL
  for (int64_t c = 0; c < Columns; ++c) step[c].tau = tau[c] - Broadcast(kBoundSlack);
  float* const weights = survivors[0].weights;
  const int64_t keys = first.keys;
  const float* scores = first.scores;
  const ptrdiff_t stride = first.stride;
  const auto scaled = [=, &shift, &step](int64_t c, int64_t j, int part) {
    const Floats v = (Load(scores + j * stride + c * kLanes) - shift[c]) * scale;
    step[c].Add(part, v);
    Store(weights + (c * keys + j) * kLanes, v);
  };
  for (int64_t j = 0; j + 2 <= keys; j += 2) {
    SPARSE_OPS_UNROLL
    for (int64_t c = 0; c < Columns; ++c) {
      scaled(c, j, 0);
      scaled(c, j + 1, 1);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t c = 0; c < Columns; ++c) {
    if (keys % 2 != 0) scaled(c, keys - 1, 0);
    step[c].Rise();
    tau[c] = step[c].tau;
  }
  RootsFromLeft(weights, keys * kLanes, keys, tau);
  for (int64_t j = 0; j < keys; ++j) survivors[0].keys[j] = static_cast<int32_t>(j);
  for (int64_t c = 0; c < Columns; ++c) {
    survivors[c].weights = weights + c * keys * kLanes;
    survivors[c].keys = survivors[0].keys;
    survivors[c].positive = survivors[0].positive + c * RoundUp(keys, 32) / 32 * kLanes;
    survivors[c].count = keys;
    WeighSurvivors(tau[c], &survivors[c]);
  }
}

// Calls visit(t) for every bit t below `count` that is set, in rising order of t: 32 in a word, a word every
// `stride`.
template <class Visit>
inline void ForEachBit(const int32_t* words, ptrdiff_t stride, int64_t count, const Visit& visit) {
  for (int64_t begin = 0; begin < count; begin += 64, words += 2 * stride) {
    uint64_t bits = static_cast<uint32_t>(words[0]);
    if (begin + 32 < count) bits |= static_cast<uint64_t>(static_cast<uint32_t>(words[stride])) << 32;
    for (; bits != 0; bits &= bits - 1) visit(begin + __builtin_ctzll(bits));
  }
}

// Calls visit(t) for every weight t of a row that is above 0, in rising order of t.
template <class Visit>
inline void ForEachPositive(const Survivors& survivors, int64_t row, const Visit& visit) {
  ForEachBit(survivors.positive + row, kLanes, survivors.count, visit);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
