// The signature of an op: its name, inputs, outputs and attributes. An op declares it once, in one struct, in
// the words of ops/README.md; registration, reading, shape inference and messages use that.
//
//   struct Signature {
//     static constexpr const char* kName = "Scale";
//     static constexpr Operand<float> values{0, "values"};
//     static constexpr auto inputs = Operands(values);
//     static constexpr Operand<float> scaled{0, "scaled"};
//     static constexpr auto outputs = Operands(scaled);
//     static constexpr Attribute<float> factor{"factor", 1.0f};
//   };
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/elements.h"
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
template <>
inline constexpr auto kElementType<uint8_t> = ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
template <>
inline constexpr auto kElementType<int32_t> = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
template <>
inline constexpr auto kElementType<int64_t> = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
template <>
inline constexpr auto kElementType<bool> = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
template <>
inline constexpr auto kElementType<std::string_view> = ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;

// The type by which an element is stored: a bool is a byte, which may have any value in a file.
template <class Element>
struct StoredAs {
  using Type = Element;
};
template <>
struct StoredAs<bool> {
  using Type = uint8_t;
};
template <class Element>
using Stored = typename StoredAs<Element>::Type;

enum Presence { kRequired, kOptional };

// An input or an output: its index, its name and the type of its elements.
template <class Element>
struct Operand {
  size_t index;
  const char* name;
  Presence presence = kRequired;
};

// An operand as ONNX Runtime is told of it.
struct OperandType {
  ONNXTensorElementDataType type;
  Presence presence;
};

// The inputs, or the outputs, of an op. Does not compile where one is not at its index.
template <class... Elements>
constexpr std::array<OperandType, sizeof...(Elements)> Operands(const Operand<Elements>&... operands) {
  size_t place = 0;
  if (!((operands.index == place++) && ...)) throw "an operand is not at its place";
  return {OperandType{kElementType<Elements>, operands.presence}...};
}

// An attribute: of type float, int64_t or std::string_view. Without a default it is required.
template <class T>
struct Attribute {
  const char* name;
  std::optional<T> absent = std::nullopt;
};

// A list of integers, empty where the node lacks it.
struct IntList {};
template <>
struct Attribute<IntList> {
  const char* name;
};

}  // namespace sparse_ops
