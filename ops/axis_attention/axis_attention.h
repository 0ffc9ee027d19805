#pragma once

#include "axis_attention/axis_plan.h"

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

template <class Element>
class AxisAttention {
 public:
  using Signature = AxisAttentionSignature<Element>;

  explicit AxisAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  AttentionAttributes attributes_;
  FixedPairs fixed_;
  bool sparsegen_;
  float divisor_;
};

}  // namespace sparse_ops
