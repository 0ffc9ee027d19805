#pragma once

#include "attention/packed_attention_cpu.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

// Some queries of a range's sequence and head.
template <class Element>
struct QueryRows {
  const PackedAttention<Element>& tensors;
  const QueryRange& range;
  const int32_t* rows;  // counted within the sequence
  int64_t count;

  const Element* query(int64_t i) const { return tensors.query + Offset(i); }
  Element* output(int64_t i) const { return tensors.output + Offset(i); }
  int32_t* support(int64_t i) const {
    return tensors.support + (range.query_begin + rows[i]) * tensors.num_heads + range.head;
  }
  QueryRows Part(int64_t first, int64_t part_count) const {
    return {tensors, range, rows + first, part_count};
  }
  ptrdiff_t stride() const { return tensors.num_heads * tensors.head_size; }

 private:
  ptrdiff_t Offset(int64_t i) const {
    return (range.query_begin + rows[i]) * stride() + range.head * tensors.head_size;
  }
};

// Up to kPanelQueries queries of a range, from its query `first` on, whose numbers `rows` takes.
template <class Element>
inline QueryRows<Element> RowsFrom(const PackedAttention<Element>& tensors, const QueryRange& range,
                                   int64_t first, int32_t* rows) {
  const int64_t count = Min(kPanelQueries, range.first + range.count - first);
  for (int64_t i = 0; i < count; ++i) rows[i] = static_cast<int32_t>(first + i);
  return {tensors, range, rows, count};
}

// queries -> panel (head_size, kPanelQueries); 0 where there is no query.
template <class Element>
inline void PackRows(const QueryRows<Element>& queries, float* room, float* panel) {
  const int64_t head_size = queries.tensors.head_size;
  bool in_a_row = true;
  for (int64_t i = 1; i < queries.count; ++i) in_a_row &= queries.rows[i] == queries.rows[i - 1] + 1;
  if (in_a_row) {
    PackQueries(queries.query(0), queries.stride(), queries.count, head_size, room, panel);
    return;
  }
  for (int64_t d = 0; d < head_size * kPanelQueries; d += kLanes) Store(panel + d, Floats{});
  const ptrdiff_t room_stride = RoundUp(head_size, kLanes);
  for (int64_t first = 0; first < queries.count; first += kQueryRows) {
    const int64_t rows = Min(kQueryRows, queries.count - first);
    for (int64_t r = 0; r < rows; ++r) {
      CopyRow(queries.query(first + r), head_size, room + r * room_stride);
    }
    Transpose(room, room_stride, rows, head_size, panel + first, kPanelQueries);
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
