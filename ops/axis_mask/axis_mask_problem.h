#pragma once

#include <cstdint>

namespace sparse_ops {

// Shapes: hidden (tokens, width), weight (2, width), bias (2); rows and columns (tokens).
template <class Element>
struct AxisMaskProblem {
  const Element* hidden;
  const Element* weight;
  const Element* bias;
  uint8_t* rows;
  uint8_t* columns;
  int64_t tokens;
  int64_t width;
};

}  // namespace sparse_ops
