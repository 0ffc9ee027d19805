#include "axis_attention/axis_attention.h"

#include <algorithm>
#include <limits>

#include "cpu/instruction_set.h"
#include "runtime/status.h"
#include "sparsegen_lin/sparsegen_lin.h"

namespace sparse_ops {
namespace {

// Every task gathers the columns anew, so that tasks are larger than where nothing is gathered.
constexpr int64_t kAxisTaskWork = 8 * kTaskWork;

constexpr uint64_t kSeeds = 2147483647;  // the hash of random keys counts modulo this

int64_t NotNegative(const KernelInfo& info, const Attribute<int64_t>& attribute, const char* accepted,
                    int64_t most) {
  const int64_t value = info.Get(attribute, accepted);
  if (value < 0 || value > most) info.Refuse(attribute, value, accepted);
  return value;
}

// No sequence is longer than int32 counts, so that offsets beyond never apply.
std::vector<int32_t> Offsets(const KernelInfo& info, const Attribute<IntList>& diagonals) {
  const char* accepted = "a list of offsets >= 0";
  std::vector<int32_t> offsets;
  for (const int64_t offset : info.Get(diagonals, accepted)) {
    if (offset < 0) {
      throw InvalidArgument(
          Message(info.op(), ": attribute ", diagonals.name, " holds ", offset, "; accepted: ", accepted));
    }
    if (offset <= kMostKeys) offsets.push_back(static_cast<int32_t>(offset));
  }
  std::sort(offsets.begin(), offsets.end());
  offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
  return offsets;
}

FixedPairs ReadFixedPairs(const KernelInfo& info) {
  using Signature = AxisAttentionSignature<float>;  // the attributes are those of any element type
  const int64_t any = std::numeric_limits<int64_t>::max();
  const int64_t random_keys =
      NotNegative(info, Signature::random_keys, "an integer from 0 to 2147483647", kMostKeys);
  const int64_t seed = NotNegative(info, Signature::seed, "an integer >= 0", any);
  return {Offsets(info, Signature::diagonals), random_keys, static_cast<uint64_t>(seed) % kSeeds};
}

bool IsSparsegen(const KernelInfo& info, const Attribute<std::string_view>& attribute) {
  const char* accepted = "\"softmax\" or \"sparsegen\"";
  const std::string normalizer = info.Get(attribute, accepted);
  if (normalizer != "softmax" && normalizer != "sparsegen") {
    info.Refuse(attribute, '"' + normalizer + '"', accepted);
  }
  return normalizer == "sparsegen";
}

// `input` has one element for each row of `of`.
template <class Element, class OfElement>
void CheckVector(const char* op, const Input<Element>& input, const Input<OfElement>& of) {
  if (input.shape == Shape{of.shape[0]}) return;
  throw InvalidArgument(Message(op, ": ", input.name, " has shape ", ToString(input.shape),
                                "; accepted: ", ToString({of.shape[0]}), ", one for each row of ", of.name));
}

void CheckTokens(const char* op, const Input<int64_t>& query_tokens, int64_t tokens) {
  for (int64_t q = 0; q < query_tokens.shape[0]; ++q) {
    const int64_t token = query_tokens.data[q];
    if (token >= 0 && token < tokens) continue;
    throw InvalidArgument(Message(op, ": ", query_tokens.name, "[", q, "] is ", token,
                                  "; accepted: a row of key, which has ", tokens));
  }
}

}  // namespace

template <class Element>
AxisAttention<Element>::AxisAttention(const KernelInfo& info)
    : attributes_(info),
      fixed_(ReadFixedPairs(info)),
      sparsegen_(IsSparsegen(info, Signature::normalizer)),
      divisor_(sparsegen_ ? SparsegenDivisor(info, Signature::lambd) : 1.0f) {}

template <class Element>
void AxisAttention<Element>::InferShapes(ShapeContext& context) {
  context.SetOutputLike(Signature::output, Signature::query);
  context.SetOutputRowsLike(Signature::support, Signature::query, Signature::num_heads);
}

template <class Element>
void AxisAttention<Element>::Compute(KernelContext& context) const {
  const AttentionInputs<Element> inputs(attributes_, context, Signature::cu_seqlens);
  const Input<bool> rows = context.GetInput(Signature::rows);
  const Input<bool> columns = context.GetInput(Signature::columns);
  CheckVector(attributes_.op, rows, inputs.query);
  CheckVector(attributes_.op, columns, inputs.query);
  const AxisPlan plan(fixed_, inputs.borders, rows.data, columns.data, ShapeOf(inputs));
  Attend(context, inputs, plan.Pattern(sparsegen_), plan.Stretches());
}

template <class Element>
void AxisCrossAttention<Element>::Compute(KernelContext& context) const {
  const char* op = this->attributes_.op;
  const AttentionInputs<Element> inputs(this->attributes_, context, Signature::cu_seqlens_q,
                                        Signature::cu_seqlens_k);
  const Input<int64_t> query_tokens = context.GetInput(Signature::query_tokens);
  const Input<bool> rows = context.GetInput(Signature::rows);
  const Input<bool> columns = context.GetInput(Signature::columns);
  CheckVector(op, query_tokens, inputs.query);
  CheckVector(op, rows, inputs.key);
  CheckVector(op, columns, inputs.key);
  CheckTokens(op, query_tokens, inputs.tokens);
  const AxisCrossPlan plan(this->fixed_, inputs.borders, rows.data, columns.data, this->ShapeOf(inputs),
                           inputs.query_borders, query_tokens.data);
  this->Attend(context, inputs, plan.Pattern(this->sparsegen_), plan.Stretches());
}

template <class Element>
AttentionShape AxisAttention<Element>::ShapeOf(const AttentionInputs<Element>& inputs) const {
  return {attributes_.num_heads, inputs.head_size, ChosenKernels().query_block};
}

template <class Element>
void AxisAttention<Element>::Attend(KernelContext& context, const AttentionInputs<Element>& inputs,
                                    const AxisPattern& pattern, const std::vector<Stretch>& stretches) const {
  PackedAttention<Element> tensors{};
  tensors.query = inputs.query.data;
  tensors.key = inputs.key.data;
  tensors.value = inputs.value.data;
  tensors.output = context.GetOutput(Signature::output, inputs.query.shape);
  tensors.support = context.GetOutput(Signature::support, {inputs.queries, attributes_.num_heads});
  tensors.num_heads = attributes_.num_heads;
  tensors.head_size = inputs.head_size;
  tensors.scale = inputs.scale;
  tensors.divisor = divisor_;

  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  const auto tasks = DivideWork(stretches, attributes_.num_heads, kernels.query_block, kAxisTaskWork);
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
template class AxisCrossAttention<float>;
template class AxisCrossAttention<Half>;
template class AxisCrossAttention<BFloat16>;

}  // namespace sparse_ops
