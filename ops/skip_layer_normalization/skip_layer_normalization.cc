#include "skip_layer_normalization/skip_layer_normalization.h"

#include <cmath>

#include "cpu/instruction_set.h"
#include "runtime/matrix_rows.h"
#include "runtime/status.h"

namespace sparse_ops {

SkipLayerNormalization::SkipLayerNormalization(const KernelInfo& info) {
  const char* accepted = "a finite number >= 0";
  epsilon_ = info.Get(Signature::epsilon, accepted);
  if (!(epsilon_ >= 0.0f) || std::isinf(epsilon_)) info.Refuse(Signature::epsilon, epsilon_, accepted);
}

void SkipLayerNormalization::InferShapes(ShapeContext& context) {
  context.SetOutputShapeLike(Signature::output, Signature::input);
}

void SkipLayerNormalization::Compute(CpuContext& context) const {
  const char* op = Signature::kName;
  const Input<float> input = context.GetInput(Signature::input);
  const Input<float> skip = context.GetInput(Signature::skip);
  const Input<float> gamma = context.GetInput(Signature::gamma);
  const Input<float> beta = context.GetInput(Signature::beta);
  const Input<float> bias = context.GetInput(Signature::bias);
  const MatrixShape matrix = AsMatrix(op, input.name, input.shape);
  RequireShape(op, skip, input.shape, input);
  for (const Input<float>* vector : {&gamma, &beta, &bias})
    RequireShape(op, *vector, {matrix.columns}, input);

  float* output = context.GetOutput(Signature::output, input.shape);
  const Kernels& kernels = ChosenKernels();
  ForRows(context, matrix, 0, [&](int64_t first, int64_t count, float*) {
    const int64_t offset = first * matrix.columns;
    const SumRows rows{input.data + offset, skip.data + offset, bias.data, gamma.data,
                       beta.data,           matrix.columns,     epsilon_};
    kernels.skip_layer_normalization(rows, count, output + offset);
  });
}

}  // namespace sparse_ops
