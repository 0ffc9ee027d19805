#include "axis_attention/axis_plan.h"

#include <algorithm>

namespace sparse_ops {
namespace {

// What a key costs a row, in keys of a dense panel: a diagonal's, and one of the row's own.
constexpr int64_t kDiagonalCost = 2;
constexpr int64_t kPairCost = 3;
// What reading a query and writing its output costs, likewise.
constexpr int64_t kRowCost = 8;

// Most floats that a block of queries reads, in all heads that are computed together: they should stay in the
// second cache.
constexpr int64_t kTogether = int64_t{3} << 16;

// Up to this many full rows are computed along with a sequence's other rows. They need memory for each chunk.
constexpr int64_t kMostFullRows = 64;
constexpr int64_t kLeastChunk = 64;  // keys, a multiple of every query_block

int64_t ChunksOf(const AxisSequence& sequence, int64_t length) { return CeilDivide(length, sequence.chunk); }

// How many keys a block of a sequence reads in each head, about.
int64_t KeysOfBlock(const AxisSequence& sequence) {
  return sequence.columns + 2 * std::max<int64_t>(sequence.reach, 0);
}

}  // namespace

AxisPlan::AxisPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders, const uint8_t* is_row,
                   const uint8_t* is_column, const AttentionShape& shape, bool sparsegen)
    : fixed_(fixed),
      borders_(borders),
      is_row_(is_row),
      is_column_(is_column),
      shape_(shape),
      sparsegen_(sparsegen),
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
  AxisSequence planned{};
  planned.full_tokens = full_rows;
  if (full_rows == length || full_rows + cost >= length) {
    extent_.slots = std::max(extent_.slots, length);
    planned.full_rows = full_rows == length ? length : 0;
    planned.reach = length;
    planned.masked = full_rows < length;
    planned.heads = HeadsTogether(length, 0);
    return planned;
  }
  const bool chunks = !sparsegen_ && full_rows > 0 && full_rows <= kMostFullRows;
  planned.full_rows = full_rows;
  planned.columns = columns;
  planned.reach = reach;
  planned.chunk = chunks ? CeilDivide(CeilDivide(length, kMostChunks), kLeastChunk) * kLeastChunk : 0;
  planned.heads = HeadsTogether(KeysOfBlock(planned), chunks ? full_rows : 0);
  extent_.columns = std::max(extent_.columns, planned.heads * (columns + kColumnPadding));
  extent_.diagonals = std::max(extent_.diagonals, diagonal_count);
  extent_.pairs = std::max(extent_.pairs, random);
  const int64_t slots = columns + (reach >= 0 ? length : 0) + diagonal_count + random;
  extent_.slots = std::max({extent_.slots, slots, full_rows == 0 || chunks ? full_rows : length});
  if (chunks) {
    planned.partials = partials_;
    partials_ += ChunksOf(planned, length) * shape_.num_heads * full_rows;
    extent_.full_rows = std::max(extent_.full_rows, planned.heads * full_rows);
  }
  return planned;
}

// How many heads are computed one after the other for each block, so that its rows' memory is read once: as
// many as have few enough keys, `keys` a block in each head, and full rows along with it; then as many each
// time, about.
int64_t AxisPlan::HeadsTogether(int64_t keys, int64_t full_rows) const {
  const int64_t floats = 2 * (shape_.query_block + keys) * shape_.head_size +
                         full_rows * (shape_.head_size + PartialFloats(shape_.head_size));
  const int64_t fitting = std::max<int64_t>(kTogether / floats, 1);
  return CeilDivide(shape_.num_heads, CeilDivide(shape_.num_heads, fitting));
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

AxisPattern AxisPlan::Pattern() const {
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
  pattern.extent.sparsegen = sparsegen_;
  return pattern;
}

std::vector<CostedRange> AxisPlan::CostedRanges() const {
  std::vector<CostedRange> ranges;
  for (size_t b = 0; b < sequences_.size(); ++b) {
    const int64_t length = borders_[b + 1] - borders_[b];
    const AxisSequence& sequence = sequences_[b];
    if (sequence.full_rows > 0 && sequence.chunk == 0) ranges.push_back(FullRange(b, 0, sequence.full_rows));
    if (sequence.full_rows < length) {
      ranges.push_back(BlockRange(b, sequence.full_rows, length, sequence, true));
    }
  }
  return ranges;
}

QueryRange AxisPlan::RangeOf(size_t sequence, int64_t first, int64_t rows, int64_t heads) const {
  const int64_t begin = borders_[sequence];
  const int64_t length = borders_[sequence + 1] - begin;
  return {static_cast<int64_t>(sequence), begin, length, begin, length, first, rows, 0, heads};
}

CostedRange AxisPlan::FullRange(size_t sequence, int64_t first, int64_t rows) const {
  const int64_t keys = borders_[sequence + 1] - borders_[sequence];
  const int64_t heads = std::clamp<int64_t>(shape_.query_block / rows, 1, shape_.num_heads);
  return {RangeOf(sequence, first, rows, heads), shape_.query_block,
          shape_.query_block * (keys + kRowCost) * shape_.head_size};
}

CostedRange AxisPlan::BlockRange(size_t sequence, int64_t first, int64_t rows, const AxisSequence& own,
                                 bool any_asked) const {
  const int64_t block = shape_.query_block;
  const int64_t work = any_asked ? block * (slots_[sequence] + kRowCost) * shape_.head_size : 0;
  const QueryRange range = RangeOf(sequence, first, rows, own.heads);
  if (own.chunk == 0) return {range, block, work};
  const int64_t full_work = own.full_rows * block * shape_.head_size;
  return {range, own.chunk, CeilDivide(std::min(own.chunk, rows), block) * (work + full_work)};
}

AxisCrossPlan::AxisCrossPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders,
                             const uint8_t* is_row, const uint8_t* is_column, const AttentionShape& shape,
                             bool sparsegen, const std::vector<int64_t>& query_borders,
                             const int64_t* query_tokens)
    : plan_(fixed, borders, is_row, is_column, shape, sparsegen),
      borders_(borders),
      query_borders_(query_borders),
      query_tokens_(query_tokens),
      query_block_(shape.query_block),
      num_heads_(shape.num_heads),
      places_(static_cast<size_t>(borders.back())) {
  const AxisPattern tokens = plan_.Pattern();
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

  if (planned.chunk > 0) {
    std::vector<int32_t> full = full_outside;
    for (size_t i = 0; i < full_inside; ++i) full.push_back(inside[i].query);
    std::vector<PlacedQuery> others(first_other, inside.end());
    for (size_t i = 0; i < full.size(); i += kMostFullRows) {
      const int32_t* group = full.data() + i;
      const size_t count = std::min<size_t>(kMostFullRows, full.size() - i);
      AddChunks(sequence, planned, {group, group + count}, &others);
    }
    AddKind(planned, 0);
    sequences_.back().chunk = 0;
    AddBlocks(sequence, tokens, others.data(), others.size());
    AddOutside(sequence, other_outside, false);
    return;
  }
  AddKind(planned, planned.full_rows);
  // Where the rows of all tokens are full, the plan has nothing for a row that is not.
  if (sequences_.back().full_rows == length) sequences_.back().masked = true;
  AddBlocks(sequence, tokens, inside.data(), full_inside);
  AddOutside(sequence, full_outside, true);
  sequences_.back().full_rows = static_cast<int64_t>(order_.size()) - sequences_.back().order;
  AddBlocks(sequence, tokens, inside.data() + full_inside, inside.size() - full_inside);
  AddOutside(sequence, other_outside, false);
}

