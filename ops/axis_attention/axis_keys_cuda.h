// Which keys a tile of 16 queries attends to, 16 slots of keys at a time. The slots come in kinds, and no
// pair of a query and a key is in two of them:
//
//   columns  keys that are on: every query attends to them
//   band     consecutive keys, each query to those at some distances or drawn for it
//   pairs    a key of each query's own, at one distance of the far diagonals, or drawn
//   all      consecutive keys, of full rows: every query attends to them
#pragma once

#include "axis_attention/axis_plan_cuda.h"
#include "axis_attention/key_hash.h"
#include "cuda/row_pieces.h"

namespace sparse_ops {
namespace cuda {

// Lane 4g + t, number t of quad g, has queries g and g + 8 of its warp (halves 0 and 1), and slots 2t, 2t +
// 1, 2t + 8 and 2t + 9 of each. Its score 4a + 2h + j is that of half h and slot 8a + 2t + j, as mma.m16n8k16
// lays it out.
constexpr int kChunkKeys = 16;
constexpr int kLaneScores = kWarpQueries * kChunkKeys / kWarpLanes;
SPARSE_OPS_BOTH constexpr int HalfOf(int score) { return score / 2 % 2; }
SPARSE_OPS_BOTH int SlotOf(int score, int lane) { return score / 4 * 8 + lane % 4 * 2 + score % 2; }

// Up to this many random keys are drawn as pairs. More are drawn into a bitmap of the keys, a window at a
// time, and the band is the whole sequence.
constexpr int32_t kFewDrawn = 16;
constexpr int32_t kWindowKeys = 2048;
constexpr int32_t kWindowWords = kWindowKeys / 32;
constexpr int32_t kDrawsAtOnce = 512;  // between two looks at whether all keys of a window are drawn

constexpr uint32_t kNoKey = 0xffffffffu;

// Words of memory that hold the drawn keys, shared by the lanes of a warp.
SPARSE_OPS_BOTH constexpr int32_t DrawnWords(int32_t random_keys) {
  return random_keys == 0 ? 0 : kWarpQueries * (random_keys <= kFewDrawn ? kFewDrawn : kWindowWords);
}

SPARSE_OPS_BOTH uint64_t Mix(uint64_t x) {
  const uint64_t y = (x + kHashShift) % kHashModulus;
  const uint64_t y2 = y * y % kHashModulus;
  return y2 * y2 % kHashModulus * y % kHashModulus;
}

// The position of a query whose token is not one of the call: its outputs are NaN.
constexpr int32_t kNoToken = -2;

// The two queries of a lane, of rows g and g + 8 of its tile.
struct QueryPair {
  int32_t query[2];     // row of the packed queries; -1: there is none
  int32_t position[2];  // among the keys of the sequence; -1: it is not one of them; kNoToken
};

enum class KeyKind { kColumns, kBand, kPairs, kAll };

// Consecutive slots of one kind.
template <KeyKind kKindValue>
struct KeyChunk {
  static constexpr KeyKind kKind = kKindValue;
  int32_t first;  // slot, counted within its kind
  int32_t count;  // up to kChunkKeys
};

struct TileKeys {
  const AxisPairs* pairs;
  int32_t begin, length;  // the keys of the sequence
  int32_t column_count;
  int32_t band_begin, band_keys;
  int32_t far_slots, drawn_slots;  // of pairs
  bool full;
  uint32_t* drawn;  // DrawnWords, or null
  int32_t window;   // which one `drawn` holds; -1: none
  PerLane<QueryPair> queries;

  // Sets all members but `queries`, which must be set before.
  SPARSE_OPS_BOTH void Set(const Warp& warp, const AxisPairs& call, int32_t sequence, bool is_full,
                           uint32_t* drawn_words) {
    pairs = &call;
    begin = call.plan.key_begin[sequence];
    length = call.plan.key_begin[sequence + 1] - begin;
    full = is_full;
    drawn = drawn_words;
    window = -1;
    column_count = band_begin = band_keys = far_slots = drawn_slots = 0;
    if (full) return;
    column_count = call.plan.column_count[sequence];
    if (length == 0) return;
    SetBand(warp);
    far_slots = 2 * Greater(OffsetsUpTo(length) - call.near_offsets, 0);
    if (call.random_keys > 0 && call.random_keys <= kFewDrawn) {
      drawn_slots = call.random_keys;
      DrawFew(warp);
    }
  }

