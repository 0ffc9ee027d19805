// Which keys a query can attend to at all, by products of 8-bit integers: a quarter of the instructions that
// products in float32 take. The products of the few keys that are left are then computed in float32.
//
// The screen is exact. Keys k and queries q are rounded to k' and q', each by a scale of its own, so that by
// Cauchy and Schwarz no score is further from that of k' and q' than
//
//   error(q) = scale (|q| max |k - k'| + |q - q'| max |k'|)
//
// The root over any scores is moved by no more than they are. With the root over the scores of k' and q', or
// over the maxima of classes of those, no key weighs anything whose score is below root - 2 error(q).
//
// For AVX-512 with products of bytes (VNNI) alone.
//
// All of it is by a query's own numbers and those of its keys. A query that leaves many keys, or has a number
// that is not finite, is computed as if there were no screen.
#pragma once

#include "sparsegen_attention/query_rows_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// So many keys and more of a sequence are screened.
constexpr int64_t kScreenedKeys = 256;
constexpr int64_t kQuad = 4;
// Longer rows could have scores that are not finite.
constexpr float kLargestSquare = 0x1p120f;
constexpr float kLargestProduct = 0x1p120f;
// The length that a row may have though its squares are too small for float32.
constexpr float kVanished = 0x1p-57f;

// The first keys of so many parts of a sequence tell whether the screen is worth it.
constexpr int64_t kProbes = 4;
// Of scores that are spread as normal numbers are a fifteenth weighs something where their standard deviation
// is this times the divisor over the number of keys.
constexpr float kDenseSpread = 32.0f;

// How many keys of a query are computed one by one.
constexpr int64_t MostCandidates(int64_t keys) { return keys / 4; }

// Rows of bytes with a scale each.
struct ByteRows {
  int8_t* bytes;  // (rows, stride)
  int64_t stride;
  float* scale;  // (rows)
};

struct Screen {
  ByteRows keys;
  int32_t* shift;  // (keys) -128 times the sum of a key's bytes, as those of a query are 128 too large
  float* norms;    // max |k - k'| and max |k'|
  ByteRows queries;
  float* query_quads;       // (quads, kPanelQueries) four bytes each, 128 larger: unsigned
  float* errors;            // (kPanelQueries)
  int32_t* candidates;      // (ceil(keys / 32), kPanelQueries): bit i of word w is key 32 * w + i
  int32_t* candidate_keys;  // (kLanes, room): those of each query, rising
  float* candidate_scores;  // (kLanes, room)
  float* slots;             // (room, kLanes)
  int64_t room;

  void Lay(ScratchLayout* layout, int64_t longest_sequence, int64_t head_size) {
    const int64_t stride = RoundUp(head_size, kQuad);
    keys = LayRows(layout, longest_sequence, stride);
    shift = reinterpret_cast<int32_t*>(layout->Take(longest_sequence));
    norms = layout->Take(2);
    queries = LayRows(layout, kPanelQueries, stride);
    query_quads = layout->Take(stride / kQuad * kPanelQueries);
    errors = layout->Take(kPanelQueries);
    candidates = reinterpret_cast<int32_t*>(layout->Take(RoundUp(longest_sequence, 32) / 32 * kPanelQueries));
    room = RoundUp(MostCandidates(longest_sequence), kLanes);
    candidate_keys = reinterpret_cast<int32_t*>(layout->Take(kLanes * room));
    candidate_scores = layout->Take(kLanes * room);
    slots = layout->Take(kLanes * room);
  }

  static ByteRows LayRows(ScratchLayout* layout, int64_t rows, int64_t stride) {
    auto* bytes = reinterpret_cast<int8_t*>(layout->Take(rows * stride / kQuad));
    return {bytes, stride, layout->Take(rows)};
  }
};

// The first bits.
inline unsigned OfFirst(int64_t count) { return count < 32 ? (1u << count) - 1 : ~0u; }

inline bool IsScreened(int64_t keys, float divisor) {
  return keys >= kScreenedKeys && divisor <= kLargestDivisor;
}

