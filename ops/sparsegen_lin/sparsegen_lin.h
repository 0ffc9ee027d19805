#pragma once

#include "runtime/kernel_context.h"

namespace sparse_ops {

// 1 - lambda of the node's checked attribute lambd, which is required or else has a default.
float SparsegenDivisor(const KernelInfo& info, const char* op);
float SparsegenDivisorOr(const KernelInfo& info, const char* op, float absent);

template <class Element>
class SparsegenLin {
 public:
  static constexpr const char* kName = "SparsegenLin";
  static constexpr ONNXTensorElementDataType kInputs[] = {kElementType<Element>};
  static constexpr ONNXTensorElementDataType kOutputs[] = {kElementType<Element>};
  static constexpr size_t kRequiredOutputs = 1;

  explicit SparsegenLin(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  float divisor_;
  int64_t axis_;
};

}  // namespace sparse_ops
