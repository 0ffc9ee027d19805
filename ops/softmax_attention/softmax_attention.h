#pragma once

#include "attention/packed_attention.h"

namespace sparse_ops {

template <class Element>
struct SoftmaxAttentionSignature : AttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SoftmaxAttention";
  static constexpr Operand<int32_t> cu_seqlens{3, "cu_seqlens"};
  static constexpr auto inputs = Operands(Shared::query, Shared::key, Shared::value, cu_seqlens);
  static constexpr auto outputs = Operands(Shared::output);
};

template <class Element>
class SoftmaxAttention {
 public:
  using Signature = SoftmaxAttentionSignature<Element>;

  explicit SoftmaxAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 protected:
  void Attend(KernelContext& context, const AttentionInputs<Element>& inputs) const;

  AttentionAttributes attributes_;
};

template <class Element>
struct SoftmaxCrossAttentionSignature : SoftmaxAttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SoftmaxCrossAttention";
  static constexpr Operand<int32_t> cu_seqlens_q{3, "cu_seqlens_q"}, cu_seqlens_k{4, "cu_seqlens_k"};
  static constexpr auto inputs =
      Operands(Shared::query, Shared::key, Shared::value, cu_seqlens_q, cu_seqlens_k);
};

template <class Element>
class SoftmaxCrossAttention : public SoftmaxAttention<Element> {
 public:
  using Signature = SoftmaxCrossAttentionSignature<Element>;

  using SoftmaxAttention<Element>::SoftmaxAttention;
  void Compute(KernelContext& context) const;
};

}  // namespace sparse_ops
