// Where the tokens of a text were in it, as in `Encoding.offsets` of the `tokenizers` library.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/tokens.h"

namespace sparse_ops {

// Whether white space that a token has at its ends counts as its own.
enum class Trimming : int64_t {
  kNone,
  kAll,
  kAllButFirst,  // but for one space before the first token, which was added
};

// Appends begin and end of `count` tokens from `first` on, in code points of their text.
void AddOffsets(const Tokens& tokens, size_t first, size_t count, Trimming trimming,
                std::vector<int32_t>* offsets);

}  // namespace sparse_ops
