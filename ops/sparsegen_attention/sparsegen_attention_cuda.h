// Sparsegen attention of 64 queries and one head by a block of four warps, in one of three ways by the number
// of keys:
//
//   resident   up to as many keys as there is shared memory for, 512 at most: their scores are computed once
//   and kept
//              there, each lane its own; Newton's method goes through them, then all values are multiplied.
//   listed     more keys: they are gone through once. Any subset of the keys has a root that is a lower bound
//   of tau,
//              so what is not above the root of the keys so far is dropped. The rest stands in lists of
//              candidates, one for each lane and query, and at the end only values of candidates are read.
//   dense      where a list overflows, as with a large support: as resident, the scores computed anew in each
//   step.
//
// No buffer grows with the number of keys.
#pragma once

#include "attention/attention_tile_cuda.h"
#include "sparsegen_lin/sparsegen_threshold_cuda.h"

namespace sparse_ops {
namespace cuda {

// What a launch says of every block: which numbers of keys are its own, and the shared memory it has.
struct SparsegenLimits {
  int64_t more_than;  // keys
  int64_t at_most;    // keys
  bool resident;      // with shared memory for the scores of at_most keys
  int slots;          // of a list, where not resident; 0: there are no lists, all is dense
};

constexpr int64_t kMostResidentKeys = 512;
constexpr int kMostSlots = 32;
// A lane's candidates of one tile of keys: a list that has no room for them is made shorter first.
constexpr int kSlotsOfTile = kTileKeys / 4;

// Shared memory: the search, stages of tiles, queries that are not in registers, then scores or lists.
template <class Element, int kWidth>
struct SparsegenMemory {
  using Stages = TileStages<Element, kWidth, kStagesOf<Element, kWidth>>;
  static constexpr int64_t kSearchBytes = RoundUp(sizeof(QueryTileSearch), 16);
  static constexpr int64_t kQueryBytes =
      TileProducts<Element, kWidth>::kQueriesInRegisters ? 0 : TileLayout<Element, kWidth>::kBytes;
  static constexpr int64_t kFixedBytes = kSearchBytes + Stages::kBytes + kQueryBytes;
  static constexpr int64_t kKeyBytes = kTileQueries * static_cast<int64_t>(sizeof(float));
  static constexpr int64_t kCountBytes = 2 * AttentionBlock::kThreads * static_cast<int64_t>(sizeof(int));
  static constexpr int64_t kSlotBytes =
      2 * AttentionBlock::kThreads * static_cast<int64_t>(sizeof(float) + sizeof(int));

  // How many keys `shared_bytes` have room for, in whole tiles.
  static constexpr int64_t ResidentKeys(int64_t shared_bytes) {
    const int64_t keys = (shared_bytes - kFixedBytes) / kKeyBytes / kTileKeys * kTileKeys;
    return keys < 0 ? 0 : keys < kMostResidentKeys ? keys : kMostResidentKeys;
  }
  // Slots of a list; none where these would be too few to hold more than one tile.
  static constexpr int Slots(int64_t shared_bytes) {
    const int64_t slots = (shared_bytes - kFixedBytes - kCountBytes) / kSlotBytes;
    return slots < kSlotsOfTile + kSlotsOfTile / 2 ? 0
           : slots < kMostSlots                    ? static_cast<int>(slots)
                                                   : kMostSlots;
  }
  static constexpr int64_t Bytes(const SparsegenLimits& limits) {
    if (limits.resident) return kFixedBytes + limits.at_most * kKeyBytes;
    return kFixedBytes + (limits.slots > 0 ? kCountBytes + limits.slots * kSlotBytes : 0);
  }
};

// Of one block, on compute capability 8.0.
constexpr int64_t kSharedBytesOfA100 = 163 * 1024;
static_assert(SparsegenMemory<Half, 128>::ResidentKeys(kSharedBytesOfA100) == 512, "512 keys are resident");
static_assert(SparsegenMemory<float, 32>::ResidentKeys(kSharedBytesOfA100) == 512, "512 keys are resident");
static_assert(SparsegenMemory<float, 64>::ResidentKeys(kSharedBytesOfA100) == 384, "384 keys are resident");
static_assert(SparsegenMemory<float, 128>::ResidentKeys(kSharedBytesOfA100) == 384, "384 keys are resident");
static_assert(SparsegenMemory<float, 128>::Slots(kSharedBytesOfA100) == kMostSlots, "lists are whole");

// Blocks for which a multiprocessor is to have registers: as many as leave a kernel without spills.
template <class Element, int kWidth, bool kResident>
constexpr int kSparsegenBlocks = !kResident || sizeof(Element) == 4 ? 1
                                 : kWidth > 64                      ? 2
                                                                    : 4;

// kResident is limits.resident: a kernel of its own each, which is smaller.
template <class Element, int kWidth, bool kResident>
class SparsegenTile {
  using Memory = SparsegenMemory<Element, kWidth>;
  using Stages = typename Memory::Stages;
  using Product = TileProducts<Element, kWidth>;

