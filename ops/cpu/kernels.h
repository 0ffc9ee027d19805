// The CPU kernels of all ops as one table per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/elements.h"

namespace sparse_ops {

// Packed attention tensors: query, key, value, output (tokens, num_heads * head_size).
template <class Element>
struct PackedAttention {
  const Element* query;
  const Element* key;
  const Element* value;
  Element* output;
  int32_t* support;  // (tokens, num_heads), of sparsegen attention only
  int64_t num_heads;
  int64_t head_size;
  float scale;   // of the scores
  float factor;  // 1 / (1 - lambda), for sparsegen-lin
};

// Some consecutive queries of one sequence and one head.
struct QueryRange {
  int64_t sequence_begin;  // first row of the sequence
  int64_t sequence_length;
  int64_t first;  // first query, counted within the sequence: a multiple of query_block
  int64_t count;
  int64_t head;
};

// Rows along one axis of a tensor (outer, length, inner), row-major.
template <class Element>
struct AxisRows {
  const Element* input;
  Element* output;
  int64_t length;
  int64_t inner;
};

// The kernels for tensors of one element type.
template <class Element>
struct ElementKernels {
  // Up to row_block rows from `first_row`; row r is the r-th of all (outer, inner) pairs.
  void (*sparsegen_lin)(const AxisRows<Element>& rows, float factor, int64_t first_row, int64_t count,
                        float* scratch);
  void (*sparsegen_attention)(const PackedAttention<Element>& tensors, const QueryRange& range,
                              float* scratch);
  void (*softmax_attention)(const PackedAttention<Element>& tensors, const QueryRange& range, float* scratch);
};

struct Kernels : ElementKernels<float>, ElementKernels<Half>, ElementKernels<BFloat16> {
  const char* instruction_set;
  int64_t query_block;  // queries that are computed together
  int64_t row_block;    // rows that are computed together by sparsegen_lin

  // Scratch of one call in floats.
  size_t (*sparsegen_lin_scratch)(int64_t length);
  size_t (*sparsegen_attention_scratch)(int64_t longest_sequence, int64_t head_size);
  size_t (*softmax_attention_scratch)(int64_t longest_sequence, int64_t head_size);
};

extern const Kernels kKernelsGeneric;
#if defined(SPARSE_OPS_X86)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

}  // namespace sparse_ops
