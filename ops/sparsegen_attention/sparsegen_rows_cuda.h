// The state of a lane's two queries, and Newton's method for all queries of a warp.
#pragma once

#include "attention/attention_tile_cuda.h"
#include "sparsegen_lin/sparsegen_threshold_cuda.h"

namespace sparse_ops {
namespace cuda {

struct SparsegenRows {
  float maximum[2];
  float tau[2];  // in units of the weights, relative to Shift
  float cut[2];  // in units of the scores: no key at it or below can be above tau
  float sum[2];  // of values above tau, in a step
  int above[2];
  int count[2];  // length of the list, or the support
  bool nan[2];

  SPARSE_OPS_BOTH float Value(int h, float score, float reciprocal) const {
    return (score - Shift(h)) * reciprocal;
  }
  SPARSE_OPS_BOTH float Shift(int h) const { return ShiftOf(maximum[h]); }

  // Sets the cut by a lower bound of tau. It stays infinite where there is no query, and once a score of +inf
  // is known, as the result is NaN then.
  SPARSE_OPS_BOTH void CutAt(int h, float bound, float divisor) {
    if (cut[h] == kInfinity) return;
    if (maximum[h] > kLargest) {
      nan[h] = true;
      cut[h] = kInfinity;
    } else if (maximum[h] > -kInfinity) {
      // The rounding of scores, and a little more.
      const float rounding = 4e-7f * (maximum[h] < 0.0f ? -maximum[h] : maximum[h]);
      cut[h] = maximum[h] + bound * divisor - rounding;
    }
  }
};

// Takes the maximum of each query over its four lanes; values are relative to it.
SPARSE_OPS_BOTH void JoinMaxima(const Warp& warp, PerLane<SparsegenRows>* rows) {
  SPARSE_OPS_LANES
  for (int h = 0; h < 2; ++h) {
    PerLane<float> maximum;
    warp.Each([&](int lane) { maximum[lane] = (*rows)[lane].maximum[h]; });
    warp.QuadMax(&maximum);
    warp.Each([&](int lane) { (*rows)[lane].maximum[h] = maximum[lane]; });
  }
}

SPARSE_OPS_BOTH void ClearSums(const Warp& warp, PerLane<SparsegenRows>* rows) {
  warp.Each([&](int lane) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      (*rows)[lane].sum[h] = 0.0f;
      (*rows)[lane].above[h] = 0;
    }
  });
}

// Adds the scores of a tile that are above tau.
SPARSE_OPS_BOTH void AddAbove(const Warp& warp, const Scores& scores, float reciprocal,
                              PerLane<SparsegenRows>* rows) {
  warp.Each([&](int lane) {
    SparsegenRows& own = (*rows)[lane];
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      NewtonSums sums{own.sum[h], own.above[h]};
      SPARSE_OPS_LANES
      for (int j = 0; j < kSlices; ++j) {
        SPARSE_OPS_LANES
        for (int i = 0; i < 2; ++i)
          sums.Add(own.Value(h, scores.of[j][lane].of[2 * h + i], reciprocal), own.tau[h]);
      }
      own.sum[h] = sums.sum;
      own.above[h] = sums.above;
    }
  });
}

// Takes a step of Newton's method; returns whether any tau rose.
SPARSE_OPS_BOTH bool RiseAll(const Warp& warp, PerLane<SparsegenRows>* rows) {
  PerLane<bool> rises;
  warp.Each([&](int lane) { rises[lane] = false; });
  SPARSE_OPS_LANES
  for (int h = 0; h < 2; ++h) {
    PerLane<float> sum;
    PerLane<int> above;
    warp.Each([&](int lane) {
      sum[lane] = (*rows)[lane].sum[h];
      above[lane] = (*rows)[lane].above[h];
    });
    warp.QuadSum(&sum);
    warp.QuadSum(&above);
    warp.Each([&](int lane) {
      if (Rise({sum[lane], above[lane]}, &(*rows)[lane].tau[h])) rises[lane] = true;
    });
  }
  return warp.Any(rises);
}

// Sets the maxima and, as tau, a lower bound of it, by the maxima of 64 classes of keys: the root over those,
// less kBoundSlack.
SPARSE_OPS_BOTH void SolveClasses(const Warp& warp, const Scores& classes, float reciprocal,
                                  PerLane<SparsegenRows>* rows) {
  warp.Each([&](int lane) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      float maximum = -kInfinity;
      SPARSE_OPS_LANES
      for (int j = 0; j < kSlices; ++j) {
        maximum = Max(Max(classes.of[j][lane].of[2 * h], classes.of[j][lane].of[2 * h + 1]), maximum);
      }
      (*rows)[lane].maximum[h] = maximum;
      (*rows)[lane].tau[h] = -1.0f;
    }
  });
  JoinMaxima(warp, rows);
  for (int step = 0; step < kMaxSteps; ++step) {
    ClearSums(warp, rows);
    AddAbove(warp, classes, reciprocal, rows);
    if (!RiseAll(warp, rows)) break;
  }
  warp.Each([&](int lane) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) (*rows)[lane].tau[h] -= kBoundSlack;
  });
}

}  // namespace cuda
}  // namespace sparse_ops
