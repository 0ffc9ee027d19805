// The vector abstraction of the CPU kernels. Kernel sources are compiled once per instruction set, each time
// into the namespace SPARSE_OPS_TARGET (generic, neon, avx2, avx512, avx512vnni), and joined by run-time
// dispatch (instruction_set.h).
//
// Nothing included from a kernel source may define an inline function outside that namespace: the linker
// keeps one copy of such a function, maybe the one compiled for AVX-512, and an older processor would then
// run it. So: no C++ standard library here beyond plain types.
//
//   Floats, Ints, Words kLanes numbers; + - * / are the compiler's own on vectors
//   Mask                one truth value per lane
//   Load, Store         unaligned
//   LoadPartial(p, n)   p[0..n), 0 < n < kLanes, zeros beyond; reads nothing past p[n - 1]
//   Max(a, b)           b where either is NaN
//   LargestLane         the largest of the lanes; none may be NaN
//   Above, NotAtMost    a > b (false for NaN); not a <= b (true for NaN)
//   AddIf, CountIf      adds a, or one, in the lanes of the mask
//   SetIf               sets bits in the lanes of the mask
//   Bits, MaskOf        bit i is lane i; the mask of such bits, of which higher ones do not count
//   SumEach             lane i is the sum of the lanes of rows[i]
//   SumFour, SumQuads   SumEach in two steps: SumFour of four rows each, and SumQuads of what they give
//   LoadQuads           lanes 4i to 4i + 3 are from[4i * stride] and the three numbers after it
//   TransposeQuads      exchanges i and j where rows[i] has lane 4k + j, for every k
//   HalfWords           kLanes 16-bit words: float16 or bfloat16 as they lie in memory
//   LoadPartialWords    as LoadPartial
//   FromHalf, ToHalf    float16 to float32, exact, and back, to the nearest and to even between two
//   ListBits(w, f, p)   f + i to p for every bit i of w that is set, rising; how many. p has room for kLanes
//                       more
//   kKeyRows            rows of the score micro-kernel: rows * 2 accumulators fill the registers
#pragma once

#include <cstddef>
#include <cstdint>

// Before a loop over accumulators: without it they may live in memory instead of registers.
#if defined(__clang__)
#define SPARSE_OPS_UNROLL _Pragma("unroll")
#else
#define SPARSE_OPS_UNROLL _Pragma("GCC unroll 32")
#endif

#include "cpu/simd_quads.h"

#if defined(SPARSE_OPS_USE_AVX512)
#include "cpu/simd_avx512.h"
#elif defined(SPARSE_OPS_USE_AVX2)
#include "cpu/simd_avx2.h"
#elif defined(SPARSE_OPS_USE_NEON)
#include "cpu/simd_neon.h"
#else
#include "cpu/simd_generic.h"
#endif

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

constexpr float kInfinity = __builtin_inff();

constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

inline Ints LoadInts(const int32_t* from) {
  Ints a;
  __builtin_memcpy(&a, from, sizeof(a));
  return a;
}
inline void StoreInts(int32_t* to, Ints a) { __builtin_memcpy(to, &a, sizeof(a)); }

#if !defined(SPARSE_OPS_USE_AVX512)
inline int64_t ListBits(uint32_t word, int32_t first, int32_t* list) {
  int64_t count = 0;
  for (; word != 0; word &= word - 1) list[count++] = first + __builtin_ctz(word);
  return count;
}
#endif

// Bits 0 to count - 1.
inline unsigned OfFirst(int64_t count) { return count < 32 ? (1u << count) - 1 : ~0u; }

inline Floats SumEach(const Floats (&rows)[kLanes]) {
  Floats quads[kLanes / 4];
  SPARSE_OPS_UNROLL
  for (int64_t i = 0; i < kLanes / 4; ++i) quads[i] = SumFour(rows + 4 * i);
  return SumQuads(quads);
}

inline bool Any(Mask mask) { return Bits(mask) != 0; }

// to[j * to_stride + i] = from[i * from_stride + j] for i < rows, j < columns.
inline void Transpose(const float* from, ptrdiff_t from_stride, int64_t rows, int64_t columns, float* to,
                      ptrdiff_t to_stride) {
  const int64_t quad_rows = rows / 4 * 4;
  const int64_t quad_columns = columns / 4 * 4;
  int64_t first_quad = 0;
  for (; first_quad + kLanes <= rows; first_quad += kLanes) {
    for (int64_t j = 0; j < quad_columns; j += 4) {
      Floats row[4];
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < 4; ++r) {
        row[r] = LoadQuads(from + (first_quad + r) * from_stride + j, from_stride);
      }
      TransposeQuads(row);
      SPARSE_OPS_UNROLL
      for (int64_t c = 0; c < 4; ++c) Store(to + (j + c) * to_stride + first_quad, row[c]);
    }
  }
  for (int64_t i = first_quad; i < quad_rows; i += 4) {
    for (int64_t j = 0; j < quad_columns; j += 4) {
      Quad row[4];
      SPARSE_OPS_UNROLL
      for (int64_t r = 0; r < 4; ++r) {
        __builtin_memcpy(&row[r], from + (i + r) * from_stride + j, sizeof(Quad));
      }
      TransposeQuads(row);
      SPARSE_OPS_UNROLL
      for (int64_t c = 0; c < 4; ++c) __builtin_memcpy(to + (j + c) * to_stride + i, &row[c], sizeof(Quad));
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < quad_rows ? quad_columns : 0; j < columns; ++j) {
      to[j * to_stride + i] = from[i * from_stride + j];
    }
  }
}

// exp(x) for x <= 0 within 2 ulp; 0 below -87.3, NaN for NaN. Cephes' expf polynomial.
inline Floats ExpNonPositive(Floats x) {
  const Floats magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Floats shifted = MulAdd(x, Broadcast(1.44269504f), magic);
  const Floats n = shifted - magic;
  const Floats r = MulAdd(n, Broadcast(2.12194440e-4f), MulAdd(n, Broadcast(-0.693359375f), x));
  Floats p = Broadcast(1.9875691500e-4f);
  p = MulAdd(p, r, Broadcast(1.3981999507e-3f));
  p = MulAdd(p, r, Broadcast(8.3334519073e-3f));
  p = MulAdd(p, r, Broadcast(4.1665795894e-2f));
  p = MulAdd(p, r, Broadcast(1.6666665459e-1f));
  p = MulAdd(p, r, Broadcast(5.0000001201e-1f));
  p = MulAdd(p, r * r, r + Broadcast(1.0f));
  const Words exponent = (reinterpret_cast<Words>(shifted) << 23) + 0x3f800000u;  // wraps far below -87.3
  const Floats power_of_two = reinterpret_cast<Floats>(exponent);
  return Select(NotAtMost(x, Broadcast(-87.3f)), p * power_of_two, Floats{});
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
