// Softmax or sparsegen-lin attention of a tile: 16 queries of one sequence and head. A warp goes over their
// keys 16 at a time, either over all of them, or each warp of a block over a part.
#pragma once

#include "axis_attention/axis_products_cuda.h"
#include "sparsegen_lin/sparsegen_threshold_cuda.h"

namespace sparse_ops {
namespace cuda {

// Number of chunks whose scores a warp holds while it looks for the threshold. Those of further chunks are
// computed anew at each step, so that memory does not grow with the number of keys.
constexpr int32_t kHeldChunks = 12;
constexpr int32_t kHeldWords = kHeldChunks * kLaneScores * kWarpLanes;

// Words by which warps that share a tile exchange numbers: two for each of a lane's two queries.
constexpr int32_t kExchangeWords = 4 * kWarpLanes;

// A number for each of a lane's two queries.
template <class T>
using ByHalf = Array<T, 2>;

template <class Element, int kPadded, bool kVector, bool kSparsegen>
class AxisTile {
  using Products = AxisProducts<Element, kPadded, kVector>;

 public:
  TileKeys keys;  // to be set before anything else

  // The warp will go over every step-th chunk of the keys, from `first` on. held: kHeldWords for
  // sparsegen-lin.
  SPARSE_OPS_BOTH void Begin(const Warp& warp, const PackedAttention<Element>& tensors, int32_t head,
                             int32_t first, int32_t step, float* held) {
    products_.Begin(warp, tensors, head, keys);
    first_ = first;
    step_ = step;
    held_ = held;
    inverse_ = 1.0f / tensors.divisor;
    warp.Each([&](int lane) {
      maximum_[lane] = {{-kInfinity, -kInfinity}};
      tau_[lane] = {{-1.0f, -1.0f}};
      allowed_[lane] = not_finite_[lane] = {{0, 0}};
    });
    ClearSums(warp);
  }

