// Device memory for one call of a kernel. It comes and goes in the order of ONNX Runtime's stream, from
// CUDA's own pool: what ONNX Runtime's arena lends to a custom op returns to it once Compute does, while the
// kernels are still to run, and another stream may have it then.
#pragma once

#include "cuda/launch.h"

namespace sparse_ops {
namespace cuda {

class DeviceScratch {
 public:
  DeviceScratch(const char* op, const CudaContext& context, size_t bytes) : stream_(StreamOf(context)) {
    if (bytes > 0) CheckCuda(op, cudaMallocAsync(&data_, bytes, stream_));
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
