// Launching a kernel on ONNX Runtime's stream. Nothing here waits for the device, so that a call can be
// captured in a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/cuda_context.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace cuda {

inline void CheckCuda(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(Message(op, ": CUDA error ", static_cast<int>(error), ", ",
                                   cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

inline cudaStream_t StreamOf(const CudaContext& context) {
  return static_cast<cudaStream_t>(context.stream());
}

// Bytes of shared memory that one block may have on the current device.
inline int64_t LargestSharedMemory(const char* op) {
  int device = 0;
  int bytes = 0;
  CheckCuda(op, cudaGetDevice(&device));
  CheckCuda(op, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return bytes;
}

struct Grid {
  int64_t blocks;
  int threads;
  int64_t shared_bytes;
};

constexpr int64_t kMostBlocks = 0x7fffffff;

// Of more blocks than a grid has, a kernel goes through the rest in a loop: from its own index on in steps of
// gridDim.x.
template <class... Parameters, class... Arguments>
void LaunchKernel(const char* op, const CudaContext& context, void (*kernel)(Parameters...), const Grid& grid,
                  const Arguments&... arguments) {
  if (grid.blocks == 0) return;
  if (grid.shared_bytes > 48 * 1024) {
    CheckCuda(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(grid.shared_bytes)));
  }
  const auto blocks = static_cast<unsigned>(grid.blocks < kMostBlocks ? grid.blocks : kMostBlocks);
  kernel<<<blocks, static_cast<unsigned>(grid.threads), static_cast<size_t>(grid.shared_bytes),
           StreamOf(context)>>>(arguments...);
  CheckCuda(op, cudaGetLastError());
}

}  // namespace cuda
}  // namespace sparse_ops
