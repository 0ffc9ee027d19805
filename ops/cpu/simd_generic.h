// 4 floats in the compiler's own vectors: any machine, in practice SSE2; see simd.h for the
// operations.
#pragma once

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

typedef float Floats __attribute__((vector_size(16)));
typedef int Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

typedef uint16_t HalfWords __attribute__((vector_size(8)));
using Mask = Ints;

constexpr int64_t kLanes = 4;
constexpr int64_t kKeyRows = 4;

inline Floats Load(const float* from) {
  Floats a;
  __builtin_memcpy(&a, from, sizeof(a));
  return a;
}
inline void Store(float* to, Floats a) { __builtin_memcpy(to, &a, sizeof(a)); }
inline Floats Broadcast(float a) { return Floats{a, a, a, a}; }
inline Floats LoadPartial(const float* from, int64_t count) {
  return Floats{from[0], count > 1 ? from[1] : 0.0f, count > 2 ? from[2] : 0.0f, 0.0f};
}
inline Floats MulAdd(Floats a, Floats b, Floats c) { return a * b + c; }
inline Floats Max(Floats a, Floats b) { return a > b ? a : b; }
inline float LargestLane(Floats a) {
  const float even = a[0] > a[2] ? a[0] : a[2];
  const float odd = a[1] > a[3] ? a[1] : a[3];
  return even > odd ? even : odd;
}
inline Mask Above(Floats a, Floats b) { return a > b; }
inline Mask NotAtMost(Floats a, Floats b) { return ~(a <= b); }
inline Mask IsNan(Floats a) { return a != a; }
inline Floats Select(Mask mask, Floats a, Floats b) { return mask ? a : b; }
inline Floats AddIf(Mask mask, Floats sum, Floats a) { return sum + (mask ? a : Floats{}); }
inline Ints CountIf(Mask mask, Ints count) { return count - mask; }
inline Ints SetIf(Mask mask, Ints word, Ints bits) { return word | (mask & bits); }
inline Mask Or(Mask a, Mask b) { return a | b; }
inline unsigned Bits(Mask mask) {
  const Ints bit = mask & Ints{1, 2, 4, 8};
  return static_cast<unsigned>(bit[0] | bit[1] | bit[2] | bit[3]);
}
inline Mask MaskOf(unsigned bits) { return (Ints{1, 2, 4, 8} & static_cast<int>(bits)) != 0; }
inline Floats SumFour(const Floats* rows) {
  Floats sums;
  for (int64_t i = 0; i < kLanes; ++i) sums[i] = (rows[i][0] + rows[i][2]) + (rows[i][1] + rows[i][3]);
  return sums;
}
inline Floats SumQuads(const Floats (&quads)[1]) { return quads[0]; }
inline Floats LoadQuads(const float* from, ptrdiff_t) { return Load(from); }

inline HalfWords LoadPartialWords(const uint16_t* from, int64_t count) {
  const uint16_t none = 0;
  return HalfWords{from[0], count > 1 ? from[1] : none, count > 2 ? from[2] : none, none};
}

// A half's exponent and fraction, shifted to their places in a float, lack 112 in the exponent; infinities
// and NaN twice that. Subnormals borrow the leading bit of 2^-14, which the subtraction gives back: every
// number on the way is a normal float, so that a thread which treats subnormals as 0 computes the same.
inline Floats FromHalf(HalfWords bits) {
  const Words word = __builtin_convertvector(bits, Words);
  const Words magnitude = (word & 0x7fffu) << 13;
  const Words exponent = magnitude & 0x0f800000u;
  const Words bias = Words{} + 0x38000000u;  // 112 << 23
  const Floats tiny = Broadcast(0x1p-14f);
  const Floats subnormal = reinterpret_cast<Floats>(magnitude + reinterpret_cast<Words>(tiny)) - tiny;
  const Words normal = magnitude + (exponent == 0x0f800000u ? bias + bias : bias);
  return reinterpret_cast<Floats>((exponent == 0u ? reinterpret_cast<Words>(subnormal) : normal) |
                                  (word & 0x8000u) << 16);
}

// The inverse of FromHalf. Adding 0.5, whose last bit is 2^-24, rounds to a multiple of the smallest half.
inline HalfWords ToHalf(Floats a) {
  const Words word = reinterpret_cast<Words>(a);
  const Words magnitude = word & 0x7fffffffu;
  const Words rounded = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  const Words half = reinterpret_cast<Words>(Broadcast(0.5f));
  const Words subnormal =
      reinterpret_cast<Words>(reinterpret_cast<Floats>(magnitude) + Broadcast(0.5f)) - half;
  const Words infinity = Words{} + 0x7c00u;
  const Words special = magnitude > 0x7f800000u ? infinity | 0x200u : infinity;
  const Words finite = magnitude < 0x38800000u ? subnormal : rounded;  // below 2^-14
  return __builtin_convertvector((magnitude >= 0x47800000u ? special : finite) | (word >> 16 & 0x8000u),
                                 HalfWords);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
