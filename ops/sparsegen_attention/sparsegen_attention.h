#pragma once

#include "attention/packed_attention.h"
#include "runtime/cpu_context.h"
#include "runtime/cuda_context.h"

namespace sparse_ops {

template <class Element>
struct SparsegenAttentionSignature : AttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SparsegenAttention";
  static constexpr Operand<int32_t> cu_seqlens{3, "cu_seqlens"};
  static constexpr auto inputs = Operands(Shared::query, Shared::key, Shared::value, cu_seqlens);
  static constexpr Operand<int32_t> support{1, "support"};
  static constexpr auto outputs = Operands(Shared::output, support);
  static constexpr Attribute<float> lambd{"lambd"};
};

template <class Element>
struct SparsegenProblem : AttentionProblem<Element> {};

template <class Element>
class SparsegenAttention {
 public:
  using Signature = SparsegenAttentionSignature<Element>;

  explicit SparsegenAttention(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  SparsegenProblem<Element> Check(KernelContext& context) const;

 protected:
  SparsegenProblem<Element> Problem(KernelContext& context, const AttentionInputs<Element>& inputs) const;

  AttentionAttributes attributes_;
  float divisor_;
};

template <class Element>
struct SparsegenCrossAttentionSignature : SparsegenAttentionSignature<Element> {
  using Shared = AttentionSignature<Element>;

  static constexpr const char* kName = "SparsegenCrossAttention";
  static constexpr Operand<int32_t> cu_seqlens_q{3, "cu_seqlens_q"}, cu_seqlens_k{4, "cu_seqlens_k"};
  static constexpr auto inputs =
      Operands(Shared::query, Shared::key, Shared::value, cu_seqlens_q, cu_seqlens_k);
};

template <class Element>
class SparsegenCrossAttention : public SparsegenAttention<Element> {
 public:
  using Signature = SparsegenCrossAttentionSignature<Element>;

  using SparsegenAttention<Element>::SparsegenAttention;
  SparsegenProblem<Element> Check(KernelContext& context) const;
};

template <class Element>
void Launch(CpuContext& context, const SparsegenProblem<Element>& problem);
template <class Element>
void Launch(CudaContext& context, const SparsegenProblem<Element>& problem);

}  // namespace sparse_ops
