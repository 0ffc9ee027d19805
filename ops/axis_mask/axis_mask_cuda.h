#pragma once

#include "axis_mask/axis_mask_problem.h"
#include "cuda/conversion.h"

namespace sparse_ops {
namespace cuda {

constexpr int kAxisMaskWarps = 4;

// Whether bias + <weight, hidden> is above 0 for a warp's token; NaN is not.
template <class Element>
SPARSE_OPS_BOTH void AxisMaskOfToken(const Warp& warp, const AxisMaskProblem<Element>& problem,
                                     int64_t token) {
  const Element* hidden = problem.hidden + token * problem.width;
  PerLane<float> sums[2];
  warp.Each([&](int lane) {
    float row = 0.0f;
    float column = 0.0f;
    for (int64_t d = lane; d < problem.width; d += kWarpLanes) {
      const float value = ToFloat(hidden[d]);
      row = __builtin_fmaf(ToFloat(problem.weight[d]), value, row);
      column = __builtin_fmaf(ToFloat(problem.weight[problem.width + d]), value, column);
    }
    sums[0][lane] = row;
    sums[1][lane] = column;
  });
  const float row = warp.Sum(sums[0]) + ToFloat(problem.bias[0]);
  const float column = warp.Sum(sums[1]) + ToFloat(problem.bias[1]);
  warp.Each([&](int lane) {
    if (lane != 0) return;
    problem.rows[token] = row > 0.0f;
    problem.columns[token] = column > 0.0f;
  });
}

// The tokens of one block: a warp each.
template <class Element>
SPARSE_OPS_BOTH void AxisMaskOfBlock(const AxisMaskProblem<Element>& problem, int64_t block_index) {
  Block<kAxisMaskWarps>().Warps([&](const Warp& warp) {
    const int64_t token = block_index * kAxisMaskWarps + warp.index();
    if (token < problem.tokens) AxisMaskOfToken(warp, problem, token);
  });
}

inline int64_t AxisMaskBlocks(int64_t tokens) { return (tokens + kAxisMaskWarps - 1) / kAxisMaskWarps; }

}  // namespace cuda
}  // namespace sparse_ops
