#include "axis_mask/axis_mask.h"
#include "axis_mask/axis_mask_cuda.h"
#include "cuda/launch.h"

namespace sparse_ops {
namespace {

template <class Element>
__global__ void __launch_bounds__(cuda::kAxisMaskWarps* cuda::kWarpLanes)
    AxisMaskKernel(AxisMaskProblem<Element> problem, int64_t blocks) {
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) cuda::AxisMaskOfBlock(problem, block);
}

}  // namespace

template <class Element>
void Launch(CudaContext& context, const AxisMaskProblem<Element>& problem) {
  const int64_t blocks = cuda::AxisMaskBlocks(problem.tokens);
  cuda::LaunchKernel(AxisMask<Element>::Signature::kName, context, AxisMaskKernel<Element>,
                     {blocks, cuda::kAxisMaskWarps * cuda::kWarpLanes, 0}, problem, blocks);
}

template void Launch(CudaContext&, const AxisMaskProblem<float>&);
template void Launch(CudaContext&, const AxisMaskProblem<Half>&);
template void Launch(CudaContext&, const AxisMaskProblem<BFloat16>&);

}  // namespace sparse_ops
