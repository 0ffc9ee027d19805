// Sparsegen attention of one head's queries, 16 to each warp of a block, in one of three ways by the number
// of keys:
//
// - resident: few keys. Their scores are computed once and kept in shared memory, each lane its own, and
//   Newton's method goes through them; then all values are multiplied.
// - listed: more keys. Any subset of the keys has a root that is a lower bound of tau, so what is not above
//   it is dropped. In 16 bits the first keys are gone through for such a bound; then all keys are, and what
//   is above stands in lists of candidates, one for each lane and query. At the end only values of candidates
//   are read.
// - dense: where a list overflows, as with a large support. As resident, the scores computed anew in each
//   step.
//
// No buffer grows with the number of keys.
#pragma once

#include "sparsegen_attention/sparsegen_candidates_cuda.h"
#include "sparsegen_attention/sparsegen_plan_cuda.h"
#include "sparsegen_attention/sparsegen_rows_cuda.h"

namespace sparse_ops {
namespace cuda {

// Number of tiles of keys that give the bound: further ones would cost more than they save in lists.
constexpr int kBoundTiles = 512 / kTileKeys;

// kResident is limits.resident. It is a template parameter so that each kernel is smaller.
template <class Element, int kWidth, bool kResident>
class SparsegenTile {
  using Kind = SparsegenKind<Element, kResident>;
  using AnyBlock = typename Kind::AnyBlock;
  using Memory = SparsegenMemory<Element, kWidth, kResident>;
  using Stages = typename Memory::Stages;
  using Product = TileProducts<Element, kWidth>;

 public:
  SPARSE_OPS_BOTH SparsegenTile(const AttentionLaunch<Element>& launch, const SparsegenLimits& limits,
                                void* memory)
      : launch_(launch),
        limits_(limits),
        search_(static_cast<QueryTileSearch*>(memory)),
        work_(static_cast<SparsegenWork*>(At(memory, Memory::kWorkAt))),
        stages_(At(memory, Memory::kSearchBytes)),
        queries_(static_cast<Element*>(At(memory, Memory::kSearchBytes + Stages::kBytes))),
        dynamic_(At(memory, Memory::kFixedBytes)),
        reciprocal_(1.0f / launch.tensors.divisor) {}

  SPARSE_OPS_BOTH void Attend(int64_t block_index) {
    const int64_t head = block_index / launch_.tiles;
    const QueryTile tile = FindQueryTile(block_, launch_.borders, block_index % launch_.tiles, search_);
    if (tile.queries > 0 && tile.bad_borders) {
      if (limits_.more_than < 0) WriteBadRows(block_, launch_.tensors, tile, head);
    } else if (tile.queries > 0 && tile.keys > limits_.more_than && tile.keys <= limits_.at_most) {
      block_.Threads([&](int thread) {
        if (thread == 0) *work_ = {tile, head};
      });
      block_.Sync();
      key_tiles_ = TilesOf(tile.keys);
      LoadQueries();
      if constexpr (kResident) {
        ScoreClasses(key_tiles_);
        Solve();
        AttendResident();
      } else if (limits_.slots == 0 || !AttendListed()) {
        ScoreClasses(key_tiles_);
        Solve();
        AttendDense();
      }
    }
    block_.Sync();  // the next tile uses the same shared memory
  }

 private:
  template <class T>
  using Each = PerWarp<T, AnyBlock::kWarps>;

  static SPARSE_OPS_BOTH void* At(void* memory, int64_t bytes) { return static_cast<char*>(memory) + bytes; }
  SPARSE_OPS_BOTH bool IsQuery(const Warp& warp, int lane, int h) const {
    return warp.index() * kWarpQueries + lane / 4 + 8 * h < work_->tile.queries;
  }

  SPARSE_OPS_BOTH void AwaitTiles() const {
    block_.Threads([](int) { WaitForCopies<0>(); });
    block_.Sync();
  }

  SPARSE_OPS_BOTH void LoadQueries() {
    const HeadRows<Element> rows =
        RowsOf(launch_, launch_.tensors.query, work_->head, work_->tile.query, work_->tile.queries);
    Element* tile = Product::kQueriesInRegisters ? stages_.stage(0) : queries_;
    SPARSE_OPS_LANES
    for (int i = 0; i * kTileKeys < kTileQueries<AnyBlock>; ++i) {
      LoadTile<kWidth>(block_, rows, i * kTileKeys,
                       tile + i * kTileKeys * TileLayout<Element, kWidth>::kStride);
    }
    AwaitTiles();
    block_.Warps([&](const Warp& warp) {
      Product::LoadQueries(warp, tile, &fragments_[warp.index()]);
      warp.Each([&](int lane) {
        SparsegenRows& rows_of_lane = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          rows_of_lane.maximum[h] = -kInfinity;
          rows_of_lane.tau[h] = -1.0f;
          rows_of_lane.cut[h] = IsQuery(warp, lane, h) ? -kInfinity : kInfinity;
          rows_of_lane.count[h] = 0;
          rows_of_lane.nan[h] = false;
        }
      });
    });
    block_.Sync();
  }

