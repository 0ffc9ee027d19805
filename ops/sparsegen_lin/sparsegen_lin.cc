#include "sparsegen_lin/sparsegen_lin.h"

#include <algorithm>
#include <cmath>

#include "cpu/instruction_set.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

constexpr int64_t kTaskScores = int64_t{1} << 15;

}  // namespace

float SparsegenDivisor(const KernelInfo& info, const Attribute<float>& lambd) {
  const char* accepted = "a finite number < 1";
  const float value = info.Get(lambd, accepted);
  if (!(value < 1.0f) || std::isinf(value)) info.Refuse(lambd, value, accepted);
  return 1.0f - value;
}

template <class Element>
SparsegenLin<Element>::SparsegenLin(const KernelInfo& info)
    : divisor_(SparsegenDivisor(info, Signature::lambd)), axis_(info.Get(Signature::axis, "an integer")) {}

template <class Element>
void SparsegenLin<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputLike(Signature::weights, Signature::scores);
}

template <class Element>
SparsegenLinProblem<Element> SparsegenLin<Element>::Check(KernelContext& context) const {
  const Input<Element> scores = context.GetInput(Signature::scores);
  const int64_t rank = static_cast<int64_t>(scores.shape.size());
  if (rank == 0) {
    throw InvalidArgument(Message(Signature::kName, ": scores is a scalar; accepted: rank 1 or more"));
  }
  if (axis_ < -rank || axis_ >= rank) {
    throw InvalidArgument(Message(Signature::kName, ": attribute axis is ", axis_,
                                  "; accepted for scores of shape ", ToString(scores.shape), ": ", -rank,
                                  " to ", rank - 1));
  }
  const size_t axis = static_cast<size_t>(axis_ < 0 ? axis_ + rank : axis_);
  AxisRows<Element> rows{scores.data, nullptr, scores.shape[axis], 1};
  if (rows.length > kMostKeys) {
    throw InvalidArgument(Message(Signature::kName, ": scores of shape ", ToString(scores.shape), " has ",
                                  rows.length, " elements along axis ", axis_, "; accepted: at most ",
                                  kMostKeys));
  }
  rows.output = context.GetOutput(Signature::weights, scores.shape);
  // In an empty tensor the product of the other sizes may exceed int64.
  if (std::count(scores.shape.begin(), scores.shape.end(), 0) > 0) return {rows, 0, divisor_};
  int64_t count = 1;
  for (size_t i = 0; i < scores.shape.size(); ++i) {
    if (i > axis) rows.inner *= scores.shape[i];
    if (i != axis) count *= scores.shape[i];
  }
  return {rows, count, divisor_};
}

template <class Element>
void Launch(CpuContext& context, const SparsegenLinProblem<Element>& problem) {
  if (problem.count == 0) return;
  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  const int64_t length = problem.rows.length;
  const int64_t block = kernels.row_block;
  const int64_t blocks_per_task = std::max<int64_t>(1, kTaskScores / (block * length));
  const int64_t rows_per_task = blocks_per_task * block;
  const auto tasks = static_cast<size_t>((problem.count + rows_per_task - 1) / rows_per_task);
  context.ParallelFor(tasks, kernels.sparsegen_lin_scratch(length), [&](size_t task, float* memory) {
    const int64_t begin = static_cast<int64_t>(task) * rows_per_task;
    const int64_t end = std::min(problem.count, begin + rows_per_task);
    for (int64_t row = begin; row < end; row += block) {
      typed.sparsegen_lin(problem.rows, problem.divisor, row, std::min(block, end - row), memory);
    }
  });
}

#define SPARSE_OPS_INSTANTIATE(Element) \
  template class SparsegenLin<Element>; \
  template void Launch(CpuContext&, const SparsegenLinProblem<Element>&);
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
