#pragma once

#include "cpu/poison.h"
#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Hands out consecutive, vector-aligned pieces of one allocation, or with a null base only counts them. With
// AddressSanitizer each piece is followed by a red zone, so that an overrun is reported instead of writing
// into the next piece.
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
