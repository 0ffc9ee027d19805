// How the CPU goes about the queries of a packed attention op: the borders are read and checked, the work is
// divided into tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/packed_attention.h"
#include "cpu/kernels.h"
#include "runtime/cpu_context.h"

namespace sparse_ops {

// Where each sequence begins, and behind them all where the last ends. Throws InvalidArgument for borders
// that are none.
struct Borders {
  template <class Element>
  explicit Borders(const AttentionInputs<Element>& inputs);

  std::vector<int64_t> queries;
  std::vector<int64_t> keys;
};

// Multiply-adds of QK^T that are worth a task of their own, 10 to 30 microseconds.
constexpr int64_t kTaskWork = int64_t{1} << 20;

// Blocks of queries that a task has at least: a kernel may gather queries of a kind.
constexpr int64_t kTaskBlocks = 8;

// Queries that cost the same: `range` says how many heads are computed together but not which, `block_work`
// the multiply-adds of QK^T for one block and head.
struct Stretch {
  QueryRange range;
  int64_t block_work;
};

// Cuts the queries of all heads into tasks of about `task_work`: long stretches into several, short ones
// together. A task is cut at multiples of the block only.
std::vector<std::vector<QueryRange>> DivideWork(const std::vector<Stretch>& stretches, int64_t num_heads,
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
