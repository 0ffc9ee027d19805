#include "attention/attention_launch_cuda.h"
#include "cuda/launch.h"
#include "sparsegen_attention/sparsegen_attention.h"
#include "sparsegen_attention/sparsegen_attention_cuda.h"

namespace sparse_ops {
namespace {

template <class Element, int kWidth, bool kResident>
__global__ void __launch_bounds__((cuda::SparsegenKind<Element, kResident>::AnyBlock::kThreads),
                                  (cuda::kSparsegenBlocks<Element, kWidth, kResident>))
    SparsegenAttentionKernel(const cuda::AttentionLaunch<Element> launch,
                             const cuda::SparsegenLimits limits) {
  extern __shared__ uint4 memory[];
  for (int64_t block = blockIdx.x; block < launch.tiles * launch.tensors.num_heads; block += gridDim.x) {
    cuda::SparsegenTile<Element, kWidth, kResident>(launch, limits, memory).Attend(block);
  }
}

template <class Element, int kWidth, bool kResident>
void LaunchLimits(CudaContext& context, const SparsegenProblem<Element>& problem,
                  const cuda::SparsegenLimits& limits, int64_t shared_bytes) {
  using AnyBlock = typename cuda::SparsegenKind<Element, kResident>::AnyBlock;
  const cuda::AttentionLaunch<Element> launch = cuda::LaunchOf<AnyBlock>(problem);
  cuda::LaunchKernel(problem.inputs.op, context, SparsegenAttentionKernel<Element, kWidth, kResident>,
                     {launch.blocks(), AnyBlock::kThreads, shared_bytes}, launch, limits);
}

}  // namespace

template <class Element>
void Launch(CudaContext& context, const SparsegenProblem<Element>& problem) {
  const int64_t shared_bytes = cuda::LargestSharedMemory(problem.inputs.op);
  cuda::VisitWidth(problem.tensors.head_size, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    const cuda::SparsegenPlan plan =
        cuda::PlanSparsegen<Element, kWidth>(problem.inputs.tokens, shared_bytes);
    for (int i = 0; i < plan.count; ++i) {
      if (plan.limits[i].resident) {
        LaunchLimits<Element, kWidth, true>(context, problem, plan.limits[i], plan.shared_bytes[i]);
      } else {
        LaunchLimits<Element, kWidth, false>(context, problem, plan.limits[i], plan.shared_bytes[i]);
      }
    }
  });
}

template void Launch(CudaContext&, const SparsegenProblem<float>&);
template void Launch(CudaContext&, const SparsegenProblem<Half>&);
template void Launch(CudaContext&, const SparsegenProblem<BFloat16>&);

}  // namespace sparse_ops
