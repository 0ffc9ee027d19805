#include "quantization/quantization.h"

#include "cpu/instruction_set.h"
#include "runtime/matrix_rows.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

Shape OneForEachRow(Shape shape) {
  shape.back() = 1;
  return shape;
}

// The inputs of a call that reads a product; their shapes are checked.
struct Product {
  Product(const char* op, const KernelContext& context)
      : products(context.GetInput(ProductSignature::products)),
        scale(context.GetInput(ProductSignature::scale)),
        column_scale(context.GetInput(ProductSignature::column_scale)),
        bias(context.GetInput(ProductSignature::bias)),
        matrix(AsMatrix(op, products.name, products.shape)) {
    RequireShape(op, scale, OneForEachRow(products.shape), products);
    RequireShape(op, column_scale, {matrix.columns}, products);
    RequireShape(op, bias, {matrix.columns}, products);
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
