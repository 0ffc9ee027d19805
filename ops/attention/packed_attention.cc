#include "attention/packed_attention.h"

#include <cmath>
#include <cstring>

#include "runtime/status.h"

namespace sparse_ops {
namespace {

// Whether a thread may treat the number as 0. It is told by its bits, as this thread may do so too.
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

// Checks the shape alone: the values may lie on a device, and Launch checks them.
void CheckBorders(const char* op, const Input<int32_t>& cu_seqlens) {
  if (cu_seqlens.shape.size() == 1 && cu_seqlens.shape[0] > 0) return;
  throw InvalidArgument(Message(op, ": ", cu_seqlens.name, " has shape ", ToString(cu_seqlens.shape),
                                "; accepted: (sequences + 1,), starting with 0"));
}

template <class Element>
void CheckRows(const char* op, const Input<Element>& input) {
  if (input.shape[0] <= kMostKeys) return;
  throw InvalidArgument(Message(op, ": ", input.name, " has ", input.shape[0], " rows; accepted: at most ",
                                kMostKeys, ", as cu_seqlens is int32"));
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

// Checks the shape of query, whose width gives the head size.
template <class Element>
AttentionInputs<Element>::AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context)
    : query(context.GetInput(AttentionSignature<Element>::query)),
      key(context.GetInput(AttentionSignature<Element>::key)),
      value(context.GetInput(AttentionSignature<Element>::value)),
      op(attributes.op) {
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
  if (key.shape != query.shape || value.shape != query.shape) {
    throw InvalidArgument(Message(op, ": query, key and value have shapes ", ToString(query.shape), ", ",
                                  ToString(key.shape), ", ", ToString(value.shape),
                                  "; accepted: the same (tokens, num_heads * head_size) for all three"));
  }
  tokens = queries;
  borders = query_borders = context.GetInput(cu_seqlens);
  CheckBorders(op, borders);
}

template <class Element>
AttentionInputs<Element>::AttentionInputs(const AttentionAttributes& attributes, const KernelContext& context,
                                          const Operand<int32_t>& cu_seqlens_q,
                                          const Operand<int32_t>& cu_seqlens_k)
    : AttentionInputs(attributes, context) {
  CheckMatrix(op, key);
  CheckRows(op, key);
  tokens = key.shape[0];
  if (value.shape != key.shape || key.shape[1] != query.shape[1]) {
    throw InvalidArgument(Message(op, ": key and value have shapes ", ToString(key.shape), ", ",
                                  ToString(value.shape), "; accepted: the same (tokens, ", query.shape[1],
                                  ") for both, as query has width ", query.shape[1]));
  }
  query_borders = context.GetInput(cu_seqlens_q);
  borders = context.GetInput(cu_seqlens_k);
  CheckBorders(op, query_borders);
  CheckBorders(op, borders);
  if (query_borders.shape != borders.shape) {
    throw InvalidArgument(Message(op, ": ", cu_seqlens_q.name, " and ", cu_seqlens_k.name, " have ",
                                  query_borders.shape[0], " and ", borders.shape[0],
                                  " elements; accepted: as many in both, sequences + 1"));
  }
}

template <class Element>
PackedAttention<Element> TensorsOf(const AttentionAttributes& attributes,
                                   const AttentionInputs<Element>& inputs, Element* output) {
  PackedAttention<Element> tensors{};
  tensors.query = inputs.query.data;
  tensors.key = inputs.key.data;
  tensors.value = inputs.value.data;
  tensors.output = output;
  tensors.num_heads = attributes.num_heads;
  tensors.head_size = inputs.head_size;
  tensors.scale = inputs.scale;
  return tensors;
}

#define SPARSE_OPS_INSTANTIATE(Element)                                                                    \
  template struct AttentionInputs<Element>;                                                                \
  template PackedAttention<Element> TensorsOf(const AttentionAttributes&, const AttentionInputs<Element>&, \
                                              Element*);
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
