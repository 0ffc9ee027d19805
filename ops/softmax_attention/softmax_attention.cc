#include "softmax_attention/softmax_attention.h"

#include "cpu/instruction_set.h"

namespace sparse_ops {

SoftmaxAttention::SoftmaxAttention(const KernelInfo& info) : attributes_(info, kName) {}

void SoftmaxAttention::InferShapes(ShapeContext& context) { context.SetOutputLike(0, 0); }

void SoftmaxAttention::Compute(KernelContext& context) const {
  const AttentionInputs inputs(attributes_, context);
  PackedAttention tensors{};
  tensors.query = inputs.query.data;
  tensors.key = inputs.key.data;
  tensors.value = inputs.value.data;
  tensors.output = context.GetOutput<float>(0, inputs.query.shape);
  tensors.num_heads = attributes_.num_heads;
  tensors.head_size = inputs.head_size;
  tensors.scale = inputs.scale;
  const Kernels& kernels = ChosenKernels();
  RunPackedAttention(context, inputs, tensors, kernels.softmax_attention, kernels.softmax_attention_scratch);
}

}  // namespace sparse_ops
