// Products of small integers, several to a lane: of bytes with VNNI, of 16 bits with AVX2. AVX-512 alone has
// none that are faster than float32's, as additions take the ports of products there.
//
//   Whole                 such a number
//   kWholeOffset          bytes of one factor are unsigned: they lie so much higher than what they stand for
//   LargestWhole(n)       the largest of which n products, two at least, add up without overflow
//   ToWholes, ToFloats    to the nearest and back
//   StoreWholes(p, n, a)  p[0..n) = a[0..n), n a multiple of kPacked
//   ShiftPacked           adds kWholeOffset to each number of packed ones
//   AddProducts           adds to each lane its packed numbers' products, of which the first are shifted
//   LargestLane           of numbers that are not NaN
//   LargestEach           lane i is the largest of the lanes of rows[i], not NaN either
#pragma once

#include "cpu/simd.h"

#if defined(SPARSE_OPS_USE_VNNI) || defined(SPARSE_OPS_USE_AVX2)
#define SPARSE_OPS_HAS_INTEGER_PRODUCTS

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

#if defined(SPARSE_OPS_USE_VNNI)

using Whole = int8_t;
constexpr int kWholeOffset = 128;

constexpr int LargestWhole(int64_t) { return 127; }
inline __m512i Native(Ints a) { return reinterpret_cast<__m512i>(a); }
inline Ints ToWholes(Floats a) { return reinterpret_cast<Ints>(_mm512_cvtps_epi32(a)); }
inline void StoreWholes(Whole* to, int64_t count, Ints a) {
  _mm512_mask_cvtsepi32_storeu_epi8(to, static_cast<Mask>((1u << count) - 1), Native(a));
}
inline Ints ShiftPacked(Ints packed) {
  return reinterpret_cast<Ints>(_mm512_xor_si512(Native(packed), _mm512_set1_epi8(-128)));
}
inline Ints AddProducts(Ints sum, Ints shifted, Ints packed) {
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(Native(sum), Native(shifted), Native(packed)));
}
inline float LargestLane(Floats a) { return _mm512_reduce_max_ps(a); }
inline Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }

#else

using Whole = int16_t;
constexpr int kWholeOffset = 0;

inline int LargestWhole(int64_t count) {
  return static_cast<int>(__builtin_sqrtf(0x1.ffp30f / static_cast<float>(count)));
}
inline __m256i Native(Ints a) { return reinterpret_cast<__m256i>(a); }
inline Ints ToWholes(Floats a) { return reinterpret_cast<Ints>(_mm256_cvtps_epi32(a)); }
inline void StoreWholes(Whole* to, int64_t count, Ints a) {
  const __m256i all = Native(a);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  if (count == kLanes) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), words);
  __builtin_memcpy(to, &words, static_cast<size_t>(count) * sizeof(Whole));
}
inline Ints ShiftPacked(Ints packed) { return packed; }
inline Ints AddProducts(Ints sum, Ints a, Ints b) {
  return sum + reinterpret_cast<Ints>(_mm256_madd_epi16(Native(a), Native(b)));
}
inline float LargestLane(Floats a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Floats Sqrt(Floats a) { return _mm256_sqrt_ps(a); }

#endif

// So many fill a lane.
constexpr int64_t kPacked = 4 / static_cast<int64_t>(sizeof(Whole));

inline Floats ToFloats(Ints wholes) { return __builtin_convertvector(wholes, Floats); }
inline Floats LargestEach(const Floats (&rows)[kLanes]) {
  return CombineEach(rows, [](Floats a, Floats b) { return Max(a, b); });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops

#endif
