// The end of each half of a transformer's layer: a residual sum, normalized.
#pragma once

#include "runtime/cpu_context.h"

namespace sparse_ops {

struct SkipLayerNormalizationSignature {
  static constexpr const char* kName = "SkipLayerNormalization";
  static constexpr Operand<float> input{0, "input"}, skip{1, "skip"}, gamma{2, "gamma"}, beta{3, "beta"},
      bias{4, "bias"};
  static constexpr auto inputs = Operands(input, skip, gamma, beta, bias);
  static constexpr Operand<float> output{0, "output"};
  static constexpr auto outputs = Operands(output);
  static constexpr Attribute<float> epsilon{"epsilon"};
};

class SkipLayerNormalization {
 public:
  using Signature = SkipLayerNormalizationSignature;
  using Provider = CpuProvider;

  explicit SkipLayerNormalization(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(CpuContext& context) const;

 private:
  float epsilon_;
};

}  // namespace sparse_ops
