#pragma once

#include <cstdint>

namespace sparse_ops {

// Rows along one axis of a tensor (outer, length, inner), row-major: row r is the r-th of all (outer, inner)
// pairs.
template <class Element>
struct AxisRows {
  const Element* input;
  Element* output;
  int64_t length;
  int64_t inner;
};

}  // namespace sparse_ops
