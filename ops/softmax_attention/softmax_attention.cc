#include "softmax_attention/softmax_attention.h"

#include "attention/query_tasks.h"
#include "cpu/instruction_set.h"

namespace sparse_ops {

template <class Element>
SoftmaxAttention<Element>::SoftmaxAttention(const KernelInfo& info) : attributes_(info) {}

template <class Element>
void SoftmaxAttention<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputLike(Signature::output, Signature::query);
}

template <class Element>
SoftmaxProblem<Element> SoftmaxAttention<Element>::Check(KernelContext& context) const {
  return Problem(context, {attributes_, context, Signature::cu_seqlens});
}

template <class Element>
SoftmaxProblem<Element> SoftmaxCrossAttention<Element>::Check(KernelContext& context) const {
  return this->Problem(context,
                       {this->attributes_, context, Signature::cu_seqlens_q, Signature::cu_seqlens_k});
}

template <class Element>
SoftmaxProblem<Element> SoftmaxAttention<Element>::Problem(KernelContext& context,
                                                           const AttentionInputs<Element>& inputs) const {
  SoftmaxProblem<Element> problem{
      {inputs, TensorsOf(attributes_, inputs, context.GetOutput(Signature::output, inputs.query.shape))}};
  return problem;
}

template <class Element>
void Launch(CpuContext& context, const SoftmaxProblem<Element>& problem) {
  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  RunPackedAttention<Element>(context, problem, typed.softmax_attention, kernels.softmax_attention_scratch);
}

#define SPARSE_OPS_INSTANTIATE(Element)          \
  template class SoftmaxAttention<Element>;      \
  template class SoftmaxCrossAttention<Element>; \
  template void Launch(CpuContext&, const SoftmaxProblem<Element>&);
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
