#pragma once

#include <cstdint>
#include <vector>

namespace sparse_ops {

// The hash that draws random keys permutes the whole numbers below the modulus: x -> (x + shift)^5. ONNX's
// int64 operators can compute it. Which keys a trained model sees depends on both (ops/README.md).
constexpr uint64_t kHashModulus = 2147483647;
constexpr uint64_t kHashShift = 1580030168;

// The pairs that a node's attributes allow in every sequence.
struct FixedPairs {
  std::vector<int32_t> offsets;  // rising, each once
  int64_t random_keys;
  uint64_t seed;
};

}  // namespace sparse_ops