// Begins some rows of a sequence, the first `full_rows` of which are full.
AxisSequence& AxisCrossPlan::AddKind(const AxisSequence& planned, int64_t full_rows) {
  sequences_.push_back(planned);
  sequences_.back().order = static_cast<int64_t>(order_.size());
  sequences_.back().full_rows = full_rows;
  return sequences_.back();
}

// Adds full rows of a sequence, kMostFullRows at most, and all of its others along with them. Leaves in
// `others` queries that have no lane there: all but the first of a token.
void AxisCrossPlan::AddChunks(size_t sequence, const AxisSequence& planned, const std::vector<int32_t>& full,
                              std::vector<PlacedQuery>* others) {
  const int64_t length = borders_[sequence + 1] - borders_[sequence];
  AxisSequence& own = AddKind(planned, static_cast<int64_t>(full.size()));
  own.heads = std::min(own.heads, plan_.HeadsTogether(KeysOfBlock(own), own.full_rows));
  own.partials = partials_;
  partials_ += ChunksOf(own, length) * num_heads_ * own.full_rows;
  full_rows_ = std::max(full_rows_, own.heads * own.full_rows);
  most_full_rows_ = std::max(most_full_rows_, own.full_rows);
  order_.resize(order_.size() + full.size(), -1);
  queries_.insert(queries_.end(), full.begin(), full.end());

  const size_t first = order_.size();
  for (int32_t row = 0; row < length; ++row) order_.push_back(row);
  queries_.resize(order_.size(), -1);
  const auto left = std::remove_if(others->begin(), others->end(), [&](const PlacedQuery& each) {
    int32_t& lane = queries_[first + static_cast<size_t>(each.place - planned.full_rows)];
    if (lane >= 0) return false;
    lane = each.query;
    return true;
  });
  const bool any_asked = left != others->end();
  others->erase(left, others->end());
  AddRange(sequence, static_cast<int64_t>(first), false, any_asked);
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

// Adds the rows from the first-th in order to the last.
void AxisCrossPlan::AddRange(size_t sequence, int64_t first, bool full, bool any_asked) {
  const AxisSequence& own = sequences_.back();
  const int64_t count = static_cast<int64_t>(order_.size()) - first;
  const int64_t place = first - own.order;
  ranges_.push_back(full ? plan_.FullRange(sequence, place, count)
                         : plan_.BlockRange(sequence, place, count, own, any_asked));
  QueryRange& range = ranges_.back().range;
  range.sequence = static_cast<int64_t>(sequences_.size()) - 1;
  range.query_begin = query_borders_[sequence];
  range.sequence_queries = query_borders_[sequence + 1] - query_borders_[sequence];
}

AxisPattern AxisCrossPlan::Pattern() const {
  AxisPattern pattern = plan_.Pattern();
  pattern.sequences = sequences_.data();
  pattern.order = order_.data();
  pattern.queries = queries_.data();
  pattern.extent.full_rows = full_rows_;
  pattern.extent.slots = std::max(pattern.extent.slots, most_full_rows_);
  if (any_outside_) {
    // Queries outside may be full where no token is, and may be on a diagonal that no token is on.
    pattern.extent.diagonals += 2;
    pattern.extent.slots = std::max(pattern.extent.slots + 2, pattern.extent.keys);
  }
  return pattern;
}

}  // namespace sparse_ops
