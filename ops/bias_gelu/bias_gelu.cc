#include "bias_gelu/bias_gelu.h"

#include "cpu/instruction_set.h"
#include "runtime/matrix_rows.h"

namespace sparse_ops {

void BiasGelu::InferShapes(ShapeContext& context) {
  context.SetOutputShapeLike(Signature::output, Signature::input);
}

void BiasGelu::Compute(CpuContext& context) const {
  const Input<float> input = context.GetInput(Signature::input);
  const Input<float> bias = context.GetInput(Signature::bias);
  const MatrixShape matrix = AsMatrix(Signature::kName, input.name, input.shape);
  RequireShape(Signature::kName, bias, {matrix.columns}, input);

  float* output = context.GetOutput(Signature::output, input.shape);
  const Kernels& kernels = ChosenKernels();
  ForRows(context, matrix, 0, [&](int64_t first, int64_t count, float*) {
    const int64_t offset = first * matrix.columns;
    kernels.bias_gelu(input.data + offset, count, matrix.columns, bias.data, output + offset);
  });
}

}  // namespace sparse_ops
