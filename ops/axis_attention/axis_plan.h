// How the sequences of one call of axis attention are scheduled on a CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/query_tasks.h"
#include "axis_attention/fixed_pairs.h"

namespace sparse_ops {

struct AttentionShape {
  int64_t num_heads;
  int64_t head_size;
  int64_t query_block;  // queries that are computed together
};

// How the rows and keys of every sequence are scheduled where every token is a query.
class AxisPlan {
 public:
  // is_row and is_column (tokens) must outlive the plan. sparsegen: whether sparsegen-lin normalizes, not
  // softmax.
  AxisPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders, const uint8_t* is_row,
           const uint8_t* is_column, const AttentionShape& shape, bool sparsegen);
  AxisPlan(const AxisPlan&) = delete;
  AxisPlan& operator=(const AxisPlan&) = delete;

  // Its partials are null.
  AxisPattern Pattern() const;
  int64_t partials() const { return partials_; }  // how many partial results the pattern's memory must hold
  std::vector<CostedRange> CostedRanges() const;
  // The full rows of a sequence, in blocks of their own.
  CostedRange FullRange(size_t sequence, int64_t first, int64_t rows) const;
  // Some rows in blocks of consecutive ones; `own` says how they are scheduled. any_asked: whether any row
  // that is not full is asked for.
  CostedRange BlockRange(size_t sequence, int64_t first, int64_t rows, const AxisSequence& own,
                         bool any_asked) const;
  int64_t HeadsTogether(int64_t keys, int64_t full_rows) const;

 private:
  void AddSequence(int64_t begin, int64_t length);
  AxisSequence Plan(int64_t length, int64_t full_rows, int64_t columns);
  QueryRange RangeOf(size_t sequence, int64_t first, int64_t rows, int64_t heads) const;

  const FixedPairs& fixed_;
  const std::vector<int64_t>& borders_;
  const uint8_t* is_row_;
  const uint8_t* is_column_;
  const AttentionShape shape_;
  const bool sparsegen_;
  std::vector<AxisSequence> sequences_;
  std::vector<int64_t> slots_;  // of each sequence: what a row that is not full costs, in dense keys
  int64_t partials_ = 0;
  std::vector<int32_t> order_, queries_, columns_;
  std::vector<OffsetRun> runs_;
  std::vector<uint8_t> is_offset_;
  AxisExtent extent_{};
};

// The same for cross-attention, whose queries are each one of the tokens. A query is computed in the block
// that its token is in where every token is a query, with the same keys in the same order, so that its result
// is the same to the bit.
class AxisCrossPlan {
 public:
  // The arguments of AxisPlan, the borders of the queries, and the token of each query.
  AxisCrossPlan(const FixedPairs& fixed, const std::vector<int64_t>& borders, const uint8_t* is_row,
                const uint8_t* is_column, const AttentionShape& shape, bool sparsegen,
                const std::vector<int64_t>& query_borders, const int64_t* query_tokens);

  AxisPattern Pattern() const;
  int64_t partials() const { return partials_; }
  const std::vector<CostedRange>& CostedRanges() const { return ranges_; }

 private:
  // A query of a sequence, and its place in the order of the sequence's rows.
  struct PlacedQuery {
    int64_t place;
    int32_t query;
  };

  void AddSequence(size_t sequence, const AxisPattern& tokens);
  AxisSequence& AddKind(const AxisSequence& planned, int64_t full_rows);
  void AddChunks(size_t sequence, const AxisSequence& planned, const std::vector<int32_t>& full,
                 std::vector<PlacedQuery>* others);
  void AddBlocks(size_t sequence, const AxisPattern& tokens, const PlacedQuery* queries, size_t count);
  void AddOutside(size_t sequence, const std::vector<int32_t>& queries, bool full);
  void AddRange(size_t sequence, int64_t first, bool full, bool any_asked = true);

  const AxisPlan plan_;
  const std::vector<int64_t>& borders_;
  const std::vector<int64_t>& query_borders_;
  const int64_t* query_tokens_;
  const int64_t query_block_;
  const int64_t num_heads_;
  std::vector<int64_t> places_;  // each token's place in the order of its sequence
  // Ranges count these, of which a sequence has several where it has full rows along with others.
  std::vector<AxisSequence> sequences_;
  std::vector<int32_t> order_, queries_;
  std::vector<CostedRange> ranges_;
  int64_t partials_ = 0;
  int64_t full_rows_ = 0;       // the extent's
  int64_t most_full_rows_ = 0;  // of a sequence
  bool any_outside_ = false;
};

}  // namespace sparse_ops
