// What the host asks of CUDA for each call, without CUDA (no_cuda/cuda_runtime.h): how much shared memory
// kernels may have, and where scratch comes from. test_cuda_device.py compiles and runs it; what is wrong is
// printed.
#include <cstdio>
#include <thread>
#include <vector>

#include "cuda/device.h"
#include "cuda/device_scratch.h"

using namespace sparse_ops;

namespace {

int failed = 0;

void Expect(bool is_so, const char* what) {
  if (is_so) return;
  std::printf("%s\n", what);
  ++failed;
}

// Threads that launch two kernels on two devices, as sessions do.
void CheckSharedMemory() {
  static const char kernels[2] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] {
      own_device = i % 2;
      for (int call = 0; call < 100; ++call) cuda::AllowLargestSharedMemory("op", &kernels[call % 2]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Expect(attributes_set == 4, "the attribute is set once for each kernel and device");
  Expect(attributes_wrong == 0, "to all that a block may have besides what the kernel itself has");
}

void CheckScratch() {
  {
    const cuda::DeviceScratch first("op", nullptr, 1000), second("op", nullptr, 500), none("op", nullptr, 0);
    Expect(first.data() != nullptr && none.data() == nullptr, "memory is had where it is asked for");
  }
  const cuda::DeviceScratch third("op", nullptr, 200);
  Expect(pools_made == 1, "calls on one device have one pool");
  Expect(cuda::ScratchPools::Get().OfDevice("op", 0)->kept == UINT64_MAX, "the pool gives nothing back");
  Expect(cuda::ScratchPools::Get().TakePeak() == 1500, "the peak is of what there was at once");
  Expect(cuda::ScratchPools::Get().TakePeak() == 200, "the next peak begins with what there still is");
  own_device = 1;
  const cuda::DeviceScratch other("op", nullptr, 50);
  Expect(pools_made == 2, "each device has a pool");
  Expect(cuda::ScratchPools::Get().TakePeak() == 250, "the peak is of all devices");
}

}  // namespace

int main() {
  CheckSharedMemory();
  CheckScratch();
  return failed == 0 ? 0 : 1;
}
