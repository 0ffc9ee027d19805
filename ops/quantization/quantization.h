// The ops around a matrix product of 8-bit integers. Each row of its left side has a scale of its own.
#pragma once

#include "runtime/cpu_context.h"

namespace sparse_ops {

struct QuantizeRowsSignature {
  static constexpr const char* kName = "QuantizeRows";
  static constexpr Operand<float> values{0, "values"};
  static constexpr auto inputs = Operands(values);
  static constexpr Operand<uint8_t> quantized{0, "quantized"};
  static constexpr Operand<float> scale{1, "scale"};
  static constexpr auto outputs = Operands(quantized, scale);
};

class QuantizeRows {
 public:
  using Signature = QuantizeRowsSignature;
  using Provider = CpuProvider;

  explicit QuantizeRows(const KernelInfo&) {}
  static void InferShapes(ShapeContext& context);
  void Compute(CpuContext& context) const;
};

// The inputs that describe a product.
struct ProductSignature {
  static constexpr Operand<int32_t> products{0, "products"};
  static constexpr Operand<float> scale{1, "scale"}, column_scale{2, "column_scale"}, bias{3, "bias"};
  static constexpr auto inputs = Operands(products, scale, column_scale, bias);
};

struct DequantizeRowsSignature : ProductSignature {
  static constexpr const char* kName = "DequantizeRows";
  static constexpr Operand<float> values{0, "values"};
  static constexpr auto outputs = Operands(values);
};

class DequantizeRows {
 public:
  using Signature = DequantizeRowsSignature;
  using Provider = CpuProvider;

  explicit DequantizeRows(const KernelInfo&) {}
  static void InferShapes(ShapeContext& context);
  void Compute(CpuContext& context) const;
};

struct RequantizeGeluSignature : ProductSignature {
  static constexpr const char* kName = "RequantizeGelu";
  static constexpr Operand<uint8_t> quantized{0, "quantized"};
  static constexpr Operand<float> row_scale{1, "row_scale"};
  static constexpr auto outputs = Operands(quantized, row_scale);
};

class RequantizeGelu {
 public:
  using Signature = RequantizeGeluSignature;
  using Provider = CpuProvider;

  explicit RequantizeGelu(const KernelInfo&) {}
  static void InferShapes(ShapeContext& context);
  void Compute(CpuContext& context) const;
};

}  // namespace sparse_ops
