#include "attention/packed_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/instruction_set.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

// Whether a thread may take the number for 0: told by its bits, as this thread may be one.
bool IsSubnormal(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  return (bits & 0x7f800000u) == 0 && (bits & 0x007fffffu) != 0;
}

template <class Element>
void CheckMatrix(const char* op, const Input<Element>& input) {
  if (input.shape.size() == 2) return;
  throw InvalidArgument(Message(op, ": ", input.name, " has shape ", ToString(input.shape),
                                "; accepted: (tokens, num_heads * head_size)"));
}

// `of` has the rows that the borders are of.
template <class Element>
std::vector<int64_t> CheckedBorders(const char* op, const Input<int32_t>& cu_seqlens,
                                    const Input<Element>& of) {
  const char* name = cu_seqlens.name;
  if (cu_seqlens.shape.size() != 1 || cu_seqlens.shape[0] == 0) {
    throw InvalidArgument(Message(op, ": ", name, " has shape ", ToString(cu_seqlens.shape),
                                  "; accepted: (sequences + 1,), starting with 0"));
  }
  const std::vector<int64_t> borders(cu_seqlens.data, cu_seqlens.data + cu_seqlens.shape[0]);
  if (borders.front() != 0) {
    throw InvalidArgument(Message(op, ": ", name, "[0] is ", borders.front(), "; accepted: 0"));
  }
  for (size_t i = 1; i < borders.size(); ++i) {
    if (borders[i] < borders[i - 1]) {
      throw InvalidArgument(Message(op, ": ", name, " decreases from ", borders[i - 1], " to ", borders[i],
                                    " at position ", i, "; accepted: values that never decrease"));
    }
  }
  if (borders.back() != of.shape[0]) {
    throw InvalidArgument(Message(op, ": ", name, " ends with ", borders.back(), "; accepted: ", of.shape[0],
                                  ", the number of rows of ", of.name));
  }
  return borders;
}

template <class Element>
void CheckRows(const char* op, const Input<Element>& input) {
  if (input.shape[0] <= kMostKeys) return;
  throw InvalidArgument(Message(op, ": ", input.name, " has ", input.shape[0], " rows; accepted: at most ",
                                kMostKeys, ", as cu_seqlens is int32"));
}

// Keys and values of more would push those out that are being read.
constexpr int64_t kPrefetchedKeys = 512;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Has one head of some rows brought to the second cache. Inline, as GCC takes a call of a function that only
// prefetches for one that does nothing.
template <class Element>
[[gnu::always_inline]] inline void PrefetchRows(const PackedAttention<Element>& tensors,
                                                const Element* tensor, int64_t head, int64_t first,
                                                int64_t count) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Element));
  const int64_t stride = tensors.num_heads * tensors.head_size;
  const Element* row = tensor + first * stride + head * tensors.head_size;
  for (int64_t t = 0; t < count; ++t, row += stride) {
    for (int64_t d = 0; d < tensors.head_size; d += kLine) __builtin_prefetch(row + d, 0, 2);
  }
}

// Has what a range reads and writes brought, while the one before it is computed: the rows of one head lie
// too far apart for the processor to guess which are next.
template <class Element>
[[gnu::always_inline]] inline void Prefetch(const PackedAttention<Element>& tensors, const QueryRange& range,
                                            const QueryRange& before) {
  const int64_t first = range.query_begin + range.first;
  PrefetchRows<Element>(tensors, tensors.query, range.head, first, range.count);
  PrefetchRows<Element>(tensors, tensors.output, range.head, first, range.count);
  const bool same_keys = range.sequence == before.sequence && range.head == before.head;
  if (same_keys || range.sequence_length > kPrefetchedKeys) return;
  PrefetchRows<Element>(tensors, tensors.key, range.head, range.sequence_begin, range.sequence_length);
  PrefetchRows<Element>(tensors, tensors.value, range.head, range.sequence_begin, range.sequence_length);
}

// The range behind the i-th of a task; null behind the last of all.
const QueryRange* Next(const std::vector<std::vector<QueryRange>>& tasks, size_t task, size_t i) {
  if (i + 1 < tasks[task].size()) return &tasks[task][i + 1];
  return task + 1 < tasks.size() ? &tasks[task + 1].front() : nullptr;
}

}  // namespace

AttentionAttributes::AttentionAttributes(const KernelInfo& info) : op(info.op()) {
  using Signature = AttentionSignature<float>;  // the attributes are those of any element type
  const char* heads_accepted = "an integer >= 1 that divides the width of query";
  num_heads = info.Get(Signature::num_heads, heads_accepted);
  if (num_heads < 1) info.Refuse(Signature::num_heads, num_heads, heads_accepted);
  const char* scale_accepted = "a finite number >= 2^-126, or 0, which stands for 1 / sqrt(head_size)";
  scale = info.Get(Signature::scale, scale_accepted);
  if (!(scale >= 0.0f) || std::isinf(scale) || IsSubnormal(scale)) {
    info.Refuse(Signature::scale, scale, scale_accepted);
  }
}

