// What libsparse_ops_cuda.so says of itself besides: exports.map lists it.
#include "cuda/device_scratch.h"

#define SPARSE_OPS_EXPORT extern "C" __attribute__((visibility("default")))

// The CUDA that the library was built with, and whose runtime it holds: 1000 for each major version and 10
// for each minor one. A driver of an older major version does not run it.
SPARSE_OPS_EXPORT int SparseOpsCudaVersion(void) noexcept { return CUDART_VERSION; }

// The most bytes of device memory that calls have had for themselves at once since this was last asked, or -1
// where CUDA does not say.
SPARSE_OPS_EXPORT int64_t SparseOpsTakeScratchPeak(void) noexcept {
  try {
    return static_cast<int64_t>(sparse_ops::cuda::ScratchPools::Get().TakePeak());
  } catch (const std::exception&) {
    return -1;
  }
}
