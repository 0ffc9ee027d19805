// What a kernel on the CPU has beyond KernelContext: the thread pool, and scratch memory on the host.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/kernel_context.h"

namespace sparse_ops {

class CpuContext : public KernelContext {
 public:
  using KernelContext::KernelContext;

  // Runs task(i, scratch) for i in [0, tasks) on the session's intra-op threads and rethrows the first error.
  // scratch: scratch_floats floats, aligned to 64 bytes. The first 64 bytes are 0 for the first task that
  // gets a buffer; the rest is not cleared. The next task that gets it finds what the one before left there.
  //
  // There are as many scratch buffers as tasks running at once. They come from the session's CPU allocator,
  // so the session's memory settings apply to them, and all are given back before this returns.
  void ParallelFor(size_t tasks, size_t scratch_floats, const std::function<void(size_t, float*)>& task);

  // Calls use(memory) with so many floats of scratch memory, aligned to 64 bytes, which it keeps while it
  // runs.
  void WithScratch(size_t floats, const std::function<void(float*)>& use);
};

struct CpuProvider {
  using Context = CpuContext;
  static constexpr const char* kName = "CPUExecutionProvider";
  static constexpr OrtMemType kInputMemory = OrtMemTypeDefault;
};

}  // namespace sparse_ops
