#include "runtime/matrix_rows.h"

#include "runtime/status.h"

namespace sparse_ops {

MatrixShape AsMatrix(const char* op, const char* name, const Shape& shape) {
  if (shape.empty()) {
    throw InvalidArgument(Message(op, ": ", name, " is a scalar; accepted: rank 1 or more"));
  }
  if (shape.back() == 0) {
    throw InvalidArgument(
        Message(op, ": ", name, " has shape ", ToString(shape), "; accepted: rows of 1 or more numbers"));
  }
  // In an empty tensor the product of the other sizes may exceed int64.
  if (std::count(shape.begin(), shape.end(), 0) > 0) return {0, shape.back()};
  int64_t rows = 1;
  for (size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
  return {rows, shape.back()};
}

}  // namespace sparse_ops