  // The scores of a tile of keys; -inf where there is no key.
  SPARSE_OPS_BOTH void Score(const Warp& warp, int key_tile, const Element* keys, Scores* scores) {
    Product::Multiply(warp, fragments_[warp.index()], queries_, keys, scores);
    ScaleScores(warp, launch_.tensors.scale, work_->tile.keys - key_tile * kTileKeys, scores);
  }

  SPARSE_OPS_BOTH void RaiseClasses(const Warp& warp, const Scores& scores) {
    SPARSE_OPS_LANES
    for (int j = 0; j < kSlices; ++j) {
      warp.Each([&](int lane) {
        Four& own = classes_[warp.index()].of[j][lane];
        SPARSE_OPS_LANES
        for (int i = 0; i < 4; ++i) own.of[i] = Max(scores.of[j][lane].of[i], own.of[i]);
      });
    }
  }

  // Where a lane's own scores are kept, which no other lane reads.
  SPARSE_OPS_BOTH Four& Resident(const Warp& warp, int lane, int key_tile, int j) const {
    const int tile_slice = key_tile * kSlices + j;
    return static_cast<Four*>(dynamic_)[tile_slice * AnyBlock::kThreads + warp.index() * kWarpLanes + lane];
  }
  SPARSE_OPS_BOTH void LoadResident(const Warp& warp, int key_tile, Scores* scores) const {
    SPARSE_OPS_LANES
    for (int j = 0; j < kSlices; ++j) {
      warp.Each([&](int lane) { scores->of[j][lane] = Resident(warp, lane, key_tile, j); });
    }
  }

  // The rows of the keys or values.
  SPARSE_OPS_BOTH HeadRows<Element> KeyRows(const Element* tensor) const {
    return RowsOf(launch_, tensor, work_->head, work_->tile.key, work_->tile.keys);
  }

  template <class Compute>
  SPARSE_OPS_BOTH void ForKeys(int tiles, const Compute& compute) {
    const HeadRows<Element> keys = KeyRows(launch_.tensors.key);
    stages_.ForEach(
        block_, tiles, [&](int i, Element* tile) { LoadTile<kWidth>(block_, keys, i * kTileKeys, tile); },
        compute);
  }

  // Finds the maxima of classes of the keys in the first `tiles` tiles. They are computed anew, so that no
  // registers hold them while keys are listed.
  SPARSE_OPS_BOTH void ScoreClasses(int tiles) {
    block_.Warps([&](const Warp& warp) {
      SPARSE_OPS_LANES
      for (int j = 0; j < kSlices; ++j) {
        warp.Each([&](int lane) {
          classes_[warp.index()].of[j][lane] = Four{{-kInfinity, -kInfinity, -kInfinity, -kInfinity}};
        });
      }
    });
    ForKeys(tiles, [&](int i, const Element* keys) {
      block_.Warps([&](const Warp& warp) {
        Scores scores;
        Score(warp, i, keys, &scores);
        if constexpr (kResident) {
          SPARSE_OPS_LANES
          for (int j = 0; j < kSlices; ++j) {
            warp.Each([&](int lane) { Resident(warp, lane, i, j) = scores.of[j][lane]; });
          }
        }
        RaiseClasses(warp, scores);
      });
    });
  }

  // Finds tau of every query, by scores that are resident or computed anew.
  SPARSE_OPS_BOTH void Solve() {
    block_.Warps([&](const Warp& warp) {
      SolveClasses(warp, classes_[warp.index()], reciprocal_, &rows_[warp.index()]);
    });
    if constexpr (kResident) {
      block_.Warps([&](const Warp& warp) {
        PerLane<SparsegenRows>& rows = rows_[warp.index()];
        for (int step = 0; step < kMaxSteps; ++step) {
          ClearSums(warp, &rows);
          for (int i = 0; i < key_tiles_; ++i) {
            Scores scores;
            LoadResident(warp, i, &scores);
            AddAbove(warp, scores, reciprocal_, &rows);
          }
          if (!RiseAll(warp, &rows)) break;
        }
      });
    } else {
      for (int step = 0; step < kMaxSteps; ++step) {
        block_.Warps([&](const Warp& warp) { ClearSums(warp, &rows_[warp.index()]); });
        ForKeys(key_tiles_, [&](int i, const Element* keys) {
          block_.Warps([&](const Warp& warp) {
            Scores scores;
            Score(warp, i, keys, &scores);
            AddAbove(warp, scores, reciprocal_, &rows_[warp.index()]);
          });
        });
        Each<bool> rises;
        block_.Warps([&](const Warp& warp) { rises[warp.index()] = RiseAll(warp, &rows_[warp.index()]); });
        if (!block_.Any(rises)) break;
      }
    }
  }

