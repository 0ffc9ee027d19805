#pragma once

#include "runtime/kernel_context.h"

namespace sparse_ops {

template <class Element>
struct AxisMaskSignature {
  static constexpr const char* kName = "AxisMask";
  static constexpr Operand<Element> hidden{0, "hidden"}, weight{1, "weight"}, bias{2, "bias"};
  static constexpr auto inputs = Operands(hidden, weight, bias);
  static constexpr Operand<bool> rows{0, "rows"}, columns{1, "columns"};
  static constexpr auto outputs = Operands(rows, columns);
};

template <class Element>
class AxisMask {
 public:
  using Signature = AxisMaskSignature<Element>;

  explicit AxisMask(const KernelInfo&) {}
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;
};

}  // namespace sparse_ops