  // Calls visit(chunk, place) for every step-th chunk of full rows, from the first-th on, or for all of
  // ordinary ones, counted from 0. Each kind has a loop of its own: what one hoists takes registers from the
  // others.
  template <class Visit>
  SPARSE_OPS_BOTH void ForEachChunk(int32_t first, int32_t step, const Visit& visit) const {
    int32_t place = 0;
    if (full) {
      VisitKind<KeyKind::kAll>(length, first, step, &place, visit);
    } else {
      VisitKind<KeyKind::kColumns>(column_count, 0, 1, &place, visit);
      VisitKind<KeyKind::kBand>(band_keys, 0, 1, &place, visit);
      VisitKind<KeyKind::kPairs>(far_slots + drawn_slots, 0, 1, &place, visit);
    }
  }

  // The key of a slot that is the same for all queries; -1 where there is none.
  template <KeyKind kKind>
  SPARSE_OPS_BOTH int32_t KeyAt(const KeyChunk<kKind>& chunk, int slot) const {
    if (slot >= chunk.count) return -1;
    if (kKind == KeyKind::kColumns) return pairs->plan.columns[begin + chunk.first + slot];
    return Greater((kKind == KeyKind::kBand ? band_begin : 0) + chunk.first + slot, -1);
  }

  // The key of a lane's query, of either half, in a slot; -1 where it attends to none there.
  template <KeyKind kKind>
  SPARSE_OPS_BOTH int32_t KeyOf(const KeyChunk<kKind>& chunk, int lane, int half, int slot) const {
    const int row = lane / 4 + half * 8;
    const int32_t position = queries[lane].position[half];
    if (slot >= chunk.count || queries[lane].query[half] < 0) return -1;
    if (kKind == KeyKind::kPairs) return PairKey(chunk.first + slot, row, position);
    const int32_t key = KeyAt(chunk, slot);
    return kKind == KeyKind::kBand && (key < 0 || !IsInBand(position, key, row)) ? -1 : key;
  }

  // Bit i: whether there is a key of score i.
  template <KeyKind kKind>
  SPARSE_OPS_BOTH uint32_t AllowedOf(const KeyChunk<kKind>& chunk, int lane) const {
    constexpr bool kEvery = kKind == KeyKind::kColumns || kKind == KeyKind::kAll;
    uint32_t allowed = 0;
    SPARSE_OPS_ROLLED
    for (int i = 0; i < kLaneScores;
         i = i % 2 == 0 ? i + 1 : i + 3) {  // i is of half 0; the same slot of half 1 is i + 2
      const int slot = SlotOf(i, lane);
      if (slot >= chunk.count) continue;
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        const bool is = kEvery ? queries[lane].query[half] >= 0 : KeyOf(chunk, lane, half, slot) >= 0;
        allowed |= (is ? 1u : 0u) << (i + 2 * half);
      }
    }
    return allowed;
  }

  // All lanes must call it before the keys of a chunk are asked for.
  template <KeyKind kKind>
  SPARSE_OPS_BOTH void Prepare(const Warp& warp, const KeyChunk<kKind>& chunk) {
    if (kKind != KeyKind::kBand || pairs->random_keys <= kFewDrawn) return;
    const int32_t wanted = chunk.first / kWindowKeys;  // the band is the whole sequence then
    if (window != wanted) DrawWindow(warp, wanted);
  }

 private:
  static constexpr int32_t kQuadLanes = 4;

