// How axis attention goes about the sequences of one call.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/packed_attention.h"
#include "cpu/kernels.h"

namespace sparse_ops {

// Which pairs the attributes of a node allow in every sequence.
struct FixedPairs {
  std::vector<int32_t> offsets;  // rising, each once
  int64_t random_keys;
  uint64_t seed;
};

struct AttentionShape {
  int64_t num_heads;
  int64_t head_size;
  int64_t query_block;  // queries that are computed together
};

class AxisPlan {
 public:
  // is_row and is_column (tokens) must outlive the plan.
  AxisPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders, const uint8_t* is_row,
           const uint8_t* is_column, const AttentionShape& shape);
  AxisPlan(const AxisPlan&) = delete;
  AxisPlan& operator=(const AxisPlan&) = delete;

  AxisPattern Pattern(bool sparsegen) const;
  std::vector<Stretch> Stretches() const;

 private:
  void AddSequence(int64_t begin, int64_t length);
  int64_t HeadsTogether(int64_t keys) const;
  AxisSequence Plan(int64_t length, int64_t full_rows, int64_t columns);

  const FixedPairs& fixed_;
  const std::vector<int64_t>& borders_;
  const uint8_t* is_row_;
  const uint8_t* is_column_;
  const AttentionShape shape_;
  std::vector<AxisSequence> sequences_;
  std::vector<int64_t> slots_;  // of each sequence: what a row that is not full costs, in dense keys
  std::vector<int32_t> order_, columns_;
  std::vector<OffsetRun> runs_;
  std::vector<uint8_t> is_offset_;
  AxisExtent extent_{};
};

}  // namespace sparse_ops
