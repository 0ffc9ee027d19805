// What cuda/device.h and cuda/device_scratch.h ask of CUDA, on a machine without it: each call is counted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin, cudaDevAttrMultiProcessorCount };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold, cudaMemPoolAttrUsedMemHigh };

struct cudaFuncAttributes {
  size_t sharedSizeBytes;
};
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  struct {
    cudaMemLocationType type;
    int id;
  } location;
};
struct FakePool {
  uint64_t kept = 0, used = 0, peak = 0;
};
using cudaMemPool_t = FakePool*;
using cudaStream_t = void*;

constexpr int kOptInBytes = 232448, kStaticBytes = 100;
inline thread_local int own_device = 0;
inline std::atomic<int> attributes_set{0}, attributes_wrong{0}, pools_made{0};

inline const char* cudaGetErrorName(cudaError_t) { return "cudaErrorInvalidValue"; }
inline const char* cudaGetErrorString(cudaError_t) { return "invalid argument"; }
inline cudaError_t cudaGetDevice(int* device) {
  *device = own_device;
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* number, cudaDeviceAttr, int) {
  *number = kOptInBytes;
  return cudaSuccess;
}
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  attributes->sharedSizeBytes = kStaticBytes;
  return cudaSuccess;
}
inline cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int bytes) {
  ++attributes_set;
  if (bytes != kOptInBytes - kStaticBytes) ++attributes_wrong;
  return cudaSuccess;
}
inline cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  ++pools_made;
  *pool = new FakePool;
  return cudaSuccess;
}
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* number) {
  const uint64_t own = *static_cast<uint64_t*>(number);
  if (attribute == cudaMemPoolAttrReleaseThreshold) pool->kept = own;
  if (attribute == cudaMemPoolAttrUsedMemHigh) pool->peak = pool->used;
  return cudaSuccess;
}
inline cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void* number) {
  *static_cast<uint64_t*>(number) = pool->peak;
  return cudaSuccess;
}
// The stream says nothing here; each allocation has its pool and size before it.
struct FakeBlock {
  cudaMemPool_t pool;
  size_t bytes;
};
inline cudaError_t cudaMallocFromPoolAsync(void** data, size_t bytes, cudaMemPool_t pool, cudaStream_t) {
  auto* block = new FakeBlock{pool, bytes};
  pool->used += bytes;
  if (pool->used > pool->peak) pool->peak = pool->used;
  *data = block;
  return cudaSuccess;
}
inline cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  auto* block = static_cast<FakeBlock*>(data);
  block->pool->used -= block->bytes;
  delete block;
  return cudaSuccess;
}
