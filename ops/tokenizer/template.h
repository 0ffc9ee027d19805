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

  // Reads an attribute: id and type id of each piece, in order. `is_pair`: whether it must have both texts.
  Template(const KernelInfo& info, const Attribute<IntList>& attribute, bool is_pair);

  const std::vector<Piece>& pieces() const { return pieces_; }
  size_t special_tokens() const { return special_tokens_; }

 private:
  std::vector<Piece> pieces_;
  size_t special_tokens_ = 0;
};

// Numbers of tokens of a row's two texts; the second is 0 where there is one text.
struct Lengths {
  size_t text, pair;
};

// How many tokens of each are kept where both together may be `budget`: "longest_first" of the `tokenizers`
// library. A length beyond `budget` need not be exact, unless both are beyond it: then it matters which is
// longer.
Lengths CutLongestFirst(Lengths lengths, size_t budget);

}  // namespace sparse_ops
