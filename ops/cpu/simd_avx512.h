// 16 floats in an AVX-512 register; see simd.h for what each operation means.
#pragma once

#include <immintrin.h>

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

using Floats = __m512;
typedef int Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t HalfWords __attribute__((vector_size(32)));
using Mask = __mmask16;

constexpr int64_t kLanes = 16;
constexpr int64_t kKeyRows = 8;

inline Floats Load(const float* from) { return _mm512_loadu_ps(from); }
inline void Store(float* to, Floats a) { _mm512_storeu_ps(to, a); }
inline Floats Broadcast(float a) { return _mm512_set1_ps(a); }
inline Floats LoadPartial(const float* from, int64_t count) {
  return _mm512_maskz_loadu_ps(static_cast<Mask>((1u << count) - 1), from);
}
inline Floats MulAdd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats Max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline float LargestLane(Floats a) { return _mm512_reduce_max_ps(a); }
inline Mask Above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Mask NotAtMost(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
inline Mask IsNan(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Floats Select(Mask mask, Floats a, Floats b) { return _mm512_mask_blend_ps(mask, b, a); }
inline Floats AddIf(Mask mask, Floats sum, Floats a) { return _mm512_mask_add_ps(sum, mask, sum, a); }
inline Ints CountIf(Mask mask, Ints count) {
  const __m512i old = reinterpret_cast<__m512i>(count);
  return reinterpret_cast<Ints>(_mm512_mask_add_epi32(old, mask, old, _mm512_set1_epi32(1)));
}
inline Ints SetIf(Mask mask, Ints word, Ints bits) {
  const __m512i old = reinterpret_cast<__m512i>(word);
  return reinterpret_cast<Ints>(_mm512_mask_or_epi32(old, mask, old, reinterpret_cast<__m512i>(bits)));
}
inline int64_t ListBits(uint32_t word, int32_t first, int32_t* list) {
  const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i low = _mm512_add_epi32(_mm512_set1_epi32(first), places);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(16));
  // Not stored by what compresses: that is slow on Zen 4.
  _mm512_storeu_si512(list, _mm512_maskz_compress_epi32(static_cast<Mask>(word), low));
  list += __builtin_popcount(word & 0xffffu);
  _mm512_storeu_si512(list, _mm512_maskz_compress_epi32(static_cast<Mask>(word >> 16), high));
  return __builtin_popcount(word);
}
inline Mask Or(Mask a, Mask b) { return static_cast<Mask>(a | b); }
inline unsigned Bits(Mask mask) { return mask; }
inline Mask MaskOf(unsigned bits) { return static_cast<Mask>(bits); }

// Combines the lanes of four rows within each 128 bits: element i there is that of row i.
template <class Combine>
inline Floats CombineFour(const Floats* rows, const Combine& combine) {
  const Floats ab = combine(_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1]));
  const Floats cd = combine(_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3]));
  return combine(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
template <class Combine>
inline Floats CombineQuads(const Floats (&quads)[4], const Combine& combine) {
  const Floats ab =
      combine(_mm512_shuffle_f32x4(quads[0], quads[1], 0x88), _mm512_shuffle_f32x4(quads[0], quads[1], 0xdd));
  const Floats cd =
      combine(_mm512_shuffle_f32x4(quads[2], quads[3], 0x88), _mm512_shuffle_f32x4(quads[2], quads[3], 0xdd));
  return combine(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
template <class Combine>
inline Floats CombineEach(const Floats (&rows)[kLanes], const Combine& combine) {
  return CombineQuads({CombineFour(rows, combine), CombineFour(rows + 4, combine),
                       CombineFour(rows + 8, combine), CombineFour(rows + 12, combine)},
                      combine);
}

inline Floats Add(Floats a, Floats b) { return a + b; }
inline Floats SumFour(const Floats* rows) { return CombineFour(rows, Add); }
inline Floats SumQuads(const Floats (&quads)[4]) { return CombineQuads(quads, Add); }

inline Floats LoadQuads(const float* from, ptrdiff_t stride) {
  Floats a = _mm512_castps128_ps512(_mm_loadu_ps(from));
  a = _mm512_insertf32x4(a, _mm_loadu_ps(from + 4 * stride), 1);
  a = _mm512_insertf32x4(a, _mm_loadu_ps(from + 8 * stride), 2);
  return _mm512_insertf32x4(a, _mm_loadu_ps(from + 12 * stride), 3);
}
inline void TransposeQuads(Floats (&rows)[4]) {
  const Floats low_ab = _mm512_unpacklo_ps(rows[0], rows[1]);
  const Floats high_ab = _mm512_unpackhi_ps(rows[0], rows[1]);
  const Floats low_cd = _mm512_unpacklo_ps(rows[2], rows[3]);
  const Floats high_cd = _mm512_unpackhi_ps(rows[2], rows[3]);
  rows[0] = _mm512_shuffle_ps(low_ab, low_cd, 0x44);
  rows[1] = _mm512_shuffle_ps(low_ab, low_cd, 0xee);
  rows[2] = _mm512_shuffle_ps(high_ab, high_cd, 0x44);
  rows[3] = _mm512_shuffle_ps(high_ab, high_cd, 0xee);
}

inline HalfWords LoadPartialWords(const uint16_t* from, int64_t count) {
  return reinterpret_cast<HalfWords>(_mm256_maskz_loadu_epi16(static_cast<Mask>((1u << count) - 1), from));
}
inline Floats FromHalf(HalfWords bits) { return _mm512_cvtph_ps(reinterpret_cast<__m256i>(bits)); }
inline HalfWords ToHalf(Floats a) {
  return reinterpret_cast<HalfWords>(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
