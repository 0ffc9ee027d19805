// 4 floats in the compiler's own vectors: any machine, in practice SSE2 or NEON; see simd.h for the
// operations.
#pragma once

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

typedef float Floats __attribute__((vector_size(16)));
typedef int Ints __attribute__((vector_size(16)));
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
inline Mask Above(Floats a, Floats b) { return a > b; }
inline Mask NotAtMost(Floats a, Floats b) { return ~(a <= b); }
inline Mask IsNan(Floats a) { return a != a; }
inline Floats Select(Mask mask, Floats a, Floats b) { return mask ? a : b; }
inline Floats AddIf(Mask mask, Floats sum, Floats a) { return sum + (mask ? a : Floats{}); }
inline Ints CountIf(Mask mask, Ints count) { return count - mask; }
inline Ints SetIf(Mask mask, Ints word, int bits) { return word | (mask & bits); }
inline Mask Or(Mask a, Mask b) { return a | b; }
inline unsigned Bits(Mask mask) {
  const Ints bit = mask & Ints{1, 2, 4, 8};
  return static_cast<unsigned>(bit[0] | bit[1] | bit[2] | bit[3]);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
