// How the tokens of a text, or of two, become a row: which special tokens stand where, and what is cut.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/kernel_context.h"

namespace sparse_ops {

class Template {
 public:
  static constexpr int64_t kText = -1, kPair = -2;

  struct Piece {
    int64_t id;  // of a special token, or kText or kPair
    int64_t type_id;
  };

  // From an attribute: id and type id of each piece, in order. `is_pair` says whether it has both texts.
  Template(const KernelInfo& info, const Attribute<IntList>& attribute, bool is_pair);

  const std::vector<Piece>& pieces() const { return pieces_; }
  size_t special_tokens() const { return special_tokens_; }

 private:
  std::vector<Piece> pieces_;
  size_t special_tokens_ = 0;
};

// Tokens of the two texts of a row; one text alone has an empty second.
struct Lengths {
  size_t text, pair;
};

// How many of them stay where both together may be `budget`: "longest_first" of the `tokenizers` library.
// Beyond `budget` a length may be any that is, if not both are: then it matters which is longer.
Lengths CutLongestFirst(Lengths lengths, size_t budget);

}  // namespace sparse_ops
