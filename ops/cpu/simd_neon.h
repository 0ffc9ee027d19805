// 4 floats in a NEON register; see simd.h for what each operation means. Every aarch64 processor has these
// instructions.
#pragma once

#include <arm_neon.h>

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// The compiler's own vectors (Quad), as float32x4_t is a different type to templates and references.
typedef float Floats __attribute__((vector_size(16)));
typedef int Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t HalfWords __attribute__((vector_size(8)));
using Mask = Words;

constexpr int64_t kLanes = 4;
constexpr int64_t kKeyRows = 8;  // four pipes at a latency of four cycles need 16 sums

inline Floats Load(const float* from) { return vld1q_f32(from); }
inline void Store(float* to, Floats a) { vst1q_f32(to, a); }
inline Floats Broadcast(float a) { return vdupq_n_f32(a); }
inline Floats LoadPartial(const float* from, int64_t count) {
  const float32x2_t none = vdup_n_f32(0.0f);
  if (count == 1) return vcombine_f32(vld1_lane_f32(from, none, 0), none);
  return vcombine_f32(vld1_f32(from), count == 2 ? none : vld1_lane_f32(from + 2, none, 0));
}
inline Floats MulAdd(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Mask Above(Floats a, Floats b) { return vcgtq_f32(a, b); }
inline Mask NotAtMost(Floats a, Floats b) { return vmvnq_u32(vcleq_f32(a, b)); }
inline Mask IsNan(Floats a) { return vmvnq_u32(vceqq_f32(a, a)); }
inline Floats Select(Mask mask, Floats a, Floats b) { return vbslq_f32(mask, a, b); }
inline Floats Max(Floats a, Floats b) { return Select(Above(a, b), a, b); }  // FMAX gives NaN for either
inline float LargestLane(Floats a) { return vmaxvq_f32(a); }
inline Floats AddIf(Mask mask, Floats sum, Floats a) {
  return sum + reinterpret_cast<Floats>(mask & reinterpret_cast<Words>(a));
}
inline Ints CountIf(Mask mask, Ints count) { return count - reinterpret_cast<Ints>(mask); }
inline Ints SetIf(Mask mask, Ints word, Ints bits) { return word | (reinterpret_cast<Ints>(mask) & bits); }
inline Mask Or(Mask a, Mask b) { return a | b; }
inline unsigned Bits(Mask mask) { return vaddvq_u32(mask & Words{1, 2, 4, 8}); }
inline Mask MaskOf(unsigned bits) { return vtstq_u32(vdupq_n_u32(bits), Words{1, 2, 4, 8}); }

inline Floats SumFour(const Floats* rows) {
  return vpaddq_f32(vpaddq_f32(rows[0], rows[1]), vpaddq_f32(rows[2], rows[3]));
}
inline Floats SumQuads(const Floats (&quads)[1]) { return quads[0]; }
inline Floats LoadQuads(const float* from, ptrdiff_t) { return Load(from); }

inline HalfWords LoadPartialWords(const uint16_t* from, int64_t count) {
  uint16x4_t words = vld1_lane_u16(from, vdup_n_u16(0), 0);
  if (count > 1) words = vld1_lane_u16(from + 1, words, 1);
  if (count > 2) words = vld1_lane_u16(from + 2, words, 2);
  return words;
}

// A thread that treats subnormal numbers as 0 (FPCR.FZ) gets the same from FCVTL and FCVTN: FZ never concerns
// the half of a conversion, nor does FZ16, which is of half arithmetic alone; every half is 0 or a normal
// float; and a subnormal float, which FZ takes for 0, lies far below 2^-25 and so is 0 as a half anyway.
inline Floats FromHalf(HalfWords bits) { return vcvt_f32_f16(vreinterpret_f16_u16(bits)); }
inline HalfWords ToHalf(Floats a) { return vreinterpret_u16_f16(vcvt_f16_f32(a)); }

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
