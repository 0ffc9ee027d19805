// The element types of a host-run kernel, as `ELEMENTS` of cuda_host.py counts them.
#pragma once

#include "runtime/elements.h"

template <class Visit>
void VisitElement(int element, const Visit& visit) {
  if (element == 0) return visit(float{});
  if (element == 1) return visit(sparse_ops::Half{});
  visit(sparse_ops::BFloat16{});
}
