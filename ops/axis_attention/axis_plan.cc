#include "axis_attention/axis_plan.h"

#include <algorithm>

namespace sparse_ops {
namespace {

// What a key costs a row, in keys of a dense panel: a diagonal's, and one of the row's own.
constexpr int64_t kDiagonalCost = 2;
constexpr int64_t kPairCost = 3;

// Most floats of keys and values that a block of queries reads, in all heads that are computed together: they
// should stay in the second cache.
constexpr int64_t kTogether = int64_t{1} << 17;

}  // namespace

AxisPlan::AxisPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders, const uint8_t* is_row,
                   const uint8_t* is_column, const AttentionShape& shape)
    : fixed_(fixed),
      borders_(borders),
      is_row_(is_row),
      is_column_(is_column),
      shape_(shape),
      columns_(static_cast<size_t>(borders.back())) {
  for (size_t b = 0; b + 1 < borders.size(); ++b) AddSequence(borders[b], borders[b + 1] - borders[b]);
  // The largest distance is the number of keys, from a query before the first token to the last key.
  is_offset_.resize(static_cast<size_t>(extent_.keys + 1));
  for (const int32_t offset : fixed.offsets) {
    if (offset > extent_.keys) break;
    is_offset_[static_cast<size_t>(offset)] = 1;
    if (!runs_.empty() && runs_.back().last == offset - 1) {
      runs_.back().last = offset;
    } else {
      runs_.push_back({offset, offset});
    }
  }
}

// Chooses `reach` such that the cost is least where offsets up to it are a band and the others diagonals.
// Where even that costs as much as all keys, the band is the whole sequence.
AxisSequence AxisPlan::Plan(int64_t length, int64_t full_rows, int64_t columns) {
  const auto end = std::lower_bound(fixed_.offsets.begin(), fixed_.offsets.end(), length);
  const int64_t offsets = end - fixed_.offsets.begin();
  const auto diagonals = [&](int64_t first) {  // of the offsets from the first-th on
    const int64_t both_sides = 2 * (offsets - first);
    return both_sides - (first == 0 && offsets > 0 && fixed_.offsets[0] == 0 ? 1 : 0);
  };
  const int64_t random = std::min(fixed_.random_keys, length);
  int64_t reach = -1;
  int64_t diagonal_count = diagonals(0);
  int64_t least = kDiagonalCost * diagonal_count;
  for (int64_t o = 0; o < offsets; ++o) {
    const int64_t offset = fixed_.offsets[static_cast<size_t>(o)];
    const int64_t cost = std::min(length, shape_.query_block + 2 * offset) + kDiagonalCost * diagonals(o + 1);
    if (cost >= least) continue;
    least = cost;
    reach = offset;
    diagonal_count = diagonals(o + 1);
  }
  const int64_t cost = columns + least + kPairCost * random;
  slots_.push_back(std::min(cost, length));
  extent_.keys = std::max(extent_.keys, length);
  if (full_rows == length || full_rows + cost >= length) {
    extent_.slots = std::max(extent_.slots, length);
    return {0, full_rows == length ? length : 0, 0, length, full_rows < length, HeadsTogether(length)};
  }
  const int64_t heads = HeadsTogether(columns + (reach < 0 ? 0 : 2 * reach));
  extent_.columns = std::max(extent_.columns, heads * (columns + kColumnPadding));
  extent_.diagonals = std::max(extent_.diagonals, diagonal_count);
  extent_.pairs = std::max(extent_.pairs, random);
  const int64_t slots = columns + (reach >= 0 ? length : 0) + diagonal_count + random;
  extent_.slots = std::max({extent_.slots, slots, full_rows > 0 ? length : 0});
  return {0, full_rows, columns, reach, false, heads};
}

// How many heads are computed one after the other for each block, so that its rows' memory is read once: as
// many as have few enough keys, `keys` a block in each head.
int64_t AxisPlan::HeadsTogether(int64_t keys) const {
  const int64_t floats = 2 * (shape_.query_block + keys) * shape_.head_size;
  return std::clamp<int64_t>(kTogether / floats, 1, shape_.num_heads);
}

// As many heads as fill a block with their rows.
int64_t AxisPlan::HeadsOfFullRows(int64_t rows) const {
  return std::clamp<int64_t>(shape_.query_block / rows, 1, shape_.num_heads);
}

