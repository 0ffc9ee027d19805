// Device memory for one call of a kernel, allocated and freed in the order of ONNX Runtime's stream, from a
// pool of CUDA. ONNX Runtime's arena would not do: it takes back what it lends to a custom op when Compute
// returns, while the kernels are still to run, and may give it to another stream.
#pragma once

#include <map>

#include "cuda/device.h"

namespace sparse_ops {
namespace cuda {

// One pool for each device, which keeps the memory it has had: CUDA's default pool gives all of it back
// whenever somebody waits for the device, so that each call would map it anew. Kernels may use it until the
// process ends, so it is never destroyed.
class ScratchPools {
 public:
  static ScratchPools& Get() {
    static auto& pools = *new ScratchPools;
    return pools;
  }

  cudaMemPool_t OfDevice(const char* op, int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pools_.find(device);
    if (found != pools_.end()) return found->second;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    cudaMemPool_t pool = nullptr;
    CheckCuda(op, cudaMemPoolCreate(&pool, &properties));
    uint64_t kept = UINT64_MAX;
    CheckCuda(op, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept));
    return pools_[device] = pool;
  }

  // The most bytes that calls have had at once, over all devices, since the last call of this function.
  uint64_t TakePeak() {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t peak = 0;
    for (const auto& [device, pool] : pools_) {
      uint64_t own = 0, reset = 0;
      CheckCuda("scratch", cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &own));
      CheckCuda("scratch", cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &reset));
      peak += own;
    }
    return peak;
  }

 private:
  std::mutex mutex_;
  std::map<int, cudaMemPool_t> pools_;
};

class DeviceScratch {
 public:
  DeviceScratch(const char* op, cudaStream_t stream, size_t bytes) : stream_(stream) {
    if (bytes == 0) return;
    const cudaMemPool_t pool = ScratchPools::Get().OfDevice(op, CurrentDevice(op));
    CheckCuda(op, cudaMallocFromPoolAsync(&data_, bytes, pool, stream_));
  }
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;
  ~DeviceScratch() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }

  void* data() const { return data_; }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace cuda
}  // namespace sparse_ops
