// How the sequences of one call of axis attention are scheduled where rows, columns and borders lie in device
// memory, as AxisPlan does on the CPU. The host knows only sizes, so two small kernels make the plan: one
// warp goes over the borders, then a warp for each sequence over its tokens. The plan has about 2 * tokens
// indices.
#pragma once

#include "cuda/execution.h"

namespace sparse_ops {
namespace cuda {

constexpr int kBlockWarps = 4;
constexpr int32_t kGroupRows = kBlockWarps * kWarpQueries;  // queries that a block of ordinary rows computes

// Where at most this many rows of a sequence are on, a block computes 16 full rows, its warps sharing the
// keys. Where more are, each warp has 16 full rows of its own.
constexpr int32_t kSharedRows = 64;

// Offsets come from the host as an argument of a kernel, this many at a time.
constexpr int32_t kOffsetsAtOnce = 256;
struct Offsets {
  int32_t first, count;
  int32_t at[kOffsetsAtOnce];
};

// Full rows that a block computes together: those of a sequence from its first-th full row on.
struct FullRows {
  int32_t sequence;
  int32_t first;
};

// The sizes of a call, which the host knows.
struct AxisSizes {
  int32_t sequences, queries, tokens;
  int32_t offsets;      // only those up to the number of tokens
  int32_t last_offset;  // the largest of those; -1: there is none

  SPARSE_OPS_BOTH int32_t OffsetWords() const { return last_offset / 32 + 1; }
  // Upper bounds: the actual numbers depend on the borders.
  SPARSE_OPS_BOTH int64_t Groups() const { return queries / kGroupRows + (sequences > 0 ? sequences : 1); }
  SPARSE_OPS_BOTH int64_t FullBlocks() const { return queries / kWarpQueries + int64_t{sequences}; }
};

// The plan, in scratch memory. The lists of a sequence begin at its first key (columns) and its first query
// (full).
struct AxisPlanMemory {
  int32_t*
      bad_borders;  // (1): whether borders are invalid; then they must not be used, and all outputs are NaN
  int32_t* full_blocks_count;  // (1)
  uint32_t* offset_bits;       // (last_offset / 32 + 1): whether a distance is one of the offsets
  int32_t* offsets;            // (offsets)
  int32_t* query_begin;        // (sequences + 1)
  int32_t* key_begin;          // (sequences + 1)
  int32_t* group_begin;        // (sequences + 1)
  int32_t* group_sequence;     // (groups)
  int32_t* column_count;       // (sequences)
  int32_t* full_count;         // (sequences)
  int32_t* shared;             // (sequences): whether the warps of a block share full rows
  int32_t* columns;            // (tokens): keys that are on, counted within their sequence
  int32_t* full;               // (queries): queries that attend to every key, likewise
  FullRows* full_blocks;       // (full blocks)

