// How the queries of a packed attention op are scheduled on a CPU: borders are read and checked, and the work
// is divided into tasks.
#pragma once

#include <cstdint>
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

// Multiply-adds of QK^T that are worth a task of their own, 10 to 30 microseconds.
constexpr int64_t kTaskWork = int64_t{1} << 20;

// The least blocks of queries of a task, so that a kernel can gather queries of one kind.
constexpr int64_t kTaskBlocks = 8;

// Queries of one sequence that cost the same. `range` says how many heads are computed together, but not
// which; `block_work` is the number of multiply-adds of QK^T for one block of queries and one head.
struct CostedRange {
  QueryRange range;
  int64_t block_work;
};

// Divides the queries of all heads into tasks of about `task_work` multiply-adds: long ranges into several
// tasks, short ones several to a task. Ranges are cut at multiples of `query_block` only.
std::vector<std::vector<QueryRange>> DivideWork(const std::vector<CostedRange>& ranges, int64_t num_heads,
                                                int64_t query_block, int64_t task_work);

template <class Element>
using AttentionKernel = void (*)(const PackedAttention<Element>&, const QueryRange& range,
                                 const QueryRange* next, float* scratch);

// Runs `kernel` over every query of every sequence and head, each on one thread.
template <class Element>
void RunPackedAttention(CpuContext& context, const AttentionProblem<Element>& problem,
                        AttentionKernel<Element> kernel,
                        size_t (*scratch)(int64_t longest_sequence, int64_t head_size));

}  // namespace sparse_ops
