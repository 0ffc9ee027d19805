#include "runtime/cpu_context.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#include "cpu/poison.h"

namespace sparse_ops {
namespace {

constexpr size_t kAlignment = 64;

// Scratch buffers of one ParallelFor, one for each task that runs at the same time.
class ScratchPool {
 public:
  ScratchPool(const OrtApi& api, const OrtKernelContext* context, size_t floats)
      : api_(api), floats_(floats) {
    Check(api_, api_.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_info_));
    OrtStatus* status = api_.KernelContext_GetAllocator(context, memory_info_, &allocator_);
    if (status != nullptr) {
      api_.ReleaseMemoryInfo(memory_info_);
      Check(api_, status);
    }
  }

  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  ~ScratchPool() {
    for (void* buffer : buffers_) {
      if (buffer == nullptr) continue;
      Unpoison(Align(buffer), static_cast<int64_t>(floats_));
      if (OrtStatus* status = api_.AllocatorFree(allocator_, buffer)) api_.ReleaseStatus(status);
    }
    api_.ReleaseAllocator(allocator_);
    api_.ReleaseMemoryInfo(memory_info_);
  }

  // Null where nothing was asked for.
  float* Acquire() {
    if (floats_ == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      float* buffer = idle_.back();
      idle_.pop_back();
      return buffer;
    }
    idle_.reserve(buffers_.size() + 1);  // so that Release cannot fail
    void*& memory = buffers_.emplace_back(nullptr);
    Check(api_, api_.AllocatorAlloc(allocator_, floats_ * sizeof(float) + kAlignment, &memory));
    float* buffer = Align(memory);
    std::memset(buffer, 0, std::min(floats_ * sizeof(float), kAlignment));
    return buffer;
  }

  void Release(float* buffer) {
    if (buffer == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(buffer);
  }

 private:
  // Each allocation has kAlignment bytes to spare.
  static float* Align(void* memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

  const OrtApi& api_;
  const size_t floats_;
  OrtMemoryInfo* memory_info_ = nullptr;
  OrtAllocator* allocator_ = nullptr;
  std::mutex mutex_;
  std::vector<void*> buffers_;
  std::vector<float*> idle_;
};

struct ParallelTasks {
  const std::function<void(size_t, float*)>& task;
  ScratchPool& scratch;
  std::atomic<bool> failed{false};
  std::exception_ptr error;

  // ONNX Runtime calls this on its threads, so no exception may leave it.
  static void Run(void* self, size_t index) noexcept {
    auto& tasks = *static_cast<ParallelTasks*>(self);
    if (tasks.failed.load(std::memory_order_relaxed)) return;
    try {
      float* buffer = tasks.scratch.Acquire();
      tasks.task(index, buffer);
      tasks.scratch.Release(buffer);
    } catch (...) {
      if (!tasks.failed.exchange(true)) tasks.error = std::current_exception();
    }
  }
};

}  // namespace

void CpuContext::ParallelFor(size_t tasks, size_t scratch_floats,
                             const std::function<void(size_t, float*)>& task) {
  if (tasks == 0) return;
  ScratchPool scratch(api_, context_, scratch_floats);
  ParallelTasks parallel{task, scratch, {false}, nullptr};
  Check(api_, api_.KernelContext_ParallelFor(context_, &ParallelTasks::Run, tasks, 0, &parallel));
  if (parallel.error) std::rethrow_exception(parallel.error);
}

void CpuContext::WithScratch(size_t floats, const std::function<void(float*)>& use) {
  if (floats == 0) return use(nullptr);
  ScratchPool scratch(api_, context_, floats);
  use(scratch.Acquire());
}

}  // namespace sparse_ops
