// What a kernel on a GPU has beyond KernelContext. Its scratch memory is a DeviceScratch
// (cuda/device_scratch.h).
#pragma once

#include "runtime/kernel_context.h"

namespace sparse_ops {

class CudaContext : public KernelContext {
 public:
  using KernelContext::KernelContext;

  // The cudaStream_t on which ONNX Runtime runs this call; null is the default stream.
  void* stream() const {
    void* stream = nullptr;
    Check(api_, api_.KernelContext_GetGPUComputeStream(context_, &stream));
    return stream;
  }
};

// Inputs and outputs lie in device memory, cu_seqlens and indicators among them: reading one on the host
// would wait for the device.
struct CudaProvider {
  using Context = CudaContext;
  static constexpr const char* kName = "CUDAExecutionProvider";
  static constexpr OrtMemType kInputMemory = OrtMemTypeDefault;
};

}  // namespace sparse_ops
