// Intel's intrinsics, with those of AVX-512 that the kernels use computed lane by lane: a processor with AVX2
// can run them. Each does what Intel's guide says of its name.
#pragma once

#include_next <immintrin.h>

#include <cstdint>
#include <cstring>

// GCC has these as macros where it does not optimize.
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtps_ph
#undef _mm512_insertf32x4
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_ps

// The kernels' namespace, in which these are found first.
namespace sparse_ops {

template <class Lane>
inline __m512 FloatsOf(const Lane& lane) {
  __m512 result{};
  for (int i = 0; i < 16; ++i) result[i] = lane(i);
  return result;
}

typedef int Int32x16 __attribute__((vector_size(64)));

template <class Lane>
inline __m512i IntsOf(const Lane& lane) {
  Int32x16 result{};
  for (int i = 0; i < 16; ++i) result[i] = lane(i);
  return reinterpret_cast<__m512i>(result);
}

template <class Lane>
inline __m256i HalvesOf(const Lane& lane) {
  uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = lane(i);
  __m256i result;
  std::memcpy(&result, halves, sizeof(result));
  return result;
}

inline bool IsOn(__mmask16 mask, int lane) { return mask >> lane & 1; }
inline int Int(__m512i a, int lane) { return reinterpret_cast<Int32x16>(a)[lane]; }

inline __m512 _mm512_loadu_ps(const void* from) {
  __m512 result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
inline void _mm512_storeu_ps(void* to, __m512 a) { std::memcpy(to, &a, sizeof(a)); }
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const float* from) {
  return FloatsOf([&](int i) { return IsOn(mask, i) ? from[i] : 0.0f; });
}
inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* from) {
  return HalvesOf([&](int i) {
    return IsOn(mask, i) ? static_cast<const uint16_t*>(from)[i] : static_cast<uint16_t>(0);
  });
}
inline void _mm512_mask_cvtsepi32_storeu_epi8(void* to, __mmask16 mask, __m512i a) {
  for (int i = 0; i < 16; ++i) {
    const int number = Int(a, i);
    const int nearest = number > 127 ? 127 : number < -128 ? -128 : number;
    if (IsOn(mask, i)) static_cast<int8_t*>(to)[i] = static_cast<int8_t>(nearest);
  }
}

inline __m512 _mm512_set1_ps(float a) {
  return FloatsOf([&](int) { return a; });
}
inline __m512i _mm512_set1_epi32(int a) {
  return IntsOf([&](int) { return a; });
}
inline __m512i _mm512_set1_epi8(char a) {
  __m512i result;
  std::memset(&result, a, sizeof(result));
  return result;
}

inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return FloatsOf([&](int i) { return __builtin_fmaf(a[i], b[i], c[i]); });
}
inline __m512 _mm512_max_ps(__m512 a, __m512 b) {
  return FloatsOf([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline __m512 _mm512_sqrt_ps(__m512 a) {
  return FloatsOf([&](int i) { return __builtin_sqrtf(a[i]); });
}
inline float _mm512_reduce_max_ps(__m512 a) {
  float maximum = a[0];
  for (int i = 1; i < 16; ++i) maximum = a[i] > maximum ? a[i] : maximum;
  return maximum;
}
inline __m512 _mm512_mask_add_ps(__m512 other, __mmask16 mask, __m512 a, __m512 b) {
  return FloatsOf([&](int i) { return IsOn(mask, i) ? a[i] + b[i] : other[i]; });
}
inline __m512i _mm512_mask_add_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b) {
  return IntsOf([&](int i) { return IsOn(mask, i) ? Int(a, i) + Int(b, i) : Int(other, i); });
}
inline __m512i _mm512_mask_or_epi32(__m512i other, __mmask16 mask, __m512i a, __m512i b) {
  return IntsOf([&](int i) { return IsOn(mask, i) ? Int(a, i) | Int(b, i) : Int(other, i); });
}
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  uint8_t a[64];
  int8_t b[64];
  std::memcpy(a, &unsigned_bytes, sizeof(a));
  std::memcpy(b, &signed_bytes, sizeof(b));
  return IntsOf([&](int i) {
    int result = Int(sum, i);
    for (int k = 4 * i; k < 4 * i + 4; ++k) result += a[k] * b[k];
    return result;
  });
}

inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int predicate) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool holds = predicate == _CMP_GT_OQ    ? a[i] > b[i]
                       : predicate == _CMP_NLE_UQ ? !(a[i] <= b[i])
                                                  : a[i] != a[i] || b[i] != b[i];  // _CMP_UNORD_Q
    mask |= unsigned{holds} << i;
  }
  return static_cast<__mmask16>(mask);
}
inline __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return FloatsOf([&](int i) { return IsOn(mask, i) ? b[i] : a[i]; });
}

inline __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
  return FloatsOf([&](int i) { return (i % 2 ? b : a)[i - i % 4 + i % 4 / 2]; });
}
inline __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
  return FloatsOf([&](int i) { return (i % 2 ? b : a)[i - i % 4 + i % 4 / 2 + 2]; });
}
inline __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int control) {
  return FloatsOf([&](int i) { return (i % 4 < 2 ? a : b)[i - i % 4 + (control >> 2 * (i % 4) & 3)]; });
}
inline __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int control) {
  return FloatsOf([&](int i) { return (i < 8 ? a : b)[4 * (control >> i / 4 * 2 & 3) + i % 4]; });
}
inline __m512 _mm512_castps128_ps512(__m128 a) {
  return FloatsOf([&](int i) { return i < 4 ? a[i] : 0.0f; });
}
inline __m512 _mm512_insertf32x4(__m512 a, __m128 b, int quad) {
  return FloatsOf([&](int i) { return i / 4 == quad ? b[i % 4] : a[i]; });
}

inline __m512i _mm512_cvtps_epi32(__m512 a) {
  return IntsOf([&](int i) { return _mm_cvtss_si32(_mm_set_ss(a[i])); });
}
inline __m512 _mm512_cvtph_ps(__m256i a) {
  uint16_t halves[16];
  std::memcpy(halves, &a, sizeof(halves));
  return FloatsOf([&](int i) { return _cvtsh_ss(halves[i]); });
}
inline __m256i _mm512_cvtps_ph(__m512 a, int) {
  return HalvesOf([&](int i) { return _cvtss_sh(a[i], _MM_FROUND_TO_NEAREST_INT); });
}

}  // namespace sparse_ops
