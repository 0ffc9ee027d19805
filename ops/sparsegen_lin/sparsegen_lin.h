#pragma once

#include "runtime/kernel_context.h"

namespace sparse_ops {

// 1 / (1 - lambda) of the node's checked attribute lambd.
float SparsegenFactor(const KernelInfo& info, const char* op);

template <class Element>
class SparsegenLin {
 public:
  static constexpr const char* kName = "SparsegenLin";
  static constexpr ONNXTensorElementDataType kInputs[] = {kElementType<Element>};
  static constexpr ONNXTensorElementDataType kOutputs[] = {kElementType<Element>};

  explicit SparsegenLin(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  float factor_;
  int64_t axis_;
};

}  // namespace sparse_ops
