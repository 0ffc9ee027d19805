#pragma once

#include <cstdint>
#include <vector>

namespace sparse_ops {

// The pairs that a node's attributes allow in every sequence.
struct FixedPairs {
  std::vector<int32_t> offsets;  // rising, each once
  int64_t random_keys;
  uint64_t seed;
};

}  // namespace sparse_ops
