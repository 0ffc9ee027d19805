#include "quantization/quantization.h"

#include <algorithm>

#include "cpu/instruction_set.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

constexpr int64_t kTaskElements = int64_t{1} << 16;

// A tensor as a matrix: its last axis, and all others as one.
struct MatrixShape {
  int64_t rows;
  int64_t columns;
};

MatrixShape AsMatrix(const char* op, const char* name, const Shape& shape) {
  if (shape.empty()) {
    throw InvalidArgument(Message(op, ": ", name, " is a scalar; accepted: rank 1 or more"));
  }
  if (shape.back() == 0) {
    throw InvalidArgument(
        Message(op, ": ", name, " has shape ", ToString(shape), "; accepted: rows of 1 or more numbers"));
  }
  // Of an empty tensor the other sizes may have a product beyond int64.
  if (std::count(shape.begin(), shape.end(), 0) > 0) return {0, shape.back()};
  int64_t rows = 1;
  for (size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  return {rows, shape.back()};
}

Shape OneForEachRow(Shape shape) {
  shape.back() = 1;
  return shape;
}

// Runs `rows(first, count, scratch)` over all rows, several rows a task.
template <class Rows>
void ForRows(CpuContext& context, const MatrixShape& matrix, size_t scratch, const Rows& rows) {
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / matrix.columns);
  const auto tasks = static_cast<size_t>((matrix.rows + rows_per_task - 1) / rows_per_task);
  context.ParallelFor(tasks, scratch, [&](size_t task, float* memory) {
    const int64_t first = static_cast<int64_t>(task) * rows_per_task;
    rows(first, std::min(rows_per_task, matrix.rows - first), memory);
  });
}

// The inputs of a call that reads a product, checked.
struct Product {
  Product(const char* op, const KernelContext& context)
      : products(context.GetInput(ProductSignature::products)),
        scale(context.GetInput(ProductSignature::scale)),
        column_scale(context.GetInput(ProductSignature::column_scale)),
        bias(context.GetInput(ProductSignature::bias)),
        matrix(AsMatrix(op, products.name, products.shape)) {
    Require(op, scale, OneForEachRow(products.shape));
    Require(op, column_scale, {matrix.columns});
    Require(op, bias, {matrix.columns});
  }

  ProductRows From(int64_t row) const {
    return {products.data + row * matrix.columns, scale.data + row, column_scale.data, bias.data,
            matrix.columns};
  }

  Input<int32_t> products;
  Input<float> scale;
  Input<float> column_scale;
  Input<float> bias;
  MatrixShape matrix;

 private:
  void Require(const char* op, const Input<float>& input, const Shape& accepted) const {
    if (input.shape == accepted) return;
    throw InvalidArgument(Message(op, ": ", input.name, " has shape ", ToString(input.shape), "; accepted: ",
                                  ToString(accepted), ", as products has shape ", ToString(products.shape)));
  }
};

}  // namespace

void QuantizeRows::InferShapes(ShapeContext& context) {
  context.SetOutputShapeLike(Signature::quantized, Signature::values);
  context.SetOutputOneForEachRow(Signature::scale, Signature::values);
}

void QuantizeRows::Compute(CpuContext& context) const {
  const Input<float> values = context.GetInput(Signature::values);
  const MatrixShape matrix = AsMatrix(Signature::kName, values.name, values.shape);
  uint8_t* quantized = context.GetOutput(Signature::quantized, values.shape);
  float* scale = context.GetOutput(Signature::scale, OneForEachRow(values.shape));
  const Kernels& kernels = ChosenKernels();
  ForRows(context, matrix, 0, [&](int64_t first, int64_t count, float*) {
    const int64_t offset = first * matrix.columns;
    kernels.quantize_rows(values.data + offset, count, matrix.columns, quantized + offset, scale + first);
  });
}

void DequantizeRows::InferShapes(ShapeContext& context) {
  context.SetOutputShapeLike(Signature::values, Signature::products);
}

void DequantizeRows::Compute(CpuContext& context) const {
  const Product product(Signature::kName, context);
  float* values = context.GetOutput(Signature::values, product.products.shape);
  const Kernels& kernels = ChosenKernels();
  ForRows(context, product.matrix, 0, [&](int64_t first, int64_t count, float*) {
    kernels.dequantize_rows(product.From(first), count, values + first * product.matrix.columns);
  });
}

void RequantizeGelu::InferShapes(ShapeContext& context) {
  context.SetOutputShapeLike(Signature::quantized, Signature::products);
  context.SetOutputOneForEachRow(Signature::row_scale, Signature::products);
}

void RequantizeGelu::Compute(CpuContext& context) const {
  const Product product(Signature::kName, context);
  const MatrixShape& matrix = product.matrix;
  uint8_t* quantized = context.GetOutput(Signature::quantized, product.products.shape);
  float* row_scale = context.GetOutput(Signature::row_scale, OneForEachRow(product.products.shape));
  const Kernels& kernels = ChosenKernels();
  const size_t scratch = kernels.requantize_gelu_scratch(matrix.columns);
  ForRows(context, matrix, scratch, [&](int64_t first, int64_t count, float* memory) {
    kernels.requantize_gelu(product.From(first), count, quantized + first * matrix.columns, row_scale + first,
                            memory);
  });
}

}  // namespace sparse_ops
