// Functions that only libsparse_ops_cuda.so exports, as exports.map lists them.
#include "cuda/device_scratch.h"

#define SPARSE_OPS_EXPORT extern "C" __attribute__((visibility("default")))

// The version of CUDA that the library was built with and whose runtime it contains: 1000 * major + 10 *
// minor. A driver of an older major version does not run it.
SPARSE_OPS_EXPORT int SparseOpsCudaVersion(void) noexcept { return CUDART_VERSION; }

// The most bytes of scratch memory that calls had on devices at once since this function was last called, or
// -1 where CUDA does not say.
SPARSE_OPS_EXPORT int64_t SparseOpsTakeScratchPeak(void) noexcept {
  try {
    return static_cast<int64_t>(sparse_ops::cuda::ScratchPools::Get().TakePeak());
  } catch (const std::exception&) {
    return -1;
  }
}
