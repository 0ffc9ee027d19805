#include "axis_attention/axis_attention.h"

#include <algorithm>
#include <limits>

#include "axis_attention/axis_plan.h"
#include "axis_attention/key_hash.h"
#include "cpu/instruction_set.h"
#include "runtime/status.h"
#include "sparsegen_lin/sparsegen_lin.h"

namespace sparse_ops {
namespace {

// Tasks are larger than those of other ops, if there are then so many that a few threads end at about the
// same time: each thread gathers the columns of its own, and reads best what lies beside each other.
constexpr int64_t kMostTaskWork = 8 * kTaskWork;
constexpr int64_t kTasksOfCall = 16;

int64_t TaskWork(const std::vector<CostedRange>& ranges, int64_t num_heads) {
  int64_t work = 0;
  for (const CostedRange& costed : ranges) {
    work += CeilDivide(costed.range.count, costed.step) * costed.step_work * num_heads;
  }
  return std::clamp(work / kTasksOfCall, kTaskWork, kMostTaskWork);
}

int64_t NotNegative(const KernelInfo& info, const Attribute<int64_t>& attribute, const char* accepted,
                    int64_t most) {
  const int64_t value = info.Get(attribute, accepted);
  if (value < 0 || value > most) info.Refuse(attribute, value, accepted);
  return value;
}

// No sequence has more keys than an int32 counts, so larger offsets never apply.
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
  return {Offsets(info, Signature::diagonals), random_keys, static_cast<uint64_t>(seed) % kHashModulus};
}

bool IsSparsegen(const KernelInfo& info, const Attribute<std::string_view>& attribute) {
  const char* accepted = "\"softmax\" or \"sparsegen\"";
  const std::string normalizer = info.Get(attribute, accepted);
  if (normalizer != "softmax" && normalizer != "sparsegen") {
    info.Refuse(attribute, '"' + normalizer + '"', accepted);
  }
  return normalizer == "sparsegen";
}

// Checks that `input` has one element for each row of `of`.
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
  // ONNX Runtime does not say here whether a node has the optional `support`, and writes beyond its outputs
  // where a shape is set for one that it has not.
  context.SetOutputLike(Signature::output, Signature::query);
}

template <class Element>
AxisProblem<Element> AxisAttention<Element>::Check(KernelContext& context) const {
  const AttentionInputs<Element> inputs(attributes_, context, Signature::cu_seqlens);
  const Input<bool> rows = context.GetInput(Signature::rows);
  const Input<bool> columns = context.GetInput(Signature::columns);
  CheckVector(attributes_.op, rows, inputs.query);
  CheckVector(attributes_.op, columns, inputs.query);
  return Problem(context, inputs, rows, columns, {});
}

template <class Element>
AxisProblem<Element> AxisCrossAttention<Element>::Check(KernelContext& context) const {
  const char* op = this->attributes_.op;
  const AttentionInputs<Element> inputs(this->attributes_, context, Signature::cu_seqlens_q,
                                        Signature::cu_seqlens_k);
  const Input<int64_t> query_tokens = context.GetInput(Signature::query_tokens);
  const Input<bool> rows = context.GetInput(Signature::rows);
  const Input<bool> columns = context.GetInput(Signature::columns);
  CheckVector(op, query_tokens, inputs.query);
  CheckVector(op, rows, inputs.key);
  CheckVector(op, columns, inputs.key);
  return this->Problem(context, inputs, rows, columns, query_tokens);
}

template <class Element>
AxisProblem<Element> AxisAttention<Element>::Problem(KernelContext& context,
                                                     const AttentionInputs<Element>& inputs,
                                                     const Input<bool>& rows, const Input<bool>& columns,
                                                     const Input<int64_t>& query_tokens) const {
  AxisProblem<Element> problem{
      {inputs, TensorsOf(attributes_, inputs, context.GetOutput(Signature::output, inputs.query.shape))},
      &fixed_,
      sparsegen_,
      rows.data,
      columns.data,
      query_tokens};
  problem.tensors.support = context.GetOutput(Signature::support, {inputs.queries, attributes_.num_heads});
  problem.tensors.divisor = divisor_;
  return problem;
}

namespace {

// The heads of sequences whose full rows are to be joined, so many at a time as are computed together.
std::vector<QueryRange> JoinedRanges(const std::vector<CostedRange>& ranges, const AxisPattern& pattern,
                                     int64_t num_heads) {
  std::vector<QueryRange> joined;
  for (const CostedRange& costed : ranges) {
    if (pattern.sequences[costed.range.sequence].chunk == 0) continue;
    for (int64_t head = 0; head < num_heads; head += costed.range.heads) {
      joined.push_back(costed.range);
      joined.back().head = head;
      joined.back().heads = std::min(costed.range.heads, num_heads - head);
    }
  }
  return joined;
}

// Runs an AxisPlan or AxisCrossPlan.
template <class Element, class Plan>
void RunPlan(CpuContext& context, const PackedAttention<Element>& tensors, const Plan& plan) {
  const Kernels& kernels = ChosenKernels();
  const ElementKernels<Element>& typed = kernels;
  const std::vector<CostedRange>& ranges = plan.CostedRanges();
  AxisPattern pattern = plan.Pattern();
  const std::vector<QueryRange> joined = JoinedRanges(ranges, pattern, tensors.num_heads);
  const Tasks tasks = DivideWork(ranges, tensors.num_heads, TaskWork(ranges, tensors.num_heads));
  const size_t scratch = kernels.axis_attention_scratch(pattern.extent);
  const int64_t partials = plan.partials() * PartialFloats(tensors.head_size);
  context.WithScratch(static_cast<size_t>(partials), [&](float* memory_of_call) {
    pattern.partials = memory_of_call;
    RunTasks(context, tasks, scratch, [&](const QueryRange& range, const QueryRange* next, float* memory) {
      typed.axis_attention(tensors, pattern, range, next, memory);
    });
    context.ParallelFor(joined.size(), 0,
                        [&](size_t i, float*) { typed.axis_full_rows(tensors, pattern, joined[i]); });
  });
}

}  // namespace

template <class Element>
void Launch(CpuContext& context, const AxisProblem<Element>& problem) {
  const AttentionInputs<Element>& inputs = problem.inputs;
  const PackedAttention<Element>& tensors = problem.tensors;
  const Borders borders(inputs);
  const AttentionShape shape{tensors.num_heads, tensors.head_size, ChosenKernels().query_block};
  if (problem.query_tokens.shape.empty()) {
    const AxisPlan plan(*problem.fixed, borders.keys, problem.rows, problem.columns, shape,
                        problem.sparsegen);
    return RunPlan(context, tensors, plan);
  }
  CheckTokens(inputs.op, problem.query_tokens, inputs.tokens);
  const AxisCrossPlan plan(*problem.fixed, borders.keys, problem.rows, problem.columns, shape,
                           problem.sparsegen, borders.queries, problem.query_tokens.data);
  RunPlan(context, tensors, plan);
}

#define SPARSE_OPS_INSTANTIATE(Element)       \
  template class AxisAttention<Element>;      \
  template class AxisCrossAttention<Element>; \
  template void Launch(CpuContext&, const AxisProblem<Element>&);
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
