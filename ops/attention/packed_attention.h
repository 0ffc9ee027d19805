// The part of a packed attention op that is the same for all normalisers: attributes, checks, division of the
// work. Queries are the tokens themselves, or, in cross-attention, rows of their own beside keys and values.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/kernels.h"
#include "runtime/kernel_context.h"

namespace sparse_ops {

constexpr int64_t kMinHeadSize = 8;
constexpr int64_t kMaxHeadSize = 128;

// What every packed attention op has.
template <class Element>
struct AttentionSignature {
  static constexpr Operand<Element> query{0, "query"}, key{1, "key"}, value{2, "value"};
  static constexpr Operand<Element> output{0, "output"};
  static constexpr Attribute<int64_t> num_heads{"num_heads"};
  static constexpr Attribute<float> scale{"scale", 0.0f};
};

struct AttentionAttributes {
  explicit AttentionAttributes(const KernelInfo& info);

  const char* op;
  int64_t num_heads;
  float scale;  // 0: 1 / sqrt(head_size)
};

// The inputs of one call, checked.
template <class Element>
struct AttentionInputs {
  // Of an op whose queries are the tokens.
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                  const Operand<int32_t>& cu_seqlens);
  // Of cross-attention.
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                  const Operand<int32_t>& cu_seqlens_q, const Operand<int32_t>& cu_seqlens_k);

  Input<Element> query;
  Input<Element> key;
  Input<Element> value;
  std::vector<int64_t> query_borders;  // of each sequence's queries
  std::vector<int64_t> borders;        // of its keys
  int64_t queries;
  int64_t tokens;
  int64_t head_size;
  float scale;

 private:
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context);
};

// Multiply-adds of QK^T that are worth a task of their own, 10 to 30 microseconds.
constexpr int64_t kTaskWork = int64_t{1} << 20;

// Queries that cost the same: `range` says how many heads are computed together but not which, `block_work`
// the multiply-adds of QK^T for one block and head.
struct Stretch {
  QueryRange range;
  int64_t block_work;
};

// Cuts the queries of all heads into tasks of about `task_work`: long stretches into several, short ones
// together. A task is cut at multiples of the block only.
std::vector<std::vector<QueryRange>> DivideWork(const std::vector<Stretch>& stretches, int64_t num_heads,
                                                int64_t query_block, int64_t task_work);

template <class Element>
using AttentionKernel = void (*)(const PackedAttention<Element>&, const QueryRange&, float* scratch);

// Runs `kernel` over every query of every sequence and head, each on one thread.
template <class Element>
void RunPackedAttention(KernelContext& context, const AttentionInputs<Element>& inputs,
                        const PackedAttention<Element>& tensors, AttentionKernel<Element> kernel,
                        size_t (*scratch)(int64_t longest_sequence, int64_t head_size));

}  // namespace sparse_ops