// The width is that of query.
template <class Element>
AttentionInputs<Element>::AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context)
    : query(context.GetInput(AttentionSignature<Element>::query)),
      key(context.GetInput(AttentionSignature<Element>::key)),
      value(context.GetInput(AttentionSignature<Element>::value)) {
  const char* op = attributes.op;
  CheckMatrix(op, query);
  CheckRows(op, query);
  const int64_t width = query.shape[1];
  head_size = width / attributes.num_heads;
  if (width % attributes.num_heads != 0) {
    throw InvalidArgument(Message(op, ": attribute num_heads is ", attributes.num_heads,
                                  ", which does not divide the width of query, ", width,
                                  "; accepted: a divisor of it"));
  }
  if (head_size < kMinHeadSize || head_size > kMaxHeadSize) {
    throw InvalidArgument(Message(op, ": head size is ", head_size, " (width ", width, " / num_heads ",
                                  attributes.num_heads, "); accepted: ", kMinHeadSize, " to ", kMaxHeadSize));
  }
  scale = attributes.scale > 0.0f ? attributes.scale : 1.0f / std::sqrt(static_cast<float>(head_size));
  queries = query.shape[0];
}

template <class Element>
AttentionInputs<Element>::AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                                          const Operand<int32_t>& cu_seqlens)
    : AttentionInputs(attributes, context) {
  const char* op = attributes.op;
  if (key.shape != query.shape || value.shape != query.shape) {
    throw InvalidArgument(Message(op, ": query, key and value have shapes ", ToString(query.shape), ", ",
                                  ToString(key.shape), ", ", ToString(value.shape),
                                  "; accepted: the same (tokens, num_heads * head_size) for all three"));
  }
  tokens = queries;
  borders = CheckedBorders(op, context.GetInput(cu_seqlens), query);
  query_borders = borders;
}

template <class Element>
AttentionInputs<Element>::AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                                          const Operand<int32_t>& cu_seqlens_q,
                                          const Operand<int32_t>& cu_seqlens_k)
    : AttentionInputs(attributes, context) {
  const char* op = attributes.op;
  CheckMatrix(op, key);
  CheckRows(op, key);
  tokens = key.shape[0];
  if (value.shape != key.shape || key.shape[1] != query.shape[1]) {
    throw InvalidArgument(Message(op, ": key and value have shapes ", ToString(key.shape), ", ",
                                  ToString(value.shape), "; accepted: the same (tokens, ", query.shape[1],
                                  ") for both, as query has width ", query.shape[1]));
  }
  query_borders = CheckedBorders(op, context.GetInput(cu_seqlens_q), query);
  borders = CheckedBorders(op, context.GetInput(cu_seqlens_k), key);
  if (query_borders.size() != borders.size()) {
    throw InvalidArgument(Message(op, ": ", cu_seqlens_q.name, " and ", cu_seqlens_k.name, " have ",
                                  query_borders.size(), " and ", borders.size(),
                                  " elements; accepted: as many in both, sequences + 1"));
  }
}

std::vector<std::vector<QueryRange>> DivideWork(const std::vector<Stretch>& stretches, int64_t num_heads,
                                                int64_t query_block, int64_t task_work) {
  std::vector<std::vector<QueryRange>> tasks;
  int64_t room = 0;
  for (const Stretch& stretch : stretches) {
    const int64_t last = stretch.range.first + stretch.range.count;
    for (int64_t head = 0; head < num_heads; head += stretch.range.heads) {
      const int64_t heads = std::min(stretch.range.heads, num_heads - head);
      const int64_t block_work = stretch.block_work * heads;
      for (int64_t first = stretch.range.first; first < last;) {
        if (room <= 0) {
          tasks.emplace_back();
          room = task_work;
        }
        const int64_t blocks = CeilDivide(last - first, query_block);
        const int64_t fitting = std::min(CeilDivide(room, block_work), blocks);
        QueryRange range = stretch.range;
        range.head = head;
        range.heads = heads;
        range.first = first;
        range.count = std::min(fitting * query_block, last - first);
        tasks.back().push_back(range);
        first += range.count;
        room -= fitting * block_work;
      }
    }
  }
  return tasks;
}

template <class Element>
void RunPackedAttention(KernelContext& context, const AttentionInputs<Element>& inputs,
                        const PackedAttention<Element>& tensors, AttentionKernel<Element> kernel,
                        size_t (*scratch)(int64_t, int64_t)) {
  const int64_t query_block = ChosenKernels().query_block;
  std::vector<Stretch> stretches;
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < inputs.borders.size(); ++b) {
    const int64_t length = inputs.borders[b + 1] - inputs.borders[b];
    const int64_t queries = inputs.query_borders[b + 1] - inputs.query_borders[b];
    if (queries == 0) continue;
    QueryRange range{};
    range.sequence = static_cast<int64_t>(b);
    range.sequence_begin = inputs.borders[b];
    range.sequence_length = length;
    range.query_begin = inputs.query_borders[b];
    range.sequence_queries = range.count = queries;
    range.heads = 1;
    // A query without keys is work too: its output is written.
    stretches.push_back({range, query_block * std::max<int64_t>(length, 1) * inputs.head_size});
    longest = std::max(longest, length);
  }
  const auto tasks = DivideWork(stretches, tensors.num_heads, query_block, kTaskWork);
  context.ParallelFor(tasks.size(), scratch(longest, inputs.head_size), [&](size_t task, float* memory) {
    for (size_t i = 0; i < tasks[task].size(); ++i) {
      const QueryRange& range = tasks[task][i];
      if (const QueryRange* next = Next(tasks, task, i)) Prefetch(tensors, *next, range);
      kernel(tensors, range, memory);
    }
  });
}

#define SPARSE_OPS_INSTANTIATE(Element)                                                       \
  template struct AttentionInputs<Element>;                                                   \
  template void RunPackedAttention(KernelContext&, const AttentionInputs<Element>&,           \
                                   const PackedAttention<Element>&, AttentionKernel<Element>, \
                                   size_t (*)(int64_t, int64_t));
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