void AxisPlan::AddSequence(int64_t begin, int64_t length) {
  const uint8_t* is_row = is_row_ + begin;
  const uint8_t* is_column = is_column_ + begin;
  const int64_t columns = std::count_if(is_column, is_column + length, [](uint8_t on) { return on != 0; });
  const int64_t rows = std::count_if(is_row, is_row + length, [](uint8_t on) { return on != 0; });
  AxisSequence sequence = Plan(length, columns == length ? length : rows, columns);
  sequence.order = static_cast<int64_t>(order_.size());
  sequences_.push_back(sequence);
  if (length >= kHeldKeys && sequence.full_rows >= kHeldQueries) {
    extent_.held_keys = std::max(extent_.held_keys, length);
  }

  const auto is_full = [&](int32_t row) {
    return sequence.full_rows == length || (sequence.full_rows > 0 && is_row[row] != 0);
  };
  for (int32_t row = 0; row < length; ++row) {
    if (is_full(row)) order_.push_back(row);
  }
  queries_.insert(queries_.end(), order_.begin() + sequence.order, order_.end());
  int32_t* column = columns_.data() + begin;
  for (int32_t row = 0; row < length; ++row) {
    if (sequence.columns > 0 && is_column[row] != 0) *column++ = row;
    if (sequence.full_rows == length) continue;
    order_.push_back(row);
    queries_.push_back(is_full(row) ? -1 : row);
  }
}

AxisPattern AxisPlan::Pattern(bool sparsegen) const {
  AxisPattern pattern{};
  pattern.sequences = sequences_.data();
  pattern.order = order_.data();
  pattern.queries = queries_.data();
  pattern.columns = columns_.data();
  pattern.is_row = is_row_;
  pattern.is_column = is_column_;
  pattern.runs = runs_.data();
  pattern.run_count = static_cast<int64_t>(runs_.size());
  pattern.is_offset = is_offset_.data();
  pattern.random_keys = fixed_.random_keys;
  pattern.seed = fixed_.seed;
  pattern.extent = extent_;
  pattern.extent.head_size = shape_.head_size;
  pattern.extent.sparsegen = sparsegen;
  return pattern;
}

std::vector<CostedRange> AxisPlan::CostedRanges() const {
  std::vector<CostedRange> ranges;
  for (size_t b = 0; b < sequences_.size(); ++b) {
    const int64_t begin = borders_[b];
    const int64_t length = borders_[b + 1] - begin;
    const AxisSequence& sequence = sequences_[b];
    const auto add = [&](int64_t first, int64_t count, bool full) {
      if (count == 0) return;
      const int64_t heads = full ? HeadsOfFullRows(count) : sequence.heads;
      const QueryRange range{static_cast<int64_t>(b), begin, length, begin, length, first, count, 0, heads};
      ranges.push_back({range, BlockWork(b, count, full)});
    };
    add(0, sequence.full_rows, true);
    if (sequence.full_rows < length) add(sequence.full_rows, length, false);
  }
  return ranges;
}

int64_t AxisPlan::BlockWork(size_t sequence, int64_t rows, bool full) const {
  const int64_t keys = full ? borders_[sequence + 1] - borders_[sequence] : slots_[sequence];
  // A few full rows, which softmax computes side by side, cost less than a block, though more than their
  // share.
  const int64_t lanes = full ? std::min(2 * rows, shape_.query_block) : shape_.query_block;
  // Reading a query and writing its output costs about as much as a few keys.
  return lanes * (keys + 8) * shape_.head_size;
}

AxisCrossPlan::AxisCrossPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders,
                             const uint8_t* is_row, const uint8_t* is_column, const AttentionShape& shape,
                             const std::vector<int64_t>& query_borders, const int64_t* query_tokens)
    : plan_(fixed, borders, is_row, is_column, shape),
      borders_(borders),
      query_borders_(query_borders),
      query_tokens_(query_tokens),
      query_block_(shape.query_block),
      places_(static_cast<size_t>(borders.back())) {
  const AxisPattern tokens = plan_.Pattern(false);
  for (size_t b = 0; b + 1 < borders.size(); ++b) AddSequence(b, tokens);
}

