#pragma once

#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Hands out consecutive, vector-aligned pieces of one allocation.
class ScratchLayout {
 public:
  explicit ScratchLayout(float* base) : base_(base) {}
  float* Take(int64_t floats) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(floats, 16);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
