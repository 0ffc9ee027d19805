#include "softmax_attention/softmax_attention.h"

#include "cpu/instruction_set.h"

namespace sparse_ops {

template <class Element>
SoftmaxAttention<Element>::SoftmaxAttention(const KernelInfo& info) : attributes_(info) {}

template <class Element>
void SoftmaxAttention<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputLike(Signature::output, Signature::query);
}

template <class Element>
void SoftmaxAttention<Element>::Compute(KernelContext& context) const {
  Attend(context, {attributes_, context, Signature::cu_seqlens});
}

template <class Element>
void SoftmaxCrossAttention<Element>::Compute(KernelContext& context) const {
  this->Attend(context, {this->attributes_, context, Signature::cu_seqlens_q, Signature::cu_seqlens_k});
}

template <class Element>
void SoftmaxAttention<Element>::Attend(KernelContext& context, const AttentionInputs<Element>& inputs) const {
  PackedAttention<Element> tensors{};
  tensors.query = inputs.query.data;
  tensors.key = inputs.key.data;
  tensors.value = inputs.value.data;
  tensors.output = context.GetOutput(Signature::output, inputs.query.shape);
  tensors.num_heads = attributes_.num_heads;
  tensors.head_size = inputs.head_size;
  tensors.scale = inputs.scale;
  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  RunPackedAttention(context, inputs, tensors, typed.softmax_attention, kernels.softmax_attention_scratch);
}

template class SoftmaxAttention<float>;
template class SoftmaxAttention<Half>;
template class SoftmaxAttention<BFloat16>;
template class SoftmaxCrossAttention<float>;
template class SoftmaxCrossAttention<Half>;
template class SoftmaxCrossAttention<BFloat16>;

}  // namespace sparse_ops
