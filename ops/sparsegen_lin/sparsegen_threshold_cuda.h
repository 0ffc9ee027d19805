// The threshold of sparsegen-lin on a GPU: Newton's method from the left, as sparsegen_threshold_cpu.h
// explains. Several lanes share the sums over a row's keys. v_j = (e_j - max e) / (1 - lambda) throughout.
#pragma once

#include "cuda/execution.h"

namespace sparse_ops {
namespace cuda {

constexpr int kMaxSteps = 64;
// Slack of a lower bound: far above the rounding of a root over some of the keys, and far below what would
// let extra keys through.
constexpr float kBoundSlack = 1e-5f;

// What the scores of a row are relative to: their maximum, or 0 where no key weighs anything.
SPARSE_OPS_BOTH float ShiftOf(float maximum) { return maximum > -kInfinity ? maximum : 0.0f; }

// The number of keys above tau and the sum of their values, in one lane or in all.
struct NewtonSums {
  float sum;
  int above;

  SPARSE_OPS_BOTH void Add(float value, float tau) {
    const bool in = value > tau;
    sum += in ? value : 0.0f;
    above += in ? 1 : 0;
  }
};

// Moves tau if it rises, and returns whether it did. It does not for an empty set, which gives -inf, nor for
// NaN.
SPARSE_OPS_BOTH bool Rise(const NewtonSums& sums, float* tau) {
  const float next = (sums.sum - 1.0f) / static_cast<float>(sums.above);
  const bool rises = next > *tau;
  if (rises) *tau = next;
  return rises;
}

}  // namespace cuda
}  // namespace sparse_ops
