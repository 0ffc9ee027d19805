#include "axis_attention/axis_plan.h"

#include <algorithm>

namespace sparse_ops {
namespace {

// A pair that is scored by itself costs about this many that are scored in a panel.
constexpr int64_t kPairCost = 3;

// Floats of keys and values that a block may go through for each query block, over the heads computed
// together: they are to stay in the second cache.
constexpr int64_t kTogether = int64_t{1} << 17;

}  // namespace

AxisPlan::AxisPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders, const uint8_t* is_row,
                   const uint8_t* is_column, const AttentionShape& shape)
    : fixed_(fixed),
      borders_(borders),
      is_row_(is_row),
      is_column_(is_column),
      shape_(shape),
      order_(static_cast<size_t>(borders.back())),
      columns_(static_cast<size_t>(borders.back())) {
  for (size_t b = 0; b + 1 < borders.size(); ++b) AddSequence(borders[b], borders[b + 1] - borders[b]);
  is_offset_.resize(static_cast<size_t>(extent_.keys));
  for (const int32_t offset : fixed.offsets) {
    if (offset >= extent_.keys) break;
    is_offset_[static_cast<size_t>(offset)] = 1;
    if (!runs_.empty() && runs_.back().last == offset - 1) {
      runs_.back().last = offset;
    } else {
      runs_.push_back({offset, offset});
    }
  }
}

// Offsets up to `reach` in a band, the others as pairs: what costs least. Where even that costs as much as
// all keys do, all keys are the band.
AxisSequence AxisPlan::Plan(int64_t length, int64_t full_rows, int64_t columns) {
  const auto end = std::lower_bound(fixed_.offsets.begin(), fixed_.offsets.end(), length);
  const int64_t offsets = end - fixed_.offsets.begin();
  const auto pairs = [&](int64_t first) {  // of the offsets from the first-th on
    const int64_t both_sides = 2 * (offsets - first);
    return both_sides - (first == 0 && offsets > 0 && fixed_.offsets[0] == 0 ? 1 : 0);
  };
  const int64_t random = std::min(fixed_.random_keys, length);
  int64_t reach = -1;
  int64_t pair_count = pairs(0);
  int64_t least = kPairCost * pair_count;
  for (int64_t o = 0; o < offsets; ++o) {
    const int64_t offset = fixed_.offsets[static_cast<size_t>(o)];
    const int64_t cost = std::min(length, shape_.query_block + 2 * offset) + kPairCost * pairs(o + 1);
    if (cost >= least) continue;
    least = cost;
    reach = offset;
    pair_count = pairs(o + 1);
  }
  const int64_t cost = columns + least + kPairCost * random;
  slots_.push_back(std::min(cost, length));
  extent_.keys = std::max(extent_.keys, length);
  if (full_rows == length || cost >= length) {
    extent_.slots = std::max(extent_.slots, length);
    return {full_rows == length ? length : 0, 0, length, full_rows < length, HeadsTogether(length)};
  }
  const int64_t heads = HeadsTogether(columns + (reach < 0 ? 0 : 2 * reach));
  extent_.columns = std::max(extent_.columns, heads * (columns + kColumnPadding));
  extent_.pairs = std::max(extent_.pairs, pair_count + random);
  const int64_t slots = columns + (reach >= 0 ? length : 0) + pair_count + random;
  extent_.slots = std::max({extent_.slots, slots, full_rows > 0 ? length : 0});
  return {full_rows, columns, reach, false, heads};
}

// Heads whose `keys` per block are few enough to be computed one after the other for each block, which then
// goes through its rows' memory once.
int64_t AxisPlan::HeadsTogether(int64_t keys) const {
  const int64_t floats = 2 * (shape_.query_block + keys) * shape_.head_size;
  return std::clamp<int64_t>(kTogether / floats, 1, shape_.num_heads);
}

void AxisPlan::AddSequence(int64_t begin, int64_t length) {
  const uint8_t* is_row = is_row_ + begin;
  const uint8_t* is_column = is_column_ + begin;
  const int64_t columns = std::count_if(is_column, is_column + length, [](uint8_t on) { return on != 0; });
  const int64_t rows = std::count_if(is_row, is_row + length, [](uint8_t on) { return on != 0; });
  const AxisSequence sequence = Plan(length, columns == length ? length : rows, columns);
  sequences_.push_back(sequence);

  int32_t* full = order_.data() + begin;
  int32_t* other = full + sequence.full_rows;
  int32_t* column = columns_.data() + begin;
  for (int32_t i = 0; i < length; ++i) {
    const bool is_full = sequence.full_rows == length || (sequence.full_rows > 0 && is_row[i] != 0);
    *(is_full ? full : other)++ = i;
    if (sequence.columns > 0 && is_column[i] != 0) *column++ = i;
  }
}

AxisPattern AxisPlan::Pattern(bool sparsegen) const {
  AxisPattern pattern{};
  pattern.sequences = sequences_.data();
  pattern.order = order_.data();
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

std::vector<Stretch> AxisPlan::Stretches() const {
  std::vector<Stretch> stretches;
  for (size_t b = 0; b < sequences_.size(); ++b) {
    const int64_t begin = borders_[b];
    const int64_t length = borders_[b + 1] - begin;
    const AxisSequence& sequence = sequences_[b];
    const auto add = [&](int64_t first, int64_t count, int64_t keys, int64_t heads) {
      // Reading a query and writing its output costs about a few keys.
      const int64_t work = shape_.query_block * (keys + 8) * shape_.head_size;
      const QueryRange range{static_cast<int64_t>(b), begin, length, first, count, 0, heads};
      if (count > 0) stretches.push_back({range, work});
    };
    add(0, sequence.full_rows, length, 1);
    add(sequence.full_rows, length - sequence.full_rows, slots_[b], sequence.heads);
  }
  return stretches;
}

}  // namespace sparse_ops
