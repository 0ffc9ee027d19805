#pragma once

#include <cstdint>

namespace sparse_ops {

// The hash that draws random keys permutes the whole numbers below the modulus: x -> (x + shift)^5. ONNX's
// int64 operators can compute it. Which keys a trained model sees depends on both (ops/README.md).
constexpr uint64_t kHashModulus = 2147483647;
constexpr uint64_t kHashShift = 1580030168;

}  // namespace sparse_ops
