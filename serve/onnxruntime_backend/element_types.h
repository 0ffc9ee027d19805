// The element types of tensors, with their names in a configuration, in Triton and in ONNX Runtime.
#pragma once

#include <cstddef>

#include "onnxruntime_backend/triton_abi.h"
#include "runtime/ort_abi.h"

namespace sparse_serve {

struct ElementType {
  const char* configured;
  const char* onnx_name;
  TRITONSERVER_DataType triton;
  ONNXTensorElementDataType onnx;
  size_t bytes;  // of an element; 0 of text
};

constexpr ElementType kElementTypes[] = {
    {"TYPE_BOOL", "tensor(bool)", TRITONSERVER_TYPE_BOOL, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
    {"TYPE_UINT8", "tensor(uint8)", TRITONSERVER_TYPE_UINT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},
    {"TYPE_UINT16", "tensor(uint16)", TRITONSERVER_TYPE_UINT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 2},
    {"TYPE_UINT32", "tensor(uint32)", TRITONSERVER_TYPE_UINT32, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4},
    {"TYPE_UINT64", "tensor(uint64)", TRITONSERVER_TYPE_UINT64, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 8},
    {"TYPE_INT8", "tensor(int8)", TRITONSERVER_TYPE_INT8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
    {"TYPE_INT16", "tensor(int16)", TRITONSERVER_TYPE_INT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2},
    {"TYPE_INT32", "tensor(int32)", TRITONSERVER_TYPE_INT32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"TYPE_INT64", "tensor(int64)", TRITONSERVER_TYPE_INT64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {"TYPE_FP16", "tensor(float16)", TRITONSERVER_TYPE_FP16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
    {"TYPE_FP32", "tensor(float)", TRITONSERVER_TYPE_FP32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
    {"TYPE_FP64", "tensor(double)", TRITONSERVER_TYPE_FP64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"TYPE_STRING", "tensor(string)", TRITONSERVER_TYPE_BYTES, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, 0},
};

// Null for a type that no configuration can name.
inline const ElementType* FindElementType(ONNXTensorElementDataType onnx) {
  for (const ElementType& type : kElementTypes) {
    if (type.onnx == onnx) {
      return &type;
    }
  }
  return nullptr;
}

}  // namespace sparse_serve
