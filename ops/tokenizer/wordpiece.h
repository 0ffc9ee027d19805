// BERT's tokenizer: BertNormalizer, BertPreTokenizer and WordPiece of the `tokenizers` library.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "runtime/kernel_context.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/code_point_map.h"
#include "tokenizer/combining_marks.h"
#include "tokenizer/tokens.h"
#include "tokenizer/trie.h"

namespace sparse_ops {

// Normalizing a text and splitting it into words takes one look-up for each code point. Whatever is done to
// it (lower case, accents, spaces, punctuation, CJK, control characters), it becomes a string of characters
// and word ends.
struct WordPieceSignature {
  static constexpr const char* kName = "WordPieceTokenize";
  static constexpr Operand<std::string_view> text{0, "text"};
  static constexpr Operand<int32_t> char_actions{1, "char_actions"};
  static constexpr Operand<uint8_t> char_pool{2, "char_pool"};
  static constexpr Operand<std::string_view> vocabulary{3, "vocabulary"}, added{4, "added"};
  static constexpr Operand<int32_t> added_info{5, "added_info"};
  static constexpr Operand<std::string_view> pair{6, "pair", kOptional};
  static constexpr Operand<bool> single{7, "single", kOptional};
  static constexpr auto inputs =
      Operands(text, char_actions, char_pool, vocabulary, added, added_info, pair, single);
  static constexpr Attribute<int64_t> unk_id{"unk_id"};
  static constexpr Attribute<int64_t> max_input_chars_per_word{"max_input_chars_per_word", 100};
  static constexpr Attribute<std::string_view> continuing_prefix{"continuing_prefix", "##"};
  static constexpr Attribute<IntList> marks{"marks"}, white_space{"white_space"};
};

class WordPiece {
 public:
  using Signature = WordPieceSignature;

  // The word that is being read, normalized. A workspace can be reused for any number of texts.
  struct Workspace {
    std::string bytes;
    int64_t characters = 0;
    bool has_unknown = false;  // whether it has a character that no token has

    // Only where spans are asked for:
    const char* text = nullptr;
    Extent character{};           // the code point that is read
    Extent whole{};               // the word
    std::vector<Extent> sources;  // what each of `bytes` came from
    CombiningMarks marks;         // after the last character that is not a mark
  };

  explicit WordPiece(const KernelInfo& info);

  // Adds the tokens of a text, which is UTF-8.
  void Encode(std::string_view text, Workspace* word, Tokens* tokens) const;

 private:
  WordPiece(const KernelInfo& info, const Strings& vocabulary);

  // kSpans: whether spans are read too. It is a template parameter so that ids alone cost no more than
  // without spans.
  template <bool kSpans>
  void EncodeText(std::string_view text, Workspace* word, Tokens* tokens) const;
  template <bool kSpans>
  bool EncodePiece(const char* p, const char* end, Workspace* word, Tokens* tokens) const;
  template <bool kSpans>
  bool ReadCharacter(std::string_view character, int32_t action, Workspace* word, Tokens* tokens) const;
  template <bool kSpans>
  bool EndWord(Workspace* word, Tokens* tokens) const;
  template <bool kSpans>
  bool Cover(const Workspace& word, Tokens* tokens) const;
  template <bool kSpans>
  void Append(std::string_view character, Workspace* word) const;
  template <bool kSpans>
  static void CountCharacter(Workspace* word);
  void Place(const char* begin, const char* end, int32_t action, Workspace* word) const;
  static void EndMarks(Workspace* word);
  bool IsSpace(const char* p) const;
  std::string_view Pooled(int32_t offset) const;
  uint8_t ShortAction(uint32_t character) const;

  int32_t unknown_id_;
  int64_t most_characters_;  // longer words are unknown
  std::string pool_;
  CodePointMap actions_;
  std::array<uint8_t, 128> short_actions_;  // of ASCII, where one byte says it
  Trie beginnings_, continuations_;         // the tokens that begin a word; those that go on, without prefix
  AddedTokens added_;
  CodePointMap marks_;                // the combining marks that code points are, or have
  std::vector<int64_t> white_space_;  // that added tokens take with them
};

}  // namespace sparse_ops
