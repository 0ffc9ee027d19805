// What an op sees of ONNX Runtime, whichever provider runs its kernel: attributes, constants, tensors, shape
// inference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/ort_abi.h"
#include "runtime/signature.h"
#include "runtime/status.h"

namespace sparse_ops {

using Shape = std::vector<int64_t>;

std::string ToString(const Shape& shape);  // "(2, 3)"

// A tensor that a node reads.
template <class Element>
struct Input {
  const char* name;
  const Stored<Element>* data;
  Shape shape;
};

// The elements of a string tensor, all copied at once: ONNX Runtime holds them as strings of its C++ library,
// which may differ from ours.
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

  // An attribute's value. `accepted` describes those it may take.
  float Get(const Attribute<float>& attribute, const char* accepted) const;
  int64_t Get(const Attribute<int64_t>& attribute, const char* accepted) const;
  std::string Get(const Attribute<std::string_view>& attribute, const char* accepted) const;
  std::vector<int64_t> Get(const Attribute<IntList>& attribute, const char* accepted) const;

  // Throws an InvalidArgument that an attribute's value is not accepted.
  template <class T, class Value>
  [[noreturn]] void Refuse(const Attribute<T>& attribute, const Value& value, const char* accepted) const {
    throw InvalidArgument(
        Message(op_, ": attribute ", attribute.name, " is ", value, "; accepted: ", accepted));
  }

  // An input that must be an initializer. ONNX Runtime owns what `data` points to, and may move it once the
  // kernel is made.
  template <class Element>
  Input<Element> Constant(const Operand<Element>& operand) const {
    Input<Element> input{operand.name, nullptr, {}};
    const void* data = ConstantData(operand.index, operand.name, &input.shape);
    input.data = static_cast<const Stored<Element>*>(data);
    return input;
  }
  Strings ConstantStrings(const Operand<std::string_view>& operand) const;

  // Whether the node has this optional output.
  template <class Element>
  bool HasOutput(const Operand<Element>& operand) const {
    return HasOutputAt(operand.index);
  }

 private:
  template <class T>
  T ValueOfAbsent(const Attribute<T>& attribute, const char* accepted) const;
  bool HasOutputAt(size_t index) const;
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

// One call of a kernel, on any provider. Where a tensor is in device memory, the host may read its shape
// only.
class KernelContext {
 public:
  KernelContext(const OrtApi& api, OrtKernelContext* context) : api_(api), context_(context) {}

  template <class Element>
  Input<Element> GetInput(const Operand<Element>& operand) const {
    Input<Element> input{operand.name, nullptr, {}};
    input.data = static_cast<const Stored<Element>*>(InputData(operand.index, &input.shape));
    return input;
  }

  Strings GetStrings(const Operand<std::string_view>& operand) const;

  // Whether the node has this optional input.
  template <class Element>
  bool HasInput(const Operand<Element>& operand) const {
    return InputValue(operand.index) != nullptr;
  }

  // Null where the node leaves an optional output out.
  template <class Element>
  Stored<Element>* GetOutput(const Operand<Element>& operand, const Shape& shape) {
    return static_cast<Stored<Element>*>(OutputData(operand.index, shape));
  }

 protected:
  const OrtApi& api_;
  OrtKernelContext* context_;

 private:
  const OrtValue* InputValue(size_t index) const;  // null where the node leaves it out
  const void* InputData(size_t index, Shape* shape) const;
  void* OutputData(size_t index, const Shape& shape);
};

// Shape inference. A dimension is a size or a name; where an input has a dimension with neither, nothing is
// inferred: ONNX Runtime takes such a dimension handed back to it for the size -1 and warns at every run.
class ShapeContext {
 public:
  ShapeContext(const OrtApi& api, const OrtShapeInferContext* context) : api_(api), context_(context) {}

  // The output has the shape of the input and its type: of an op of several types ONNX Runtime asks one.
  template <class Element>
  void SetOutputLike(const Operand<Element>& output, const Operand<Element>& input) {
    SetLike(output.index, input.index);
  }

  // The output has the shape of the input, and a type of its own.
  template <class Element, class InputElement>
  void SetOutputShapeLike(const Operand<Element>& output, const Operand<InputElement>& input) {
    SetShapeLike(output.index, kElementType<Element>, input.index);
  }

  // The output has the shape of the input but for the last axis, of size 1.
  template <class Element, class InputElement>
  void SetOutputOneForEachRow(const Operand<Element>& output, const Operand<InputElement>& input) {
    SetOneForEachRow(output.index, kElementType<Element>, input.index);
  }

  // The output is a vector, one number for each row of the input.
  template <class Element, class InputElement>
  void SetOutputVectorLike(const Operand<Element>& output, const Operand<InputElement>& input) {
    SetVectorLike(output.index, kElementType<Element>, input.index);
  }

  // The output is a matrix of one column, one number for each row of the input.
  template <class Element, class InputElement>
  void SetOutputColumnLike(const Operand<Element>& output, const Operand<InputElement>& input) {
    SetColumnLike(output.index, kElementType<Element>, input.index);
  }

  // The output is a matrix with the rows of the input, itself a matrix, and as many columns as an attribute
  // says.
  template <class Element, class InputElement>
  void SetOutputRowsLike(const Operand<Element>& output, const Operand<InputElement>& input,
                         const Attribute<int64_t>& columns) {
    SetRowsLike(output.index, kElementType<Element>, input.index, columns.name);
  }

 private:
  void SetLike(size_t output, size_t input);
  void SetShapeLike(size_t output, ONNXTensorElementDataType type, size_t input);
  void SetOneForEachRow(size_t output, ONNXTensorElementDataType type, size_t input);
  void SetVectorLike(size_t output, ONNXTensorElementDataType type, size_t input);
  void SetColumnLike(size_t output, ONNXTensorElementDataType type, size_t input);
  void SetRowsLike(size_t output, ONNXTensorElementDataType type, size_t input, const char* columns);

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
