// Which keys a block of queries attends to.
//
// A block is up to kPanelQueries rows of one sequence, one to a lane: full ones, or consecutive ones. Its
// keys come in four kinds, and no pair of a row and a key is in two of them:
//
//   columns    every lane attends to them
//   band       consecutive keys; bit i of a key's word says whether lane i attends to it
//   diagonals  the keys at one distance from each lane's row; bit i of a diagonal's word likewise
//   pairs      a key of each lane's own; bit i of a pair's word says whether lane i has one
#pragma once

#include "attention/packed_attention_cpu.h"
#include "axis_attention/key_hash.h"
#include "cpu/kernels.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

static_assert(kPanelQueries <= 32, "a word has a bit for every lane of a block");

struct AxisBlock {
  const int32_t* rows;
  const int32_t* queries;  // in each lane; -1 where none is asked for
  int64_t count;
  int64_t keys;  // of the sequence
  int64_t columns;
  int64_t band_begin;
  int64_t band_keys;
  const uint32_t* band_words;  // null: every lane attends to the whole band
  int64_t diagonals;
  const int32_t* distances;        // (diagonals) from a row to its key
  const uint32_t* diagonal_words;  // (diagonals)
  int64_t pairs;
  const int32_t* pair_keys;    // (pairs, kPanelQueries): a valid position also where there is no key
  const uint32_t* pair_words;  // (pairs)

  int64_t slots() const { return columns + band_keys + diagonals + pairs; }
};

struct AxisKeysScratch {
  uint32_t *band_words, *drawn, *diagonal_words, *pair_words;
  int32_t *distances, *pair_keys;

  void Allocate(ScratchLayout* layout, const AxisExtent& extent) {
    band_words = reinterpret_cast<uint32_t*>(layout->Take(extent.keys));
    drawn = reinterpret_cast<uint32_t*>(layout->Take(extent.keys));
    diagonal_words = reinterpret_cast<uint32_t*>(layout->Take(extent.diagonals));
    distances = reinterpret_cast<int32_t*>(layout->Take(extent.diagonals));
    pair_words = reinterpret_cast<uint32_t*>(layout->Take(extent.pairs));
    pair_keys = reinterpret_cast<int32_t*>(layout->Take(extent.pairs * kPanelQueries));
  }
};

// One sequence of the packed tensors: what MakeBlock needs of it.
struct AxisKeys {
  const AxisPattern& pattern;
  const AxisSequence& sequence;
  const uint8_t* is_row;
  const uint8_t* is_column;
  int64_t length;
  uint64_t seed_hash;
  const AxisKeysScratch& at;
};

inline uint64_t Mix(uint64_t x) {
  const uint64_t y = (x + kHashShift) % kHashModulus;
  const uint64_t y2 = y * y % kHashModulus;
  return y2 * y2 % kHashModulus * y % kHashModulus;
}

// Calls visit(key) for the keys drawn for a row, some perhaps more than once, until it returns false.
template <class Visit>
inline void ForEachDrawn(const AxisKeys& keys, int32_t row, const Visit& visit) {
  const uint64_t start = Mix(keys.seed_hash + static_cast<uint64_t>(row) + 1);
  for (int64_t t = 1; t <= keys.pattern.random_keys; ++t) {
    const uint64_t key = Mix(start + static_cast<uint64_t>(t)) % static_cast<uint64_t>(keys.length);
    if (!visit(static_cast<int32_t>(key))) return;
  }
}

inline bool IsWithin(const AxisKeys& keys, int64_t key) { return key >= 0 && key < keys.length; }

// Notes that a lane attends to the keys from `first` to `last`. A word of a key holds the bits that differ
// from the key before.
inline void NoteRange(const AxisBlock& block, int64_t first, int64_t last, uint32_t lane, uint32_t* words) {
  const int64_t end = block.band_begin + block.band_keys;
  if (first >= end || last < block.band_begin) return;
  words[first > block.band_begin ? first - block.band_begin : 0] ^= lane;
  if (last + 1 < end) words[last + 1 - block.band_begin] ^= lane;
}

// Notes the diagonals up to the reach.
inline void NoteDiagonals(const AxisKeys& keys, const AxisBlock& block, uint32_t* words) {
  for (int64_t i = 0; i < block.count; ++i) {
    const int32_t row = block.rows[i];
    const uint32_t lane = uint32_t{1} << i;
    for (int64_t r = 0; r < keys.pattern.run_count; ++r) {
      const OffsetRun run = keys.pattern.runs[r];
      if (run.first > keys.sequence.reach) break;
      const int64_t last = Min(run.last, keys.sequence.reach);
      if (run.first == 0) {
        NoteRange(block, row - last, row + last, lane, words);
      } else {
        NoteRange(block, row - last, row - run.first, lane, words);
        NoteRange(block, row + run.first, row + last, lane, words);
      }
    }
  }
}

// Notes the random keys, where the band is the whole sequence. Drawing ends once a lane attends to every key,
// as there may be 2^31 draws.
inline void NoteDrawn(const AxisKeys& keys, const AxisBlock& block, uint32_t* words) {
  for (int64_t i = 0; i < block.count; ++i) {
    const uint32_t lane = uint32_t{1} << i;
    int64_t missing = 0;
    for (int64_t j = 0; j < block.band_keys; ++j) missing += (words[j] & lane) == 0;
    ForEachDrawn(keys, block.rows[i], [&](int32_t key) {
      missing -= (words[key] & lane) == 0;
      words[key] |= lane;
      return missing > 0;
    });
  }
}

