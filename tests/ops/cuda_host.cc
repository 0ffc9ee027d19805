// The kernels for GPUs run by a CPU, lane after lane (ops/cuda/execution.h). test_cuda_host.py compiles this
// with a C++ compiler alone and calls it. Shared memory is what a launch asks for: it begins as NaN, and what
// lies behind it must stay as it was.
#include <cstring>
#include <type_traits>
#include <vector>

#include "attention/attention_launch_cuda.h"
#include "axis_mask/axis_mask_cuda.h"
#include "softmax_attention/softmax_attention_cuda.h"
#include "sparsegen_attention/sparsegen_attention_cuda.h"
#include "sparsegen_lin/sparsegen_lin_cuda.h"
#include "visit_element.h"

using namespace sparse_ops;

namespace {

constexpr size_t kGuard = 4096;
constexpr unsigned char kGuardByte = 0xa5;

class SharedMemory {
 public:
  explicit SharedMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)), memory_(bytes_ + kGuard + 64) {
    std::memset(memory_.data(), 0xff, memory_.size());
    std::memset(data() + bytes_, kGuardByte, kGuard);
  }
  unsigned char* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return reinterpret_cast<unsigned char*>((address + 63) / 64 * 64);
  }
  bool is_whole() {
    for (size_t i = 0; i < kGuard; ++i) {
      if (data()[bytes_ + i] != kGuardByte) return false;
    }
    return true;
  }

 private:
  size_t bytes_;
  std::vector<unsigned char> memory_;
};

}  // namespace

extern "C" {

// As AttentionProblem has it; element 0 is float32, 1 float16, 2 bfloat16.
struct HostAttention {
  int element;
  const void *query, *key, *value;
  const int32_t *query_borders, *key_borders;
  int64_t sequences, query_rows, key_rows, num_heads, head_size;
  float scale, divisor;
  void* output;
  int32_t* support;      // null: softmax
  int64_t shared_bytes;  // that a block of the device may have
  int way;               // of sparsegen: 0 as launched, 1 all keys in lists, 2 all dense
};

// 0, or 1 where a block wrote beyond its shared memory.
int RunAttention(const HostAttention* call) {
  int result = 0;
  VisitElement(call->element, [&](auto element) {
    using Element = decltype(element);
    cuda::AttentionLaunch<Element> launch{};
    launch.tensors = {static_cast<const Element*>(call->query),
                      static_cast<const Element*>(call->key),
                      static_cast<const Element*>(call->value),
                      static_cast<Element*>(call->output),
                      call->support,
                      call->num_heads,
                      call->head_size,
                      call->scale,
                      call->divisor};
    launch.borders = {call->query_borders, call->key_borders, call->sequences, call->query_rows,
                      call->key_rows};
    launch.aligned = call->head_size * static_cast<int64_t>(sizeof(Element)) % 16 == 0;
    cuda::VisitWidth(call->head_size, [&](auto width) {
      constexpr int kWidth = decltype(width)::value;
      if (call->support == nullptr) {
        launch.tiles = cuda::QueryTileCount<cuda::AttentionBlock>(launch.borders);
        SharedMemory memory(cuda::SoftmaxMemory<Element, kWidth>::kBytes);
        for (int64_t block = launch.blocks() - 1; block >= 0; --block) {
          cuda::SoftmaxTile<Element, kWidth>(launch, memory.data()).Attend(block);
        }
        if (!memory.is_whole()) result = 1;
        return;
      }
      using Listed = cuda::SparsegenMemory<Element, kWidth, false>;
      cuda::SparsegenPlan plan = cuda::PlanSparsegen<Element, kWidth>(call->key_rows, call->shared_bytes);
      if (call->way != 0) {
        plan.count = 1;
        plan.limits[0] = {-1, call->key_rows, false, call->way == 1 ? Listed::Kind::kMostSlots : 0};
        plan.shared_bytes[0] = Listed::Bytes(plan.limits[0]);
      }
      for (int i = 0; i < plan.count; ++i) {
        SharedMemory memory(plan.shared_bytes[i]);
        const auto run = [&](auto is_resident) {
          constexpr bool kResident = decltype(is_resident)::value;
          using AnyBlock = typename cuda::SparsegenKind<Element, kResident>::AnyBlock;
          launch.tiles = cuda::QueryTileCount<AnyBlock>(launch.borders);
          for (int64_t block = launch.blocks() - 1; block >= 0; --block) {
            cuda::SparsegenTile<Element, kWidth, kResident>(launch, plan.limits[i], memory.data())
                .Attend(block);
          }
        };
        plan.limits[i].resident ? run(std::true_type()) : run(std::false_type());
        if (!memory.is_whole()) result = 1;
      }
    });
  });
  return result;
}

void RunSparsegenLin(int element, const void* scores, void* weights, int64_t length, int64_t inner,
                     int64_t count, float divisor) {
  VisitElement(element, [&](auto kind) {
    using Element = decltype(kind);
    const AxisRows<Element> rows{static_cast<const Element*>(scores), static_cast<Element*>(weights), length,
                                 inner};
    for (int64_t block = 0; block < cuda::SparsegenLinBlocks(count); ++block) {
      cuda::SparsegenLinOfBlock(rows, divisor, count, block);
    }
  });
}

void RunAxisMask(int element, const void* hidden, const void* weight, const void* bias, uint8_t* rows,
                 uint8_t* columns, int64_t tokens, int64_t width) {
  VisitElement(element, [&](auto kind) {
    using Element = decltype(kind);
    const AxisMaskProblem<Element> problem{static_cast<const Element*>(hidden),
                                           static_cast<const Element*>(weight),
                                           static_cast<const Element*>(bias),
                                           rows,
                                           columns,
                                           tokens,
                                           width};
    for (int64_t block = 0; block < cuda::AxisMaskBlocks(tokens); ++block)
      cuda::AxisMaskOfBlock(problem, block);
  });
}

// Each number read as float32, and each float32 written.
void ReadElements(int element, const void* from, float* to, int64_t count) {
  VisitElement(element, [&](auto kind) {
    for (int64_t i = 0; i < count; ++i) to[i] = cuda::ToFloat(static_cast<const decltype(kind)*>(from)[i]);
  });
}
void WriteElements(int element, const float* from, void* to, int64_t count) {
  VisitElement(element, [&](auto kind) {
    for (int64_t i = 0; i < count; ++i) cuda::FromFloat(from[i], static_cast<decltype(kind)*>(to) + i);
  });
}
}