// The group of keys that a part begins with.
constexpr int64_t ProbedGroup(int64_t probe, int64_t groups) { return probe * groups / kProbes; }

// Begins with ScorePanel. Returns the queries, a bit each, of which many keys seem to weigh something.
template <int64_t Vectors, class Element>
inline unsigned ProbePanel(const float* query_panel, const KeysAndValues<Element>& head, int64_t keys,
                           int64_t head_size, float scale, float divisor, float* room, float* scores,
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
    ScoreKeys<kKeyRows, Vectors>(query_panel, head.key + j * head.stride, head.stride, head_size, scale, room,
                                 own, maxima + group % kMaxClasses * kPanelQueries);
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

// What ProbePanel has left; returns what ScorePanel does.
template <int64_t Vectors, class Element>
inline int64_t ScoreRest(const float* query_panel, const KeysAndValues<Element>& head, int64_t keys,
                         int64_t head_size, float scale, float* room, float* scores, float* maxima) {
  const int64_t groups = keys / kKeyRows;
  const auto score = [&](int64_t j, int64_t group) {
    ScoreKeys<kKeyRows, Vectors>(query_panel, head.key + j * head.stride, head.stride, head_size, scale, room,
                                 scores + j * kPanelQueries, maxima + group % kMaxClasses * kPanelQueries);
  };
  for (int64_t probe = 0; probe < kProbes; ++probe) {
    for (int64_t group = ProbedGroup(probe, groups) + 1; group < ProbedGroup(probe + 1, groups); ++group) {
      score(group * kKeyRows, group);
    }
  }
  if (keys % kKeyRows != 0) score(keys - kKeyRows, groups - 1);
  return Min(groups, kMaxClasses);
}

// What is lost by rounding a row, and how long what it is rounded to is.
struct Rounded {
  Floats lost, kept, norm, sum;
};

template <class Element>
inline Floats LoadSome(const Element* from, int64_t count) {
  return count >= kLanes ? Load(from) : LoadPartial(from, count);
}

// Rounds a row to bytes of -127 to 127, zeros up to `stride`. The lanes of what it returns are to be added
// up.
template <class Element>
inline Rounded RoundRow(const Element* from, int64_t columns, int8_t* bytes, float* scale) {
  Floats largest{};
  for (int64_t d = 0; d < columns; d += kLanes) {
    largest = Max(_mm512_abs_ps(LoadSome(from + d, columns - d)), largest);
  }
  const float magnitude = _mm512_reduce_max_ps(largest);
  const bool is_small = !(magnitude >= 0x1p-100f);
  const Floats factor = Broadcast(is_small ? 0.0f : 127.0f / magnitude);
  *scale = is_small ? 0.0f : magnitude / 127.0f;
  const Floats step = Broadcast(*scale);
  Rounded rounded{};
  for (int64_t d = 0; d < columns; d += kLanes) {
    const Floats x = LoadSome(from + d, columns - d);
    const __m512i whole = _mm512_cvtps_epi32(x * factor);
    const int64_t count = Min(RoundUp(columns - d, kQuad), kLanes);
    _mm512_mask_cvtsepi32_storeu_epi8(bytes + d, static_cast<Mask>((1u << count) - 1), whole);
    const Floats as_float = _mm512_cvtepi32_ps(whole);
    const Floats y = as_float * step;
    rounded.lost = MulAdd(x - y, x - y, rounded.lost);
    rounded.kept = MulAdd(y, y, rounded.kept);
    rounded.norm = MulAdd(x, x, rounded.norm);
    rounded.sum = rounded.sum + as_float;
  }
  return rounded;
}

// Lengths of rows, of which each has squares to be added up.
inline Floats Length(const Floats (&squares)[kLanes]) {
  return _mm512_sqrt_ps(SumEach(squares)) + Broadcast(kVanished);
}

// The keys of a head. A row that is not finite makes the norms so.
template <class Element>
inline void RoundKeys(const KeysAndValues<Element>& head, int64_t keys, int64_t head_size,
                      const Screen& screen) {
  Floats lost_most{}, kept_most{};
  Mask odd{};
  for (int64_t begin = 0; begin < keys; begin += kLanes) {
    const int64_t rows = Min(kLanes, keys - begin);
    Floats lost[kLanes] = {}, kept[kLanes] = {}, sum[kLanes] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t j = begin + r;
      const Rounded rounded = RoundRow(head.key + j * head.stride, head_size,
                                       screen.keys.bytes + j * screen.keys.stride, screen.keys.scale + j);
      lost[r] = rounded.lost;
      kept[r] = rounded.kept;
      sum[r] = rounded.sum;
    }
    const Floats all_lost = SumEach(lost), all_kept = SumEach(kept);
    odd = Or(odd, Or(NotAtMost(all_lost, Broadcast(kLargestSquare)),
                     NotAtMost(all_kept, Broadcast(kLargestSquare))));
    lost_most = Max(lost_most, all_lost);
    kept_most = Max(kept_most, all_kept);
    const __m512i shift = _mm512_cvtps_epi32(SumEach(sum) * Broadcast(-128.0f));
    _mm512_mask_storeu_epi32(screen.shift + begin, static_cast<Mask>((1u << rows) - 1), shift);
  }
  screen.norms[0] = Any(odd) ? kInfinity : __builtin_sqrtf(_mm512_reduce_max_ps(lost_most)) + kVanished;
  screen.norms[1] = Any(odd) ? kInfinity : __builtin_sqrtf(_mm512_reduce_max_ps(kept_most)) + kVanished;
}

