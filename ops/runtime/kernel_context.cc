#include "runtime/kernel_context.h"

#include <sstream>

namespace sparse_ops {
namespace {

Shape ShapeOf(const OrtApi& api, const OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api, api.GetTensorTypeAndShape(value, &info));
  size_t rank = 0;
  OrtStatus* status = api.GetDimensionsCount(info, &rank);
  Shape shape(rank);
  if (status == nullptr) status = api.GetDimensions(info, shape.data(), rank);
  api.ReleaseTensorTypeAndShapeInfo(info);
  Check(api, status);
  return shape;
}

const void* DataOf(const OrtApi& api, const OrtValue* value) {
  void* data = nullptr;
  Check(api, api.GetTensorMutableData(const_cast<OrtValue*>(value), &data));
  return data;
}

}  // namespace

std::string ToString(const Shape& shape) {
  std::ostringstream text;
  text << '(';
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "" : ", ") << shape[i];
  text << (shape.size() == 1 ? ",)" : ")");
  return text.str();
}

Strings::Strings(const OrtApi& api, const OrtValue* value) : shape_(ShapeOf(api, value)) {
  size_t count = 1;
  for (const int64_t size : shape_) count *= static_cast<size_t>(size);
  offsets_.resize(count + 1);
  if (count == 0) return;
  size_t bytes = 0;
  Check(api, api.GetStringTensorDataLength(value, &bytes));
  bytes_.reset(new char[bytes]);  // make_unique would clear it
  Check(api, api.GetStringTensorContent(value, bytes_.get(), bytes, offsets_.data(), count));
  offsets_[count] = bytes;
}

bool KernelInfo::Succeeds(OrtStatus* status) const {
  if (status == nullptr) return true;
  api_.ReleaseStatus(status);
  return false;
}

bool KernelInfo::HasFloat(const char* name) const {
  float value;
  return Succeeds(api_.KernelInfoGetAttribute_float(info_, name, &value));
}

bool KernelInfo::HasInt(const char* name) const {
  int64_t value;
  return Succeeds(api_.KernelInfoGetAttribute_int64(info_, name, &value));
}

bool KernelInfo::HasString(const char* name) const {
  size_t size = 0;
  return Succeeds(api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size));
}

// ONNX Runtime answers this for an attribute of another type too, then with size 0.
bool KernelInfo::HasFloats(const char* name, size_t* size) const {
  return Succeeds(api_.KernelInfoGetAttributeArray_float(info_, name, nullptr, size));
}

// As HasFloats. There is no getter for a list of strings: it has size 0 by both.
bool KernelInfo::HasInts(const char* name, size_t* size) const {
  return Succeeds(api_.KernelInfoGetAttributeArray_int64(info_, name, nullptr, size));
}

bool KernelInfo::HasList(const char* name) const {
  size_t size = 0;
  return HasFloats(name, &size) || HasInts(name, &size);
}

void KernelInfo::RequireAbsent(const char* name, bool present_as_other_type, const char* accepted) const {
  if (present_as_other_type) {
    throw InvalidArgument(Message(op_, ": attribute ", name, " has the wrong type; accepted: ", accepted));
  }
}

template <class T>
T KernelInfo::ValueOfAbsent(const Attribute<T>& attribute, const char* accepted) const {
  if (attribute.absent) return *attribute.absent;
  throw InvalidArgument(Message(op_, ": attribute ", attribute.name, " is missing; accepted: ", accepted));
}

float KernelInfo::Get(const Attribute<float>& attribute, const char* accepted) const {
  const char* name = attribute.name;
  float value;
  if (Succeeds(api_.KernelInfoGetAttribute_float(info_, name, &value))) return value;
  RequireAbsent(name, HasInt(name) || HasString(name) || HasList(name), accepted);
  return ValueOfAbsent(attribute, accepted);
}

int64_t KernelInfo::Get(const Attribute<int64_t>& attribute, const char* accepted) const {
  const char* name = attribute.name;
  int64_t value;
  if (Succeeds(api_.KernelInfoGetAttribute_int64(info_, name, &value))) return value;
  RequireAbsent(name, HasFloat(name) || HasString(name) || HasList(name), accepted);
  return ValueOfAbsent(attribute, accepted);
}

std::string KernelInfo::Get(const Attribute<std::string_view>& attribute, const char* accepted) const {
  const char* name = attribute.name;
  size_t size = 0;
  if (Succeeds(api_.KernelInfoGetAttribute_string(info_, name, nullptr, &size))) {
    std::string value(size, '\0');
    Check(api_, api_.KernelInfoGetAttribute_string(info_, name, value.data(), &size));
    value.resize(size == 0 ? 0 : size - 1);  // without the terminator
    return value;
  }
  RequireAbsent(name, HasFloat(name) || HasInt(name) || HasList(name), accepted);
  return std::string(ValueOfAbsent(attribute, accepted));
}

std::vector<int64_t> KernelInfo::Get(const Attribute<IntList>& attribute, const char* accepted) const {
  const char* name = attribute.name;
  size_t size = 0;
  if (HasInts(name, &size) && size > 0) {
    std::vector<int64_t> values(size);
    Check(api_, api_.KernelInfoGetAttributeArray_int64(info_, name, values.data(), &size));
    return values;
  }
  const bool has_floats = HasFloats(name, &size) && size > 0;
  RequireAbsent(name, HasFloat(name) || HasInt(name) || HasString(name) || has_floats, accepted);
  return {};
}

