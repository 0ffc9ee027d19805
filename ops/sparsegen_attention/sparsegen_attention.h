#pragma once

#include "attention/packed_attention.h"

namespace sparse_ops {

template <class Element>
struct SparsegenAttentionSignature : AttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SparsegenAttention";
  static constexpr Operand<int32_t> cu_seqlens{3, "cu_seqlens"};
  static constexpr auto inputs = Operands(Shared::query, Shared::key, Shared::value, cu_seqlens);
  static constexpr Operand<int32_t> support{1, "support"};
  static constexpr auto outputs = Operands(Shared::output, support);
  static constexpr Attribute<float> lambd{"lambd"};
};

template <class Element>
class SparsegenAttention {
 public:
  using Signature = SparsegenAttentionSignature<Element>;

  explicit SparsegenAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  AttentionAttributes attributes_;
  float divisor_;
};

}  // namespace sparse_ops