void AxisCrossPlan::AddSequence(size_t sequence, const AxisPattern& tokens) {
  const int64_t begin = borders_[sequence];
  const int64_t length = borders_[sequence + 1] - begin;
  const AxisSequence& planned = tokens.sequences[sequence];
  const int64_t rows = planned.full_rows + (planned.full_rows < length ? length : 0);
  for (int64_t place = 0; place < rows; ++place) {
    const int32_t row = tokens.queries[planned.order + place];
    if (row >= 0) places_[static_cast<size_t>(begin + row)] = place;
  }

  std::vector<PlacedQuery> inside;
  std::vector<int32_t> full_outside, other_outside;
  const int64_t first_query = query_borders_[sequence];
  for (int64_t q = first_query; q < query_borders_[sequence + 1]; ++q) {
    const int64_t token = query_tokens_[q];
    const auto query = static_cast<int32_t>(q - first_query);
    if (token >= begin && token < begin + length) {
      inside.push_back({places_[static_cast<size_t>(token)], query});
    } else {
      // In an empty sequence every query is full: all keys are none.
      (length == 0 || tokens.is_row[token] != 0 ? full_outside : other_outside).push_back(query);
    }
  }
  std::sort(inside.begin(), inside.end(), [](const PlacedQuery& a, const PlacedQuery& b) {
    return a.place != b.place ? a.place < b.place : a.query < b.query;
  });
  const auto first_other = std::find_if(
      inside.begin(), inside.end(), [&](const PlacedQuery& each) { return each.place >= planned.full_rows; });
  const auto full_inside = static_cast<size_t>(first_other - inside.begin());

  sequences_.push_back(planned);
  sequences_.back().order = static_cast<int64_t>(order_.size());
  // Where the rows of all tokens are full, the plan has nothing for a row that is not.
  if (sequences_.back().full_rows == length) sequences_.back().masked = true;
  AddBlocks(sequence, tokens, inside.data(), full_inside);
  AddOutside(sequence, full_outside, true);
  sequences_.back().full_rows = static_cast<int64_t>(order_.size()) - sequences_.back().order;
  AddBlocks(sequence, tokens, inside.data() + full_inside, inside.size() - full_inside);
  AddOutside(sequence, other_outside, false);
}

// Adds the blocks that hold `queries`, all of which are full rows or none. A block that would hold two
// queries of one token is added twice.
void AxisCrossPlan::AddBlocks(size_t sequence, const AxisPattern& tokens, const PlacedQuery* queries,
                              size_t count) {
  const AxisSequence& planned = tokens.sequences[sequence];
  const int64_t length = borders_[sequence + 1] - borders_[sequence];
  const bool full = count > 0 && queries[0].place < planned.full_rows;
  const int64_t kind_begin = full ? 0 : planned.full_rows;
  const int64_t kind_end = planned.full_rows + (full ? 0 : length);
  int64_t block = -1;
  for (size_t i = 0; i < count; ++i) {
    const int64_t place = queries[i].place;
    const int64_t own = kind_begin + (place - kind_begin) / query_block_ * query_block_;
    if (own != block || queries[i - 1].place == place) {
      block = own;
      const int32_t* rows = tokens.order + planned.order;
      const auto first = static_cast<int64_t>(order_.size());
      order_.insert(order_.end(), rows + block, rows + std::min(block + query_block_, kind_end));
      queries_.resize(order_.size(), -1);
      AddRange(sequence, first, full);
    }
    const int64_t lane = ranges_.back().range.first + sequences_.back().order + place - block;
    queries_[static_cast<size_t>(lane)] = queries[i].query;
  }
}

// Adds queries that are not keys of the sequence, each in a block of its own.
void AxisCrossPlan::AddOutside(size_t sequence, const std::vector<int32_t>& queries, bool full) {
  any_outside_ = any_outside_ || !queries.empty();
  for (const int32_t query : queries) {
    const auto first = static_cast<int64_t>(order_.size());
    order_.push_back(-1);
    queries_.push_back(query);
    AddRange(sequence, first, full);
  }
}

// Adds the block of the rows from the first-th in order to the last.
void AxisCrossPlan::AddRange(size_t sequence, int64_t first, bool full) {
  const AxisSequence& own = sequences_.back();
  const int64_t count = static_cast<int64_t>(order_.size()) - first;
  const QueryRange range{static_cast<int64_t>(sequence),
                         borders_[sequence],
                         borders_[sequence + 1] - borders_[sequence],
                         query_borders_[sequence],
                         query_borders_[sequence + 1] - query_borders_[sequence],
                         first - own.order,
                         count,
                         0,
                         full ? plan_.HeadsOfFullRows(count) : own.heads};
  ranges_.push_back({range, plan_.BlockWork(sequence, count, full)});
}

AxisPattern AxisCrossPlan::Pattern(bool sparsegen) const {
  AxisPattern pattern = plan_.Pattern(sparsegen);
  pattern.sequences = sequences_.data();
  pattern.order = order_.data();
  pattern.queries = queries_.data();
  if (any_outside_) {
    // Queries outside may be full where no token is, and may be on a diagonal that no token is on.
    pattern.extent.diagonals += 2;
    pattern.extent.slots = std::max(pattern.extent.slots + 2, pattern.extent.keys);
  }
  return pattern;
}

}  // namespace sparse_ops