  // Turns scores into weights; counts those above 0, and notes NaN.
  SPARSE_OPS_BOTH void Weigh(const Warp& warp, Scores* scores) {
    warp.Each([&](int lane) {
      SparsegenRows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            float& score = scores->of[j][lane].of[2 * h + i];
            const float value = rows.Value(h, score, reciprocal_);
            const bool in = value > rows.tau[h];
            rows.count[h] += in ? 1 : 0;
            rows.nan[h] = rows.nan[h] || value != value;
            score = in ? value - rows.tau[h] : 0.0f;
          }
        }
      }
    });
  }

  SPARSE_OPS_BOTH void AttendResident() {
    block_.Warps([&](const Warp& warp) { Clear(warp, &sums_[warp.index()]); });
    const HeadRows<Element> values = KeyRows(launch_.tensors.value);
    stages_.ForEach(
        block_, key_tiles_,
        [&](int i, Element* tile) { LoadTile<kWidth>(block_, values, i * kTileKeys, tile); },
        [&](int i, const Element* value_tile) {
          block_.Warps([&](const Warp& warp) {
            Scores scores;
            LoadResident(warp, i, &scores);
            Weigh(warp, &scores);
            typename Product::Weights weights;
            Product::Round(warp, scores, &weights);
            Product::AddValues(warp, weights, value_tile, &sums_[warp.index()]);
          });
        });
    Write();
  }

  SPARSE_OPS_BOTH void AttendDense() {
    block_.Warps([&](const Warp& warp) {
      Clear(warp, &sums_[warp.index()]);
      warp.Each([&](int lane) {
        SparsegenRows& rows = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          rows.count[h] = 0;
          rows.nan[h] = false;
        }
      });
    });
    const HeadRows<Element> keys = KeyRows(launch_.tensors.key);
    const HeadRows<Element> values = KeyRows(launch_.tensors.value);
    // Loads the keys and values of a tile at once where there are stages for both, so that no registers hold
    // weights while values are loaded.
    constexpr int kLast = Stages::kCount - 1;
    for (int i = 0; i < key_tiles_; ++i) {
      LoadTile<kWidth>(block_, keys, i * kTileKeys, stages_.stage(0));
      if constexpr (kLast > 0) LoadTile<kWidth>(block_, values, i * kTileKeys, stages_.stage(kLast));
      AwaitTiles();
      Each<typename Product::Weights> weights;
      block_.Warps([&](const Warp& warp) {
        Scores scores;
        Score(warp, i, stages_.stage(0), &scores);
        Weigh(warp, &scores);
        Product::Round(warp, scores, &weights[warp.index()]);
      });
      if constexpr (kLast == 0) {
        block_.Sync();
        LoadTile<kWidth>(block_, values, i * kTileKeys, stages_.stage(0));
        AwaitTiles();
      }
      block_.Warps([&](const Warp& warp) {
        Product::AddValues(warp, weights[warp.index()], stages_.stage(kLast), &sums_[warp.index()]);
      });
      block_.Sync();
    }
    Write();
  }

  // Writes the sums, and the support of each query.
  SPARSE_OPS_BOTH void Write() {
    const int64_t stride = launch_.tensors.num_heads * launch_.tensors.head_size;
    block_.Warps([&](const Warp& warp) {
      JoinCounts(warp);
      PerLane<float> factor[2];
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) factor[h][lane] = rows_[warp.index()][lane].nan[h] ? NotANumber() : 1.0f;
      });
      WriteRows<Element, kWidth>(warp, sums_[warp.index()], factor, work_->tile, stride,
                                 launch_.tensors.head_size,
                                 launch_.tensors.output + work_->head * launch_.tensors.head_size);
    });
  }

  // Joins the counts of a query's four lanes, and writes the support. NaN weights are not zero: all of them
  // count.
  SPARSE_OPS_BOTH void JoinCounts(const Warp& warp) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      PerLane<int> count;
      PerLane<bool> nan;
      warp.Each([&](int lane) {
        count[lane] = rows_[warp.index()][lane].count[h];
        nan[lane] = rows_[warp.index()][lane].nan[h];
      });
      warp.QuadSum(&count);
      warp.QuadAny(&nan);
      warp.Each([&](int lane) {
        rows_[warp.index()][lane].nan[h] = nan[lane];
        if (lane % 4 != 0 || !IsQuery(warp, lane, h)) return;
        const int64_t query = work_->tile.query + warp.index() * kWarpQueries + lane / 4 + 8 * h;
        launch_.tensors.support[query * launch_.tensors.num_heads + work_->head] =
            nan[lane] ? static_cast<int32_t>(work_->tile.keys) : count[lane];
      });
    }
  }

  // Finds a cut by the first keys, before any key is listed.
  SPARSE_OPS_BOTH void BoundFirst() {
    ScoreClasses(key_tiles_ < kBoundTiles ? key_tiles_ : kBoundTiles);
    block_.Warps([&](const Warp& warp) {
      PerLane<SparsegenRows>& rows = rows_[warp.index()];
      SolveClasses(warp, classes_[warp.index()], reciprocal_, &rows);
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          rows[lane].CutAt(h, rows[lane].tau[h], launch_.tensors.divisor);
        }
      });
    });
  }

  // Before which tiles of keys all warps solve for a new cut: whenever the number of keys has doubled. So
  // hardly any list fills up. A warp whose list does solves alone, while the others of its block wait.
  static SPARSE_OPS_BOTH bool RaisesCut(int key_tile) {
    constexpr int kFirst = Kind::kBoundFirst ? 2 * kBoundTiles : 1;
    return key_tile >= kFirst && (key_tile & (key_tile - 1)) == 0;
  }

  // Returns whether all candidates fitted into their lists, so that the block is done.
  SPARSE_OPS_BOTH bool AttendListed() {
    if constexpr (Kind::kBoundFirst) BoundFirst();
    const CandidateLists<AnyBlock> lists(dynamic_, limits_.slots);
    const float divisor = launch_.tensors.divisor;
    Each<bool> overflow;
    block_.Warps([&](const Warp& warp) { overflow[warp.index()] = false; });
    ForKeys(key_tiles_, [&](int i, const Element* keys) {
      block_.Warps([&](const Warp& warp) {
        if (overflow[warp.index()]) return;
        PerLane<SparsegenRows>& rows = rows_[warp.index()];
        if (RaisesCut(i)) lists.Solve(warp, kBoundSlack, divisor, reciprocal_, &rows);
        Scores scores;
        Score(warp, i, keys, &scores);
        if (lists.Add(warp, i, scores, &rows)) return;
        lists.Solve(warp, kBoundSlack, divisor, reciprocal_, &rows);
        overflow[warp.index()] = !lists.Add(warp, i, scores, &rows);
      });
    });
    if (block_.Any(overflow)) return false;
    const HeadRows<Element> values = KeyRows(launch_.tensors.value);
    Element* output = launch_.tensors.output + work_->head * launch_.tensors.head_size;
    block_.Warps([&](const Warp& warp) {
      PerLane<SparsegenRows>& rows = rows_[warp.index()];
      lists.Solve(warp, 0.0f, divisor, reciprocal_, &rows);
      lists.Weigh(warp, reciprocal_, rows);
      JoinCounts(warp);
      warp.Sync();
      SPARSE_OPS_ROLLED
      for (int i = 0; i < 4; ++i) {
        if (launch_.aligned) {
          lists.template AddValues<true, kWidth>(warp, i, values, work_->tile, output);
        } else {
          lists.template AddValues<false, kWidth>(warp, i, values, work_->tile, output);
        }
      }
    });
    return true;
  }

  const AttentionLaunch<Element>& launch_;
  const SparsegenLimits& limits_;
  QueryTileSearch* const search_;
  SparsegenWork* const work_;
  const Stages stages_;
  Element* const queries_;
  void* const dynamic_;     // scores or lists
  const float reciprocal_;  // subnormal for a divisor beyond 2^126, which a GPU keeps

  const AnyBlock block_{};
  int key_tiles_ = 0;
  Each<typename Product::Queries> fragments_;
  Each<PerLane<SparsegenRows>> rows_;
  Each<Scores> classes_;
  Each<Products<kWidth / 8>> sums_;
};

}  // namespace cuda
}  // namespace sparse_ops
