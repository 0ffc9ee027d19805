// Converts elements of tensors to float32, which is exact, and back, rounded to the nearest and to even
// between two. Infinities stay infinite, and NaN stays NaN.
#pragma once

#include <cstdint>

#include "cuda/execution.h"
#include "runtime/elements.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace sparse_ops {
namespace cuda {

SPARSE_OPS_BOTH uint32_t BitsOf(float number) {
  uint32_t bits;
  __builtin_memcpy(&bits, &number, sizeof(bits));
  return bits;
}
SPARSE_OPS_BOTH float FloatOf(uint32_t bits) {
  float number;
  __builtin_memcpy(&number, &bits, sizeof(number));
  return number;
}

SPARSE_OPS_BOTH float ToFloat(float element) { return element; }
SPARSE_OPS_BOTH void FromFloat(float number, float* element) { *element = number; }

SPARSE_OPS_BOTH float ToFloat(BFloat16 element) { return FloatOf(static_cast<uint32_t>(element.bits) << 16); }
SPARSE_OPS_BOTH void FromFloat(float number, BFloat16* element) {
#if defined(__CUDA_ARCH__)
  element->bits = __bfloat16_as_ushort(__float2bfloat16_rn(number));
#else
  const uint32_t bits = BitsOf(number);
  const uint32_t rounded = number != number ? bits | 0x00400000u : bits + 0x7fffu + (bits >> 16 & 1u);
  element->bits = static_cast<uint16_t>(rounded >> 16);
#endif
}

SPARSE_OPS_BOTH float ToFloat(Half element) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(element.bits));
#else
  const uint32_t sign = static_cast<uint32_t>(element.bits & 0x8000u) << 16;
  const uint32_t magnitude = element.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return FloatOf(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Taken as a float32, the exponent is 112 too small. A product corrects that, of subnormal numbers too.
  return FloatOf(sign | BitsOf(FloatOf(magnitude << 13) * 0x1p112f));
#endif
}
SPARSE_OPS_BOTH void FromFloat(float number, Half* element) {
#if defined(__CUDA_ARCH__)
  element->bits = __half_as_ushort(__float2half_rn(number));
#else
  const uint32_t bits = BitsOf(number);
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // less than 2^-14: the sum's last bit is 2^-24
    half = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  }
  element->bits = static_cast<uint16_t>(bits >> 16 & 0x8000u) | static_cast<uint16_t>(half);
#endif
}

template <class Element>
constexpr bool kIsHalf = false;
template <>
inline constexpr bool kIsHalf<Half> = true;

// Converts two neighbouring elements, as they lie in memory.
template <class Element>
SPARSE_OPS_BOTH uint32_t PackPair(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  if (kIsHalf<Element>) {
    const __half2 own = __floats2half2_rn(first, second);
    __builtin_memcpy(&pair, &own, sizeof(pair));
  } else {
    const __nv_bfloat162 own = __floats2bfloat162_rn(first, second);
    __builtin_memcpy(&pair, &own, sizeof(pair));
  }
  return pair;
#else
  Element low, high;
  FromFloat(first, &low);
  FromFloat(second, &high);
  return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
#endif
}

}  // namespace cuda
}  // namespace sparse_ops
