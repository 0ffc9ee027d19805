// The arguments of a packed attention kernel on a GPU.
#pragma once

#include "attention/attention_tile_cuda.h"
#include "attention/packed_attention.h"

namespace sparse_ops {
namespace cuda {

inline bool IsAligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

template <class AnyBlock, class Element>
AttentionLaunch<Element> LaunchOf(const AttentionProblem<Element>& problem) {
  const AttentionInputs<Element>& inputs = problem.inputs;
  const PackedAttention<Element>& tensors = problem.tensors;
  AttentionLaunch<Element> launch{};
  launch.tensors = tensors;
  launch.borders = {inputs.query_borders.data, inputs.borders.data, inputs.sequences(), inputs.queries,
                    inputs.tokens};
  launch.aligned = tensors.head_size * static_cast<int64_t>(sizeof(Element)) % 16 == 0 &&
                   IsAligned(tensors.query) && IsAligned(tensors.key) && IsAligned(tensors.value);
  launch.tiles = QueryTileCount<AnyBlock>(launch.borders);
  return launch;
}

template <int kWidthValue>
struct Width {
  static constexpr int value = kWidthValue;
};

// Calls visit with the head size, rounded up to one that kernels are compiled for.
template <class Visit>
void VisitWidth(int64_t head_size, const Visit& visit) {
  if (head_size <= 32) return visit(Width<32>{});
  if (head_size <= 64) return visit(Width<64>{});
  visit(Width<128>{});
}
static_assert(kMaxHeadSize == 128, "VisitWidth knows every head size");

}  // namespace cuda
}  // namespace sparse_ops