 public:
  SPARSE_OPS_BOTH SparsegenTile(const AttentionLaunch<Element>& launch, const SparsegenLimits& limits,
                                void* memory)
      : launch_(launch),
        limits_(limits),
        search_(static_cast<QueryTileSearch*>(memory)),
        stages_(At(memory, Memory::kSearchBytes)),
        queries_(static_cast<Element*>(At(memory, Memory::kSearchBytes + Stages::kBytes))),
        scores_(static_cast<Four*>(At(memory, Memory::kFixedBytes))),
        counts_(static_cast<int*>(At(memory, Memory::kFixedBytes))),
        list_scores_(static_cast<float*>(At(memory, Memory::kFixedBytes + Memory::kCountBytes))),
        list_keys_(reinterpret_cast<int32_t*>(list_scores_ + limits.slots * 2 * AttentionBlock::kThreads)),
        reciprocal_(1.0f / launch.tensors.divisor) {}

  SPARSE_OPS_BOTH void Attend(int64_t block_index) {
    head_ = block_index / launch_.tiles;
    tile_ = FindQueryTile(block_, launch_.borders, block_index % launch_.tiles, search_);
    if (tile_.queries > 0 && tile_.bad_borders) {
      if (limits_.more_than < 0) WriteBadRows(block_, launch_.tensors, tile_, head_);
    } else if (tile_.queries > 0 && tile_.keys > limits_.more_than && tile_.keys <= limits_.at_most) {
      key_tiles_ = (tile_.keys + kTileKeys - 1) / kTileKeys;
      keys_ = RowsOf(launch_, launch_.tensors.key, head_, tile_.key, tile_.keys);
      values_ = RowsOf(launch_, launch_.tensors.value, head_, tile_.key, tile_.keys);
      LoadQueries();
      if constexpr (kResident) {
        ScoreResident();
        Solve();
        AttendResident();
      } else if (limits_.slots == 0 || !AttendListed()) {
        ScoreDense();
        Solve();
        AttendDense();
      }
    }
    block_.Sync();  // the next tile may be laid over what is still read
  }

 private:
  // Of a lane's two queries.
  struct Rows {
    float maximum[2];
    float shift[2];
    float tau[2];  // in units of the weights, counted from shift
    float cut[2];  // in units of the scores: no key below it can be above tau
    float sum[2];  // of weights, or of values in a step
    int above[2];
    int count[2];  // of a list, or the support
    bool nan[2];
  };
  template <class T>
  using Each = PerWarp<T, kAttentionWarps>;

  static SPARSE_OPS_BOTH void* At(void* memory, int64_t bytes) { return static_cast<char*>(memory) + bytes; }
  SPARSE_OPS_BOTH float Value(const Rows& rows, int h, float score) const {
    return (score - rows.shift[h]) * reciprocal_;
  }
  static SPARSE_OPS_BOTH int Thread(const Warp& warp, int lane) { return warp.index() * kWarpLanes + lane; }
  SPARSE_OPS_BOTH int SlotOf(const Warp& warp, int lane, int h, int i) const {
    return (i * 2 + h) * AttentionBlock::kThreads + Thread(warp, lane);
  }
  SPARSE_OPS_BOTH bool IsQuery(const Warp& warp, int lane, int h) const {
    return warp.index() * 16 + lane / 4 + 8 * h < tile_.queries;
  }

