#include "attention/attention_launch_cuda.h"
#include "cuda/launch.h"
#include "sparsegen_attention/sparsegen_attention.h"
#include "sparsegen_attention/sparsegen_attention_cuda.h"

namespace sparse_ops {
namespace {

template <class Element, int kWidth, bool kResident>
__global__ void __launch_bounds__(cuda::AttentionBlock::kThreads,
                                  (cuda::kSparsegenBlocks<Element, kWidth, kResident>))
    SparsegenAttentionKernel(const cuda::AttentionLaunch<Element> launch,
                             const cuda::SparsegenLimits limits) {
  extern __shared__ uint4 memory[];
  for (int64_t block = blockIdx.x; block < launch.tiles * launch.tensors.num_heads; block += gridDim.x) {
    cuda::SparsegenTile<Element, kWidth, kResident>(launch, limits, memory).Attend(block);
  }
}

}  // namespace

template <class Element>
void Launch(CudaContext& context, const SparsegenProblem<Element>& problem) {
  const cuda::AttentionLaunch<Element> launch = cuda::LaunchOf<Element>(problem);
  const char* op = problem.inputs.op;
  const int64_t shared_bytes = cuda::LargestSharedMemory(op);
  cuda::VisitWidth(problem.tensors.head_size, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const cuda::SparsegenPlan plan =
        cuda::PlanSparsegen<Element, kWidth>(problem.inputs.tokens, shared_bytes);
    for (int i = 0; i < plan.count; ++i) {
      const auto kernel = plan.limits[i].resident ? SparsegenAttentionKernel<Element, kWidth, true>
                                                  : SparsegenAttentionKernel<Element, kWidth, false>;
      cuda::LaunchKernel(op, context, kernel,
                         {launch.blocks(), cuda::AttentionBlock::kThreads, plan.shared_bytes[i]}, launch,
                         plan.limits[i]);
    }
  });
}

template void Launch(CudaContext&, const SparsegenProblem<float>&);
template void Launch(CudaContext&, const SparsegenProblem<Half>&);
template void Launch(CudaContext&, const SparsegenProblem<BFloat16>&);

}  // namespace sparse_ops
