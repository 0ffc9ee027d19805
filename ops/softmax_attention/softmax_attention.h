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

 private:
  AttentionAttributes attributes_;
};

}  // namespace sparse_ops