  SPARSE_OPS_BOTH void LoadQueries() {
    const HeadRows<Element> rows = RowsOf(launch_, launch_.tensors.query, head_, tile_.query, tile_.queries);
    Element* tile = Product::kQueriesInRegisters ? stages_.stage(0) : queries_;
    LoadTile<kWidth>(block_, rows, 0, tile);
    block_.Threads([](int) { WaitForCopies<0>(); });
    block_.Sync();
    block_.Warps([&](const Warp& warp) {
      Product::LoadQueries(warp, tile, &fragments_[warp.index()]);
      warp.Each([&](int lane) {
        Rows& rows_of_lane = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          rows_of_lane.maximum[h] = -kInfinity;
          rows_of_lane.cut[h] = IsQuery(warp, lane, h) ? -kInfinity : kInfinity;
          rows_of_lane.count[h] = 0;
          rows_of_lane.nan[h] = false;
        }
      });
      Clear(warp, &classes_[warp.index()]);
      SPARSE_OPS_LANES
      for (int j = 0; j < kSlices; ++j) {
        warp.Each([&](int lane) {
          classes_[warp.index()].of[j][lane] = Four{{-kInfinity, -kInfinity, -kInfinity, -kInfinity}};
        });
      }
    });
    block_.Sync();
  }

  // Of a tile of keys; -inf where there is no key.
  SPARSE_OPS_BOTH void Score(const Warp& warp, int64_t key_tile, const Element* keys, Scores* scores) {
    Product::Multiply(warp, fragments_[warp.index()], queries_, keys, scores);
    const int64_t left = tile_.keys - key_tile * kTileKeys;
    const float scale = launch_.tensors.scale;
    SPARSE_OPS_LANES
    for (int j = 0; j < kSlices; ++j) {
      warp.Each([&](int lane) {
        Four& four = scores->of[j][lane];
        SPARSE_OPS_LANES
        for (int i = 0; i < 4; ++i) {
          const bool exists = 8 * j + lane % 4 * 2 + i % 2 < left;
          four.of[i] = exists ? four.of[i] * scale : -kInfinity;
        }
      });
    }
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

  // A lane's own scores, which no other lane reads.
  SPARSE_OPS_BOTH Four& Resident(const Warp& warp, int lane, int64_t key_tile, int j) const {
    return scores_[(key_tile * kSlices + j) * AttentionBlock::kThreads + Thread(warp, lane)];
  }
  SPARSE_OPS_BOTH void LoadResident(const Warp& warp, int64_t key_tile, Scores* scores) const {
    SPARSE_OPS_LANES
    for (int j = 0; j < kSlices; ++j) {
      warp.Each([&](int lane) { scores->of[j][lane] = Resident(warp, lane, key_tile, j); });
    }
  }

  template <class Compute>
  SPARSE_OPS_BOTH void ForKeys(const Compute& compute) {
    stages_.ForEach(
        block_, key_tiles_,
        [&](int64_t i, Element* tile) { LoadTile<kWidth>(block_, keys_, i * kTileKeys, tile); }, compute);
  }

  SPARSE_OPS_BOTH void ScoreResident() {
    ForKeys([&](int64_t i, const Element* keys) {
      block_.Warps([&](const Warp& warp) {
        Scores scores;
        Score(warp, i, keys, &scores);
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          warp.Each([&](int lane) { Resident(warp, lane, i, j) = scores.of[j][lane]; });
        }
        RaiseClasses(warp, scores);
      });
    });
  }

  SPARSE_OPS_BOTH void ScoreDense() {
    ForKeys([&](int64_t i, const Element* keys) {
      block_.Warps([&](const Warp& warp) {
        Scores scores;
        Score(warp, i, keys, &scores);
        RaiseClasses(warp, scores);
      });
    });
  }

