// Compiled once per instruction set; see simd.h.
#include "cpu/kernels.h"

#include "axis_attention/axis_attention_cpu.h"
#include "axis_mask/axis_mask_cpu.h"
#include "bias_gelu/bias_gelu_cpu.h"
#include "quantization/quantization_cpu.h"
#include "skip_layer_normalization/skip_layer_normalization_cpu.h"
#include "softmax_attention/softmax_attention_cpu.h"
#include "sparsegen_attention/sparsegen_attention_cpu.h"
#include "sparsegen_lin/sparsegen_lin_cpu.h"

namespace sparse_ops {

#define SPARSE_OPS_STRING(x) #x
#define SPARSE_OPS_NAME(x) SPARSE_OPS_STRING(x)

namespace SPARSE_OPS_TARGET {

template <class Element>
constexpr ElementKernels<Element> KernelsOfElement() {
  ElementKernels<Element> kernels{};
  kernels.sparsegen_lin = SparsegenLin<Element>;
  kernels.sparsegen_attention = SparsegenAttention<Element>;
  kernels.softmax_attention = SoftmaxAttention<Element>;
  kernels.axis_attention = AxisAttention<Element>;
  kernels.axis_full_rows = JoinFullRows<Element>;
  kernels.axis_mask = AxisMask<Element>;
  return kernels;
}

constexpr Kernels AllKernels() {
  Kernels kernels{};
  static_cast<ElementKernels<float>&>(kernels) = KernelsOfElement<float>();
  static_cast<ElementKernels<Half>&>(kernels) = KernelsOfElement<Half>();
  static_cast<ElementKernels<BFloat16>&>(kernels) = KernelsOfElement<BFloat16>();
  kernels.instruction_set = SPARSE_OPS_NAME(SPARSE_OPS_TARGET);
  kernels.query_block = kPanelQueries;
  kernels.row_block = kLanes;
  kernels.quantize_rows = QuantizeRows;
  kernels.dequantize_rows = DequantizeRows;
  kernels.requantize_gelu = RequantizeGelu;
  kernels.bias_gelu = BiasGelu;
  kernels.skip_layer_normalization = SkipLayerNormalization;
  kernels.sparsegen_lin_scratch = SparsegenLinScratchFloats;
  kernels.sparsegen_attention_scratch = SparsegenAttentionScratchFloats;
  kernels.softmax_attention_scratch = SoftmaxAttentionScratchFloats;
  kernels.axis_attention_scratch = AxisAttentionScratchFloats;
  kernels.requantize_gelu_scratch = RequantizeGeluScratchFloats;
  return kernels;
}

}  // namespace SPARSE_OPS_TARGET

constexpr Kernels SPARSE_OPS_TABLE = SPARSE_OPS_TARGET::AllKernels();

}  // namespace sparse_ops
