#pragma once

#include "attention/packed_attention_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Some queries of a range's sequence and head, and the rows to prefetch while they are computed.
template <class Element>
struct QueryRows {
  const PackedAttention<Element>& tensors;
  const QueryRange& range;
  RowsAhead<Element>& ahead;
  const int32_t* rows;  // counted within the sequence
  int64_t count;

  const Element* query(int64_t i) const { return tensors.query + Offset(i); }
  Element* output(int64_t i) const { return tensors.output + Offset(i); }
  int32_t* support(int64_t i) const {
    return tensors.support + (range.query_begin + rows[i]) * tensors.num_heads + range.head;
  }
  QueryRows Part(int64_t first, int64_t part_count) const {
    return {tensors, range, ahead, rows + first, part_count};
  }
  ptrdiff_t stride() const { return tensors.num_heads * tensors.head_size; }

 private:
  ptrdiff_t Offset(int64_t i) const {
    return (range.query_begin + rows[i]) * stride() + range.head * tensors.head_size;
  }
};

// Packs up to kPanelQueries queries of a range, from query `first` on, and writes their numbers to `rows`.
template <class Element>
inline QueryRows<Element> PackFrom(const PackedAttention<Element>& tensors, const QueryRange& range,
                                   RowsAhead<Element>& ahead, int64_t first, int32_t* rows, float* buffer,
                                   float* panel) {
  for (int64_t i = 0; i < kPanelQueries; ++i) rows[i] = static_cast<int32_t>(first + i);
  const QueryRows<Element> queries{tensors, range, ahead, rows,
                                   Min(kPanelQueries, range.first + range.count - first)};
  PackQueries(queries.query(0), queries.stride(), queries.count, tensors.head_size, buffer, panel);
  return queries;
}

// PackQueries for queries that are not consecutive.
template <class Element>
inline void PackGathered(const QueryRows<Element>& queries, float* buffer, float* panel) {
  const int64_t head_size = queries.tensors.head_size;
  for (int64_t d = 0; d < head_size * kPanelQueries; d += kLanes) Store(panel + d, Floats{});
  const ptrdiff_t buffer_stride = RoundUp(head_size, kLanes);
  for (int64_t first = 0; first < queries.count; first += kQueryRows) {
    const int64_t rows = Min(kQueryRows, queries.count - first);
    for (int64_t r = 0; r < rows; ++r) {
      CopyRow(queries.query(first + r), head_size, buffer + r * buffer_stride);
    }
    Transpose(buffer, buffer_stride, rows, head_size, panel + first, kPanelQueries);
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
