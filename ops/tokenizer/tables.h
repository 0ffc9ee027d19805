// The constant inputs and attributes of a tokenizer node, checked as they are read.
#pragma once

#include <cstdint>

#include "runtime/kernel_context.h"

namespace sparse_ops {

// An attribute from `least` to `most`; required, or `absent` where the node lacks it.
int64_t IntWithin(const KernelInfo& info, const char* name, int64_t least, int64_t most);
int64_t IntWithin(const KernelInfo& info, const char* name, int64_t least, int64_t most, int64_t absent);

// Strings (N,) of UTF-8, each there once; the empty one stands for an id without a token.
Strings TokenTable(const KernelInfo& info, size_t index, const char* name);

// Integers (N, columns).
Input<int32_t> IntTable(const KernelInfo& info, size_t index, const char* name, int64_t columns);

}  // namespace sparse_ops
