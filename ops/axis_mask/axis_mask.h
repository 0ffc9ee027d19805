#pragma once

#include "axis_mask/axis_mask_problem.h"
#include "runtime/cpu_context.h"
#include "runtime/cuda_context.h"

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
  AxisMaskProblem<Element> Check(KernelContext& context) const;
};

template <class Element>
void Launch(CpuContext& context, const AxisMaskProblem<Element>& problem);
template <class Element>
void Launch(CudaContext& context, const AxisMaskProblem<Element>& problem);

}  // namespace sparse_ops
