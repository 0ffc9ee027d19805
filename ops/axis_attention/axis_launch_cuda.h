// One call of axis attention on a device: what the host decides, by sizes and attributes alone.
#pragma once

#include <cstdint>
#include <limits>

#include "axis_attention/axis_block_cuda.h"
#include "axis_attention/fixed_pairs.h"

namespace sparse_ops {
namespace cuda {

// A pair of each of a tile's 16 queries, scored by itself, costs about as much as this many keys of a band.
constexpr int64_t kPairCost = 28;

// The inputs besides query, key and value, in device memory.
struct AxisInputs {
  int64_t sequences, queries, tokens;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
  const int64_t* query_tokens;  // null: query q is token q
  const uint8_t *rows, *columns;
};

// Offsets up to `reach` are a band, the others pairs, such that a long sequence costs least. It depends on
// the node's attributes alone, so that a sequence is computed in the same way whatever others there are.
struct AxisReach {
  int32_t reach;
  int32_t near_offsets;
};

inline AxisReach ReachOf(const FixedPairs& fixed) {
  const auto offsets = static_cast<int64_t>(fixed.offsets.size());
  const auto most = std::numeric_limits<int32_t>::max();
  if (fixed.random_keys > kFewDrawn) return {most, most};
  const auto pairs = [&](int64_t first) {
    return 2 * (offsets - first) - (first == 0 && offsets > 0 && fixed.offsets[0] == 0 ? 1 : 0);
  };
  AxisReach best{-1, 0};
  int64_t least = kPairCost * pairs(0);
  for (int64_t o = 0; o < offsets; ++o) {
    const int64_t offset = fixed.offsets[static_cast<size_t>(o)];
    const int64_t band = CeilDivide(kWarpQueries + 2 * offset, kChunkKeys) * kChunkKeys;
    const int64_t cost = band + kPairCost * pairs(o + 1);
    if (cost >= least) continue;
    least = cost;
    best = {static_cast<int32_t>(offset), static_cast<int32_t>(o + 1)};
  }
  return best;
}

// Runs one call on a device, which has
//
//   int32_t* Scratch(int64_t words)                       memory for as long as the call runs
//   PlanBorders(pairs, offsets), AddOffsets(pairs, offsets), PlanSequences(pairs)
//   Attend<Element, kPadded, kVector, kSparsegen>(tensors, pairs)
//
// Each of these runs after those before it.
template <class Device, class Element>
class AxisLaunch {
 public:
  AxisLaunch(Device& device, const PackedAttention<Element>& tensors, const AxisInputs& inputs,
             const FixedPairs& fixed, bool sparsegen)
      : device_(device), tensors_(tensors) {
    if (inputs.queries == 0) return;
    const AxisPairs pairs = Plan(inputs, fixed);
    const auto offsets = [&](int32_t first) {
      Offsets some{first, Lesser(pairs.sizes.offsets - first, kOffsetsAtOnce), {}};
      for (int32_t i = 0; i < some.count; ++i) some.at[i] = fixed.offsets[static_cast<size_t>(first + i)];
      return some;
    };
    device_.PlanBorders(pairs, offsets(0));
    for (int32_t first = kOffsetsAtOnce; first < pairs.sizes.offsets; first += kOffsetsAtOnce) {
      device_.AddOffsets(pairs, offsets(first));
    }
    device_.PlanSequences(pairs);
    sparsegen ? Attend<true>(pairs) : Attend<false>(pairs);
  }

 private:
  AxisPairs Plan(const AxisInputs& inputs, const FixedPairs& fixed) {
    AxisPairs pairs{};
    AxisSizes& sizes = pairs.sizes;
    sizes.sequences = static_cast<int32_t>(inputs.sequences);
    sizes.queries = static_cast<int32_t>(inputs.queries);
    sizes.tokens = static_cast<int32_t>(inputs.tokens);
    // The largest distance is the number of tokens, from a query before the first token to the last one.
    while (static_cast<size_t>(sizes.offsets) < fixed.offsets.size() &&
           fixed.offsets[static_cast<size_t>(sizes.offsets)] <= inputs.tokens) {
      ++sizes.offsets;
    }
    sizes.last_offset = sizes.offsets == 0 ? -1 : fixed.offsets[static_cast<size_t>(sizes.offsets) - 1];
    pairs.cu_seqlens_q = inputs.cu_seqlens_q;
    pairs.cu_seqlens_k = inputs.cu_seqlens_k;
    pairs.query_tokens = inputs.query_tokens;
    pairs.is_row = inputs.rows;
    pairs.is_column = inputs.columns;
    const AxisReach reach = ReachOf(fixed);
    pairs.reach = reach.reach;
    pairs.near_offsets = reach.near_offsets;
    pairs.random_keys = static_cast<int32_t>(fixed.random_keys);
    pairs.seed_hash = Mix(fixed.seed);
    pairs.plan.Allocate(device_.Scratch(AxisPlanMemory{}.Allocate(nullptr, sizes)), sizes);
    return pairs;
  }

  // Whether rows are read 16 bytes at a time.
  bool IsVector() const {
    const auto at = [](const Element* tensor) { return reinterpret_cast<uintptr_t>(tensor); };
    const uintptr_t any = at(tensors_.query) | at(tensors_.key) | at(tensors_.value) | at(tensors_.output);
    return tensors_.head_size % 8 == 0 && any % 16 == 0;
  }

  // There are fewer kernels for odd head sizes and for float32.
  template <bool kSparsegen>
  void Attend(const AxisPairs& pairs) {
    const int64_t size = tensors_.head_size;
    if (IsVector()) {
      if constexpr (sizeof(Element) == 2) {
        if (size <= 32) return AttendOf<32, true, kSparsegen>(pairs);
      }
      if (size <= 64) return AttendOf<64, true, kSparsegen>(pairs);
      return AttendOf<128, true, kSparsegen>(pairs);
    }
    if (size <= 32) return AttendOf<32, false, kSparsegen>(pairs);
    return AttendOf<128, false, kSparsegen>(pairs);
  }
  template <int kPadded, bool kVector, bool kSparsegen>
  void AttendOf(const AxisPairs& pairs) {
    device_.template Attend<Element, kPadded, kVector, kSparsegen>(tensors_, pairs);
  }

  Device& device_;
  const PackedAttention<Element>& tensors_;
};

}  // namespace cuda
}  // namespace sparse_ops