// Up to kPanelQueries queries. errors: infinite where the screen cannot be trusted.
template <class Element>
inline void RoundQueries(const QueryRows<Element>& panel, const Screen& screen) {
  const int64_t head_size = panel.tensors.head_size;
  const int64_t quads = screen.queries.stride / kQuad;
  for (int64_t begin = 0; begin < panel.count; begin += kLanes) {
    const int64_t rows = Min(kLanes, panel.count - begin);
    Floats lost[kLanes] = {}, norm[kLanes] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t q = begin + r;
      const Rounded rounded =
          RoundRow(panel.query(q), head_size, screen.queries.bytes + q * screen.queries.stride,
                   screen.queries.scale + q);
      lost[r] = rounded.lost;
      norm[r] = rounded.norm;
    }
    const PackedAttention<Element>& tensors = panel.tensors;
    const Floats length = Length(norm);
    // Beside what is lost, how far the products themselves are rounded.
    const float per_length = screen.norms[0] + screen.norms[1] * 6e-8f * static_cast<float>(head_size + 64);
    const Floats error = length * Broadcast(per_length) + Length(lost) * Broadcast(screen.norms[1]);
    const Floats padded =
        error * Broadcast(1.001f * tensors.scale) + Broadcast(kBoundSlack * tensors.divisor);
    const float largest = kLargestProduct / (tensors.scale > 1.0f ? tensors.scale : 1.0f);
    const Mask trusted =
        _mm512_cmp_ps_mask(length * Broadcast(screen.norms[1]), Broadcast(largest), _CMP_LE_OQ);
    Store(screen.errors + begin, Select(trusted, padded, Broadcast(kInfinity)));
    for (int64_t r = rows; r < kLanes; ++r) screen.queries.scale[begin + r] = 0.0f;
    Transpose(reinterpret_cast<const float*>(screen.queries.bytes + begin * screen.queries.stride), quads,
              rows, quads, screen.query_quads + begin, kPanelQueries);
    for (int64_t d = 0; d < quads; ++d) {
      float* quad = screen.query_quads + d * kPanelQueries + begin;
      for (int64_t r = rows; r < kLanes; ++r) quad[r] = 0.0f;
      _mm512_storeu_si512(quad, _mm512_xor_si512(_mm512_loadu_si512(quad), _mm512_set1_epi8(-128)));
    }
  }
}

