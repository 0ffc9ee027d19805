// What packed attention ops share on a GPU: tiles of keys and values in shared memory, the scores of a warp's
// 16 queries and 64 keys, weighted sums of values. A lane has two of the queries, g and g + 8, and 16 keys of
// each tile: 8j + 2t and 8j + 2t + 1 for j < 8, with g = lane / 4 and t = lane % 4. float16 and bfloat16 are
// multiplied by tensor cores and added up in float32, float32 by fused multiply-adds.
#pragma once

#include "attention/packed_tensors.h"
#include "attention/query_tile_cuda.h"
#include "cuda/matrix.h"

namespace sparse_ops {
namespace cuda {

constexpr int kTileKeys = 64;
constexpr int kSlices = kTileKeys / 8;  // of a tile of keys
using AttentionBlock = Block<4>;

// How many tiles `keys` keys take.
SPARSE_OPS_BOTH int TilesOf(int32_t keys) { return keys / kTileKeys + (keys % kTileKeys != 0); }

// One head's rows of a tensor.
template <class Element>
struct HeadRows {
  const Element* first;
  int64_t stride;
  int32_t rows;
  int32_t head_size;
  bool aligned;  // every row begins at a multiple of 16 bytes and is a multiple of 16 bytes long
};

// A lane's part of a product: of[j].of[2h + i] is query g + 8h and column 8j + 2t + i. In a product of scores
// a column is a key.
template <int kCount>
struct Products {
  PerLane<Four> of[kCount];
};
using Scores = Products<kSlices>;

template <int kCount>
SPARSE_OPS_BOTH void Clear(const Warp& warp, Products<kCount>* products) {
  SPARSE_OPS_LANES
  for (int j = 0; j < kCount; ++j)
    warp.Each([&](int lane) { products->of[j][lane] = Four{{0.0f, 0.0f, 0.0f, 0.0f}}; });
}

// Tiles of elements: kWidth is the head size, rounded up.
template <class Element, int kWidth>
struct TileLayout {
  static constexpr int kVector = 16 / static_cast<int>(sizeof(Element));  // elements in 16 bytes
  static constexpr int kStride = kWidth + kVector;  // no two of eight rows begin in one bank
  static constexpr int64_t kBytes =
      static_cast<int64_t>(kTileKeys) * kStride * static_cast<int64_t>(sizeof(Element));
};

// Copies rows first to first + 63 to shared memory, with zeros beyond the last row and the head. Complete
// after CommitCopies, WaitForCopies and a Sync.
template <int kWidth, class Element, class AnyBlock>
SPARSE_OPS_BOTH void LoadTile(const AnyBlock& block, const HeadRows<Element>& from, int32_t first,
                              Element* tile) {
  using Layout = TileLayout<Element, kWidth>;
  constexpr int kParts = kWidth / Layout::kVector;
  constexpr int kRowsAtOnce = AnyBlock::kThreads / kParts;
  static_assert(AnyBlock::kThreads % kParts == 0, "a thread has the same columns of each row");
  block.Threads([&](int thread) {
    const int column = thread % kParts * Layout::kVector;
    const int columns = from.head_size - column;
    const Element* own = from.first + (first + thread / kParts) * from.stride + column;
    for (int row = thread / kParts; row < kTileKeys; row += kRowsAtOnce, own += kRowsAtOnce * from.stride) {
      Element* to = tile + row * Layout::kStride + column;
      const bool exists = first + row < from.rows;
      if (exists && from.aligned && columns > 0) {
        CopyInBackground(own, to);
        continue;
      }
      SPARSE_OPS_LANES
      for (int d = 0; d < Layout::kVector; ++d) {
        if (exists && d < columns) {
          to[d] = own[d];
        } else {
          to[d] = Element{};
        }
      }
    }
    CommitCopies();
  });
}

// The products of one element type.
template <class Element, int kWidth>
struct TileProducts {
  static constexpr bool kQueriesInRegisters = true;
  using Layout = TileLayout<Element, kWidth>;

  struct Queries {
    PerLane<LeftFragment> of[kWidth / 16];
  };

