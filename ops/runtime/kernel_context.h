// What an op sees of ONNX Runtime: attributes, constants, tensors, the thread pool, scratch memory, shape
// inference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
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

template <class T>
struct Input {
  const T* data;
  Shape shape;
};

// The elements of a string tensor, copied at once: ONNX Runtime holds them as strings of its own C++ library,
// which may be another than ours.
class Strings {
 public:
  Strings() = default;
  Strings(const OrtApi& api, const OrtValue* value);

  const Shape& shape() const { return shape_; }
  size_t size() const { return offsets_.empty() ? 0 : offsets_.size() - 1; }
  std::string_view operator[](size_t i) const {
    return {bytes_.get() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }

 private:
  Shape shape_;
  std::unique_ptr<char[]> bytes_;
  std::vector<size_t> offsets_;
};

// The attributes and constant inputs of a node. Messages name the op, the attribute, what was received and
// what is accepted.
class KernelInfo {
 public:
  KernelInfo(const OrtApi& api, const OrtKernelInfo* info, const char* op)
      : api_(api), info_(info), op_(op) {}

  const char* op() const { return op_; }

  // A required attribute. `accepted` describes the values it may take.
  float Float(const char* name, const char* accepted) const;
  int64_t Int(const char* name, const char* accepted) const;
  float FloatOr(const char* name, float absent, const char* accepted) const;
  int64_t IntOr(const char* name, int64_t absent, const char* accepted) const;
  std::string StringOr(const char* name, const char* absent, const char* accepted) const;
  std::vector<int64_t> Ints(const char* name, const char* accepted) const;  // empty where absent

  // An input that must be an initializer; `name` is for messages. ONNX Runtime owns what `data` points to,
  // and may move it once the kernel is made.
  template <class T>
  Input<T> Constant(size_t index, const char* name) const {
    Input<T> input;
    input.data = static_cast<const T*>(ConstantData(index, name, &input.shape));
    return input;
  }
  Strings ConstantStrings(size_t index, const char* name) const;

  // Whether the node has this optional output.
  bool HasOutput(size_t index) const;

 private:
  const OrtValue* ConstantValue(size_t index, const char* name) const;
  const void* ConstantData(size_t index, const char* name, Shape* shape) const;
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

class KernelContext {
 public:
  KernelContext(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {}

  template <class T>
  Input<T> GetInput(size_t index) const {
    Input<T> input;
    input.data = static_cast<const T*>(InputData(index, &input.shape));
    return input;
  }

  Strings GetStrings(size_t index) const;

  // Whether the node has this optional input.
  bool HasInput(size_t index) const;

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
  const OrtValue* InputValue(size_t index) const;  // null where the node leaves it out
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

  // The output is a matrix of one column, one number for each row of the input.
  void SetOutputColumnLike(size_t output, ONNXTensorElementDataType type, size_t input);

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
