// Rows that are brought to the second cache before they are read. The rows of one head lie too far apart for
// the processor to guess which are next. Of lines that are asked for it waits for some twenty at a time:
// asked for by the hundred it stands until they have come, so they are asked for a few at a time, between
// computations.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Has `size` elements brought. Inline, as GCC takes a call of a function that only prefetches for one that
// does nothing.
template <class Element>
[[gnu::always_inline]] inline void Bring(const Element* from, int64_t size) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Element));
  for (int64_t d = 0; d < size; d += kLine) __builtin_prefetch(from + d, 0, 2);
}

// What the range after this one reads and writes.
template <class Element>
class RowsAhead {
 public:
  // next: null behind the last range. The kernel of `range` has `scored` and `summed` steps.
  RowsAhead(const PackedAttention<Element>& tensors, const QueryRange& range, const QueryRange* next,
            int64_t scored, int64_t summed)
      : stride_(tensors.num_heads * tensors.head_size), head_size_(tensors.head_size) {
    if (next == nullptr) return;
    const bool same_keys = next->sequence == range.sequence && next->head == range.head;
    const int64_t keys = same_keys || next->sequence_length > kMostKeys ? 0 : next->sequence_length;
    const ptrdiff_t query = (next->query_begin + next->first) * stride_ + next->head * head_size_;
    const ptrdiff_t key = next->sequence_begin * stride_ + next->head * head_size_;
    queries_ = {tensors.query + query, next->count};
    keys_ = {tensors.key + key, keys};
    values_ = {tensors.value + key, keys};
    outputs_ = {tensors.output + query, next->count};
    const int64_t rows = next->count > keys ? next->count : keys;
    scored_ = (rows + scored - 1) / scored;
    summed_ = (rows + summed - 1) / summed;
  }

  // A step of scoring: some of the queries and keys.
  [[gnu::always_inline]] void Scored() {
    BringSome(&queries_, scored_);
    BringSome(&keys_, scored_);
  }
  // A step of summing: some of the values and outputs.
  [[gnu::always_inline]] void Summed() {
    BringSome(&values_, summed_);
    BringSome(&outputs_, summed_);
  }

 private:
  // Keys and values of more would push those out that are being read.
  static constexpr int64_t kMostKeys = 512;

  struct Rows {
    const Element* first;
    int64_t count;
  };

  [[gnu::always_inline]] void BringSome(Rows* rows, int64_t most) {
    for (int64_t left = most; left > 0 && rows->count > 0; --left) {
      Bring(rows->first, head_size_);
      rows->first += stride_;
      --rows->count;
    }
  }

  ptrdiff_t stride_;
  int64_t head_size_;
  Rows queries_{}, keys_{}, values_{}, outputs_{};
  int64_t scored_ = 0, summed_ = 0;  // rows of a step
};

// Where nothing is known of the next range.
struct NoRowsAhead {
  void Scored() const {}
};

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
