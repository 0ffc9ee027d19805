// Axis attention in a block of four warps. A warp computes 16 ordinary rows. Full rows, which attend to all
// keys of their sequence, have blocks of their own: where there are few, the warps share 16 of them, each
// going over a quarter of the keys; where there are many, each warp has 16 of its own.
#pragma once

#include "axis_attention/axis_tile_cuda.h"

namespace sparse_ops {
namespace cuda {

// Words of shared memory that each warp has: warp_words for held scores and then, in the same place, its part
// of the outputs; kExchangeWords for what warps tell each other; drawn_words for drawn keys.
struct AxisMemory {
  int32_t warp_words;
  int32_t drawn_words;

  SPARSE_OPS_BOTH constexpr int32_t Words() const {
    return kBlockWarps * (warp_words + kExchangeWords + drawn_words);
  }
};

template <int kPadded, bool kSparsegen>
SPARSE_OPS_BOTH constexpr AxisMemory AxisMemoryOf(int32_t random_keys) {
  constexpr int32_t kPartial = kWarpQueries * kPadded;
  return {kSparsegen && kHeldWords > kPartial ? kHeldWords : kPartial, DrawnWords(random_keys)};
}

template <class Element, int kPadded, bool kVector, bool kSparsegen>
class AxisBlock {
  using Tile = AxisTile<Element, kPadded, kVector, kSparsegen>;
  template <class T>
  using Each = PerWarp<T, kBlockWarps>;

 public:
  SPARSE_OPS_BOTH AxisBlock(const PackedAttention<Element>& tensors, const AxisPairs& pairs, float* memory)
      : tensors_(tensors),
        pairs_(pairs),
        extent_(AxisMemoryOf<kPadded, kSparsegen>(pairs.random_keys)),
        memory_(memory),
        exchange_(reinterpret_cast<uint32_t*>(memory) + kBlockWarps * extent_.warp_words),
        drawn_(exchange_ + kBlockWarps * kExchangeWords) {}

  // Computes the ordinary rows of one group and head.
  SPARSE_OPS_BOTH void AttendGroup(int64_t block) const {
    const auto group = static_cast<int32_t>(block / tensors_.num_heads);
    const auto head = static_cast<int32_t>(block % tensors_.num_heads);
    const AxisPlanMemory& plan = pairs_.plan;
    if (*plan.bad_borders != 0) return WriteNaN(group, head);
    if (group >= plan.group_begin[pairs_.sizes.sequences]) return;
    const int32_t sequence = plan.group_sequence[group];
    const int32_t begin = plan.query_begin[sequence], end = plan.query_begin[sequence + 1];
    if (plan.full_count[sequence] == end - begin) return;
    const int32_t first = begin + (group - plan.group_begin[sequence]) * kGroupRows;
    block_.Warps([&](const Warp& warp) {
      Tile tile;
      const bool any = TakeQueries(warp, sequence, &tile, [&](int row) {
        const int32_t query = first + warp.index() * kWarpQueries + row;
        return query < end && !IsFull(pairs_, query) ? query : -1;
      });
      if (!any) return;
      tile.keys.Set(warp, pairs_, sequence, false, drawn_ + warp.index() * extent_.drawn_words);
      tile.Begin(warp, tensors_, head, 0, 1, Memory(warp));
      AttendAlone(warp, &tile);
    });
  }

  // Computes the block-th piece of all full rows and heads, and every step-th after it.
  SPARSE_OPS_BOTH void AttendFull(int64_t block, int64_t step) const {
    if (*pairs_.plan.bad_borders != 0) return;
    const int64_t end = *pairs_.plan.full_blocks_count * tensors_.num_heads;
    SPARSE_OPS_ROLLED
    for (; block < end; block += step) {
      const FullRows rows = pairs_.plan.full_blocks[block / tensors_.num_heads];
      const auto head = static_cast<int32_t>(block % tensors_.num_heads);
      if (pairs_.plan.shared[rows.sequence] != 0) {
        AttendShared(rows, head);
      } else {
        AttendApart(rows, head);
      }
    }
  }

 private:
  // Bad borders cannot say which rows a group has, so the group-th kGroupRows rows are written.
  SPARSE_OPS_BOTH void WriteNaN(int32_t group, int32_t head) const {
    const int64_t first = int64_t{group} * kGroupRows;
    const int64_t rows = Min(kGroupRows, pairs_.sizes.queries - first);
    block_.Threads([&](int thread) {
      for (int64_t i = thread; i < rows * tensors_.head_size; i += Block<kBlockWarps>::kThreads) {
        const int64_t row = (first + i / tensors_.head_size) * tensors_.num_heads + head;
        FromFloat(NotANumber(), tensors_.output + row * tensors_.head_size + i % tensors_.head_size);
      }
      if (tensors_.support == nullptr) return;
      for (int64_t i = thread; i < rows; i += Block<kBlockWarps>::kThreads) {
        tensors_.support[(first + i) * tensors_.num_heads + head] = 0;
      }
    });
  }

