#pragma once

#include "attention/packed_attention.h"
#include "runtime/cpu_context.h"
#include "runtime/cuda_context.h"

namespace sparse_ops {

template <class Element>
struct SoftmaxAttentionSignature : AttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SoftmaxAttention";
  static constexpr Operand<int32_t> cu_seqlens{3, "cu_seqlens"};
  static constexpr auto inputs = Operands(Shared::query, Shared::key, Shared::value, cu_seqlens);
  static constexpr auto outputs = Operands(Shared::output);
};

template <class Element>
struct SoftmaxProblem : AttentionProblem<Element> {};

template <class Element>
class SoftmaxAttention {
 public:
  using Signature = SoftmaxAttentionSignature<Element>;

  explicit SoftmaxAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  SoftmaxProblem<Element> Check(KernelContext& context) const;

 protected:
  SoftmaxProblem<Element> Problem(KernelContext& context, const AttentionInputs<Element>& inputs) const;

  AttentionAttributes attributes_;
};

template <class Element>
struct SoftmaxCrossAttentionSignature : SoftmaxAttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SoftmaxCrossAttention";
  static constexpr Operand<int32_t> cu_seqlens_q{3, "cu_seqlens_q"}, cu_seqlens_k{4, "cu_seqlens_k"};
  static constexpr auto inputs =
      Operands(Shared::query, Shared::key, Shared::value, cu_seqlens_q, cu_seqlens_k);
};

template <class Element>
class SoftmaxCrossAttention : public SoftmaxAttention<Element> {
 public:
  using Signature = SoftmaxCrossAttentionSignature<Element>;

  using SoftmaxAttention<Element>::SoftmaxAttention;
  SoftmaxProblem<Element> Check(KernelContext& context) const;
};

template <class Element>
void Launch(CpuContext& context, const SoftmaxProblem<Element>& problem);
template <class Element>
void Launch(CudaContext& context, const SoftmaxProblem<Element>& problem);

}  // namespace sparse_ops
