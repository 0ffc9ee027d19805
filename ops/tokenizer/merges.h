// Byte pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/kernel_context.h"

namespace sparse_ops {

class Merges {
  struct Symbol {
    int32_t id;  // kMerged where it has become part of the symbol before
    int32_t previous, next;
  };
  struct Candidate {
    int32_t rank, symbol, id;
  };

 public:
  struct Workspace {
    std::vector<Symbol> symbols;
    std::vector<Candidate> candidates;
  };

  // Reads a constant input (merges, 3): the ids of the left token, the right token and the merged one, in the
  // order of their ranks. `byte_ids` are the tokens of single bytes, kNone where a byte has none.
  Merges(const KernelInfo& info, const Operand<int32_t>& operand, int64_t vocabulary_size,
         const std::array<int32_t, 256>& byte_ids);

  // Adds the tokens of a word. Its pair of the lowest rank is merged first, the leftmost of several, until no
  // pair is left. Bytes without a token are left out. Time: n log n for n bytes.
  void Encode(std::string_view word, Workspace* workspace, std::vector<int32_t>* ids) const;

  // Where each token of the word that was encoded last begins, counted in bytes that have a token, and at the
  // end the number of these.
  static void Begins(const Workspace& workspace, std::vector<size_t>* begins);

  bool HasToken(uint8_t byte) const { return byte_ids_[byte] != kNone; }

  static constexpr int32_t kNone = -1;

 private:
  struct Merge {
    uint64_t pair = kNoPair;
    int32_t rank = 0;
    int32_t id = 0;
  };

  static constexpr uint64_t kNoPair = UINT64_MAX;
  static constexpr int32_t kMerged = -2;

  size_t SlotOf(uint64_t pair) const;
  const Merge* Find(int32_t left, int32_t right) const;
  void Consider(int32_t symbol, Workspace* workspace) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Merge> slots_;  // an open hash table, half full at most
};

}  // namespace sparse_ops
