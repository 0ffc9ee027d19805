// Marks memory that nothing may touch, in a build with AddressSanitizer (SPARSE_OPS_SANITIZE); in any other
// build these do nothing. The functions have internal linkage, as kernel sources include them: see
// cpu/simd.h.
#pragma once

#include <cstdint>

#if defined(SPARSE_OPS_SANITIZE)
#include <sanitizer/asan_interface.h>
#endif

namespace sparse_ops {

#if defined(SPARSE_OPS_SANITIZE)
// Floats of a red zone: more than a row of a panel has.
constexpr int64_t kRedZoneFloats = 256;

static inline void Poison(const float* from, int64_t floats) {
  ASAN_POISON_MEMORY_REGION(from, static_cast<size_t>(floats) * sizeof(float));
}
static inline void Unpoison(const float* from, int64_t floats) {
  ASAN_UNPOISON_MEMORY_REGION(from, static_cast<size_t>(floats) * sizeof(float));
}
#else
constexpr int64_t kRedZoneFloats = 0;

static inline void Poison(const float*, int64_t) {}
static inline void Unpoison(const float*, int64_t) {}
#endif

}  // namespace sparse_ops
