// Products of bytes, four to a lane, with VNNI or AVX2. With AVX-512 alone they are no faster than products
// of float32, as additions take the ports of products there. Nor are words of 16 bits, where only one of the
// two ports that multiply floats also multiplies integers, as in AMD's processors up to Zen 2.
//
//   kLargestQuery         a query's numbers are from -kLargestQuery to kLargestQuery
//   kLargestKey           likewise for keys
//   kQueryOffset          is added to a query's numbers, as its bytes are unsigned
//   kPacksTogether        a row is padded to a multiple of this many packs (kPacked numbers)
//   kAddsHalves           whether products are summed in two halves of 16 bits a lane, kPacksTogether of them
//   kScreenRows           rows of a tile: its sums and factors fill the registers
//   ToInts, ToFloats      to the nearest integer, and back; of what is no integer of 32 bits, the least one
//   StoreBytes(p, n, a)   p[0..n) = a[0..n), n a multiple of kPacked
//   ShiftPacked           adds kQueryOffset to each number of packed ones
//   AddProducts           adds products of packed numbers to sums; those of the query are shifted
//   AddHalves             adds both halves of a lane to its sum
//   HalfSums              finds the largest sum of a key's numbers of one sign in a half. Scaled to
//                         kLargestHalf at most, no half can overflow
//   MaxInts, NotBelow     the larger of each two; not a < b
//   LargestEach           lane i is the largest of the lanes of rows[i]; none may be NaN
#pragma once

#include "cpu/simd.h"

#if defined(SPARSE_OPS_USE_VNNI) || defined(SPARSE_OPS_USE_AVX2)
#define SPARSE_OPS_HAS_INTEGER_PRODUCTS

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// How many numbers fill a lane.
constexpr int64_t kPacked = 4;

#if defined(SPARSE_OPS_USE_VNNI)

constexpr int kLargestQuery = 127;
constexpr int kLargestKey = 127;
constexpr int kQueryOffset = 128;
constexpr bool kAddsHalves = false;
constexpr int64_t kPacksTogether = 1;
constexpr int64_t kScreenRows = kKeyRows;

inline __m512i Native(Ints a) { return reinterpret_cast<__m512i>(a); }
inline Ints ToInts(Floats a) { return reinterpret_cast<Ints>(_mm512_cvtps_epi32(a)); }
inline void StoreBytes(int8_t* to, int64_t count, Ints a) {
  _mm512_mask_cvtsepi32_storeu_epi8(to, static_cast<Mask>((1u << count) - 1), Native(a));
}
inline Ints ShiftPacked(Ints packed) {
  return reinterpret_cast<Ints>(_mm512_xor_si512(Native(packed), _mm512_set1_epi8(-128)));
}
inline Ints AddProducts(Ints sum, Ints shifted, Ints packed) {
  return reinterpret_cast<Ints>(_mm512_dpbusd_epi32(Native(sum), Native(shifted), Native(packed)));
}
inline Ints MaxInts(Ints a, Ints b) { return reinterpret_cast<Ints>(_mm512_max_epi32(Native(a), Native(b))); }
inline Mask NotBelow(Ints a, Ints b) { return _mm512_cmpge_epi32_mask(Native(a), Native(b)); }
inline Floats Sqrt(Floats a) { return _mm512_sqrt_ps(a); }

constexpr int kLargestHalf = 1;
struct HalfSums {
  Floats largest{};

  void Add(Floats, int64_t) {}
  void Close() {}
};

#else

constexpr int kLargestQuery = 63;
constexpr int kLargestKey = 127;
constexpr int kQueryOffset = kLargestQuery;
constexpr bool kAddsHalves = true;
constexpr int64_t kPacksTogether = 8;
constexpr int64_t kScreenRows = 3;

inline __m256i Native(Ints a) { return reinterpret_cast<__m256i>(a); }
inline Ints ToInts(Floats a) { return reinterpret_cast<Ints>(_mm256_cvtps_epi32(a)); }
inline void StoreBytes(int8_t* to, int64_t count, Ints a) {
  const __m256i all = Native(a);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  const __m128i bytes = _mm_packs_epi16(words, words);
  if (count == kLanes) return _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes);
  __builtin_memcpy(to, &bytes, kPacked);
}
inline Ints ShiftPacked(Ints packed) {
  return reinterpret_cast<Ints>(_mm256_add_epi8(Native(packed), _mm256_set1_epi8(kQueryOffset)));
}
inline Ints AddProducts(Ints halves, Ints shifted, Ints packed) {
  Ints sums = reinterpret_cast<Ints>(
      _mm256_add_epi16(Native(halves), _mm256_maddubs_epi16(Native(shifted), Native(packed))));
  asm(""
      : "+x"(
          sums));  // keeps the order: GCC would first add up products, for which there are too few registers
  return sums;
}
inline Ints AddHalves(Ints sum, Ints halves) {
  return sum + reinterpret_cast<Ints>(_mm256_madd_epi16(Native(halves), _mm256_set1_epi16(1)));
}
inline Ints MaxInts(Ints a, Ints b) { return reinterpret_cast<Ints>(_mm256_max_epi32(Native(a), Native(b))); }
inline Mask NotBelow(Ints a, Ints b) { return reinterpret_cast<Mask>(a >= b); }
inline Floats Sqrt(Floats a) { return _mm256_sqrt_ps(a); }

// The largest sum of numbers of a half such that its products with the largest shifted number fit 15 bits,
// less what rounding adds and 1 for the division.
constexpr int kLargestHalf = 32767 / (kLargestQuery + kQueryOffset) - static_cast<int>(kPacksTogether) - 1;
struct HalfSums {
  Floats above{}, below{};  // of the numbers on either side of 0
  Floats largest{};

  // Adds a row's numbers from column d on. Lanes 0 and 1 of a pack are one half, 2 and 3 the other.
  void Add(Floats x, int64_t d) {
    above = above + Max(x, Floats{});
    below = below + Max(Floats{} - x, Floats{});
    if ((d + kLanes) % (kPacksTogether * kPacked) == 0) Close();
  }
  // Ends a sum; to be called at the end of a row.
  void Close() {
    const Floats pairs = _mm256_hadd_ps(above, below);
    largest = Max(pairs + _mm256_permute2f128_ps(pairs, pairs, 1), largest);
    above = below = Floats{};
  }
};

#endif

inline Floats ToFloats(Ints values) { return __builtin_convertvector(values, Floats); }
inline Floats LargestEach(const Floats (&rows)[kLanes]) {
  return CombineEach(rows, [](Floats a, Floats b) { return Max(a, b); });
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops

#endif