bool KernelInfo::HasOutputAt(size_t index) const {
  size_t count = 0;
  Check(api_, api_.KernelInfo_GetOutputCount(info_, &count));
  if (index >= count) return false;
  size_t size = 0;  // with the terminator
  Check(api_, api_.KernelInfo_GetOutputName(info_, index, nullptr, &size));
  return size > 1;
}

const OrtValue* KernelInfo::ConstantValue(size_t index, const char* name) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  Check(api_, api_.KernelInfoGetConstantInput_tensor(info_, index, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) {
    throw InvalidArgument(Message(op_, ": ", name, " is computed or fed; accepted: an initializer"));
  }
  return value;
}

const void* KernelInfo::ConstantData(size_t index, const char* name, Shape* shape) const {
  const OrtValue* value = ConstantValue(index, name);
  *shape = ShapeOf(api_, value);
  return DataOf(api_, value);
}

Strings KernelInfo::ConstantStrings(const Operand<std::string_view>& operand) const {
  return Strings(api_, ConstantValue(operand.index, operand.name));
}

const OrtValue* KernelContext::InputValue(size_t index) const {
  const OrtValue* value = nullptr;
  Check(api_, api_.KernelContext_GetInput(context_, index, &value));
  return value;
}

const void* KernelContext::InputData(size_t index, Shape* shape) const {
  const OrtValue* value = InputValue(index);
  *shape = ShapeOf(api_, value);
  return DataOf(api_, value);
}

Strings KernelContext::GetStrings(const Operand<std::string_view>& operand) const {
  return Strings(api_, InputValue(operand.index));
}

void* KernelContext::OutputData(size_t index, const Shape& shape) {
  OrtValue* value = nullptr;
  Check(api_, api_.KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  void* data = nullptr;
  if (value != nullptr) Check(api_, api_.GetTensorMutableData(value, &data));
  return data;
}

bool ShapeContext::Dimensions::known() const {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 && *names[i] == '\0') return false;
  }
  return !sizes.empty();
}

ShapeContext::Dimensions ShapeContext::InputDimensions(size_t index) const {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api_, api_.ShapeInferContext_GetInputTypeShape(context_, index, &info));
  size_t rank = 0;
  Check(api_, api_.GetDimensionsCount(info, &rank));
  Dimensions dimensions{info, Shape(rank), std::vector<const char*>(rank)};
  Check(api_, api_.GetDimensions(info, dimensions.sizes.data(), rank));
  Check(api_, api_.GetSymbolicDimensions(info, dimensions.names.data(), rank));
  return dimensions;
}

bool ShapeContext::GetInt(const char* attribute, int64_t* value) const {
  const OrtOpAttr* found = nullptr;
  OrtStatus* status = api_.ShapeInferContext_GetAttribute(context_, attribute, &found);
  size_t size = 0;
  if (status == nullptr) status = api_.ReadOpAttr(found, ORT_OP_ATTR_INT, value, sizeof(*value), &size);
  if (status == nullptr) return true;
  api_.ReleaseStatus(status);
  return false;
}

void ShapeContext::SetLike(size_t output, size_t input) {
  const Dimensions like = InputDimensions(input);
  if (like.known()) Check(api_, api_.ShapeInferContext_SetOutputTypeShape(context_, output, like.info));
}

void ShapeContext::SetShapeLike(size_t output, ONNXTensorElementDataType type, size_t input) {
  const Dimensions like = InputDimensions(input);
  if (like.known()) SetOutput(output, type, like.sizes, like.names);
}

void ShapeContext::SetOneForEachRow(size_t output, ONNXTensorElementDataType type, size_t input) {
  Dimensions like = InputDimensions(input);
  if (!like.known()) return;
  like.sizes.back() = 1;
  like.names.back() = "";
  SetOutput(output, type, like.sizes, like.names);
}

void ShapeContext::SetVectorLike(size_t output, ONNXTensorElementDataType type, size_t input) {
  const Dimensions like = InputDimensions(input);
  if (like.known()) SetOutput(output, type, {like.sizes[0]}, {like.names[0]});
}

void ShapeContext::SetColumnLike(size_t output, ONNXTensorElementDataType type, size_t input) {
  const Dimensions like = InputDimensions(input);
  if (like.known()) SetOutput(output, type, {like.sizes[0], 1}, {like.names[0], ""});
}

void ShapeContext::SetRowsLike(size_t output, ONNXTensorElementDataType type, size_t input,
                               const char* columns) {
  const Dimensions like = InputDimensions(input);
  int64_t width = -1;
  if (like.sizes.size() != 2 || !like.known() || !GetInt(columns, &width) || width < 0) return;
  SetOutput(output, type, {like.sizes[0], width}, {like.names[0], ""});
}

void ShapeContext::SetOutput(size_t output, ONNXTensorElementDataType type, const Shape& sizes,
                             std::vector<const char*> names) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(api_, api_.CreateTensorTypeAndShapeInfo(&info));
  OrtStatus* status = api_.SetTensorElementType(info, type);
  if (status == nullptr) status = api_.SetDimensions(info, sizes.data(), sizes.size());
  if (status == nullptr) status = api_.SetSymbolicDimensions(info, names.data(), names.size());
  if (status == nullptr) status = api_.ShapeInferContext_SetOutputTypeShape(context_, output, info);
  api_.ReleaseTensorTypeAndShapeInfo(info);
  Check(api_, status);
}

}  // namespace sparse_ops
