#include "attention/query_tasks.h"

#include <algorithm>

#include "cpu/instruction_set.h"
#include "runtime/status.h"

namespace sparse_ops {
namespace {

// `of` is the tensor whose rows the borders divide into sequences.
template <class Element>
std::vector<int64_t> ReadBorders(const char* op, const Input<int32_t>& cu_seqlens, const Input<Element>& of) {
  const char* name = cu_seqlens.name;
  const std::vector<int64_t> borders(cu_seqlens.data, cu_seqlens.data + cu_seqlens.shape[0]);
  if (borders.front() != 0) {
    throw InvalidArgument(Message(op, ": ", name, "[0] is ", borders.front(), "; accepted: 0"));
  }
  for (size_t i = 1; i < borders.size(); ++i) {
    if (borders[i] < borders[i - 1]) {
      throw InvalidArgument(Message(op, ": ", name, " decreases from ", borders[i - 1], " to ", borders[i],
                                    " at position ", i, "; accepted: values that never decrease"));
    }
  }
  if (borders.back() != of.shape[0]) {
    throw InvalidArgument(Message(op, ": ", name, " ends with ", borders.back(), "; accepted: ", of.shape[0],
                                  ", the number of rows of ", of.name));
  }
  return borders;
}

// The range that comes after the i-th of a task; null after the last of all.
const QueryRange* Next(const Tasks& tasks, size_t task, size_t i) {
  if (i + 1 < tasks[task].size()) return &tasks[task][i + 1];
  return task + 1 < tasks.size() ? &tasks[task + 1].front() : nullptr;
}

}  // namespace

template <class Element>
Borders::Borders(const AttentionInputs<Element>& inputs)
    : queries(ReadBorders(inputs.op, inputs.query_borders, inputs.query)),
      keys(ReadBorders(inputs.op, inputs.borders, inputs.key)) {}

Tasks DivideWork(const std::vector<CostedRange>& ranges, int64_t num_heads, int64_t task_work) {
  Tasks tasks;
  int64_t work_left = 0;
  for (const CostedRange& costed : ranges) {
    const int64_t last = costed.range.first + costed.range.count;
    for (int64_t head = 0; head < num_heads; head += costed.range.heads) {
      const int64_t heads = std::min(costed.range.heads, num_heads - head);
      const int64_t step_work = costed.step_work * heads;
      for (int64_t first = costed.range.first; first < last;) {
        if (work_left <= 0) {
          tasks.emplace_back();
          work_left = task_work;
        }
        const int64_t steps = CeilDivide(last - first, costed.step);
        const int64_t fitting = std::min(CeilDivide(work_left, step_work), steps);
        QueryRange range = costed.range;
        range.head = head;
        range.heads = heads;
        range.first = first;
        range.count = std::min(fitting * costed.step, last - first);
        tasks.back().push_back(range);
        first += range.count;
        work_left -= fitting * step_work;
      }
    }
  }
  return tasks;
}

void RunTasks(CpuContext& context, const Tasks& tasks, size_t scratch_floats,
              const std::function<void(const QueryRange&, const QueryRange*, float*)>& compute) {
  context.ParallelFor(tasks.size(), scratch_floats, [&](size_t task, float* memory) {
    for (size_t i = 0; i < tasks[task].size(); ++i) compute(tasks[task][i], Next(tasks, task, i), memory);
  });
}

template <class Element>
void RunPackedAttention(CpuContext& context, const AttentionProblem<Element>& problem,
                        AttentionKernel<Element> kernel, size_t (*scratch)(int64_t, int64_t)) {
  const AttentionInputs<Element>& inputs = problem.inputs;
  const PackedAttention<Element>& tensors = problem.tensors;
  const Borders borders(inputs);
  const int64_t query_block = ChosenKernels().query_block;
  std::vector<CostedRange> ranges;
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < borders.keys.size(); ++b) {
    const int64_t length = borders.keys[b + 1] - borders.keys[b];
    const int64_t queries = borders.queries[b + 1] - borders.queries[b];
    if (queries == 0) continue;
    QueryRange range{};
    range.sequence = static_cast<int64_t>(b);
    range.sequence_begin = borders.keys[b];
    range.sequence_length = length;
    range.query_begin = borders.queries[b];
    range.sequence_queries = range.count = queries;
    range.heads = 1;
    // A query without keys is work too: its output is written.
    const int64_t work = query_block * std::max<int64_t>(length, 1) * inputs.head_size;
    ranges.push_back({range, query_block, std::min(work, kTaskWork / kTaskBlocks)});
    longest = std::max(longest, length);
  }
  const Tasks tasks = DivideWork(ranges, tensors.num_heads, kTaskWork);
  RunTasks(context, tasks, scratch(longest, inputs.head_size),
           [&](const QueryRange& range, const QueryRange* next, float* memory) {
             kernel(tensors, range, next, memory);
           });
}

#define SPARSE_OPS_INSTANTIATE(Element)                                                                     \
  template Borders::Borders(const AttentionInputs<Element>&);                                               \
  template void RunPackedAttention(CpuContext&, const AttentionProblem<Element>&, AttentionKernel<Element>, \
                                   size_t (*)(int64_t, int64_t));
SPARSE_OPS_INSTANTIATE(float)
SPARSE_OPS_INSTANTIATE(Half)
SPARSE_OPS_INSTANTIATE(BFloat16)
#undef SPARSE_OPS_INSTANTIATE

}  // namespace sparse_ops
