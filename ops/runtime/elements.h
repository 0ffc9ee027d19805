// The floating-point types of tensors besides float. Arithmetic is in float32 throughout: they are converted
// where they are read and written (cpu/conversion.h, cuda/conversion.h).
#pragma once

#include <cstdint>

namespace sparse_ops {

// IEEE 754 binary16.
struct Half {
  uint16_t bits;
};

// The upper half of a float32.
struct BFloat16 {
  uint16_t bits;
};

}  // namespace sparse_ops