inline void AddBand(const AxisKeys& keys, AxisBlock* block) {
  const bool masked = keys.sequence.masked;
  const int64_t first = masked ? 0 : block->rows[0] - keys.sequence.reach;
  const int64_t last = masked ? keys.length : block->rows[block->count - 1] + keys.sequence.reach + 1;
  block->band_begin = first > 0 ? first : 0;
  block->band_keys = Min(last, keys.length) - block->band_begin;
  uint32_t* words = keys.at.band_words;
  block->band_words = words;

  for (int64_t j = 0; j < block->band_keys; ++j) words[j] = 0;
  NoteDiagonals(keys, *block, words);
  uint32_t full_rows = 0;
  for (int64_t i = 0; masked && i < block->count; ++i) {
    const int32_t row = block->rows[i];
    full_rows |= uint32_t{row >= 0 && keys.is_row[row] != 0} << i;
  }
  const uint32_t on_column = masked ? ~uint32_t{0} : 0;  // else columns are a kind of their own
  uint32_t diagonals = 0;
  for (int64_t j = 0; j < block->band_keys; ++j) {
    diagonals ^= words[j];
    words[j] = keys.is_column[block->band_begin + j] ? on_column : diagonals | full_rows;
  }
  if (masked && keys.pattern.random_keys > 0) NoteDrawn(keys, *block, words);
}

// Adds the diagonals at the distances from `first` to `last`, those left out that no row has a key on.
inline void AddDiagonals(const AxisKeys& keys, int64_t first, int64_t last, AxisBlock* block) {
  for (int64_t distance = first; distance <= last; ++distance) {
    uint32_t word = 0;
    for (int64_t i = 0; i < block->count; ++i) {
      const int64_t key = block->rows[i] + distance;
      word |= uint32_t{IsWithin(keys, key) && !keys.is_column[key]} << i;
    }
    keys.at.distances[block->diagonals] = static_cast<int32_t>(distance);
    keys.at.diagonal_words[block->diagonals] = word;
    if (word != 0) ++block->diagonals;
  }
}

// Adds the pairs of each row and its random keys. They are fewer than the sequence has keys: with more of
// them its band is the whole sequence.
inline void AddRandom(const AxisKeys& keys, AxisBlock* block) {
  const int64_t most_pairs = Min(keys.pattern.random_keys, keys.length);
  int32_t* pair = keys.at.pair_keys;
  uint32_t* words = keys.at.pair_words;
  for (int64_t t = 0; t < most_pairs; ++t) words[t] = 0;
  for (int64_t i = 0; i < most_pairs * kPanelQueries; ++i) pair[i] = 0;  // a key, where a lane has none
  for (int64_t i = 0; i < block->count; ++i) {
    const int32_t row = block->rows[i];
    const uint32_t lane = uint32_t{1} << i;
    int64_t count = 0;
    ForEachDrawn(keys, row, [&](int32_t key) {
      const bool elsewhere = keys.is_column[key] || keys.pattern.is_offset[key < row ? row - key : key - row];
      if (elsewhere || (keys.at.drawn[key] & lane)) return true;
      keys.at.drawn[key] |= lane;
      pair[count * kPanelQueries + i] = key;
      words[count] |= lane;
      ++count;
      return true;
    });
    if (count > block->pairs) block->pairs = count;
  }
  for (int64_t i = 0; i < block->pairs * kPanelQueries; ++i) keys.at.drawn[pair[i]] = 0;
}

// The block of `count` rows from `rows` on, all of which are full or none. `drawn` must be all 0, and is
// again afterwards. The block's keys depend on its rows alone, whichever queries are asked for, so that a
// query's result is the same to the bit.
inline AxisBlock MakeBlock(const AxisKeys& keys, const int32_t* rows, const int32_t* queries, int64_t count,
                           bool full) {
  AxisBlock block{};
  block.rows = rows;
  block.queries = queries;
  block.count = count;
  block.keys = keys.length;
  block.distances = keys.at.distances;
  block.diagonal_words = keys.at.diagonal_words;
  block.pair_keys = keys.at.pair_keys;
  block.pair_words = keys.at.pair_words;
  if (full) {
    block.band_keys = keys.length;
    return block;
  }
  block.columns = keys.sequence.columns;
  if (keys.sequence.reach >= 0) AddBand(keys, &block);
  if (keys.sequence.masked) return block;
  for (int64_t r = 0; r < keys.pattern.run_count; ++r) {
    const OffsetRun run = keys.pattern.runs[r];
    const int64_t first = run.first > keys.sequence.reach ? run.first : keys.sequence.reach + 1;
    const int64_t farthest = rows[0] < 0 ? keys.length : keys.length - 1;
    const int64_t last = Min(run.last, farthest);
    if (first > last) continue;
    AddDiagonals(keys, -last, -Max(first, 1), &block);
    AddDiagonals(keys, first, last, &block);
  }
  if (keys.pattern.random_keys > 0) AddRandom(keys, &block);
  return block;
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
