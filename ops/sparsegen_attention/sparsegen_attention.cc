#include "sparsegen_attention/sparsegen_attention.h"

#include "cpu/instruction_set.h"
#include "sparsegen_lin/sparsegen_lin.h"

namespace sparse_ops {

template <class Element>
SparsegenAttention<Element>::SparsegenAttention(const KernelInfo& info)
    : attributes_(info), divisor_(SparsegenDivisor(info, Signature::lambd)) {}

template <class Element>
void SparsegenAttention<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputLike(Signature::output, Signature::query);
  context.SetOutputRowsLike(Signature::support, Signature::query, Signature::num_heads);
}

template <class Element>
void SparsegenAttention<Element>::Compute(KernelContext& context) const {
  Attend(context, {attributes_, context, Signature::cu_seqlens});
}

template <class Element>
void SparsegenCrossAttention<Element>::Compute(KernelContext& context) const {
  this->Attend(context, {this->attributes_, context, Signature::cu_seqlens_q, Signature::cu_seqlens_k});
}

template <class Element>
void SparsegenAttention<Element>::Attend(KernelContext& context,
                                         const AttentionInputs<Element>& inputs) const {
  PackedAttention<Element> tensors{};
  tensors.query = inputs.query.data;
  tensors.key = inputs.key.data;
  tensors.value = inputs.value.data;
  tensors.output = context.GetOutput(Signature::output, inputs.query.shape);
  tensors.support = context.GetOutput(Signature::support, {inputs.queries, attributes_.num_heads});
  tensors.num_heads = attributes_.num_heads;
  tensors.head_size = inputs.head_size;
  tensors.scale = inputs.scale;
  tensors.divisor = divisor_;
  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  RunPackedAttention(context, inputs, tensors, typed.sparsegen_attention,
                     kernels.sparsegen_attention_scratch);
}

template class SparsegenAttention<float>;
template class SparsegenAttention<Half>;
template class SparsegenAttention<BFloat16>;
template class SparsegenCrossAttention<float>;
template class SparsegenCrossAttention<Half>;
template class SparsegenCrossAttention<BFloat16>;

}  // namespace sparse_ops