// As ScoreKeys, by bytes.
template <int64_t Rows, int64_t Vectors>
inline void ScreenKeys(const Screen& screen, int64_t first, const Floats (&factor)[Vectors], float* scores,
                       float* maxima) {
  const int64_t quads = screen.keys.stride / kQuad;
  const int8_t* key = screen.keys.bytes + first * screen.keys.stride;
  __m512i sum[Rows][Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t r = 0; r < Rows; ++r) {
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = _mm512_set1_epi32(screen.shift[first + r]);
  }
  for (int64_t d = 0; d < quads; ++d) {
    __m512i query[Vectors];
    SPARSE_OPS_UNROLL
    for (int64_t v = 0; v < Vectors; ++v) {
      query[v] = _mm512_loadu_si512(screen.query_quads + d * kPanelQueries + v * kLanes);
    }
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      int32_t quad;
      __builtin_memcpy(&quad, key + r * screen.keys.stride + d * kQuad, sizeof(quad));
      const __m512i k = _mm512_set1_epi32(quad);
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) sum[r][v] = _mm512_dpbusd_epi32(sum[r][v], query[v], k);
    }
  }
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) {
    Floats maximum = Load(maxima + v * kLanes);
    SPARSE_OPS_UNROLL
    for (int64_t r = 0; r < Rows; ++r) {
      const Floats score =
          _mm512_cvtepi32_ps(sum[r][v]) * (factor[v] * Broadcast(screen.keys.scale[first + r]));
      Store(scores + r * kPanelQueries + v * kLanes, score);
      maximum = Max(score, maximum);
    }
    Store(maxima + v * kLanes, maximum);
  }
}

// As RootFromLeft, of an even number of values, every second of which is one part: where a value lies does
// not depend on how many there are.
inline Floats RootOfPairs(const float* values, int64_t count, Floats start) {
  Floats tau = start;
  for (int i = 0; i < kMaxSteps; ++i) {
    NewtonStep step{tau};
    for (int64_t t = 0; t < count; t += 2) {
      step.Add(0, Load(values + t * kLanes));
      step.Add(1, Load(values + (t + 1) * kLanes));
    }
    if (!Any(step.Rise())) break;
    tau = step.tau;
  }
  return tau;
}

// Marks the candidates of kLanes queries from the lane `lane` of a panel on; which of them have few.
inline Mask FewCandidates(const Screen& screen, int64_t lane, const ScoreColumn& column, float divisor) {
  const int64_t keys = column.keys;
  const Floats shift = Shift(column);
  const Floats root = RootOfMaxima(column, shift, Broadcast(1.0f / divisor), Broadcast(-1.0f));
  const Floats error = Load(screen.errors + lane);
  const Floats least = shift + root * Broadcast(divisor) - (error + error);
  Ints count{};
  for (int64_t begin = 0; begin < keys; begin += 32) {
    Ints word{};
    const int64_t end = Min(keys - begin, 32);
    for (int64_t i = 0; i < end; ++i) {
      const Mask in = NotAtMost(Load(column.scores + (begin + i) * column.stride), least);
      word = SetIf(in, word, static_cast<int>(1u << i));
      count = CountIf(in, count);
    }
    __builtin_memcpy(screen.candidates + begin / 32 * kPanelQueries + lane, &word, sizeof(word));
  }
  const __m512i most = _mm512_set1_epi32(static_cast<int32_t>(MostCandidates(keys)));
  // Where the screen cannot be trusted, what it counts says nothing: all scores may seem to be -inf.
  return _mm512_mask_cmple_epi32_mask(Above(Broadcast(kInfinity), error), reinterpret_cast<__m512i>(count),
                                      most);
}

