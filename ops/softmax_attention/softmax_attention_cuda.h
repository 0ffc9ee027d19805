// Softmax attention of 64 queries and one head by a block of four warps, in one pass: weights are relative to
// the maximum so far, and the sums are rescaled where it rises.
#pragma once

#include "attention/attention_tile_cuda.h"

namespace sparse_ops {
namespace cuda {

// Layout of shared memory: the search, stages of tiles, then queries that are not in registers.
template <class Element, int kWidth>
struct SoftmaxMemory {
  using Stages = TileStages<Element, kWidth, kStagesOf<Element, kWidth>>;
  static constexpr int64_t kSearchBytes = RoundUp(sizeof(QueryTileSearch), 16);
  static constexpr int64_t kQueryBytes =
      TileProducts<Element, kWidth>::kQueriesInRegisters ? 0 : TileLayout<Element, kWidth>::kBytes;
  static constexpr int64_t kBytes = kSearchBytes + Stages::kBytes + kQueryBytes;
};

// Shared memory of one block on compute capability 8.6 and others that have the least.
static_assert(SoftmaxMemory<float, 128>::kBytes <= 99 * 1024, "a block's shared memory is enough everywhere");

template <class Element, int kWidth>
class SoftmaxTile {
  using Memory = SoftmaxMemory<Element, kWidth>;
  using Stages = typename Memory::Stages;
  using Product = TileProducts<Element, kWidth>;

 public:
  SPARSE_OPS_BOTH SoftmaxTile(const AttentionLaunch<Element>& launch, void* memory)
      : launch_(launch),
        search_(static_cast<QueryTileSearch*>(memory)),
        stages_(static_cast<char*>(memory) + Memory::kSearchBytes),
        queries_(
            reinterpret_cast<Element*>(static_cast<char*>(memory) + Memory::kSearchBytes + Stages::kBytes)) {}

  SPARSE_OPS_BOTH void Attend(int64_t block_index) {
    head_ = block_index / launch_.tiles;
    tile_ = FindQueryTile(block_, launch_.borders, block_index % launch_.tiles, search_);
    if (tile_.queries > 0 && tile_.bad_borders) WriteBadRows(block_, launch_.tensors, tile_, head_);
    if (tile_.queries > 0 && !tile_.bad_borders) {
      LoadQueries();
      AttendTiles();
      Write();
    }
    block_.Sync();  // the next tile uses the same shared memory
  }

 private:
  // The state of a lane's two queries.
  struct Rows {
    float maximum[2];
    float sum[2];  // of this lane's weights
  };
  template <class T>
  using Each = PerWarp<T, AttentionBlock::kWarps>;

  SPARSE_OPS_BOTH void LoadQueries() {
    const HeadRows<Element> rows = RowsOf(launch_, launch_.tensors.query, head_, tile_.query, tile_.queries);
    Element* tile = Product::kQueriesInRegisters ? stages_.stage(0) : queries_;
    LoadTile<kWidth>(block_, rows, 0, tile);
    block_.Threads([](int) { WaitForCopies<0>(); });
    block_.Sync();
    block_.Warps([&](const Warp& warp) {
      Product::LoadQueries(warp, tile, &fragments_[warp.index()]);
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          rows_[warp.index()][lane].maximum[h] = -kInfinity;
          rows_[warp.index()][lane].sum[h] = 0.0f;
        }
      });
      Clear(warp, &sums_[warp.index()]);
    });
    block_.Sync();
  }

  SPARSE_OPS_BOTH void AttendTiles() {
    const HeadRows<Element> keys = RowsOf(launch_, launch_.tensors.key, head_, tile_.key, tile_.keys);
    const HeadRows<Element> values = RowsOf(launch_, launch_.tensors.value, head_, tile_.key, tile_.keys);
    Each<typename Product::Weights> weights;
    stages_.ForKeysAndValues(
        block_, keys, values,
        [&](const Warp& warp, int i, const Element* tile) {
          Scores scores;
          Product::Multiply(warp, fragments_[warp.index()], queries_, tile, &scores);
          ScaleScores(warp, launch_.tensors.scale, tile_.keys - i * kTileKeys, &scores);
          Weigh(warp, &scores);
          Product::Round(warp, scores, &weights[warp.index()]);
        },
        [&](const Warp& warp, const Element* tile) {
          Product::AddValues(warp, weights[warp.index()], tile, &sums_[warp.index()]);
        });
  }

  SPARSE_OPS_BOTH void Weigh(const Warp& warp, Scores* scores) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      PerLane<float> maximum;
      warp.Each([&](int lane) {
        maximum[lane] = rows_[warp.index()][lane].maximum[h];
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            maximum[lane] = Max(scores->of[j][lane].of[2 * h + i], maximum[lane]);
          }
        }
      });
      warp.QuadMax(&maximum);
      warp.Each([&](int lane) {
        Rows& rows = rows_[warp.index()][lane];
        const float shift = maximum[lane] > -kInfinity ? maximum[lane] : 0.0f;
        const float factor = Exponential(rows.maximum[h] - shift);
        rows.maximum[h] = maximum[lane];
        rows.sum[h] *= factor;
        SPARSE_OPS_LANES
        for (int n = 0; n < kWidth / 8; ++n) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) sums_[warp.index()].of[n][lane].of[2 * h + i] *= factor;
        }
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            float& score = scores->of[j][lane].of[2 * h + i];
            score = Exponential(score - shift);
            rows.sum[h] += score;
          }
        }
      });
    }
  }

  SPARSE_OPS_BOTH void Write() {
    const int64_t stride = launch_.tensors.num_heads * launch_.tensors.head_size;
    block_.Warps([&](const Warp& warp) {
      PerLane<float> factor[2];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        PerLane<float> sum;
        warp.Each([&](int lane) { sum[lane] = rows_[warp.index()][lane].sum[h]; });
        warp.QuadSum(&sum);
        // A row whose scores are all -inf has no weights.
        warp.Each([&](int lane) { factor[h][lane] = sum[lane] == 0.0f ? 0.0f : 1.0f / sum[lane]; });
      }
      WriteRows<Element, kWidth>(warp, sums_[warp.index()], factor, tile_, stride, launch_.tensors.head_size,
                                 launch_.tensors.output + head_ * launch_.tensors.head_size);
    });
  }

  const AttentionLaunch<Element>& launch_;
  QueryTileSearch* const search_;
  const Stages stages_;
  Element* const queries_;

  const AttentionBlock block_{};
  QueryTile tile_{};
  int64_t head_ = 0;
  Each<typename Product::Queries> fragments_;
  Each<PerLane<Rows>> rows_;
  Each<Products<kWidth / 8>> sums_;
};

}  // namespace cuda
}  // namespace sparse_ops
