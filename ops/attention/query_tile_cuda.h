// Which queries a block answers. The host knows neither the borders nor the lengths: it launches as many
// blocks as any borders of that many sequences and rows can need, and each block finds its queries.
#pragma once

#include <cstdint>

#include "cuda/execution.h"

namespace sparse_ops {
namespace cuda {

// Queries of one head that a block answers: those of all its warps.
template <class AnyBlock>
constexpr int kTileQueries = kWarpQueries * AnyBlock::kWarps;

// cu_seqlens of queries and of keys, (sequences + 1) each, in device memory.
struct AttentionBorders {
  const int32_t* queries;
  const int32_t* keys;
  int64_t sequences;
  int64_t query_rows;
  int64_t key_rows;
};

// The first tile of sequence b is QueryTileOf(where it begins, b). It has at least as many as its queries
// need.
template <class AnyBlock>
SPARSE_OPS_BOTH int64_t QueryTileOf(int64_t border, int64_t sequence) {
  return border / kTileQueries<AnyBlock> + sequence;
}

template <class AnyBlock>
int64_t QueryTileCount(const AttentionBorders& borders) {
  if (borders.query_rows == 0) return 0;
  return QueryTileOf<AnyBlock>(borders.query_rows, borders.sequences > 0 ? borders.sequences : 1);
}

// Rows of the whole tensors: `queries` of them from `query` on, of a sequence of `keys` from `key` on.
struct QueryTile {
  int64_t query;
  int32_t queries;  // at most kTileQueries<AnyBlock>; 0: nothing to answer
  int64_t key;
  int32_t keys;
  bool bad_borders;  // of the call: nothing may be read by them, and the outputs of these rows are NaN
};

// What the threads of a block find together, in shared memory.
struct QueryTileSearch {
  int64_t query, queries, key, keys;
};

SPARSE_OPS_BOTH bool AreBordersOf(int64_t begin, int64_t end, int64_t rows) {
  return 0 <= begin && begin <= end && end <= rows;
}

// Each block looks at all borders, a thread at each. Borders are bad where they do not begin with 0,
// decrease, or do not end with the number of rows. Tile i is then the i-th kTileQueries rows, so that no
// output is left unwritten.
template <class AnyBlock>
SPARSE_OPS_BOTH QueryTile FindQueryTile(const AnyBlock& block, const AttentionBorders& borders, int64_t tile,
                                        QueryTileSearch* search) {
  constexpr int64_t kQueries = kTileQueries<AnyBlock>;
  const int64_t sequences = borders.sequences;
  block.Threads([&](int thread) {
    if (thread == 0) *search = {0, 0, 0, 0};
  });
  block.Sync();
  PerWarp<bool, AnyBlock::kWarps> bad;
  block.Warps([&](const Warp& warp) {
    PerLane<bool> own;
    warp.Each([&](int lane) {
      const int thread = warp.index() * kWarpLanes + lane;
      bool is_bad =
          thread == 0 && (borders.queries[0] != 0 || borders.queries[sequences] != borders.query_rows ||
                          borders.keys[0] != 0 || borders.keys[sequences] != borders.key_rows);
      for (int64_t b = thread; b < sequences; b += AnyBlock::kThreads) {
        const int64_t query = borders.queries[b];
        const int64_t query_end = borders.queries[b + 1];
        const int64_t key = borders.keys[b];
        const int64_t key_end = borders.keys[b + 1];
        if (!AreBordersOf(query, query_end, borders.query_rows) ||
            !AreBordersOf(key, key_end, borders.key_rows)) {
          is_bad = true;
          continue;
        }
        const int64_t first = QueryTileOf<AnyBlock>(query, b);
        if (tile < first || tile >= QueryTileOf<AnyBlock>(query_end, b + 1)) continue;
        const int64_t begin = query + (tile - first) * kQueries;
        *search = {begin, Min(kQueries, query_end - begin), key, key_end - key};
      }
      own[lane] = is_bad;
    });
    bad[warp.index()] = warp.Any(own);
  });
  QueryTile found{};
  found.bad_borders = block.Any(bad);
  found.query = found.bad_borders ? tile * kQueries : search->query;
  const int64_t queries =
      found.bad_borders ? Min(kQueries, borders.query_rows - tile * kQueries) : search->queries;
  found.queries = queries < 0 ? 0 : static_cast<int32_t>(queries);
  if (!found.bad_borders) {
    found.key = search->key;
    found.keys = static_cast<int32_t>(search->keys);
  }
  return found;
}

}  // namespace cuda
}  // namespace sparse_ops
