#include "attention/attention_launch_cuda.h"
#include "cuda/launch.h"
#include "softmax_attention/softmax_attention.h"
#include "softmax_attention/softmax_attention_cuda.h"

namespace sparse_ops {
namespace {

template <class Element, int kWidth>
__global__ void __launch_bounds__(cuda::AttentionBlock::kThreads)
    SoftmaxAttentionKernel(const cuda::AttentionLaunch<Element> launch) {
  extern __shared__ uint4 memory[];
  for (int64_t block = blockIdx.x; block < launch.tiles * launch.tensors.num_heads; block += gridDim.x) {
    cuda::SoftmaxTile<Element, kWidth>(launch, memory).Attend(block);
  }
}

}  // namespace

template <class Element>
void Launch(CudaContext& context, const SoftmaxProblem<Element>& problem) {
  const cuda::AttentionLaunch<Element> launch = cuda::LaunchOf<cuda::AttentionBlock>(problem);
  cuda::VisitWidth(problem.tensors.head_size, [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    cuda::LaunchKernel(
        problem.inputs.op, context, SoftmaxAttentionKernel<Element, kWidth>,
        {launch.blocks(), cuda::AttentionBlock::kThreads, cuda::SoftmaxMemory<Element, kWidth>::kBytes},
        launch);
  });
}

template void Launch(CudaContext&, const SoftmaxProblem<float>&);
template void Launch(CudaContext&, const SoftmaxProblem<Half>&);
template void Launch(CudaContext&, const SoftmaxProblem<BFloat16>&);

}  // namespace sparse_ops
