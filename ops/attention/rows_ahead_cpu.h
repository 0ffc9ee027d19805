// Rows that are prefetched into the second cache before they are read. The rows of one head lie too far apart
// for the processor to predict which come next. It can wait for about twenty cache lines at a time: asked for
// hundreds, it stalls until they have come. So they are prefetched a few at a time, between computations.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Prefetches `size` elements. Always inline, as GCC removes calls of a function that does nothing but
// prefetch.
template <class Element>
[[gnu::always_inline]] inline void Prefetch(const Element* from, int64_t size) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Element));
  for (int64_t d = 0; d < size; d += kLine) __builtin_prefetch(from + d, 0, 2);
}

// The rows that the range after this one reads and writes.
template <class Element>
class RowsAhead {
 public:
  // next: null after the last range. The kernel of `range` calls AfterScoring and AfterSumming so many times.
  RowsAhead(const PackedAttention<Element>& tensors, const QueryRange& range, const QueryRange* next,
            int64_t scoring_steps, int64_t summing_steps)
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
    rows_per_scoring_ = (rows + scoring_steps - 1) / scoring_steps;
    rows_per_summing_ = (rows + summing_steps - 1) / summing_steps;
  }

  // To be called after each step of scoring: prefetches some queries and keys.
  [[gnu::always_inline]] void AfterScoring() {
    PrefetchSome(&queries_, rows_per_scoring_);
    PrefetchSome(&keys_, rows_per_scoring_);
  }
  // To be called after each step of summing: prefetches some values and outputs.
  [[gnu::always_inline]] void AfterSumming() {
    PrefetchSome(&values_, rows_per_summing_);
    PrefetchSome(&outputs_, rows_per_summing_);
  }

 private:
  // More keys and values than these would evict those that are being read.
  static constexpr int64_t kMostKeys = 512;

  struct Rows {
    const Element* first;
    int64_t count;
  };

  [[gnu::always_inline]] void PrefetchSome(Rows* rows, int64_t most) {
    for (int64_t left = most; left > 0 && rows->count > 0; --left) {
      Prefetch(rows->first, head_size_);
      rows->first += stride_;
      --rows->count;
    }
  }

  ptrdiff_t stride_;
  int64_t head_size_;
  Rows queries_{}, keys_{}, values_{}, outputs_{};
  int64_t rows_per_scoring_ = 0, rows_per_summing_ = 0;
};

// Prefetches nothing: for where the next range is not known.
struct NoRowsAhead {
  void AfterScoring() const {}
};

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
