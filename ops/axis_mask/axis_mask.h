#pragma once

#include "runtime/kernel_context.h"

namespace sparse_ops {

template <class Element>
class AxisMask {
 public:
  static constexpr const char* kName = "AxisMask";
  static constexpr ONNXTensorElementDataType kInputs[] = {kElementType<Element>, kElementType<Element>,
                                                          kElementType<Element>};
  static constexpr ONNXTensorElementDataType kOutputs[] = {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
                                                           ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL};
  static constexpr size_t kRequiredOutputs = 2;

  explicit AxisMask(const KernelInfo&) {}
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;
};

}  // namespace sparse_ops
