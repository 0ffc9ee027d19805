#pragma once

#include "runtime/kernel_context.h"

namespace sparse_ops {

// 1 - lambda of the node's checked attribute.
float SparsegenDivisor(const KernelInfo& info, const Attribute<float>& lambd);

template <class Element>
struct SparsegenLinSignature {
  static constexpr const char* kName = "SparsegenLin";
  static constexpr Operand<Element> scores{0, "scores"};
  static constexpr auto inputs = Operands(scores);
  static constexpr Operand<Element> weights{0, "weights"};
  static constexpr auto outputs = Operands(weights);
  static constexpr Attribute<float> lambd{"lambd"};
  static constexpr Attribute<int64_t> axis{"axis", -1};
};

template <class Element>
class SparsegenLin {
 public:
  using Signature = SparsegenLinSignature<Element>;

  explicit SparsegenLin(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  float divisor_;
  int64_t axis_;
};

}  // namespace sparse_ops
