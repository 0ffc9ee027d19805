// A map from every code point to a number.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/kernel_context.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {

class CodePointMap {
 public:
  // Reads a constant input (ranges, 2): the first code point of each range, and its number, which must be
  // from `least` to `most`. A range ends where the next begins.
  CodePointMap(const KernelInfo& info, const Operand<int32_t>& table, int32_t least, int32_t most);

  // The same from a flat attribute; every number is 0 where the node lacks it.
  CodePointMap(const KernelInfo& info, const Attribute<IntList>& attribute, int32_t least, int32_t most);

  int32_t operator[](uint32_t point) const {
    return numbers_[pages_[point / kPage] * size_t{kPage} + point % kPage];
  }

 private:
  void Fill(const Input<int32_t>& ranges);

  static constexpr uint32_t kPage = 256;

  std::array<uint16_t, kCodePoints / kPage> pages_{};  // pages of one single number are stored once
  std::vector<int32_t> numbers_;
};

}  // namespace sparse_ops
