// What the host asks of CUDA for a call, on the device that ONNX Runtime has made the thread's own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

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

inline int CurrentDevice(const char* op) {
  int device = 0;
  CheckCuda(op, cudaGetDevice(&device));
  return device;
}

inline int64_t DeviceAttribute(const char* op, cudaDeviceAttr attribute) {
  int number = 0;
  CheckCuda(op, cudaDeviceGetAttribute(&number, attribute, CurrentDevice(op)));
  return number;
}

// Bytes of shared memory that one block may have at most.
inline int64_t LargestSharedMemory(const char* op) {
  return DeviceAttribute(op, cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

// Bytes of shared memory that a launch may ask for unless its kernel is allowed more.
constexpr int64_t kOrdinarySharedMemory = 48 * 1024;

// Lets launches of a kernel ask for as much shared memory as a block may have. As it is an attribute of the
// function, and other threads launch that at the same time, it is set once for each device and never lowered.
inline void AllowLargestSharedMemory(const char* op, const void* kernel) {
  static std::mutex mutex;
  // Never destroyed: threads may use it until the process ends.
  static auto& allowed = *new std::set<std::pair<const void*, int>>;
  const std::pair<const void*, int> wanted(kernel, CurrentDevice(op));
  const std::lock_guard<std::mutex> lock(mutex);
  if (allowed.count(wanted) != 0) return;
  cudaFuncAttributes attributes{};
  CheckCuda(op, cudaFuncGetAttributes(&attributes, kernel));
  const int64_t bytes = LargestSharedMemory(op) - static_cast<int64_t>(attributes.sharedSizeBytes);
  CheckCuda(
      op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  allowed.insert(wanted);
}

}  // namespace cuda
}  // namespace sparse_ops