  // Softmax: computes the sums of weights and values, relative to the maximum of this warp's keys.
  SPARSE_OPS_BOTH void Exponentiate(const Warp& warp) {
    products_.ClearSums(warp);
    keys.ForEachChunk(first_, step_, [&](const auto& chunk, int32_t) {
      PerLane<ChunkScores> weights;
      if (!Score<true>(warp, chunk, &weights)) return;
      RaiseMaximum(warp, weights);
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int i = 0; i < kLaneScores; ++i) {
          const int half = HalfOf(i);
          const float weight = Exponential(weights[lane][i] - ShiftOf(maximum_[lane][half]));
          weights[lane][i] = weight;
          sums_[lane][half].sum += weight;
        }
      });
      products_.AddValues(warp, keys, chunk, weights);
    });
    QuadSums(warp);
  }

  // First step of sparsegen-lin: finds the largest score of each row, and whether one is NaN or +inf.
  SPARSE_OPS_BOTH void FindMaximum(const Warp& warp) {
    ForEachChunk<true>(warp, [&](const auto&, const PerLane<ChunkScores>& scores) {
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int i = 0; i < kLaneScores; ++i) {
          const int half = HalfOf(i);
          maximum_[lane][half] = Max(scores[lane][i], maximum_[lane][half]);
          not_finite_[lane][half] |= scores[lane][i] < kInfinity ? 0 : 1;
        }
      });
    });
    SPARSE_OPS_LANES
    for (int half = 0; half < 2; ++half) {
      PerLane<float> maximum;
      warp.Each([&](int lane) { maximum[lane] = maximum_[lane][half]; });
      warp.QuadMax(&maximum);
      warp.Each([&](int lane) { maximum_[lane][half] = maximum[lane]; });
    }
    QuadCounts(warp, &not_finite_);
  }

  // Second, for each step of Newton's method: computes the sum and the number of the scores above tau.
  SPARSE_OPS_BOTH void SumAbove(const Warp& warp) {
    ClearSums(warp);
    ForEachChunk<false>(warp, [&](const auto&, const PerLane<ChunkScores>& scores) {
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int i = 0; i < kLaneScores; ++i) {
          const int half = HalfOf(i);
          sums_[lane][half].Add(Scaled(scores[lane][i], lane, half), tau_[lane][half]);
        }
      });
    });
    QuadSums(warp);
  }

  // Moves tau where it rises; returns whether any did.
  SPARSE_OPS_BOTH bool RaiseThreshold(const Warp& warp) {
    PerLane<bool> rises;
    warp.Each([&](int lane) {
      rises[lane] = false;
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        if (Rise(sums_[lane][half], &tau_[lane][half])) rises[lane] = true;
      }
    });
    return warp.Any(rises);
  }

  // Last: computes the sums of values, and the number of weights.
  SPARSE_OPS_BOTH void AddWeighted(const Warp& warp) {
    products_.ClearSums(warp);
    ClearSums(warp);
    ForEachChunk<false>(warp, [&](const auto& chunk, PerLane<ChunkScores>& weights) {
      PerLane<bool> any;
      warp.Each([&](int lane) {
        any[lane] = false;
        SPARSE_OPS_LANES
        for (int i = 0; i < kLaneScores; ++i) {
          const int half = HalfOf(i);
          const float weight = Scaled(weights[lane][i], lane, half) - tau_[lane][half];
          const bool in = weight > 0.0f;
          weights[lane][i] = in ? weight : 0.0f;
          sums_[lane][half].above += in ? 1 : 0;
          any[lane] = any[lane] || in;
        }
      });
      if (warp.Any(any)) products_.AddValues(warp, keys, chunk, weights);
    });
    QuadSums(warp);
  }

  // Writes outputs and support, by sums over the whole row.
  SPARSE_OPS_BOTH void Finish(const Warp& warp) {
    QuadCounts(warp, &allowed_);
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        const int32_t query = keys.queries[lane].query[half];
        if (query < 0) continue;
        const NewtonSums& sums = sums_[lane][half];
        const bool unknown = keys.queries[lane].position[half] == kNoToken;
        const bool refused = unknown || (kSparsegen && not_finite_[lane][half] > 0);
        float factor = 1.0f;
        if (!kSparsegen) factor = sums.sum <= 0.0f ? 0.0f : 1.0f / sums.sum;
        products_.WriteOutput(lane, half, refused ? NotANumber() : factor, query);
        const int32_t support = kSparsegen && !refused ? sums.above : allowed_[lane][half];
        if (lane % 4 == 0) products_.WriteSupport(unknown ? 0 : support, query);
      }
    });
  }

  // Exchange between the warps that share a tile: each writes by Tell…, then all read by Hear…, where
  // `exchange` is that of the first warp.
  SPARSE_OPS_BOTH void TellMaximum(const Warp& warp, uint32_t* exchange) {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        exchange[half * kWarpLanes + lane] = BitsOf(maximum_[lane][half]);
        exchange[(2 + half) * kWarpLanes + lane] = static_cast<uint32_t>(not_finite_[lane][half]);
      }
    });
  }
  // From here on softmax's sums are relative to the maximum over all warps.
  SPARSE_OPS_BOTH void HearMaximum(const Warp& warp, const uint32_t* exchange) {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        float maximum = -kInfinity;
        for (int each = 0; each < kBlockWarps; ++each) {
          const uint32_t* told = exchange + each * kExchangeWords;
          maximum = Max(FloatOf(told[half * kWarpLanes + lane]), maximum);
          not_finite_[lane][half] |= static_cast<int>(told[(2 + half) * kWarpLanes + lane]);
        }
        if (!kSparsegen) {
          const float factor = Exponential(maximum_[lane][half] - ShiftOf(maximum));
          sums_[lane][half].sum *= factor;
          products_.Scale(lane, half, factor);
        }
        maximum_[lane][half] = maximum;
      }
    });
  }
  SPARSE_OPS_BOTH void TellSums(const Warp& warp, uint32_t* exchange) const {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        exchange[half * kWarpLanes + lane] = BitsOf(sums_[lane][half].sum);
        exchange[(2 + half) * kWarpLanes + lane] = static_cast<uint32_t>(sums_[lane][half].above);
      }
    });
  }
  SPARSE_OPS_BOTH void HearSums(const Warp& warp, const uint32_t* exchange) {
    ClearSums(warp);
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        for (int each = 0; each < kBlockWarps; ++each) {
          const uint32_t* told = exchange + each * kExchangeWords;
          sums_[lane][half].sum += FloatOf(told[half * kWarpLanes + lane]);
          sums_[lane][half].above += static_cast<int>(told[(2 + half) * kWarpLanes + lane]);
        }
      }
    });
  }
  SPARSE_OPS_BOTH void TellOutputs(const Warp& warp, float* partial) {
    ForEachOutput(warp, [&](int lane, int i, float* sum) { partial[i * kWarpLanes + lane] = *sum; });
  }
  SPARSE_OPS_BOTH void HearOutputs(const Warp& warp, const float* partial, int32_t warp_words) {
    ForEachOutput(warp, [&](int lane, int i, float* sum) {
      *sum = 0.0f;
      for (int each = 0; each < kBlockWarps; ++each)
        *sum += partial[each * warp_words + i * kWarpLanes + lane];
    });
  }
  // Sets the number of pairs to that of all warps together: full rows have all keys.
  SPARSE_OPS_BOTH void TakeAllKeys(const Warp& warp) {
    warp.Each([&](int lane) {
      const int own = lane % 4 == 0 ? keys.length : 0;  // Finish sums over quads
      allowed_[lane] = {{own, own}};
    });
  }

 private:
  // Calls visit(chunk, scores) for those of this warp's chunks that have a pair. The first time, it counts
  // pairs and holds scores.
  template <bool kFirst, class Visit>
  SPARSE_OPS_BOTH void ForEachChunk(const Warp& warp, const Visit& visit) {
    keys.ForEachChunk(first_, step_, [&](const auto& chunk, int32_t place) {
      const bool is_held = place < kHeldChunks;
      float* held = held_ + place * kLaneScores * kWarpLanes;
      PerLane<ChunkScores> scores;
      bool any = true;
      if (!kFirst && is_held) {
        keys.Prepare(warp, chunk);
        warp.Each([&](int lane) {
          SPARSE_OPS_LANES
          for (int i = 0; i < kLaneScores; ++i) scores[lane][i] = held[i * kWarpLanes + lane];
        });
      } else {
        any = Score<kFirst>(warp, chunk, &scores);
      }
      if (kFirst && is_held) {
        warp.Each([&](int lane) {
          SPARSE_OPS_LANES
          for (int i = 0; i < kLaneScores; ++i)
            held[i * kWarpLanes + lane] = any ? scores[lane][i] : -kInfinity;
        });
      }
      if (any) visit(chunk, scores);
    });
  }

  // Computes the scores of a chunk; returns false where it has no pair. Adds to the number of pairs where
  // they are counted.
  template <bool kCounted, class Chunk>
  SPARSE_OPS_BOTH bool Score(const Warp& warp, const Chunk& chunk, PerLane<ChunkScores>* scores) {
    keys.Prepare(warp, chunk);
    PerLane<uint32_t> allowed;
    PerLane<bool> any;
    warp.Each([&](int lane) {
      allowed[lane] = keys.AllowedOf(chunk, lane);
      any[lane] = allowed[lane] != 0;
      SPARSE_OPS_LANES
      for (int i = 0; kCounted && i < kLaneScores; ++i) allowed_[lane][HalfOf(i)] += allowed[lane] >> i & 1;
    });
    if (!warp.Any(any)) return false;
    products_.Score(warp, keys, chunk, allowed, scores);
    return true;
  }

  // Raises the maxima to those of some more scores, and rescales the sums accordingly.
  SPARSE_OPS_BOTH void RaiseMaximum(const Warp& warp, const PerLane<ChunkScores>& scores) {
    SPARSE_OPS_LANES
    for (int half = 0; half < 2; ++half) {
      PerLane<float> maximum;
      warp.Each([&](int lane) {
        maximum[lane] = maximum_[lane][half];
        SPARSE_OPS_LANES
        for (int i = 0; i < kLaneScores; ++i) {
          if (HalfOf(i) == half) maximum[lane] = Max(scores[lane][i], maximum[lane]);
        }
      });
      warp.QuadMax(&maximum);
      warp.Each([&](int lane) {
        const float factor = Exponential(maximum_[lane][half] - ShiftOf(maximum[lane]));
        maximum_[lane][half] = maximum[lane];
        sums_[lane][half].sum *= factor;
        products_.Scale(lane, half, factor);
      });
    }
  }

  // A score in units of weights, counted from the largest.
  SPARSE_OPS_BOTH float Scaled(float score, int lane, int half) const {
    return (score - ShiftOf(maximum_[lane][half])) * inverse_;
  }

  template <class Visit>
  SPARSE_OPS_BOTH void ForEachOutput(const Warp& warp, const Visit& visit) {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int i = 0; i < 2 * Products::kColumns; ++i) {
        visit(lane, i, &products_.Sum(lane, i / Products::kColumns, i % Products::kColumns));
      }
    });
  }

  SPARSE_OPS_BOTH void ClearSums(const Warp& warp) {
    warp.Each([&](int lane) { sums_[lane] = {}; });
  }
  SPARSE_OPS_BOTH void QuadSums(const Warp& warp) {
    SPARSE_OPS_LANES
    for (int half = 0; half < 2; ++half) {
      PerLane<float> sum;
      PerLane<int> above;
      warp.Each([&](int lane) {
        sum[lane] = sums_[lane][half].sum;
        above[lane] = sums_[lane][half].above;
      });
      warp.QuadSum(&sum);
      if (kSparsegen) warp.QuadSum(&above);
      warp.Each([&](int lane) { sums_[lane][half] = {sum[lane], above[lane]}; });
    }
  }
  static SPARSE_OPS_BOTH void QuadCounts(const Warp& warp, PerLane<ByHalf<int>>* counts) {
    SPARSE_OPS_LANES
    for (int half = 0; half < 2; ++half) {
      PerLane<int> sum;
      warp.Each([&](int lane) { sum[lane] = (*counts)[lane][half]; });
      warp.QuadSum(&sum);
      warp.Each([&](int lane) { (*counts)[lane][half] = sum[lane]; });
    }
  }

  Products products_;
  int32_t first_, step_;
  float* held_;
  float inverse_;
  PerLane<ByHalf<float>> maximum_, tau_;
  PerLane<ByHalf<NewtonSums>>
      sums_;  // softmax: sum is that of weights; sparsegen-lin: above ends as the support
  PerLane<ByHalf<int>> allowed_, not_finite_;
};

}  // namespace cuda
}  // namespace sparse_ops