  static SPARSE_OPS_BOTH void LoadQueries(const Warp& warp, const Element* tile, Queries* queries) {
    SPARSE_OPS_LANES
    for (int s = 0; s < kWidth / 16; ++s) {
      const PerLane<Matrices> loaded = LoadMatrices<false>(warp, [&](int lane) {
        const int row = warp.index() * 16 + lane / 8 % 2 * 8 + lane % 8;
        return tile + row * Layout::kStride + 16 * s + lane / 16 * 8;
      });
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int i = 0; i < 4; ++i) queries->of[s][lane].of[i] = loaded[lane].of[i];
      });
    }
  }

  static SPARSE_OPS_BOTH void Multiply(const Warp& warp, const Queries& queries, const Element*,
                                       const Element* keys, Scores* scores) {
    Clear(warp, scores);
    SPARSE_OPS_LANES
    for (int s = 0; s < kWidth / 16; ++s) {
      SPARSE_OPS_LANES
      for (int j = 0; j < kSlices; j += 2) {
        const PerLane<Matrices> right = LoadMatrices<false>(warp, [&](int lane) {
          const int row = 8 * j + lane / 16 * 8 + lane % 8;
          return keys + row * Layout::kStride + 16 * s + lane / 8 % 2 * 8;
        });
        MultiplyAdd<Element>(warp, queries.of[s], right, 0, &scores->of[j]);
        MultiplyAdd<Element>(warp, queries.of[s], right, 2, &scores->of[j + 1]);
      }
    }
  }

  // Weights as the left side of a product, rounded to Element.
  struct Weights {
    PerLane<LeftFragment> of[kTileKeys / 16];
  };

  static SPARSE_OPS_BOTH void Round(const Warp& warp, const Scores& scores, Weights* weights) {
    SPARSE_OPS_LANES
    for (int s = 0; s < kTileKeys / 16; ++s) {
      warp.Each([&](int lane) {
        const Four& first = scores.of[2 * s][lane];
        const Four& second = scores.of[2 * s + 1][lane];
        weights->of[s][lane] = {
            {PackPair<Element>(first.of[0], first.of[1]), PackPair<Element>(first.of[2], first.of[3]),
             PackPair<Element>(second.of[0], second.of[1]), PackPair<Element>(second.of[2], second.of[3])}};
      });
    }
  }

  // sums += weights * values.
  static SPARSE_OPS_BOTH void AddValues(const Warp& warp, const Weights& weights, const Element* values,
                                        Products<kWidth / 8>* sums) {
    SPARSE_OPS_LANES
    for (int s = 0; s < kTileKeys / 16; ++s) {
      SPARSE_OPS_LANES
      for (int n = 0; n < kWidth / 8; n += 2) {
        const PerLane<Matrices> right = LoadMatrices<true>(warp, [&](int lane) {
          const int row = 16 * s + lane / 8 % 2 * 8 + lane % 8;
          return values + row * Layout::kStride + 8 * n + lane / 16 * 8;
        });
        MultiplyAdd<Element>(warp, weights.of[s], right, 0, &sums->of[n]);
        MultiplyAdd<Element>(warp, weights.of[s], right, 2, &sums->of[n + 1]);
      }
    }
  }
};

template <int kWidth>
struct TileProducts<float, kWidth> {
  static constexpr bool kQueriesInRegisters = false;
  using Layout = TileLayout<float, kWidth>;

  struct Queries {};

  static SPARSE_OPS_BOTH void LoadQueries(const Warp&, const float*, Queries*) {}

