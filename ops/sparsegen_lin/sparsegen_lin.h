#pragma once

#include "runtime/cpu_context.h"
#include "runtime/cuda_context.h"
#include "sparsegen_lin/axis_rows.h"

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
struct SparsegenLinProblem {
  AxisRows<Element> rows;
  int64_t count;  // of rows; 0 where the tensor is empty
  float divisor;  // 1 - lambda
};

template <class Element>
class SparsegenLin {
 public:
  using Signature = SparsegenLinSignature<Element>;

  explicit SparsegenLin(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  SparsegenLinProblem<Element> Check(KernelContext& context) const;

 private:
  float divisor_;
  int64_t axis_;
};

template <class Element>
void Launch(CpuContext& context, const SparsegenLinProblem<Element>& problem);
template <class Element>
void Launch(CudaContext& context, const SparsegenLinProblem<Element>& problem);

}  // namespace sparse_ops
