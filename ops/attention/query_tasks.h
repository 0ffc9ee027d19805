// How the queries of a packed attention op are scheduled on a CPU: borders are read and checked, and the work
// is divided into tasks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/packed_attention.h"
#include "cpu/kernels.h"
#include "runtime/cpu_context.h"

namespace sparse_ops {

// Where each sequence begins, and at the end where the last one ends. Throws InvalidArgument for invalid
// borders.
struct Borders {
  template <class Element>
  explicit Borders(const AttentionInputs<Element>& inputs);

  std::vector<int64_t> queries;
  std::vector<int64_t> keys;
};

constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Multiply-adds of QK^T that are worth a task of their own, 10 to 30 microseconds.
constexpr int64_t kTaskWork = int64_t{1} << 20;

// The least blocks of queries of a task, so that a kernel can gather queries of one kind.
constexpr int64_t kTaskBlocks = 8;

// Queries of one sequence that cost the same. `range` says how many heads are computed together, but not
// which. It may be cut after every `step` queries; `step_work` is the number of multiply-adds of QK^T for so
// many of them and one head.
struct CostedRange {
  QueryRange range;
  int64_t step;
  int64_t step_work;
};

using Tasks = std::vector<std::vector<QueryRange>>;

// Divides the queries of all heads into tasks of about `task_work` multiply-adds: long ranges into several
// tasks, short ones several to a task.
Tasks DivideWork(const std::vector<CostedRange>& ranges, int64_t num_heads, int64_t task_work);

// Calls compute(range, next, scratch) for the ranges of all tasks, each task on one thread. next: the range
// that comes after, maybe that of another thread; null after the last.
void RunTasks(CpuContext& context, const Tasks& tasks, size_t scratch_floats,
              const std::function<void(const QueryRange&, const QueryRange*, float*)>& compute);

template <class Element>
using AttentionKernel = void (*)(const PackedAttention<Element>&, const QueryRange& range,
                                 const QueryRange* next, float* scratch);

// Runs `kernel` over every query of every sequence and head, each on one thread.
template <class Element>
void RunPackedAttention(CpuContext& context, const AttentionProblem<Element>& problem,
                        AttentionKernel<Element> kernel,
                        size_t (*scratch)(int64_t longest_sequence, int64_t head_size));

}  // namespace sparse_ops