  static SPARSE_OPS_BOTH void Multiply(const Warp& warp, const Queries&, const float* queries,
                                       const float* keys, Scores* scores) {
    Clear(warp, scores);
    for (int d = 0; d < kWidth; d += 4) {
      warp.Each([&](int lane) {
        const Four* query =
            reinterpret_cast<const Four*>(queries + (warp.index() * 16 + lane / 4) * Layout::kStride + d);
        const Four first = query[0];
        const Four second = query[8 * Layout::kStride / 4];
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            const Four key =
                *reinterpret_cast<const Four*>(keys + (8 * j + lane % 4 * 2 + i) * Layout::kStride + d);
            SPARSE_OPS_LANES
            for (int k = 0; k < 4; ++k) {
              float* sum = scores->of[j][lane].of;
              sum[i] = __builtin_fmaf(first.of[k], key.of[k], sum[i]);
              sum[2 + i] = __builtin_fmaf(second.of[k], key.of[k], sum[2 + i]);
            }
          }
        }
      });
    }
  }

  using Weights = Scores;

  static SPARSE_OPS_BOTH void Round(const Warp&, const Scores& scores, Weights* weights) {
    *weights = scores;
  }

  // Keys that weigh nothing for all of a warp's queries are passed over.
  static SPARSE_OPS_BOTH void AddValues(const Warp& warp, const Weights& weights, const float* values,
                                        Products<kWidth / 8>* sums) {
    SPARSE_OPS_LANES
    for (int j = 0; j < kSlices; ++j) {
      SPARSE_OPS_LANES
      for (int i = 0; i < 2; ++i) {
        PerLane<float> own[2];
        warp.Each([&](int lane) {
          own[0][lane] = weights.of[j][lane].of[i];
          own[1][lane] = weights.of[j][lane].of[2 + i];
        });
        for (int t = 0; t < 4; ++t) {
          const PerLane<float> first = warp.QuadGet(own[0], t);
          const PerLane<float> second = warp.QuadGet(own[1], t);
          PerLane<bool> counts;
          warp.Each([&](int lane) { counts[lane] = first[lane] != 0.0f || second[lane] != 0.0f; });
          if (!warp.Any(counts)) continue;
          const float* value = values + (8 * j + 2 * t + i) * Layout::kStride;
          warp.Each([&](int lane) {
            SPARSE_OPS_LANES
            for (int n = 0; n < kWidth / 8; ++n) {
              SPARSE_OPS_LANES
              for (int k = 0; k < 2; ++k) {
                const float own_value = value[8 * n + lane % 4 * 2 + k];
                float* sum = sums->of[n][lane].of;
                sum[k] = __builtin_fmaf(first[lane], own_value, sum[k]);
                sum[2 + k] = __builtin_fmaf(second[lane], own_value, sum[2 + k]);
              }
            }
          });
        }
      }
    }
  }
};

// Turns products into scores. Only the first `left` keys exist: the scores of those beyond are -inf.
SPARSE_OPS_BOTH void ScaleScores(const Warp& warp, float scale, int32_t left, Scores* scores) {
  SPARSE_OPS_LANES
  for (int j = 0; j < kSlices; ++j) {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int i = 0; i < 4; ++i) scores->of[j][lane].of[i] *= scale;
    });
  }
  if (left >= kTileKeys) return;  // all but the last tile
  SPARSE_OPS_LANES
  for (int j = 0; j < kSlices; ++j) {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int i = 0; i < 4; ++i) {
        if (8 * j + lane % 4 * 2 + i % 2 >= left) scores->of[j][lane].of[i] = -kInfinity;
      }
    });
  }
}

// Writes a lane's two rows, each times a factor; NaN where `is_nan`.
template <class Element, int kWidth>
SPARSE_OPS_BOTH void WriteRows(const Warp& warp, const Products<kWidth / 8>& sums,
                               const PerLane<float> (&factor)[2], const QueryTile& tile, int64_t stride,
                               int64_t head_size, Element* output) {
  warp.Each([&](int lane) {
    SPARSE_OPS_LANES
    for (int h = 0; h < 2; ++h) {
      const int64_t query = warp.index() * 16 + lane / 4 + 8 * h;
      if (query >= tile.queries) continue;
      Element* row = output + (tile.query + query) * stride;
      SPARSE_OPS_LANES
      for (int n = 0; n < kWidth / 8; ++n) {
        SPARSE_OPS_LANES
        for (int i = 0; i < 2; ++i) {
          const int64_t column = 8 * n + lane % 4 * 2 + i;
          if (column < head_size) FromFloat(sums.of[n][lane].of[2 * h + i] * factor[h][lane], row + column);
        }
      }
    }
  });
}

