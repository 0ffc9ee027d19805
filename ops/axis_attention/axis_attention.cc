#include "axis_attention/axis_attention.h"

#include <algorithm>
#include <limits>

#include "cpu/instruction_set.h"
#include "runtime/status.h"
#include "sparsegen_lin/sparsegen_lin.h"

namespace sparse_ops {
namespace {

// Every task gathers the columns anew, so that tasks are larger than where nothing is gathered.
constexpr int64_t kAxisTaskWork = 4 * kTaskWork;

constexpr uint64_t kSeeds = 2147483647;  // the hash of random keys counts modulo this

int64_t NotNegative(const KernelInfo& info, const char* op, const char* name, const char* accepted,
                    int64_t most) {
  const int64_t value = info.IntOr(name, 0, accepted);
  if (value < 0 || value > most) {
    throw InvalidArgument(Message(op, ": attribute ", name, " is ", value, "; accepted: ", accepted));
  }
  return value;
}

// No sequence is longer than int32 counts, so that offsets beyond never apply.
std::vector<int32_t> Offsets(const KernelInfo& info, const char* op) {
  const char* accepted = "a list of offsets >= 0";
  std::vector<int32_t> offsets;
  for (const int64_t offset : info.Ints("diagonals", accepted)) {
    if (offset < 0) {
      throw InvalidArgument(Message(op, ": attribute diagonals holds ", offset, "; accepted: ", accepted));
    }
    if (offset <= kMostKeys) offsets.push_back(static_cast<int32_t>(offset));
  }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  return offsets;
}

bool IsSparsegen(const KernelInfo& info, const char* op) {
  const char* accepted = "\"softmax\" or \"sparsegen\"";
  const std::string normalizer = info.StringOr("normalizer", "softmax", accepted);
  if (normalizer != "softmax" && normalizer != "sparsegen") {
    throw InvalidArgument(
        Message(op, ": attribute normalizer is \"", normalizer, "\"; accepted: ", accepted));
  }
  return normalizer == "sparsegen";
}

void CheckIndicators(const char* op, const char* name, const Shape& shape, int64_t tokens) {
  if (shape == Shape{tokens}) return;
  throw InvalidArgument(Message(op, ": ", name, " has shape ", ToString(shape),
                                "; accepted: ", ToString({tokens}), ", one for each row of query"));
}

}  // namespace

template <class Element>
AxisAttention<Element>::AxisAttention(const KernelInfo& info)
    : attributes_(info, kName),
      fixed_{Offsets(info, kName),
             NotNegative(info, kName, "random_keys", "an integer from 0 to 2147483647", kMostKeys),
             static_cast<uint64_t>(
                 NotNegative(info, kName, "seed", "an integer >= 0", std::numeric_limits<int64_t>::max())) %
                 kSeeds},
      sparsegen_(IsSparsegen(info, kName)),
      divisor_(sparsegen_ ? SparsegenDivisorOr(info, kName, 0.0f) : 1.0f) {}

template <class Element>
void AxisAttention<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputLike(0, 0);
  context.SetOutputRowsLike(1, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 0, "num_heads");
}

template <class Element>
void AxisAttention<Element>::Compute(KernelContext& context) const {
  const AttentionInputs<Element> inputs(attributes_, context, 5);
  const Input<uint8_t> rows = context.GetInput<uint8_t>(3);
  const Input<uint8_t> columns = context.GetInput<uint8_t>(4);
  CheckIndicators(kName, "rows", rows.shape, inputs.tokens);
  CheckIndicators(kName, "columns", columns.shape, inputs.tokens);

  PackedAttention<Element> tensors{};
  tensors.query = inputs.query.data;
  tensors.key = inputs.key.data;
  tensors.value = inputs.value.data;
  tensors.output = context.GetOutput<Element>(0, inputs.query.shape);
  tensors.support = context.GetOutput<int32_t>(1, {inputs.tokens, attributes_.num_heads});
  tensors.num_heads = attributes_.num_heads;
  tensors.head_size = inputs.head_size;
  tensors.scale = inputs.scale;
  tensors.divisor = divisor_;

  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  const AxisPlan plan(fixed_, inputs.borders, rows.data, columns.data,
                      {attributes_.num_heads, inputs.head_size, kernels.query_block});
  const AxisPattern pattern = plan.Pattern(sparsegen_);
  const auto tasks = DivideWork(plan.Stretches(), attributes_.num_heads, kernels.query_block, kAxisTaskWork);
  context.ParallelFor(tasks.size(), kernels.axis_attention_scratch(pattern.extent),
                      [&](size_t task, float* memory) {
                        for (const QueryRange& range : tasks[task]) {
                          typed.axis_attention(tensors, pattern, range, memory);
                        }
                      });
}

template class AxisAttention<float>;
template class AxisAttention<Half>;
template class AxisAttention<BFloat16>;

}  // namespace sparse_ops