  // Adds what a tile has above tau.
  SPARSE_OPS_BOTH void AddAbove(const Warp& warp, const Scores& scores) {
    warp.Each([&](int lane) {
      Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        NewtonSums sums{rows.sum[h], rows.above[h]};
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) sums.Add(Value(rows, h, scores.of[j][lane].of[2 * h + i]), rows.tau[h]);
        }
        rows.sum[h] = sums.sum;
        rows.above[h] = sums.above;
      }
    });
  }

  SPARSE_OPS_BOTH void ClearSums(const Warp& warp) {
    warp.Each([&](int lane) {
      Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        rows.sum[h] = 0.0f;
        rows.above[h] = 0;
      }
    });
  }

  // A step of Newton's method for all queries of a warp; whether any tau rose.
  SPARSE_OPS_BOTH bool RiseAll(const Warp& warp) {
    PerLane<bool> rises;
    warp.Each([&](int lane) { rises[lane] = false; });
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      PerLane<float> sum;
      PerLane<int> above;
      warp.Each([&](int lane) {
        sum[lane] = rows_[warp.index()][lane].sum[h];
        above[lane] = rows_[warp.index()][lane].above[h];
      });
      warp.QuadSum(&sum);
      warp.QuadSum(&above);
      warp.Each([&](int lane) {
        if (Rise({sum[lane], above[lane]}, &rows_[warp.index()][lane].tau[h])) rises[lane] = true;
      });
    }
    return warp.Any(rises);
  }

  // The maximum of each query over its four lanes, from which values are counted.
  SPARSE_OPS_BOTH void JoinMaxima(const Warp& warp) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      PerLane<float> maximum;
      warp.Each([&](int lane) { maximum[lane] = rows_[warp.index()][lane].maximum[h]; });
      warp.QuadMax(&maximum);
      warp.Each([&](int lane) {
        Rows& rows = rows_[warp.index()][lane];
        rows.maximum[h] = maximum[lane];
        rows.shift[h] = ShiftOf(maximum[lane]);
      });
    }
  }

  // tau of every query, from scores that are resident or computed anew. The root over the classes' maxima, 64
  // of a query, is a lower bound, and close.
  SPARSE_OPS_BOTH void Solve() {
    block_.Warps([&](const Warp& warp) {
      const Scores& classes = classes_[warp.index()];
      warp.Each([&](int lane) {
        Rows& rows = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          float maximum = -kInfinity;
          SPARSE_OPS_LANES
          for (int j = 0; j < kSlices; ++j) {
            maximum = Max(Max(classes.of[j][lane].of[2 * h], classes.of[j][lane].of[2 * h + 1]), maximum);
          }
          rows.maximum[h] = maximum;
          rows.tau[h] = -1.0f;
        }
      });
      JoinMaxima(warp);
      for (int step = 0; step < kMaxSteps; ++step) {
        ClearSums(warp);
        AddAbove(warp, classes);
        if (!RiseAll(warp)) break;
      }
      warp.Each([&](int lane) {
        Rows& rows = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) rows.tau[h] -= kBoundSlack;
      });
    });
    if constexpr (kResident) {
      block_.Warps([&](const Warp& warp) {
        for (int step = 0; step < kMaxSteps; ++step) {
          ClearSums(warp);
          for (int64_t i = 0; i < key_tiles_; ++i) {
            Scores scores;
            LoadResident(warp, i, &scores);
            AddAbove(warp, scores);
          }
          if (!RiseAll(warp)) break;
        }
      });
    } else {
      for (int step = 0; step < kMaxSteps; ++step) {
        block_.Warps([&](const Warp& warp) { ClearSums(warp); });
        ForKeys([&](int64_t i, const Element* keys) {
          block_.Warps([&](const Warp& warp) {
            Scores scores;
            Score(warp, i, keys, &scores);
            AddAbove(warp, scores);
          });
        });
        Each<bool> rises;
        block_.Warps([&](const Warp& warp) { rises[warp.index()] = RiseAll(warp); });
        if (!block_.Any(rises)) break;
      }
    }
  }

  // Scores become weights; counts those above 0, and tells NaN.
  SPARSE_OPS_BOTH void Weigh(const Warp& warp, Scores* scores) {
    warp.Each([&](int lane) {
      Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            float& score = scores->of[j][lane].of[2 * h + i];
            const float value = Value(rows, h, score);
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
    stages_.ForEach(
        block_, key_tiles_,
        [&](int64_t i, Element* tile) { LoadTile<kWidth>(block_, values_, i * kTileKeys, tile); },
        [&](int64_t i, const Element* values) {
          block_.Warps([&](const Warp& warp) {
            Scores scores;
            LoadResident(warp, i, &scores);
            Weigh(warp, &scores);
            typename Product::Weights weights;
            Product::Round(warp, scores, &weights);
            Product::AddValues(warp, weights, values, &sums_[warp.index()]);
          });
        });
    Write();
  }

  SPARSE_OPS_BOTH void AttendDense() {
    block_.Warps([&](const Warp& warp) {
      Clear(warp, &sums_[warp.index()]);
      warp.Each([&](int lane) {
        Rows& rows = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          rows.count[h] = 0;
          rows.nan[h] = false;
        }
      });
    });
    Each<typename Product::Weights> weights;
    stages_.ForKeysAndValues(
        block_, keys_, values_,
        [&](const Warp& warp, int64_t i, const Element* tile) {
          Scores scores;
          Score(warp, i, tile, &scores);
          Weigh(warp, &scores);
          Product::Round(warp, scores, &weights[warp.index()]);
        },
        [&](const Warp& warp, const Element* tile) {
          Product::AddValues(warp, weights[warp.index()], tile, &sums_[warp.index()]);
        });
    Write();
  }

  // Sums, and the support of each query.
  SPARSE_OPS_BOTH void Write() {
    const int64_t stride = launch_.tensors.num_heads * launch_.tensors.head_size;
    block_.Warps([&](const Warp& warp) {
      JoinCounts(warp);
      PerLane<float> factor[2];
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) factor[h][lane] = rows_[warp.index()][lane].nan[h] ? NotANumber() : 1.0f;
      });
      WriteRows<Element, kWidth>(warp, sums_[warp.index()], factor, tile_, stride, launch_.tensors.head_size,
                                 launch_.tensors.output + head_ * launch_.tensors.head_size);
    });
  }

  // Over a query's four lanes; writes the support. NaN weights are not zero: all of them count.
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
        const int64_t query = tile_.query + warp.index() * 16 + lane / 4 + 8 * h;
        launch_.tensors.support[query * launch_.tensors.num_heads + head_] =
            nan[lane] ? static_cast<int32_t>(tile_.keys) : count[lane];
      });
    }
  }

  // Whether all candidates fit their lists, and the block is done.
  SPARSE_OPS_BOTH bool AttendListed() {
    Each<bool> overflow;
    block_.Warps([&](const Warp& warp) { overflow[warp.index()] = false; });
    ForKeys([&](int64_t i, const Element* keys) {
      block_.Warps([&](const Warp& warp) {
        if (overflow[warp.index()]) return;
        Scores scores;
        Score(warp, i, keys, &scores);
        AddCandidates(warp, i, scores);
        if (i + 1 == key_tiles_ || HasRoom(warp)) return;
        SolveList(warp, kBoundSlack);
        overflow[warp.index()] = !HasRoom(warp);
      });
    });
    if (block_.Any(overflow)) return false;
    block_.Warps([&](const Warp& warp) {
      SolveList(warp, 0.0f);
      WeighList(warp);
      JoinCounts(warp);
      warp.Sync();
      for (int i = 0; i < 4; ++i) AddListedValues(warp, i);
    });
    return true;
  }

  // Keys above the cut, appended; there is room.
  SPARSE_OPS_BOTH void AddCandidates(const Warp& warp, int64_t key_tile, const Scores& scores) {
    warp.Each([&](int lane) {
      Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            const float score = scores.of[j][lane].of[2 * h + i];
            rows.nan[h] = rows.nan[h] || !(score <= kLargest);
            if (!(score > rows.cut[h])) continue;
            const int slot = SlotOf(warp, lane, h, rows.count[h]++);
            list_scores_[slot] = score;
            list_keys_[slot] = static_cast<int32_t>(key_tile * kTileKeys + 8 * j + lane % 4 * 2 + i);
          }
        }
      }
    });
  }

  SPARSE_OPS_BOTH bool HasRoom(const Warp& warp) {
    PerLane<bool> is_full;
    warp.Each([&](int lane) {
      const Rows& rows = rows_[warp.index()][lane];
      const int most = limits_.slots - kSlotsOfTile;
      is_full[lane] = rows.count[0] > most || rows.count[1] > most;
    });
    return !warp.Any(is_full);
  }

  // tau of the candidates so far, and the cut it gives. Drops the candidates at `slack` below it and less.
  SPARSE_OPS_BOTH void SolveList(const Warp& warp, float slack) {
    warp.Each([&](int lane) {
      Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        float maximum = -kInfinity;
        for (int i = 0; i < rows.count[h]; ++i)
          maximum = Max(list_scores_[SlotOf(warp, lane, h, i)], maximum);
        rows.maximum[h] = maximum;
        rows.tau[h] = -1.0f;
      }
    });
    JoinMaxima(warp);
    for (int step = 0; step < kMaxSteps; ++step) {
      warp.Each([&](int lane) {
        Rows& rows = rows_[warp.index()][lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          NewtonSums sums{0.0f, 0};
          for (int i = 0; i < rows.count[h]; ++i) {
            sums.Add(Value(rows, h, list_scores_[SlotOf(warp, lane, h, i)]), rows.tau[h]);
          }
          rows.sum[h] = sums.sum;
          rows.above[h] = sums.above;
        }
      });
      if (!RiseAll(warp)) break;
    }
    warp.Each([&](int lane) {
      Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        const float bound = rows.tau[h] - slack;
        int kept = 0;
        for (int i = 0; i < rows.count[h]; ++i) {
          const int slot = SlotOf(warp, lane, h, i);
          if (!(Value(rows, h, list_scores_[slot]) > bound)) continue;
          const int to = SlotOf(warp, lane, h, kept++);
          list_scores_[to] = list_scores_[slot];
          list_keys_[to] = list_keys_[slot];
        }
        rows.count[h] = kept;
        // As scores round, and a little more.
        const float rounding = 4e-7f * (rows.shift[h] < 0.0f ? -rows.shift[h] : rows.shift[h]);
        if (rows.maximum[h] > -kInfinity)
          rows.cut[h] = rows.shift[h] + bound * launch_.tensors.divisor - rounding;
      }
    });
  }

  // Scores of the lists become weights, all of which are above 0; has the warp know how many there are.
  SPARSE_OPS_BOTH void WeighList(const Warp& warp) {
    warp.Each([&](int lane) {
      const Rows& rows = rows_[warp.index()][lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        for (int i = 0; i < rows.count[h]; ++i) {
          float& score = list_scores_[SlotOf(warp, lane, h, i)];
          score = Value(rows, h, score) - rows.tau[h];
        }
        counts_[h * AttentionBlock::kThreads + Thread(warp, lane)] = rows.nan[h] ? -1 : rows.count[h];
      }
    });
  }

  // Four of a warp's queries at once, each by eight lanes, which have eight columns each.
  SPARSE_OPS_BOTH void AddListedValues(const Warp& warp, int four) {
    constexpr int kColumns = 8;
    constexpr int kSpan = 8 * kColumns;  // of eight lanes
    constexpr int kSpans = (kWidth + kSpan - 1) / kSpan;
    const int64_t head_size = launch_.tensors.head_size;
    warp.Each([&](int lane) {
      const int row = 4 * four + lane / 8;
      const int64_t query = warp.index() * 16 + row;
      if (query >= tile_.queries) return;
      const int h = row / 8;
      const int first_lane = row % 8 * 4;  // of the four that have the query
      float sums[kSpans][kColumns] = {};
      bool is_nan = false;
      for (int from = first_lane; from < first_lane + 4; ++from) {
        const int count = counts_[h * AttentionBlock::kThreads + Thread(warp, from)];
        is_nan = is_nan || count < 0;
        for (int i = 0; i < count; ++i) {
          const int slot = SlotOf(warp, from, h, i);
          const float weight = list_scores_[slot];
          const Element* value = values_.first + list_keys_[slot] * values_.stride;
          SPARSE_OPS_LANES
          for (int s = 0; s < kSpans; ++s) {
            const int64_t column = s * kSpan + lane % 8 * kColumns;
            if (column >= head_size) continue;
            Element own[kColumns];
            LoadColumns<kColumns>(value + column, head_size - column, own);
            SPARSE_OPS_LANES
            for (int d = 0; d < kColumns; ++d)
              sums[s][d] = __builtin_fmaf(weight, ToFloat(own[d]), sums[s][d]);
          }
        }
      }
      Element* output =
          launch_.tensors.output + ((tile_.query + query) * launch_.tensors.num_heads + head_) * head_size;
      SPARSE_OPS_LANES
      for (int s = 0; s < kSpans; ++s) {
        SPARSE_OPS_LANES
        for (int d = 0; d < kColumns; ++d) {
          const int64_t column = s * kSpan + lane % 8 * kColumns + d;
          if (column < head_size) FromFloat(is_nan ? NotANumber() : sums[s][d], output + column);
        }
      }
    });
  }

  // Of `left` columns from `from` on.
  template <int kColumns>
  SPARSE_OPS_BOTH void LoadColumns(const Element* from, int64_t left, Element* to) const {
    if (launch_.aligned && left >= kColumns) {
      struct alignas(16) Sixteen {
        uint32_t words[4];
      };
      SPARSE_OPS_LANES
      for (int i = 0; i < kColumns * static_cast<int>(sizeof(Element)) / 16; ++i) {
        const Sixteen loaded = reinterpret_cast<const Sixteen*>(from)[i];
        __builtin_memcpy(to + i * 16 / static_cast<int>(sizeof(Element)), &loaded, 16);
      }
      return;
    }
    SPARSE_OPS_LANES
    for (int d = 0; d < kColumns; ++d) {
      if (d < left) {
        to[d] = from[d];
      } else {
        to[d] = Element{};
      }
    }
  }

  const AttentionLaunch<Element>& launch_;
  const SparsegenLimits& limits_;
  QueryTileSearch* const search_;
  const Stages stages_;
  Element* const queries_;
  Four* const scores_;
  int* const counts_;
  float* const list_scores_;
  int32_t* const list_keys_;
  const float reciprocal_;  // of a divisor beyond 2^126 it is subnormal, which a GPU keeps

  const AttentionBlock block_{};
  QueryTile tile_{};
  HeadRows<Element> keys_{};
  HeadRows<Element> values_{};
  int64_t head_ = 0;
  int64_t key_tiles_ = 0;
  Each<typename Product::Queries> fragments_;
  Each<PerLane<Rows>> rows_;
  Each<Scores> classes_;
  Each<Products<kWidth / 8>> sums_;
};

// Launches limits of one call: for the keys that are resident in a quarter of what a block may have, so that
// several blocks run beside each other, for those that are in all of it, and for more.
struct SparsegenPlan {
  SparsegenLimits limits[3];
  int64_t shared_bytes[3];
  int count;
};

template <class Element, int kWidth>
SparsegenPlan PlanSparsegen(int64_t key_rows, int64_t shared_bytes) {
  using Memory = SparsegenMemory<Element, kWidth>;
  SparsegenPlan plan{};
  int64_t more_than = -1;
  for (const int64_t keys :
       {Min(128, Memory::ResidentKeys(shared_bytes)), Memory::ResidentKeys(shared_bytes)}) {
    if (keys <= more_than || key_rows <= more_than) continue;
    plan.limits[plan.count++] = {more_than, keys, true, 0};
    more_than = keys;
  }
  if (key_rows > more_than)
    plan.limits[plan.count++] = {more_than, key_rows, false, Memory::Slots(shared_bytes)};
  for (int i = 0; i < plan.count; ++i) plan.shared_bytes[i] = Memory::Bytes(plan.limits[i]);
  return plan;
}

}  // namespace cuda
}  // namespace sparse_ops