  template <KeyKind kKind, class Visit>
  static SPARSE_OPS_BOTH void VisitKind(int32_t slots, int32_t first, int32_t step, int32_t* place,
                                        const Visit& visit) {
    SPARSE_OPS_ROLLED
    for (int32_t slot = first * kChunkKeys; slot < slots; slot += step * kChunkKeys) {
      visit(KeyChunk<kKind>{slot, Lesser(kChunkKeys, slots - slot)}, (*place)++);
    }
  }

  // The band goes from the first query's first key to the last query's last. Where its chunks begin does not
  // depend on the queries, so that a row's scores come in the same order whatever other rows its tile has.
  SPARSE_OPS_BOTH void SetBand(const Warp& warp) {
    const int32_t reach = pairs->reach;
    if (reach < 0) return;
    if (reach >= length) {
      band_keys = length;
      return;
    }
    PerLane<int32_t> first, last;  // `first` is negated, so that its maximum is taken
    warp.Each([&](int lane) {
      first[lane] = -length;
      last[lane] = -1;
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        if (queries[lane].query[half] < 0) continue;
        const int32_t position = queries[lane].position[half];
        first[lane] = Greater(first[lane], -position);
        last[lane] = Greater(last[lane], position + Lesser(reach, length - 1 - position));
      }
    });
    const int32_t position = -warp.Max(first) + kChunkKeys;  // not negative
    band_begin = position / kChunkKeys * kChunkKeys - kChunkKeys - reach;
    band_keys = Greater(warp.Max(last) + 1 - band_begin, 0);
  }

  // How many offsets are at most `most`. The distance of a query before the first key to the last one is the
  // number of keys.
  SPARSE_OPS_BOTH int32_t OffsetsUpTo(int32_t most) const {
    int32_t below = 0, end = pairs->sizes.offsets;
    SPARSE_OPS_ROLLED
    while (below < end) {
      const int32_t middle = below + (end - below) / 2;
      if (pairs->plan.offsets[middle] <= most) {
        below = middle + 1;
      } else {
        end = middle;
      }
    }
    return below;
  }

  SPARSE_OPS_BOTH bool IsOffset(int32_t distance) const {
    return distance <= pairs->sizes.last_offset &&
           (pairs->plan.offset_bits[distance / 32] >> distance % 32 & 1);
  }

  SPARSE_OPS_BOTH bool IsInBand(int32_t position, int32_t key, int row) const {
    if (pairs->is_column[begin + key] != 0) return false;
    const int32_t distance = position < key ? key - position : position - key;
    if (distance <= pairs->reach && IsOffset(distance)) return true;
    if (pairs->random_keys <= kFewDrawn) return false;
    const int32_t place = key % kWindowKeys;
    return drawn[row * kWindowWords + place / 32] >> place % 32 & 1;
  }

  // The key of a slot of pairs: first those on the far diagonals, each after and before the query, then those
  // drawn.
  SPARSE_OPS_BOTH int32_t PairKey(int32_t slot, int row, int32_t position) const {
    if (slot >= far_slots) return static_cast<int32_t>(drawn[row * kFewDrawn + slot - far_slots]);
    const int32_t offset = pairs->plan.offsets[pairs->near_offsets + slot / 2];
    if (slot % 2 == 1 && offset == 0) return -1;
    if (slot % 2 == 0 ? offset >= length - position : offset > position) return -1;
    const int32_t key = slot % 2 == 0 ? position + offset : position - offset;
    return key < 0 || pairs->is_column[begin + key] != 0 ? -1 : key;
  }

  SPARSE_OPS_BOTH int32_t Draw(uint64_t start, int64_t draw) const {
    return static_cast<int32_t>(Mix(start + static_cast<uint64_t>(draw) + 1) % static_cast<uint64_t>(length));
  }
  SPARSE_OPS_BOTH uint64_t DrawStart(int32_t position) const {
    return Mix(pairs->seed_hash + static_cast<uint64_t>(position + 1));
  }

  // Calls visit(half, row of the tile, position) for those of a lane's two queries that exist. Not unrolled,
  // as drawing should take few registers.
  template <class Visit>
  SPARSE_OPS_BOTH void ForEachQuery(int lane, const Visit& visit) const {
    const QueryPair& own = queries[lane];
    SPARSE_OPS_ROLLED
    for (int half = 0; half < 2; ++half) {
      if ((half == 0 ? own.query[0] : own.query[1]) < 0) continue;
      visit(half, lane / 4 + half * 8, half == 0 ? own.position[0] : own.position[1]);
    }
  }

