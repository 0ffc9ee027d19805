// RoBERTa's tokenizer: ByteLevel and BPE of the `tokenizers` library.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kernel_context.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/code_point_map.h"
#include "tokenizer/merges.h"
#include "tokenizer/tokens.h"
#include "tokenizer/trie.h"

namespace sparse_ops {

struct ByteLevelBpeSignature {
  static constexpr const char* kName = "ByteLevelBpeTokenize";
  static constexpr Operand<std::string_view> text{0, "text"};
  static constexpr Operand<int32_t> char_classes{1, "char_classes"};
  static constexpr Operand<std::string_view> vocabulary{2, "vocabulary"};
  static constexpr Operand<int32_t> merges{3, "merges"};
  static constexpr Operand<std::string_view> added{4, "added"};
  static constexpr Operand<int32_t> added_info{5, "added_info"};
  static constexpr Operand<std::string_view> pair{6, "pair", kOptional};
  static constexpr Operand<bool> single{7, "single", kOptional};
  static constexpr auto inputs =
      Operands(text, char_classes, vocabulary, merges, added, added_info, pair, single);
  static constexpr Attribute<int64_t> add_prefix_space{"add_prefix_space", 0};
};

class ByteLevelBpe {
 public:
  using Signature = ByteLevelBpeSignature;

  // Memory that is reused from text to text.
  struct Workspace {
    Merges::Workspace merging;
    std::string spaced;

    // Only where spans are asked for, of a word that was merged:
    std::vector<size_t> begins;   // of its tokens
    std::string kept;             // its bytes that have a token
    std::vector<size_t> sources;  // its bytes, each as often as the library's character for it has bytes
  };

  explicit ByteLevelBpe(const KernelInfo& info);

  // Adds the tokens of a text, which is UTF-8.
  void Encode(std::string_view text, Workspace* workspace, Tokens* tokens) const;

 private:
  ByteLevelBpe(const KernelInfo& info, const Strings& vocabulary);

  // The place of a part of a text, between added tokens.
  struct Piece {
    std::string_view text;
    size_t begin;
    size_t prefix_space;  // 1 where it is read as if a space stood before it

    Extent ExtentOf(size_t first, size_t last) const;
  };

  template <bool kSpans>
  void EncodeText(std::string_view text, Workspace* workspace, Tokens* tokens) const;
  template <bool kSpans>
  bool EncodePiece(std::string_view text, const char* p, const char* end, Workspace* workspace,
                   Tokens* tokens) const;
  void AddMergedSpans(const Piece& piece, size_t at, std::string_view word, Workspace* workspace,
                      std::vector<Span>* spans) const;
  const char* WordEnd(const char* p, const char* end) const;
  bool IsSpace(const char* p) const;

  CodePointMap classes_;
  bool add_prefix_space_;
  Merges merges_;
  Trie whole_;  // the tokens that merging their own bytes yields: such words need no merging
  AddedTokens added_;
};

}  // namespace sparse_ops
