// 8 floats in an AVX register with FMA and F16C; see simd.h for what each operation means.
#pragma once

#include <immintrin.h>

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

using Floats = __m256;
typedef int Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t HalfWords __attribute__((vector_size(16)));
using Mask = __m256;

constexpr int64_t kLanes = 8;
constexpr int64_t kKeyRows = 6;

inline Floats Load(const float* from) { return _mm256_loadu_ps(from); }
inline void Store(float* to, Floats a) { _mm256_storeu_ps(to, a); }
inline Floats Broadcast(float a) { return _mm256_set1_ps(a); }
inline Floats LoadPartial(const float* from, int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane));
}
inline Floats MulAdd(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats Max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline float LargestLane(Floats a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Mask Above(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
inline Mask NotAtMost(Floats a, Floats b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }
inline Mask IsNan(Floats a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
inline Floats Select(Mask mask, Floats a, Floats b) { return _mm256_blendv_ps(b, a, mask); }
inline Floats AddIf(Mask mask, Floats sum, Floats a) { return sum + _mm256_and_ps(mask, a); }
inline Ints CountIf(Mask mask, Ints count) { return count - reinterpret_cast<Ints>(mask); }
inline Ints SetIf(Mask mask, Ints word, Ints bits) { return word | (reinterpret_cast<Ints>(mask) & bits); }
inline Mask Or(Mask a, Mask b) { return _mm256_or_ps(a, b); }
inline unsigned Bits(Mask mask) { return static_cast<unsigned>(_mm256_movemask_ps(mask)); }
inline Mask MaskOf(unsigned bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i chosen = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(chosen, lane));
}

// Combines the lanes of four rows within each 128 bits: element i there is that of row i.
template <class Combine>
inline Floats CombineFour(const Floats* rows, const Combine& combine) {
  const Floats ab = combine(_mm256_unpacklo_ps(rows[0], rows[1]), _mm256_unpackhi_ps(rows[0], rows[1]));
  const Floats cd = combine(_mm256_unpacklo_ps(rows[2], rows[3]), _mm256_unpackhi_ps(rows[2], rows[3]));
  return combine(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
}
template <class Combine>
inline Floats CombineQuads(const Floats (&quads)[2], const Combine& combine) {
  return combine(_mm256_permute2f128_ps(quads[0], quads[1], 0x20),
                 _mm256_permute2f128_ps(quads[0], quads[1], 0x31));
}
template <class Combine>
inline Floats CombineEach(const Floats (&rows)[kLanes], const Combine& combine) {
  return CombineQuads({CombineFour(rows, combine), CombineFour(rows + 4, combine)}, combine);
}

inline Floats Add(Floats a, Floats b) { return a + b; }
inline Floats SumFour(const Floats* rows) { return CombineFour(rows, Add); }
inline Floats SumQuads(const Floats (&quads)[2]) { return CombineQuads(quads, Add); }

inline Floats LoadQuads(const float* from, ptrdiff_t stride) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + 4 * stride), 1);
}
inline void TransposeQuads(Floats (&rows)[4]) {
  const Floats low_ab = _mm256_unpacklo_ps(rows[0], rows[1]);
  const Floats high_ab = _mm256_unpackhi_ps(rows[0], rows[1]);
  const Floats low_cd = _mm256_unpacklo_ps(rows[2], rows[3]);
  const Floats high_cd = _mm256_unpackhi_ps(rows[2], rows[3]);
  rows[0] = _mm256_shuffle_ps(low_ab, low_cd, 0x44);
  rows[1] = _mm256_shuffle_ps(low_ab, low_cd, 0xee);
  rows[2] = _mm256_shuffle_ps(high_ab, high_cd, 0x44);
  rows[3] = _mm256_shuffle_ps(high_ab, high_cd, 0xee);
}

inline HalfWords LoadPartialWords(const uint16_t* from, int64_t count) {
  const __m128i lane = _mm_setr_epi32(0, 1, 2, 3);
  const __m128i pairs = _mm_set1_epi32(static_cast<int>(count / 2));
  __m128i words = _mm_maskload_epi32(reinterpret_cast<const int*>(from), _mm_cmpgt_epi32(pairs, lane));
  if (count % 2 != 0) {
    const __m128i last = _mm_set1_epi32(from[count - 1]);
    words = _mm_or_si128(words, _mm_and_si128(last, _mm_cmpeq_epi32(pairs, lane)));
  }
  return reinterpret_cast<HalfWords>(words);
}
inline Floats FromHalf(HalfWords bits) { return _mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)); }
inline HalfWords ToHalf(Floats a) {
  return reinterpret_cast<HalfWords>(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
