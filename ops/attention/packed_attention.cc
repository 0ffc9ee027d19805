#include "attention/packed_attention.h"

#include <algorithm>
#include <cmath>

#include "cpu/instruction_set.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

// Multiply-adds of QK^T that are worth a task of their own, about 30 microseconds.
constexpr int64_t kTaskWork = int64_t{1} << 21;

void CheckMatrix(const char* op, const char* name, const Shape& shape) {
  if (shape.size() == 2) return;
  throw InvalidArgument(
      Message(op, ": ", name, " has shape ", ToString(shape), "; accepted: (tokens, num_heads * head_size)"));
}

std::vector<int64_t> CheckedBorders(const char* op, const Input<int32_t>& cu_seqlens, int64_t tokens) {
  if (cu_seqlens.shape.size() != 1 || cu_seqlens.shape[0] == 0) {
    throw InvalidArgument(Message(op, ": cu_seqlens has shape ", ToString(cu_seqlens.shape),
                                  "; accepted: (sequences + 1,), starting with 0"));
  }
  const std::vector<int64_t> borders(cu_seqlens.data, cu_seqlens.data + cu_seqlens.shape[0]);
  if (borders.front() != 0) {
    throw InvalidArgument(Message(op, ": cu_seqlens[0] is ", borders.front(), "; accepted: 0"));
  }
  for (size_t i = 1; i < borders.size(); ++i) {
    if (borders[i] < borders[i - 1]) {
      throw InvalidArgument(Message(op, ": cu_seqlens decreases from ", borders[i - 1], " to ", borders[i],
                                    " at position ", i, "; accepted: values that never decrease"));
    }
  }
  if (borders.back() != tokens) {
    throw InvalidArgument(Message(op, ": cu_seqlens ends with ", borders.back(), "; accepted: ", tokens,
                                  ", the number of rows of query"));
  }
  return borders;
}

// Cuts all queries into tasks of about kTaskWork: long sequences into several, short ones together.
std::vector<std::vector<QueryRange>> DivideWork(const std::vector<int64_t>& borders, int64_t num_heads,
                                                int64_t head_size, int64_t query_block) {
  std::vector<std::vector<QueryRange>> tasks;
  int64_t room = 0;
  for (size_t b = 0; b + 1 < borders.size(); ++b) {
    const int64_t length = borders[b + 1] - borders[b];
    const int64_t block_work = query_block * length * head_size;
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t first = 0; first < length;) {
        if (room <= 0) {
          tasks.emplace_back();
          room = kTaskWork;
        }
        const int64_t blocks = (room + block_work - 1) / block_work;
        const int64_t count = std::min(blocks * query_block, length - first);
        tasks.back().push_back({borders[b], length, first, count, head});
        first += count;
        room -= blocks * block_work;
      }
    }
  }
  return tasks;
}

}  // namespace

AttentionAttributes::AttentionAttributes(const KernelInfo& info, const char* op_name) : op(op_name) {
  const char* heads_accepted = "an integer >= 1 that divides the width of query";
  num_heads = info.Int("num_heads", heads_accepted);
  if (num_heads < 1) {
    throw InvalidArgument(
        Message(op, ": attribute num_heads is ", num_heads, "; accepted: ", heads_accepted));
  }
  const char* scale_accepted = "a finite number >= 0, where 0 stands for 1 / sqrt(head_size)";
  scale = info.FloatOr("scale", 0.0f, scale_accepted);
  if (!(scale >= 0.0f) || std::isinf(scale)) {
    throw InvalidArgument(Message(op, ": attribute scale is ", scale, "; accepted: ", scale_accepted));
  }
}

template <class Element>
AttentionInputs<Element>::AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context)
    : query(context.GetInput<Element>(0)),
      key(context.GetInput<Element>(1)),
      value(context.GetInput<Element>(2)) {
  const char* op = attributes.op;
  CheckMatrix(op, "query", query.shape);
  if (key.shape != query.shape || value.shape != query.shape) {
    throw InvalidArgument(Message(op, ": query, key and value have shapes ", ToString(query.shape), ", ",
                                  ToString(key.shape), ", ", ToString(value.shape),
                                  "; accepted: the same (tokens, num_heads * head_size) for all three"));
  }
  tokens = query.shape[0];
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
  borders = CheckedBorders(op, context.GetInput<int32_t>(3), tokens);
}

template <class Element>
void RunPackedAttention(KernelContext& context, const AttentionInputs<Element>& inputs,
                        const PackedAttention<Element>& tensors, AttentionKernel<Element> kernel,
                        size_t (*scratch)(int64_t, int64_t)) {
  const auto tasks =
      DivideWork(inputs.borders, tensors.num_heads, inputs.head_size, ChosenKernels().query_block);
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < inputs.borders.size(); ++b) {
    longest = std::max(longest, inputs.borders[b + 1] - inputs.borders[b]);
  }
  context.ParallelFor(tasks.size(), scratch(longest, inputs.head_size), [&](size_t task, float* memory) {
    for (const QueryRange& range : tasks[task]) kernel(tensors, range, memory);
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