  // Draws the keys of each row, each once, into `drawn`; kNoKey for one that is a column, on a diagonal or
  // drawn before. The lanes of a quad share the draws of its two rows.
  SPARSE_OPS_BOTH void DrawFew(const Warp& warp) {
    const auto for_each_draw = [&](int lane, const auto& visit) {
      ForEachQuery(lane, [&](int half, int row, int32_t position) {
        SPARSE_OPS_ROLLED
        for (int d = lane % kQuadLanes; d < drawn_slots; d += kQuadLanes) {
          visit(drawn + row * kFewDrawn, position, half * kFewDrawn + d, d);
        }
      });
    };
    warp.Sync();
    warp.Each([&](int lane) {
      for_each_draw(lane, [&](uint32_t* row, int32_t position, int, int d) {
        const int32_t key = Draw(DrawStart(position), d);
        const bool elsewhere =
            pairs->is_column[begin + key] != 0 || IsOffset(position < key ? key - position : position - key);
        row[d] = elsewhere ? kNoKey : static_cast<uint32_t>(key);
      });
    });
    warp.Sync();
    PerLane<uint32_t> again;  // a bit for each draw of both rows: whether its key has been drawn before
    warp.Each([&](int lane) {
      again[lane] = 0;
      for_each_draw(lane, [&](const uint32_t* row, int32_t, int bit, int d) {
        SPARSE_OPS_ROLLED
        for (int before = 0; before < d; ++before) {
          if (row[before] == row[d]) again[lane] |= 1u << bit;
        }
      });
    });
    warp.Sync();
    warp.Each([&](int lane) {
      for_each_draw(lane, [&](uint32_t* row, int32_t, int bit, int d) {
        if (again[lane] >> bit & 1) row[d] = kNoKey;
      });
    });
    warp.Sync();
  }

  // Draws each row's keys within one window. Drawing ends once a row has all of its keys, as there may be
  // 2^31 draws.
  SPARSE_OPS_BOTH void DrawWindow(const Warp& warp, int32_t wanted) {
    const int32_t first = wanted * kWindowKeys, keys = Lesser(kWindowKeys, length - first);
    warp.Sync();
    warp.Each([&](int lane) {
      SPARSE_OPS_ROLLED
      for (int word = lane; word < kWarpQueries * kWindowWords; word += kWarpLanes) drawn[word] = 0;
    });
    bool more = true;
    SPARSE_OPS_ROLLED
    for (int64_t draws = 0; more && draws < pairs->random_keys; draws += kDrawsAtOnce) {
      const int64_t end = Min(draws + kDrawsAtOnce, pairs->random_keys);
      warp.Sync();
      warp.Each([&](int lane) {
        ForEachQuery(lane, [&](int, int row, int32_t position) {
          const uint64_t start = DrawStart(position);
          SPARSE_OPS_ROLLED
          for (int64_t d = draws + lane % kQuadLanes; d < end; d += kQuadLanes) {
            const int32_t place = Draw(start, d) - first;
            if (place >= 0 && place < keys)
              AtomicOr(drawn + row * kWindowWords + place / 32, 1u << place % 32);
          }
        });
      });
      warp.Sync();
      PerLane<bool> missing;
      warp.Each([&](int lane) {
        missing[lane] = false;
        ForEachQuery(lane, [&](int, int row, int32_t) {
          int32_t found = 0;
          SPARSE_OPS_ROLLED
          for (int word = 0; word < kWindowWords; ++word)
            found += CountBits(drawn[row * kWindowWords + word]);
          missing[lane] = missing[lane] || found < keys;
        });
      });
      more = warp.Any(missing);
    }
    warp.Sync();
    window = wanted;
  }
};

}  // namespace cuda
}  // namespace sparse_ops
