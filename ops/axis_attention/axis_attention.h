#pragma once

#include "axis_attention/axis_plan.h"

namespace sparse_ops {

template <class Element>
class AxisAttention {
 public:
  static constexpr const char* kName = "AxisAttention";
  static constexpr ONNXTensorElementDataType kInputs[] = {kElementType<Element>,
                                                          kElementType<Element>,
                                                          kElementType<Element>,
                                                          ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
                                                          ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
                                                          ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr ONNXTensorElementDataType kOutputs[] = {kElementType<Element>,
                                                           ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr size_t kRequiredOutputs = 1;

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