// What a block answers where the borders are invalid: NaN, and support 0.
template <class Element, class AnyBlock>
SPARSE_OPS_BOTH void WriteBadRows(const AnyBlock& block, const PackedAttention<Element>& tensors,
                                  const QueryTile& tile, int64_t head) {
  block.Threads([&](int thread) {
    for (int64_t i = thread; i < tile.queries * tensors.head_size; i += AnyBlock::kThreads) {
      const int64_t row = tile.query + i / tensors.head_size;
      FromFloat(NotANumber(), tensors.output + (row * tensors.num_heads + head) * tensors.head_size +
                                  i % tensors.head_size);
    }
    if (tensors.support == nullptr) return;
    for (int64_t i = thread; i < tile.queries; i += AnyBlock::kThreads) {
      tensors.support[(tile.query + i) * tensors.num_heads + head] = 0;
    }
  });
}

// How the blocks of a launch find their work: block i has tile i % tiles of head i / tiles, so that blocks
// that run at the same time share keys and values.
template <class Element>
struct AttentionLaunch {
  PackedAttention<Element> tensors;
  AttentionBorders borders;
  bool aligned;  // as in HeadRows
  int64_t tiles;

  int64_t blocks() const { return tiles * tensors.num_heads; }
};

template <class Element>
SPARSE_OPS_BOTH HeadRows<Element> RowsOf(const AttentionLaunch<Element>& launch, const Element* tensor,
                                         int64_t head, int64_t first, int32_t rows) {
  const int64_t stride = launch.tensors.num_heads * launch.tensors.head_size;
  return {tensor + first * stride + head * launch.tensors.head_size, stride, rows,
          static_cast<int32_t>(launch.tensors.head_size), launch.aligned};
}

// A pipeline of tiles of keys and values through kStages stages of shared memory: while one tile is computed
// with, the next is loaded.
template <class Element, int kWidth, int kStages>
class TileStages {
 public:
  static constexpr int kCount = kStages;
  static constexpr int64_t kBytes = kStages * TileLayout<Element, kWidth>::kBytes;

  SPARSE_OPS_BOTH explicit TileStages(void* memory) : memory_(static_cast<Element*>(memory)) {}

  SPARSE_OPS_BOTH Element* stage(int i) const {
    return memory_ +
           i % kStages * (TileLayout<Element, kWidth>::kBytes / static_cast<int64_t>(sizeof(Element)));
  }

  // Calls compute(i, tile) for i < count, in order. load(i, tile) must call LoadTile to fill the tile.
  template <class AnyBlock, class Load, class Compute>
  SPARSE_OPS_BOTH void ForEach(const AnyBlock& block, int count, const Load& load,
                               const Compute& compute) const {
    if (count > 0) load(0, stage(0));
    for (int i = 0; i < count; ++i) {
      if (kStages > 1 && i + 1 < count) {
        load(i + 1, stage(i + 1));
        block.Threads([](int) { WaitForCopies<1>(); });
      } else {
        block.Threads([](int) { WaitForCopies<0>(); });
      }
      block.Sync();
      compute(i, stage(i));
      block.Sync();
      if (kStages == 1 && i + 1 < count) load(i + 1, stage(0));
    }
  }

  // Has every warp call on_keys(warp, i, tile) and then on_values(warp, tile), for each tile i of the rows.
  template <class AnyBlock, class OnKeys, class OnValues>
  SPARSE_OPS_BOTH void ForKeysAndValues(const AnyBlock& block, const HeadRows<Element>& keys,
                                        const HeadRows<Element>& values, const OnKeys& on_keys,
                                        const OnValues& on_values) const {
    ForEach(
        block, 2 * TilesOf(keys.rows),
        [&](int i, Element* tile) {
          HeadRows<Element> rows = keys;
          if (i % 2 != 0) rows.first = values.first;
          LoadTile<kWidth>(block, rows, i / 2 * kTileKeys, tile);
        },
        [&](int i, const Element* tile) {
          block.Warps([&](const Warp& warp) {
            if (i % 2 == 0) {
              on_keys(warp, i / 2, tile);
            } else {
              on_values(warp, tile);
            }
          });
        });
  }

 private:
  Element* memory_;
};

// Stages of the pipeline. There is one where two, which make three tiles with that of the queries, would
// leave no room for scores.
template <class Element, int kWidth>
constexpr int kStagesOf = sizeof(Element) == 4 && kWidth > 64 ? 1 : 2;

}  // namespace cuda
}  // namespace sparse_ops
