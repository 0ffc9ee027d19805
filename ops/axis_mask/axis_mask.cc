#include "axis_mask/axis_mask.h"

#include <algorithm>

#include "cpu/instruction_set.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

constexpr int64_t kTaskHiddenElements = int64_t{1} << 18;

}  // namespace

template <class Element>
void AxisMask<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputVectorLike(Signature::rows, Signature::hidden);
  context.SetOutputVectorLike(Signature::columns, Signature::hidden);
}

template <class Element>
AxisMaskProblem<Element> AxisMask<Element>::Check(KernelContext& context) const {
  const Input<Element> hidden = context.GetInput(Signature::hidden);
  const Input<Element> weight = context.GetInput(Signature::weight);
  const Input<Element> bias = context.GetInput(Signature::bias);
  if (hidden.shape.size() != 2) {
    throw InvalidArgument(Message(Signature::kName, ": hidden has shape ", ToString(hidden.shape),
                                  "; accepted: (tokens, width)"));
  }
  const int64_t tokens = hidden.shape[0];
  const int64_t width = hidden.shape[1];
  if (weight.shape != Shape{2, width}) {
    throw InvalidArgument(Message(Signature::kName, ": weight has shape ", ToString(weight.shape),
                                  "; accepted: ", ToString({2, width}), ", as hidden has width ", width));
  }
  if (bias.shape != Shape{2}) {
    throw InvalidArgument(
        Message(Signature::kName, ": bias has shape ", ToString(bias.shape), "; accepted: (2,)"));
  }
  return {hidden.data,
          weight.data,
          bias.data,
          context.GetOutput(Signature::rows, {tokens}),
          context.GetOutput(Signature::columns, {tokens}),
          tokens,
          width};
}

template <class Element>
void Launch(CpuContext& context, const AxisMaskProblem<Element>& problem) {
  const ElementKernels<Element>& kernels = ChosenKernels();
  const int64_t tokens_per_task =
      std::max<int64_t>(1, kTaskHiddenElements / std::max<int64_t>(1, problem.width));
  const auto tasks = static_cast<size_t>((problem.tokens + tokens_per_task - 1) / tokens_per_task);
  context.ParallelFor(tasks, 0, [&](size_t task, float*) {
    const int64_t first = static_cast<int64_t>(task) * tokens_per_task;
    kernels.axis_mask(problem.hidden + first * problem.width,
                      std::min(tokens_per_task, problem.tokens - first), problem.width, problem.weight,
                      problem.bias, problem.rows + first, problem.columns + first);
  });
}

#define SPARSE_OPS_INSTANTIATE(Element) \
  template class AxisMask<Element>;     \
  template void Launch(CpuContext&, const AxisMaskProblem<Element>&);
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
