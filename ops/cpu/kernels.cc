// Compiled once per instruction set; see simd.h.
#include "cpu/kernels.h"

#include "axis_attention/axis_attention_cpu.h"
#include "axis_mask/axis_mask_cpu.h"
#include "softmax_attention/softmax_attention_cpu.h"
#include "sparsegen_attention/sparsegen_attention_cpu.h"
#include "sparsegen_lin/sparsegen_lin_cpu.h"

namespace sparse_ops {

#define SPARSE_OPS_STRING(x) #x
#define SPARSE_OPS_NAME(x) SPARSE_OPS_STRING(x)

#define SPARSE_OPS_KERNELS(Element)                                                          \
  {SPARSE_OPS_TARGET::SparsegenLin<Element>, SPARSE_OPS_TARGET::SparsegenAttention<Element>, \
   SPARSE_OPS_TARGET::SoftmaxAttention<Element>, SPARSE_OPS_TARGET::AxisAttention<Element>,  \
   SPARSE_OPS_TARGET::AxisMask<Element>}

const Kernels SPARSE_OPS_TABLE = {
    SPARSE_OPS_KERNELS(float),
    SPARSE_OPS_KERNELS(Half),
    SPARSE_OPS_KERNELS(BFloat16),
    SPARSE_OPS_NAME(SPARSE_OPS_TARGET),
    SPARSE_OPS_TARGET::kPanelQueries,
    SPARSE_OPS_TARGET::kLanes,
    SPARSE_OPS_TARGET::SparsegenLinScratchFloats,
    SPARSE_OPS_TARGET::SparsegenAttentionScratchFloats,
    SPARSE_OPS_TARGET::SoftmaxAttentionScratchFloats,
    SPARSE_OPS_TARGET::AxisAttentionScratchFloats,
};

}  // namespace sparse_ops
