// What a tokenizer writes its tokens to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sparse_ops {

// The tokens of one text.
struct Tokens {
  std::vector<int32_t> ids;
  // Reading ends behind the first word that brings them to so many. Only behind a word: the `tokenizers`
  // library, where it stops early itself, does not look behind an added token.
  size_t enough = 0;

  bool full() const { return ids.size() >= enough; }
};

}  // namespace sparse_ops