// As ScorePanel, by bytes. Returns the queries, a bit each, of which few keys are left, their candidates
// marked.
template <int64_t Vectors>
inline unsigned ScreenPanel(const Screen& screen, int64_t keys, float scale, float divisor, float* scores,
                            float* maxima) {
  Floats factor[Vectors];
  for (int64_t v = 0; v < Vectors; ++v)
    factor[v] = Load(screen.queries.scale + v * kLanes) * Broadcast(scale);
  const int64_t classes = ScoreGroups(keys, maxima, [&](int64_t j, float* class_maxima) {
    ScreenKeys<kKeyRows, Vectors>(screen, j, factor, scores + j * kPanelQueries, class_maxima);
  });
  unsigned few = 0;
  for (int64_t v = 0; v < Vectors; ++v) {
    const int64_t lane = v * kLanes;
    const ScoreColumn column{scores + lane, kPanelQueries, keys, maxima + lane, kPanelQueries, classes};
    few |= Bits(FewCandidates(screen, lane, column, divisor)) << lane;
  }
  return few;
}

// The candidates of a query, from the lane `lane` of the panel.
inline int64_t ListCandidates(const Screen& screen, int64_t lane, int64_t keys, int32_t* list) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < keys; begin += 64) {
    const int32_t* words = screen.candidates + begin / 32 * kPanelQueries + lane;
    uint64_t bits = static_cast<uint32_t>(words[0]);
    if (begin + 32 < keys) bits |= static_cast<uint64_t>(static_cast<uint32_t>(words[kPanelQueries])) << 32;
    for (; bits != 0; bits &= bits - 1) {
      list[count++] = static_cast<int32_t>(begin + __builtin_ctzll(bits));
    }
  }
  return count;
}

// Scores of a query's candidates, at least one, -inf up to a multiple of kLanes. Vectors: of the head, or 0.
template <int64_t Vectors, class Element, class Held>
inline void ScoreCandidates(const Element* query, const KeysAndValues<Held>& head, int64_t head_size,
                            float scale, const int32_t* keys, int64_t count, float* scores) {
  Floats own[Vectors == 0 ? 1 : Vectors];
  SPARSE_OPS_UNROLL
  for (int64_t v = 0; v < Vectors; ++v) own[v] = Load(query + v * kLanes);
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    Floats sum[kLanes];
    SPARSE_OPS_UNROLL
    for (int64_t t = 0; t < kLanes; ++t) {
      const Held* key = head.key + keys[Min(begin + t, count - 1)] * head.stride;
      sum[t] = Floats{};
      SPARSE_OPS_UNROLL
      for (int64_t v = 0; v < Vectors; ++v) sum[t] = MulAdd(own[v], Load(key + v * kLanes), sum[t]);
      for (int64_t d = Vectors == 0 ? 0 : head_size; d < head_size; d += kLanes) {
        sum[t] = MulAdd(LoadSome(query + d, head_size - d), LoadSome(key + d, head_size - d), sum[t]);
      }
    }
    const Mask real = MaskOf(OfFirst(Min(kLanes, count - begin)));
    Store(scores + begin, Select(real, SumEach(sum) * Broadcast(scale), Broadcast(-kInfinity)));
  }
}

// From scores to weights, of the rows that are wanted.
inline void SolveSlots(float divisor, unsigned wanted, Survivors* survivors) {
  Floats maximum = Broadcast(-kInfinity);
  for (int64_t t = 0; t < survivors->count; ++t)
    maximum = Max(Load(survivors->weights + t * kLanes), maximum);
  const Floats scale = Broadcast(1.0f / divisor);
  for (int64_t t = 0; t < survivors->count; ++t) {
    float* value = survivors->weights + t * kLanes;
    Store(value, (Load(value) - maximum) * scale);
  }
  const Floats start = Select(MaskOf(wanted), Broadcast(-1.0f), Broadcast(kInfinity));
  WeighSurvivors(RootOfPairs(survivors->weights, survivors->count, start), survivors);
}

template <class Element, class Held>
inline void ScoreCandidatesOf(const Element* query, const KeysAndValues<Held>& head, int64_t head_size,
                              float scale, const int32_t* keys, int64_t count, float* scores) {
  const auto score = head_size == 4 * kLanes   ? ScoreCandidates<4, Element, Held>
                     : head_size == 2 * kLanes ? ScoreCandidates<2, Element, Held>
                                               : ScoreCandidates<0, Element, Held>;
  score(query, head, head_size, scale, keys, count, scores);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
