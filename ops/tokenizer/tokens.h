// The tokens of a text, as a tokenizer writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace sparse_ops {

// Ids, offsets and counts are int32.
constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

// A range of a text's bytes, made of whole code points.
struct Extent {
  int32_t begin, end;
};

// The part of a text that a token came from.
struct Span {
  Extent bytes;
  // White space that the token itself has at its ends, which trimming removes.
  int32_t leading = 0, trailing = 0;
};

// The tokens of one text.
struct Tokens {
  std::string_view text;
  std::vector<int32_t> ids;
  std::vector<Span> spans;  // of each, where they are asked for
  bool has_spans = false;   // whether they are
  // Reading ends after the first word that brings the tokens to this number. Only after a word: the
  // `tokenizers` library, where it stops early itself, does not check after an added token.
  size_t enough = 0;

  bool full() const { return ids.size() >= enough; }
};

}  // namespace sparse_ops
