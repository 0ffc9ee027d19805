// A tensor seen as rows along its last axis, each of which is computed by itself.
#pragma once

#include <algorithm>

#include "runtime/cpu_context.h"

namespace sparse_ops {

// The size of the last axis, and the product of all others.
struct MatrixShape {
  int64_t rows;
  int64_t columns;
};

// Throws where the rows are empty.
MatrixShape AsMatrix(const char* op, const char* name, const Shape& shape);

// Throws where an input's shape is not the one that follows from the shape of `other`.
template <class Element, class Other>
void RequireShape(const char* op, const Input<Element>& input, const Shape& accepted,
                  const Input<Other>& other) {
  if (input.shape == accepted) return;
  throw InvalidArgument(Message(op, ": ", input.name, " has shape ", ToString(input.shape),
                                "; accepted: ", ToString(accepted), ", as ", other.name, " has shape ",
                                ToString(other.shape)));
}

// Calls `rows(first, count, scratch)` for all rows, in tasks of several rows.
template <class Rows>
void ForRows(CpuContext& context, const MatrixShape& matrix, size_t scratch, const Rows& rows) {
  constexpr int64_t kTaskElements = int64_t{1} << 16;
  const int64_t rows_per_task = std::max<int64_t>(1, kTaskElements / matrix.columns);
  const auto tasks = static_cast<size_t>((matrix.rows + rows_per_task - 1) / rows_per_task);
  context.ParallelFor(tasks, scratch, [&](size_t task, float* memory) {
    const int64_t first = static_cast<int64_t>(task) * rows_per_task;
    rows(first, std::min(rows_per_task, matrix.rows - first), memory);
  });
}

}  // namespace sparse_ops
