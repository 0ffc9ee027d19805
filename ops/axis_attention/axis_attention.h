#pragma once

#include "attention/packed_attention.h"
#include "axis_attention/fixed_pairs.h"
#include "runtime/cpu_context.h"
#include "runtime/cuda_context.h"

namespace sparse_ops {

template <class Element>
struct AxisAttentionSignature : AttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "AxisAttention";
  static constexpr Operand<bool> rows{3, "rows"}, columns{4, "columns"};
  static constexpr Operand<int32_t> cu_seqlens{5, "cu_seqlens"};
  static constexpr auto inputs =
      Operands(Shared::query, Shared::key, Shared::value, rows, columns, cu_seqlens);
  static constexpr Operand<int32_t> support{1, "support", kOptional};
  static constexpr auto outputs = Operands(Shared::output, support);
  static constexpr Attribute<IntList> diagonals{"diagonals"};
  static constexpr Attribute<int64_t> random_keys{"random_keys", 0};
  static constexpr Attribute<int64_t> seed{"seed", 0};
  static constexpr Attribute<std::string_view> normalizer{"normalizer", "softmax"};
  static constexpr Attribute<float> lambd{"lambd", 0.0f};
};

// `query_tokens` is given in cross-attention; its shape is empty where the queries are the tokens.
template <class Element>
struct AxisProblem : AttentionProblem<Element> {
  const FixedPairs* fixed;  // of the node
  bool sparsegen;           // whether sparsegen-lin normalizes, not softmax
  const uint8_t* rows;      // (tokens)
  const uint8_t* columns;   // (tokens)
  Input<int64_t> query_tokens;
};

template <class Element>
class AxisAttention {
 public:
  using Signature = AxisAttentionSignature<Element>;

  explicit AxisAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  AxisProblem<Element> Check(KernelContext& context) const;

 protected:
  AxisProblem<Element> Problem(KernelContext& context, const AttentionInputs<Element>& inputs,
                               const Input<bool>& rows, const Input<bool>& columns,
                               const Input<int64_t>& query_tokens) const;

  AttentionAttributes attributes_;
  FixedPairs fixed_;
  bool sparsegen_;
  float divisor_;
};

template <class Element>
struct AxisCrossAttentionSignature : AxisAttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "AxisCrossAttention";
  static constexpr Operand<int64_t> query_tokens{3, "query_tokens"};
  static constexpr Operand<bool> rows{4, "rows"}, columns{5, "columns"};
  static constexpr Operand<int32_t> cu_seqlens_q{6, "cu_seqlens_q"}, cu_seqlens_k{7, "cu_seqlens_k"};
  static constexpr auto inputs = Operands(Shared::query, Shared::key, Shared::value, query_tokens, rows,
                                          columns, cu_seqlens_q, cu_seqlens_k);
};

template <class Element>
class AxisCrossAttention : public AxisAttention<Element> {
 public:
  using Signature = AxisCrossAttentionSignature<Element>;

  using AxisAttention<Element>::AxisAttention;
  AxisProblem<Element> Check(KernelContext& context) const;
};

template <class Element>
void Launch(CpuContext& context, const AxisProblem<Element>& problem);
template <class Element>
void Launch(CudaContext& context, const AxisProblem<Element>& problem);

}  // namespace sparse_ops