  // Allocates the arrays from `base` on, and returns how many words they take; null: only counts.
  inline int64_t Allocate(int32_t* base, const AxisSizes& sizes) {
    int64_t used = 0;
    const auto take = [&](int64_t words) {
      int32_t* piece = base == nullptr ? nullptr : base + used;
      used += words;
      return piece;
    };
    full_blocks = reinterpret_cast<FullRows*>(take(2 * sizes.FullBlocks()));
    bad_borders = take(1);
    full_blocks_count = take(1);
    offset_bits = reinterpret_cast<uint32_t*>(take(sizes.OffsetWords()));
    offsets = take(sizes.offsets);
    query_begin = take(sizes.sequences + 1);
    key_begin = take(sizes.sequences + 1);
    group_begin = take(sizes.sequences + 1);
    group_sequence = take(sizes.Groups());
    column_count = take(sizes.sequences);
    full_count = take(sizes.sequences);
    shared = take(sizes.sequences);
    columns = take(sizes.tokens);
    full = take(sizes.queries);
    return used;
  }
};

// One call: which pairs of queries and keys are computed.
struct AxisPairs {
  AxisSizes sizes;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;  // (sequences + 1), not yet checked
  const int64_t* query_tokens;                 // (queries); null: query q is token q
  const uint8_t *is_row, *is_column;           // (tokens)
  int32_t reach;         // offsets up to this one lie in a band of masked keys; -1: none do
  int32_t near_offsets;  // how many offsets that is; pairs at the others are scored by themselves
  int32_t random_keys;   // draws for each row
  uint64_t seed_hash;
  AxisPlanMemory plan;
};

// Copies borders. Returns whether they are bad: do not begin with 0, decrease, or do not end with the number
// of rows.
SPARSE_OPS_BOTH bool CopyBorders(const Warp& warp, const int32_t* borders, int32_t sequences, int32_t rows,
                                 int32_t* copy) {
  PerLane<bool> bad;
  warp.Each([&](int lane) {
    bad[lane] = false;
    for (int32_t i = lane; i <= sequences; i += kWarpLanes) {
      const int32_t border = borders[i], before = i == 0 ? 0 : borders[i - 1];
      if (border < before || (i == 0 && border != 0) || (i == sequences && border != rows)) bad[lane] = true;
      copy[i] = border;
    }
  });
  return warp.Any(bad);
}

SPARSE_OPS_BOTH void AddOffsets(const Warp& warp, const AxisPairs& pairs, const Offsets& offsets) {
  for (int32_t first = 0; first < offsets.count; first += kWarpLanes) {
    warp.Each([&](int lane) {
      const int32_t i = first + lane;
      if (i >= offsets.count) return;
      const int32_t offset = offsets.at[i];
      pairs.plan.offsets[offsets.first + i] = offset;
      AtomicOr(pairs.plan.offset_bits + offset / 32, 1u << offset % 32);
    });
  }
}

// What one warp plans: borders, groups, and the first offsets.
SPARSE_OPS_BOTH void PlanBorders(const Warp& warp, const AxisPairs& pairs, const Offsets& offsets) {
  const AxisSizes& sizes = pairs.sizes;
  const AxisPlanMemory& plan = pairs.plan;
  warp.Each([&](int lane) {
    if (lane == 0) *plan.full_blocks_count = 0;
    for (int32_t word = lane; word < sizes.OffsetWords(); word += kWarpLanes) plan.offset_bits[word] = 0;
  });
  warp.Sync();
  AddOffsets(warp, pairs, offsets);
  const bool bad_q = CopyBorders(warp, pairs.cu_seqlens_q, sizes.sequences, sizes.queries, plan.query_begin);
  const bool bad_k = CopyBorders(warp, pairs.cu_seqlens_k, sizes.sequences, sizes.tokens, plan.key_begin);
  const bool bad = bad_q || bad_k;
  warp.Each([&](int lane) {
    if (lane == 0) *plan.bad_borders = bad ? 1 : 0;
  });
  if (bad) return;
  warp.Sync();
  int32_t groups = 0;
  for (int32_t first = 0; first < sizes.sequences; first += kWarpLanes) {
    PerLane<int32_t> end;
    PerLane<int32_t> own;
    warp.Each([&](int lane) {
      const int32_t s = first + lane;
      const int32_t queries = s < sizes.sequences ? plan.query_begin[s + 1] - plan.query_begin[s] : 0;
      end[lane] = own[lane] = (queries + kGroupRows - 1) / kGroupRows;
    });
    warp.Scan(&end, &groups, [](int32_t a, int32_t b) { return a + b; });
    warp.Each([&](int lane) {
      if (first + lane < sizes.sequences) plan.group_begin[first + lane] = end[lane] - own[lane];
    });
  }
  warp.Each([&](int lane) {
    if (lane == 0) plan.group_begin[sizes.sequences] = groups;
  });
}

// Writes the numbers i below `count` for which is_on(i) to `list`, rising, and returns how many there are.
// Several flags are read at a time, as each reading waits for memory.
template <class IsOn>
SPARSE_OPS_BOTH int32_t Compact(const Warp& warp, int32_t count, int32_t* list, const IsOn& is_on) {
  constexpr int kAtOnce = 8;
  int32_t found = 0;
  SPARSE_OPS_ROLLED
  for (int32_t first = 0; first < count; first += kAtOnce * kWarpLanes) {
    PerLane<bool> on[kAtOnce];
    SPARSE_OPS_LANES
    for (int part = 0; part < kAtOnce; ++part) {
      warp.Each([&](int lane) {
        const int32_t i = first + part * kWarpLanes + lane;
        on[part][lane] = i < count && is_on(i);
      });
    }
    SPARSE_OPS_LANES
    for (int part = 0; part < kAtOnce; ++part) {
      const uint32_t bits = warp.Ballot(on[part]);
      warp.Each([&](int lane) {
        const uint32_t before = bits & ((1u << lane) - 1);
        if (on[part][lane]) list[found + CountBits(before)] = first + part * kWarpLanes + lane;
      });
      found += CountBits(bits);
    }
  }
  return found;
}

// Whether a query attends to every key. A query whose token is not one of the call does not.
SPARSE_OPS_BOTH bool IsFull(const AxisPairs& pairs, int32_t query) {
  if (pairs.query_tokens == nullptr) return pairs.is_row[query] != 0;
  const int64_t token = pairs.query_tokens[query];
  return token >= 0 && token < pairs.sizes.tokens && pairs.is_row[token] != 0;
}

// How many of a sequence's rows are on.
SPARSE_OPS_BOTH int32_t CountRows(const Warp& warp, const AxisPairs& pairs, int32_t begin, int32_t count) {
  PerLane<int32_t> own;
  warp.Each([&](int lane) {
    own[lane] = 0;
    for (int32_t i = lane; i < count; i += kWarpLanes) own[lane] += pairs.is_row[begin + i] != 0 ? 1 : 0;
  });
  return warp.Sum(own);
}

// What a warp plans for each sequence: its columns, its full rows, and the blocks of both kinds of rows.
// Where every column is on, every row is full.
SPARSE_OPS_BOTH void PlanSequence(const Warp& warp, const AxisPairs& pairs, int32_t sequence) {
  if (*pairs.plan.bad_borders != 0) return;
  const AxisPlanMemory& plan = pairs.plan;
  const int32_t key_begin = plan.key_begin[sequence], query_begin = plan.query_begin[sequence];
  const int32_t keys = plan.key_begin[sequence + 1] - key_begin;
  const int32_t queries = plan.query_begin[sequence + 1] - query_begin;
  const int32_t columns = Compact(warp, keys, plan.columns + key_begin,
                                  [&](int32_t j) { return pairs.is_column[key_begin + j] != 0; });
  const bool all_columns = columns == keys;
  const int32_t full = Compact(warp, queries, plan.full + query_begin,
                               [&](int32_t q) { return all_columns || IsFull(pairs, query_begin + q); });
  // By the tokens, so that it is the same whichever queries are asked for.
  const int32_t rows = pairs.query_tokens == nullptr ? full
                       : all_columns                 ? keys
                                                     : CountRows(warp, pairs, key_begin, keys);
  const bool shared = rows <= kSharedRows;
  const int32_t block_rows = shared ? kWarpQueries : kGroupRows;
  const int32_t blocks = (full + block_rows - 1) / block_rows;
  PerLane<int32_t> own;
  warp.Each([&](int lane) {
    own[lane] = 0;
    if (lane > 0) return;
    plan.column_count[sequence] = columns;
    plan.full_count[sequence] = full;
    plan.shared[sequence] = shared ? 1 : 0;
    if (blocks > 0) own[lane] = AtomicAdd(plan.full_blocks_count, blocks);
  });
  const int32_t begin = warp.Sum(own);
  const int32_t group_begin = plan.group_begin[sequence], group_end = plan.group_begin[sequence + 1];
  warp.Each([&](int lane) {
    for (int32_t b = lane; b < blocks; b += kWarpLanes)
      plan.full_blocks[begin + b] = {sequence, b * block_rows};
    for (int32_t g = group_begin + lane; g < group_end; g += kWarpLanes) plan.group_sequence[g] = sequence;
  });
}

}  // namespace cuda
}  // namespace sparse_ops
