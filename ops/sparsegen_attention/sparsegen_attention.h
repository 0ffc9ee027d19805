#pragma once

#include "attention/packed_attention.h"

namespace sparse_ops {

template <class Element>
class SparsegenAttention {
 public:
  static constexpr const char* kName = "SparsegenAttention";
  static constexpr ONNXTensorElementDataType kInputs[] = {kElementType<Element>, kElementType<Element>,
                                                          kElementType<Element>,
                                                          ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr ONNXTensorElementDataType kOutputs[] = {kElementType<Element>,
                                                           ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32};
  static constexpr size_t kRequiredOutputs = 2;

  explicit SparsegenAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  AttentionAttributes attributes_;
  float divisor_;
};

}  // namespace sparse_ops
