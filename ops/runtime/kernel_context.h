// What an op sees of ONNX Runtime: attributes, tensors, the thread pool, scratch memory, shape inference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cpu/elements.h"
#include "runtime/ort_abi.h"

namespace sparse_ops {

template <class Element>
inline constexpr ONNXTensorElementDataType kElementType{};
template <>
inline constexpr auto kElementType<float> = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
template <>
inline constexpr auto kElementType<Half> = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
template <>
inline constexpr auto kElementType<BFloat16> = ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;

using Shape = std::vector<int64_t>;

std::string ToString(const Shape& shape);  // "(2, 3)"

// The attributes of a node. Messages name the op, the attribute, what was received and what is accepted.
class KernelInfo {
 public:
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info, const char* op)
      : api_(api), info_(info), op_(op) {}

  // A required attribute. `accepted` describes the values it may take.
  float Float(const char* name, const char* accepted) const;
  int64_t Int(const char* name, const char* accepted) const;
  float FloatOr(const char* name, float absent, const char* accepted) const;
  int64_t IntOr(const char* name, int64_t absent, const char* accepted) const;
  std::string StringOr(const char* name, const char* absent, const char* accepted) const;
  std::vector<int64_t> Ints(const char* name, const char* accepted) const;  // empty where absent

 private:
  bool Succeeds(OrtStatus* status) const;
  bool HasFloat(const char* name) const;
  bool HasInt(const char* name) const;
  bool HasString(const char* name) const;
  bool HasFloats(const char* name, size_t* size) const;
  bool HasInts(const char* name, size_t* size) const;
  bool HasList(const char* name) const;
  void RequireAbsent(const char* name, bool present_as_other_type, const char* accepted) const;

  const OrtApi& api_;
  const OrtKernelInfo* info_;
  const char* op_;
};

template <class T>
struct Input {
  const T* data;
  Shape shape;
};

class KernelContext {
 public:
  KernelContext(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {}

  template <class T>
  Input<T> GetInput(size_t index) const {
    Input<T> input;
    input.data = static_cast<const T*>(InputData(index, &input.shape));
    return input;
  }

  // Null where the node leaves an optional output out.
  template <class T>
  T* GetOutput(size_t index, const Shape& shape) {
    return static_cast<T*>(OutputData(index, shape));
  }

  // Runs task(i, scratch) for i in [0, tasks) on the session's intra-op threads and rethrows the first error.
  // scratch: scratch_floats floats, aligned to 64 bytes and not cleared.
  //
  // There are as many scratch buffers as tasks running at once. They come from the session's CPU allocator,
  // so the session's memory settings hold for them, and all are given back before this returns.
  void ParallelFor(size_t tasks, size_t scratch_floats, const std::function<void(size_t, float*)>& task);

 private:
  const void* InputData(size_t index, Shape* shape) const;
  void* OutputData(size_t index, const Shape& shape);

  const OrtApi& api_;
  OrtKernelContext* context_;
};

// Shape inference. A dimension is a size or a name; where an input has a dimension with neither, nothing is
// inferred: ONNX Runtime takes such a dimension handed back to it for the size -1 and warns at every run.
class ShapeContext {
 public:
  ShapeContext(const OrtApi& api, const OrtShapeInferContext* context) : api_(api), context_(context) {}

  // The output has the shape and type of the input.
  void SetOutputLike(size_t output, size_t input);

  // The output is a vector, one number for each row of the input.
  void SetOutputVectorLike(size_t output, ONNXTensorElementDataType type, size_t input);

  // The output is a matrix with the rows of the input, itself a matrix, and as many columns as an attribute
  // says.
  void SetOutputRowsLike(size_t output, ONNXTensorElementDataType type, size_t input, const char* columns);

 private:
  struct Dimensions {
    const OrtTensorTypeAndShapeInfo* info;  // owned by ONNX Runtime
    Shape sizes;                            // -1: see names
    std::vector<const char*> names;
    bool known() const;  // false for a scalar too: it may stand for an unknown rank
  };

  Dimensions InputDimensions(size_t index) const;
  void SetOutput(size_t output, ONNXTensorElementDataType type, const Shape& sizes,
                 std::vector<const char*> names);
  bool GetInt(const char* attribute, int64_t* value) const;

  const OrtApi& api_;
  const OrtShapeInferContext* context_;
};

}  // namespace sparse_ops
