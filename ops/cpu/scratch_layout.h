#pragma once

#include "cpu/poison.h"
#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Hands out consecutive, vector-aligned pieces of one allocation. With AddressSanitizer a red zone lies
// behind each, and what overruns its piece is reported instead of writing into the next.
class ScratchLayout {
 public:
  explicit ScratchLayout(float* base) : base_(base) {}
  float* Take(int64_t floats) {
    float* piece = base_ == nullptr ? nullptr : base_ + used_;
    const int64_t taken = RoundUp(floats + kRedZoneFloats, 16);
    if (piece != nullptr) {
      Unpoison(piece, floats);
      Poison(piece + floats, taken - floats);
    }
    used_ += taken;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  float* base_;
  int64_t used_ = 0;
};

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
