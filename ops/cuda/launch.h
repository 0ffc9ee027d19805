// Launching a kernel on ONNX Runtime's stream. Nothing here waits for the device, so that a call can be
// captured in a CUDA graph.
#pragma once

#include "cuda/device.h"

namespace sparse_ops {
namespace cuda {

struct Grid {
  int64_t blocks;
  int threads;
  int64_t shared_bytes;
};

constexpr int64_t kMostBlocks = 0x7fffffff;

// Launches at most kMostBlocks blocks. Where `grid` asks for more, the kernel must loop over them, each block
// from its own index on in steps of gridDim.x.
template <class... Parameters, class... Arguments>
void LaunchKernel(const char* op, const CudaContext& context, void (*kernel)(Parameters...), const Grid& grid,
                  const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  if (grid.shared_bytes > kOrdinarySharedMemory) {
    AllowLargestSharedMemory(op, reinterpret_cast<const void*>(kernel));
  }
  const auto blocks = static_cast<unsigned>(grid.blocks < kMostBlocks ? grid.blocks : kMostBlocks);
  kernel<<<blocks, static_cast<unsigned>(grid.threads), static_cast<size_t>(grid.shared_bytes),
           StreamOf(context)>>>(arguments...);
  CheckCuda(op, cudaGetLastError());
}

}  // namespace cuda
}  // namespace sparse_ops
