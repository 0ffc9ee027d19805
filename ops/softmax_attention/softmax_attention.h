#pragma once

#include "attention/packed_attention.h"

namespace sparse_ops {

class SoftmaxAttention {
 public:
  static constexpr const char* kName = "SoftmaxAttention";
  static constexpr ONNXTensorElementDataType kInputs[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr ONNXTensorElementDataType kOutputs[] = {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT};

  explicit SoftmaxAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  AttentionAttributes attributes_;
};

}  // namespace sparse_ops
