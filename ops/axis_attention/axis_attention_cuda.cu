#include <optional>

#include "axis_attention/axis_attention.h"
#include "axis_attention/axis_launch_cuda.h"
#include "cuda/device_scratch.h"
#include "cuda/launch.h"

namespace sparse_ops {
namespace cuda {
namespace {

constexpr int64_t kWordBytes = 4;
constexpr int kThreads = kBlockWarps * kWarpLanes;

// Blocks that are to fit in a multiprocessor at a time. Its registers are what limits them.
template <class Element, int kPadded>
constexpr int kBlocksTogether = sizeof(Element) == 2 && kPadded <= 64 ? 3 : 2;

// The shared memory that a block may have on every GPU of compute capability 8.0 and later; none uses more.
constexpr int64_t kSmallestSharedMemory = 99 * 1024;

__global__ void __launch_bounds__(kWarpLanes)
    PlanBordersKernel(const __grid_constant__ AxisPairs pairs, const __grid_constant__ Offsets offsets) {
  PlanBorders(Warp(0), pairs, offsets);
}
__global__ void __launch_bounds__(kWarpLanes)
    AddOffsetsKernel(const __grid_constant__ AxisPairs pairs, const __grid_constant__ Offsets offsets) {
  AddOffsets(Warp(0), pairs, offsets);
}
__global__ void __launch_bounds__(kThreads, 1) PlanSequencesKernel(const __grid_constant__ AxisPairs pairs) {
  const auto warp = static_cast<int32_t>(threadIdx.x) / kWarpLanes;
  const int32_t step = static_cast<int32_t>(gridDim.x) * kBlockWarps;
  for (int64_t s = int64_t{blockIdx.x} * kBlockWarps + warp; s < pairs.sizes.sequences; s += step) {
    PlanSequence(Warp(warp), pairs, static_cast<int32_t>(s));
  }
}

// The first full_blocks blocks compute full rows, which take longest: each every full_blocks-th piece of that
// work. The others compute a group of ordinary rows each.
template <class Element, int kPadded, bool kVector, bool kSparsegen>
__global__ void __launch_bounds__(kThreads, kBlocksTogether<Element, kPadded>)
    AxisAttentionKernel(const __grid_constant__ PackedAttention<Element> tensors,
                        const __grid_constant__ AxisPairs pairs, const int64_t full_blocks,
                        const int64_t first_group) {
  extern __shared__ uint4 memory[];
  const AxisBlock<Element, kPadded, kVector, kSparsegen> block(tensors, pairs,
                                                               reinterpret_cast<float*>(memory));
  if (blockIdx.x < full_blocks) {
    block.AttendFull(blockIdx.x, full_blocks);
  } else {  // not a loop: what it would keep from one group to the next takes registers
    block.AttendGroup(first_group + blockIdx.x - full_blocks);
  }
}

// One call on a GPU. Its kernels run one after the other on ONNX Runtime's stream.
class Device {
 public:
  Device(const char* op, const CudaContext& context) : op_(op), context_(context) {}

  int32_t* Scratch(int64_t words) {
    scratch_.emplace(op_, StreamOf(context_), static_cast<size_t>(words) * sizeof(int32_t));
    return static_cast<int32_t*>(scratch_->data());
  }
  void PlanBorders(const AxisPairs& pairs, const Offsets& offsets) {
    LaunchKernel(op_, context_, PlanBordersKernel, {1, kWarpLanes, 0}, pairs, offsets);
  }
  void AddOffsets(const AxisPairs& pairs, const Offsets& offsets) {
    LaunchKernel(op_, context_, AddOffsetsKernel, {1, kWarpLanes, 0}, pairs, offsets);
  }
  void PlanSequences(const AxisPairs& pairs) {
    LaunchKernel(op_, context_, PlanSequencesKernel,
                 {CeilDivide(pairs.sizes.sequences, kBlockWarps), kThreads, 0}, pairs);
  }

  template <class Element, int kPadded, bool kVector, bool kSparsegen>
  void Attend(const PackedAttention<Element>& tensors, const AxisPairs& pairs) {
    static_assert(AxisMemoryOf<kPadded, kSparsegen>(kMostKeys).Words() * kWordBytes <= kSmallestSharedMemory,
                  "a block has room on any GPU");
    const int64_t shared_bytes = AxisMemoryOf<kPadded, kSparsegen>(pairs.random_keys).Words() * kWordBytes;
    const int64_t groups = pairs.sizes.Groups() * tensors.num_heads;
    const int64_t full_blocks = Min(pairs.sizes.FullBlocks() * tensors.num_heads,
                                    Multiprocessors() * kBlocksTogether<Element, kPadded>);
    const int64_t at_once = kMostBlocks - full_blocks;
    for (int64_t first = 0; first < groups; first += at_once) {
      const int64_t full = first == 0 ? full_blocks : 0;
      LaunchKernel(op_, context_, AxisAttentionKernel<Element, kPadded, kVector, kSparsegen>,
                   {full + Min(at_once, groups - first), kThreads, shared_bytes}, tensors, pairs, full,
                   first);
    }
  }

 private:
  int64_t Multiprocessors() const { return DeviceAttribute(op_, cudaDevAttrMultiProcessorCount); }

  const char* op_;
  const CudaContext& context_;
  std::optional<DeviceScratch> scratch_;
};

}  // namespace
}  // namespace cuda

template <class Element>
void Launch(CudaContext& context, const AxisProblem<Element>& problem) {
  cuda::AxisInputs inputs{};
  inputs.sequences = problem.inputs.sequences();
  inputs.queries = problem.inputs.queries;
  inputs.tokens = problem.inputs.tokens;
  inputs.cu_seqlens_q = problem.inputs.query_borders.data;
  inputs.cu_seqlens_k = problem.inputs.borders.data;
  inputs.query_tokens = problem.query_tokens.data;
  inputs.rows = problem.rows;
  inputs.columns = problem.columns;
  cuda::Device device(problem.inputs.op, context);
  cuda::AxisLaunch<cuda::Device, Element>(device, problem.tensors, inputs, *problem.fixed, problem.sparsegen);
}

template void Launch(CudaContext&, const AxisProblem<float>&);
template void Launch(CudaContext&, const AxisProblem<Half>&);
template void Launch(CudaContext&, const AxisProblem<BFloat16>&);

}  // namespace sparse_ops
