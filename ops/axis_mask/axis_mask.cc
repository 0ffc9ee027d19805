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
void AxisMask<Element>::Compute(KernelContext& context) const {
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
  uint8_t* rows = context.GetOutput(Signature::rows, {tokens});
  uint8_t* columns = context.GetOutput(Signature::columns, {tokens});

  const ElementKernels<Element>& kernels = ChosenKernels();
  const int64_t tokens_per_task = std::max<int64_t>(1, kTaskHiddenElements / std::max<int64_t>(1, width));
  const auto tasks = static_cast<size_t>((tokens + tokens_per_task - 1) / tokens_per_task);
  context.ParallelFor(tasks, 0, [&](size_t task, float*) {
    const int64_t first = static_cast<int64_t>(task) * tokens_per_task;
    kernels.axis_mask(hidden.data + first * width, std::min(tokens_per_task, tokens - first), width,
                      weight.data, bias.data, rows + first, columns + first);
  });
}

template class AxisMask<float>;
template class AxisMask<Half>;
template class AxisMask<BFloat16>;

}  // namespace sparse_ops
