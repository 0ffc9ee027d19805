// The threshold of sparsegen-lin on a GPU: Newton's method from the left, as sparsegen_threshold_cpu.h says,
// its sums over the keys taken by several lanes each. v_j = (e_j - max e) / (1 - lambda) throughout.
#pragma once

#include "cuda/execution.h"

namespace sparse_ops {
namespace cuda {

constexpr int kMaxSteps = 64;
// Far above the rounding of a root over some of the keys, far below what would cost extra candidates.
constexpr float kBoundSlack = 1e-5f;

// What the scores of a row are counted from: their maximum, or 0 where no key weighs anything.
SPARSE_OPS_BOTH float ShiftOf(float maximum) { return maximum > -kInfinity ? maximum : 0.0f; }

// Keys above tau, and the sum of their values: the part of one lane, or of all.
struct NewtonSums {
  float sum;
  int above;

  SPARSE_OPS_BOTH void Add(float value, float tau) {
    const bool in = value > tau;
    sum += in ? value : 0.0f;
    above += in ? 1 : 0;
  }
};

// Moves tau where it rises: an empty set gives -inf, NaN never does.
SPARSE_OPS_BOTH bool Rise(const NewtonSums& sums, float* tau) {
  const float next = (sums.sum - 1.0f) / static_cast<float>(sums.above);
  const bool rises = next > *tau;
  if (rises) *tau = next;
  return rises;
}

}  // namespace cuda
}  // namespace sparse_ops
