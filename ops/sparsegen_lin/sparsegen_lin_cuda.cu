#include "cuda/launch.h"
#include "sparsegen_lin/sparsegen_lin.h"
#include "sparsegen_lin/sparsegen_lin_cuda.h"

namespace sparse_ops {
namespace {

template <class Element>
__global__ void __launch_bounds__(cuda::kSparsegenLinWarps* cuda::kWarpLanes)
    SparsegenLinKernel(AxisRows<Element> rows, float divisor, int64_t count, int64_t blocks) {
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    cuda::SparsegenLinOfBlock(rows, divisor, count, block);
  }
}

}  // namespace

template <class Element>
void Launch(CudaContext& context, const SparsegenLinProblem<Element>& problem) {
  const int64_t blocks = cuda::SparsegenLinBlocks(problem.count);
  cuda::LaunchKernel(SparsegenLin<Element>::Signature::kName, context, SparsegenLinKernel<Element>,
                     {blocks, cuda::kSparsegenLinWarps * cuda::kWarpLanes, 0}, problem.rows, problem.divisor,
                     problem.count, blocks);
}

template void Launch(CudaContext&, const SparsegenLinProblem<float>&);
template void Launch(CudaContext&, const SparsegenLinProblem<Half>&);
template void Launch(CudaContext&, const SparsegenLinProblem<BFloat16>&);

}  // namespace sparse_ops
