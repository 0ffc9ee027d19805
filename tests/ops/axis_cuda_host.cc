// Axis attention's kernels for GPUs run by a CPU, as cuda_host.cc runs the others. Shared and device memory
// begin as NaN and as numbers that are no index, and what lies behind them must stay as it was.
#include <algorithm>
#include <cstring>
#include <vector>

#include "axis_attention/axis_launch_cuda.h"
#include "visit_element.h"

using namespace sparse_ops;

namespace {

constexpr size_t kGuard = 1024;
constexpr int32_t kFresh = -1;
constexpr int32_t kGuardWord = 0x5a5a5a5a;

class Memory {
 public:
  explicit Memory(int64_t words) : words_(static_cast<size_t>(words)), memory_(words_ + kGuard, kGuardWord) {
    Refresh();
  }
  void Refresh() { std::fill_n(memory_.begin(), words_, kFresh); }
  int32_t* data() { return memory_.data(); }
  bool is_whole() const {
    return std::all_of(memory_.end() - kGuard, memory_.end(),
                       [](int32_t word) { return word == kGuardWord; });
  }

 private:
  size_t words_;
  std::vector<int32_t> memory_;
};

class HostDevice {
 public:
  explicit HostDevice(int64_t full_blocks) : full_blocks_(full_blocks) {}

  int32_t* Scratch(int64_t words) {
    scratch_.emplace_back(words);
    return scratch_.back().data();
  }
  void PlanBorders(const cuda::AxisPairs& pairs, const cuda::Offsets& offsets) {
    cuda::PlanBorders(cuda::Warp(0), pairs, offsets);
  }
  void AddOffsets(const cuda::AxisPairs& pairs, const cuda::Offsets& offsets) {
    cuda::AddOffsets(cuda::Warp(0), pairs, offsets);
  }
  void PlanSequences(const cuda::AxisPairs& pairs) {
    for (int32_t s = 0; s < pairs.sizes.sequences; ++s) cuda::PlanSequence(cuda::Warp(0), pairs, s);
  }

  template <class Element, int kPadded, bool kVector, bool kSparsegen>
  void Attend(const PackedAttention<Element>& tensors, const cuda::AxisPairs& pairs) {
    Memory memory(cuda::AxisMemoryOf<kPadded, kSparsegen>(pairs.random_keys).Words());
    auto* shared = reinterpret_cast<float*>(memory.data());
    const cuda::AxisBlock<Element, kPadded, kVector, kSparsegen> block(tensors, pairs, shared);
    for (int64_t b = 0; b < full_blocks_; ++b) {
      memory.Refresh();
      block.AttendFull(b, full_blocks_);
    }
    for (int64_t b = 0; b < pairs.sizes.Groups() * tensors.num_heads; ++b) {
      memory.Refresh();
      block.AttendGroup(b);
    }
    is_whole_ = memory.is_whole();
  }

  bool is_whole() const {
    return is_whole_ &&
           std::all_of(scratch_.begin(), scratch_.end(), [](const Memory& m) { return m.is_whole(); });
  }

 private:
  const int64_t full_blocks_;
  std::vector<Memory> scratch_;
  bool is_whole_ = true;
};

}  // namespace

extern "C" {

// As AxisProblem has it; element 0 is float32, 1 float16, 2 bfloat16.
struct HostAxisAttention {
  int element;
  const void *query, *key, *value;
  const uint8_t *rows, *columns;
  const int32_t *query_borders, *key_borders;
  const int64_t* query_tokens;  // null: the queries are the tokens
  const int32_t* offsets;       // rising, each once
  void* output;
  int32_t* support;  // null: it is not asked for
  int64_t sequences, query_rows, key_rows, num_heads, head_size, offset_count, random_keys, seed, full_blocks;
  int sparsegen;
  float scale, divisor;
};

// 0, or 1 where memory was written to that is not the call's.
int RunAxisAttention(const HostAxisAttention* call) {
  const FixedPairs fixed{{call->offsets, call->offsets + call->offset_count},
                         call->random_keys,
                         static_cast<uint64_t>(call->seed)};
  const cuda::AxisInputs inputs{call->sequences,   call->query_rows,   call->key_rows, call->query_borders,
                                call->key_borders, call->query_tokens, call->rows,     call->columns};
  HostDevice device(call->full_blocks);
  VisitElement(call->element, [&](auto element) {
    using Element = decltype(element);
    const PackedAttention<Element> tensors{static_cast<const Element*>(call->query),
                                           static_cast<const Element*>(call->key),
                                           static_cast<const Element*>(call->value),
                                           static_cast<Element*>(call->output),
                                           call->support,
                                           call->num_heads,
                                           call->head_size,
                                           call->scale,
                                           call->divisor};
    cuda::AxisLaunch<HostDevice, Element>(device, tensors, inputs, fixed, call->sparsegen != 0);
  });
  return device.is_whole() ? 0 : 1;
}
}
