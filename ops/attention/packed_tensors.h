// The tensors of a packed attention op, on whichever device they lie.
#pragma once

#include <cstdint>

namespace sparse_ops {

// Kernels count the keys of a row in int32.
constexpr int64_t kMostKeys = 0x7fffffff;
constexpr int64_t kMinHeadSize = 8;
constexpr int64_t kMaxHeadSize = 128;

// Packed attention tensors: query, output (queries, num_heads * head_size); key, value (tokens, the same).
template <class Element>
struct PackedAttention {
  const Element* query;
  const Element* key;
  const Element* value;
  Element* output;
  int32_t* support;  // (queries, num_heads); null where the node leaves the output out
  int64_t num_heads;
  int64_t head_size;
  float scale;    // of the scores
  float divisor;  // 1 - lambda, for sparsegen-lin
};

}  // namespace sparse_ops
