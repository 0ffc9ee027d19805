#include "sparsegen_attention/sparsegen_attention.h"

#include "attention/query_tasks.h"
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
SparsegenProblem<Element> SparsegenAttention<Element>::Check(KernelContext& context) const {
  return Problem(context, {attributes_, context, Signature::cu_seqlens});
}

template <class Element>
SparsegenProblem<Element> SparsegenCrossAttention<Element>::Check(KernelContext& context) const {
  return this->Problem(context,
                       {this->attributes_, context, Signature::cu_seqlens_q, Signature::cu_seqlens_k});
}

template <class Element>
SparsegenProblem<Element> SparsegenAttention<Element>::Problem(KernelContext& context,
                                                               const AttentionInputs<Element>& inputs) const {
  SparsegenProblem<Element> problem{
      {inputs, TensorsOf(attributes_, inputs, context.GetOutput(Signature::output, inputs.query.shape))}};
  problem.tensors.support = context.GetOutput(Signature::support, {inputs.queries, attributes_.num_heads});
  problem.tensors.divisor = divisor_;
  return problem;
}

template <class Element>
void Launch(CpuContext& context, const SparsegenProblem<Element>& problem) {
  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  RunPackedAttention<Element>(context, problem, typed.sparsegen_attention,
                              kernels.sparsegen_attention_scratch);
}

#define SPARSE_OPS_INSTANTIATE(Element)            \
  template class SparsegenAttention<Element>;      \
  template class SparsegenCrossAttention<Element>; \
  template void Launch(CpuContext&, const SparsegenProblem<Element>&);
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
