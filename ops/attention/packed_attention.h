// The part of a packed attention op that is the same for all normalisers: attributes, checks, division of the
// work.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "runtime/kernel_context.h"

namespace sparse_ops {

constexpr int64_t kMinHeadSize = 8;
constexpr int64_t kMaxHeadSize = 128;

struct AttentionAttributes {
  explicit AttentionAttributes(const KernelInfo& info, const char* op);

  const char* op;
  int64_t num_heads;
  float scale;  // 0: 1 / sqrt(head_size)
};

// The inputs of one call, checked.
template <class Element>
struct AttentionInputs {
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context);

  Input<Element> query;
  Input<Element> key;
  Input<Element> value;
  std::vector<int64_t> borders;  // cu_seqlens
  int64_t tokens;
  int64_t head_size;
  float scale;
};

template <class Element>
using AttentionKernel = void (*)(const PackedAttention<Element>&, const QueryRange&, float* scratch);

// Runs `kernel` over every query of every sequence and head, each on one thread.
template <class Element>
void RunPackedAttention(KernelContext& context, const AttentionInputs<Element>& inputs,
                        const PackedAttention<Element>& tensors, AttentionKernel<Element> kernel,
                        size_t (*scratch)(int64_t longest_sequence, int64_t head_size));

}  // namespace sparse_ops
