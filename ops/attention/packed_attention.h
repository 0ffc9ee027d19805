// The part of a packed attention op that is the same for all normalisers and providers: attributes, and
// checks of shapes. Queries are the tokens themselves, or, in cross-attention, rows of their own beside keys
// and values.
#pragma once

#include <cstdint>

#include "attention/packed_tensors.h"
#include "runtime/kernel_context.h"

namespace sparse_ops {

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

// The inputs of one call, their shapes checked. The values of cu_seqlens are not read: they may lie on a
// device.
template <class Element>
struct AttentionInputs {
  // For an op whose queries are the tokens.
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                  const Operand<int32_t>& cu_seqlens);
  // For cross-attention.
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                  const Operand<int32_t>& cu_seqlens_q, const Operand<int32_t>& cu_seqlens_k);

  Input<Element> query;
  Input<Element> key;
  Input<Element> value;
  Input<int32_t> query_borders{};  // of each sequence's queries
  Input<int32_t> borders{};        // of its keys
  const char* op;
  int64_t queries;
  int64_t tokens;
  int64_t head_size;
  float scale;

  int64_t sequences() const { return borders.shape[0] - 1; }

 private:
  AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context);
};

// A call of an op that has no other inputs, with its outputs made.
template <class Element>
struct AttentionProblem {
  AttentionInputs<Element> inputs;
  PackedAttention<Element> tensors;
};

// The tensors of a call, without those that only the op itself has.
template <class Element>
PackedAttention<Element> TensorsOf(const AttentionAttributes& attributes,
                                   const AttentionInputs<Element>& inputs, Element* output);

}  // namespace sparse_ops
