// Readers of a tokenizer node's constant inputs and attributes, which also check them.
#pragma once

#include <cstdint>

#include "runtime/kernel_context.h"

namespace sparse_ops {

// An attribute, which must be from `least` to `most`.
int64_t IntWithin(const KernelInfo& info, const Attribute<int64_t>& attribute, int64_t least, int64_t most);

// Strings (N,) of UTF-8, all different; the empty one stands for an id without a token.
Strings TokenTable(const KernelInfo& info, const Operand<std::string_view>& operand);

// Integers (N, columns).
Input<int32_t> IntTable(const KernelInfo& info, const Operand<int32_t>& operand, int64_t columns);

}  // namespace sparse_ops
