// Bias and GELU, between the two matrix products of a transformer's feed-forward layer.
#pragma once

#include "runtime/cpu_context.h"

namespace sparse_ops {

struct BiasGeluSignature {
  static constexpr const char* kName = "BiasGelu";
  static constexpr Operand<float> input{0, "input"}, bias{1, "bias"};
  static constexpr auto inputs = Operands(input, bias);
  static constexpr Operand<float> output{0, "output"};
  static constexpr auto outputs = Operands(output);
};

class BiasGelu {
 public:
  using Signature = BiasGeluSignature;
  using Provider = CpuProvider;

  explicit BiasGelu(const KernelInfo&) {}
  static void InferShapes(ShapeContext& context);
  void Compute(CpuContext& context) const;
};

}  // namespace sparse_ops
