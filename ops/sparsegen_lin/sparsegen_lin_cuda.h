#pragma once

#include "cuda/conversion.h"
#include "sparsegen_lin/axis_rows.h"
#include "sparsegen_lin/sparsegen_threshold_cuda.h"

namespace sparse_ops {
namespace cuda {

constexpr int kSparsegenLinWarps = 4;

// A warp's row, whose element j lies at j * inner. Each step reads it again; about ten are needed, for which
// short rows stay in the first cache.
template <class Element>
class SparsegenLinRow {
 public:
  SPARSE_OPS_BOTH SparsegenLinRow(const AxisRows<Element>& rows, float divisor, int64_t row)
      : length_(rows.length), inner_(rows.inner), reciprocal_(1.0f / divisor) {
    const int64_t offset = row / rows.inner * rows.length * rows.inner + row % rows.inner;
    input_ = rows.input + offset;
    output_ = rows.output + offset;
  }

  SPARSE_OPS_BOTH void Solve(const Warp& warp) {
    PerLane<float> maxima;
    warp.Each([&](int lane) {
      float maximum = -kInfinity;
      for (int64_t j = lane; j < length_; j += kWarpLanes)
        maximum = Max(ToFloat(input_[j * inner_]), maximum);
      maxima[lane] = maximum;
    });
    shift_ = ShiftOf(warp.Max(maxima));

    // The root over the maxima of 32 classes of keys is a lower bound of tau, and close to it.
    float tau = -1.0f;
    Newton(warp, &tau, [&](int lane, float root, NewtonSums* sums) { sums->Add(Value(maxima[lane]), root); });
    tau -= kBoundSlack;
    Newton(warp, &tau, [&](int lane, float root, NewtonSums* sums) {
      for (int64_t j = lane; j < length_; j += kWarpLanes)
        sums->Add(Value(ToFloat(input_[j * inner_])), root);
    });

    PerLane<bool> nan;
    warp.Each([&](int lane) {
      bool any = false;
      for (int64_t j = lane; j < length_; j += kWarpLanes) {
        const float value = Value(ToFloat(input_[j * inner_]));
        any = any || value != value;
      }
      nan[lane] = any;
    });
    const bool is_nan = warp.Any(nan);
    warp.Each([&](int lane) {
      for (int64_t j = lane; j < length_; j += kWarpLanes) {
        const float value = Value(ToFloat(input_[j * inner_]));
        FromFloat(is_nan ? NotANumber() : value > tau ? value - tau : 0.0f, output_ + j * inner_);
      }
    });
  }

 private:
  SPARSE_OPS_BOTH float Value(float score) const { return (score - shift_) * reciprocal_; }

  template <class AddLane>
  static SPARSE_OPS_BOTH void Newton(const Warp& warp, float* tau, const AddLane& add_lane) {
    for (int step = 0; step < kMaxSteps; ++step) {
      PerLane<float> sums;
      PerLane<int> above;
      warp.Each([&](int lane) {
        NewtonSums own{0.0f, 0};
        add_lane(lane, *tau, &own);
        sums[lane] = own.sum;
        above[lane] = own.above;
      });
      if (!Rise({warp.Sum(sums), warp.Sum(above)}, tau)) break;
    }
  }

  const Element* input_;
  Element* output_;
  int64_t length_;
  int64_t inner_;
  float reciprocal_;  // subnormal for a divisor beyond 2^126, which a GPU keeps
  float shift_ = 0.0f;
};

// The rows of one block, one for each warp.
template <class Element>
SPARSE_OPS_BOTH void SparsegenLinOfBlock(const AxisRows<Element>& rows, float divisor, int64_t count,
                                         int64_t block_index) {
  Block<kSparsegenLinWarps>().Warps([&](const Warp& warp) {
    const int64_t row = block_index * kSparsegenLinWarps + warp.index();
    if (row < count) SparsegenLinRow<Element>(rows, divisor, row).Solve(warp);
  });
}

inline int64_t SparsegenLinBlocks(int64_t rows) {
  return (rows + kSparsegenLinWarps - 1) / kSparsegenLinWarps;
}

}  // namespace cuda
}  // namespace sparse_ops