  // Gives a tile its queries, query_of(0) to query_of(15). Returns whether there are any.
  template <class QueryOf>
  SPARSE_OPS_BOTH bool TakeQueries(const Warp& warp, int32_t sequence, Tile* tile,
                                   const QueryOf& query_of) const {
    const int32_t begin = pairs_.plan.key_begin[sequence], end = pairs_.plan.key_begin[sequence + 1];
    PerLane<bool> any;
    warp.Each([&](int lane) {
      any[lane] = false;
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        const int32_t query = query_of(lane / 4 + half * 8);
        const int64_t token =
            query < 0 || pairs_.query_tokens == nullptr ? query : pairs_.query_tokens[query];
        const bool is_token = token >= 0 && token < pairs_.sizes.tokens;
        const bool is_key = token >= begin && token < end;
        QueryPair& own = tile->keys.queries[lane];
        own.query[half] = query;
        own.position[half] = is_key ? static_cast<int32_t>(token - begin) : is_token ? -1 : kNoToken;
        any[lane] = any[lane] || query >= 0;
      }
    });
    return warp.Any(any);
  }
  SPARSE_OPS_BOTH bool TakeFull(const Warp& warp, const FullRows& rows, int32_t first, Tile* tile) const {
    const int32_t count = pairs_.plan.full_count[rows.sequence];
    const int32_t begin = pairs_.plan.query_begin[rows.sequence];
    const bool any = TakeQueries(warp, rows.sequence, tile, [&](int row) {
      return first + row < count ? begin + pairs_.plan.full[begin + first + row] : -1;
    });
    tile->keys.Set(warp, pairs_, rows.sequence, true, nullptr);
    return any;
  }

  SPARSE_OPS_BOTH void AttendAlone(const Warp& warp, Tile* tile) const {
    if constexpr (kSparsegen) {
      tile->FindMaximum(warp);
      SPARSE_OPS_ROLLED
      for (int step = 0; step < kMaxSteps; ++step) {
        tile->SumAbove(warp);
        if (!tile->RaiseThreshold(warp)) break;
      }
      tile->AddWeighted(warp);
    } else {
      tile->Exponentiate(warp);
    }
    tile->Finish(warp);
  }

  // Each warp has rows of its own.
  SPARSE_OPS_BOTH void AttendApart(const FullRows& rows, int32_t head) const {
    block_.Warps([&](const Warp& warp) {
      Tile tile;
      if (!TakeFull(warp, rows, rows.first + warp.index() * kWarpQueries, &tile)) return;
      tile.Begin(warp, tensors_, head, 0, 1, Memory(warp));
      AttendAlone(warp, &tile);
    });
  }

  // All warps have the same rows; each has every kBlockWarps-th chunk of keys.
  SPARSE_OPS_BOTH void AttendShared(const FullRows& rows, int32_t head) const {
    Each<Tile> tiles;
    block_.Warps([&](const Warp& warp) {
      Tile& tile = tiles[warp.index()];
      TakeFull(warp, rows, rows.first, &tile);
      tile.Begin(warp, tensors_, head, warp.index(), kBlockWarps, Memory(warp));
      if constexpr (kSparsegen) {
        tile.FindMaximum(warp);
      } else {
        tile.Exponentiate(warp);
      }
      tile.TellMaximum(warp, Exchange(warp));
    });
    block_.Sync();
    block_.Warps([&](const Warp& warp) { tiles[warp.index()].HearMaximum(warp, exchange_); });
    block_.Sync();
    if constexpr (kSparsegen) {
      FindThreshold(&tiles);
      block_.Warps([&](const Warp& warp) { tiles[warp.index()].AddWeighted(warp); });
    }
    block_.Warps([&](const Warp& warp) { tiles[warp.index()].TellSums(warp, Exchange(warp)); });
    block_.Sync();  // outputs are written over held scores
    block_.Warps([&](const Warp& warp) { tiles[warp.index()].TellOutputs(warp, Memory(warp)); });
    block_.Sync();
    block_.Warps([&](const Warp& warp) {
      if (warp.index() > 0) return;
      Tile& tile = tiles[0];
      tile.HearSums(warp, exchange_);
      tile.HearOutputs(warp, memory_, extent_.warp_words);
      tile.TakeAllKeys(warp);
      tile.Finish(warp);
    });
    block_.Sync();  // the next rows use the same shared memory
  }

  SPARSE_OPS_BOTH void FindThreshold(Each<Tile>* tiles) const {
    Each<bool> rises;
    SPARSE_OPS_ROLLED
    for (int step = 0; step < kMaxSteps; ++step) {
      block_.Warps([&](const Warp& warp) {
        Tile& tile = (*tiles)[warp.index()];
        tile.SumAbove(warp);
        tile.TellSums(warp, Exchange(warp));
      });
      block_.Sync();
      block_.Warps([&](const Warp& warp) {
        Tile& tile = (*tiles)[warp.index()];
        tile.HearSums(warp, exchange_);
        rises[warp.index()] = tile.RaiseThreshold(warp);
      });
      if (!block_.Any(rises)) break;
    }
  }

  SPARSE_OPS_BOTH float* Memory(const Warp& warp) const {
    return memory_ + warp.index() * extent_.warp_words;
  }
  SPARSE_OPS_BOTH uint32_t* Exchange(const Warp& warp) const {
    return exchange_ + warp.index() * kExchangeWords;
  }

  Block<kBlockWarps> block_;
  const PackedAttention<Element>& tensors_;
  const AxisPairs& pairs_;
  const AxisMemory extent_;
  float* memory_;
  uint32_t *exchange_, *drawn_;
};

}  // namespace cuda
}  // namespace sparse_ops
