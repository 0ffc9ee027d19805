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

// Normalizing a text and splitting it into words is one look-up for each code point: whatever is done to it
// (lower case, accents, spaces, punctuation, CJK, control characters) makes it a string of characters and
// word ends.
class WordPiece {
 public:
  static constexpr const char* kName = "WordPieceTokenize";
  static constexpr ONNXTensorElementDataType kInputs[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,  // text
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   // char_actions
      ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,   // char_pool
      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,  // vocabulary
      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,  // added
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,   // added_info
      ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,  // pair
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,    // single
  };

  // The word that is being read, normalized. One serves any number of texts.
  struct Workspace {
    std::string bytes;
    int64_t characters = 0;
    bool has_unknown = false;  // a character that no token has

    // Where spans are asked for:
    const char* text = nullptr;
    Extent character{};           // the code point that is read
    Extent whole{};               // the word
    std::vector<Extent> sources;  // what each of `bytes` came from
    CombiningMarks marks;         // behind the last character that is none
  };

  explicit WordPiece(const KernelInfo& info);

  // Adds the tokens of a text, which is UTF-8.
  void Encode(std::string_view text, Workspace* word, Tokens* tokens) const;

 private:
  WordPiece(const KernelInfo& info, const Strings& vocabulary);

  // Spans are read by another instance of the same code, so that ids alone cost no more than without.
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
  int64_t most_characters_;  // of a word that is not unknown
  std::string pool_;
  CodePointMap actions_;
  std::array<uint8_t, 128> short_actions_;  // of ASCII, where one byte says it
  Trie beginnings_, continuations_;         // the tokens that begin a word; those that go on, without prefix
  AddedTokens added_;
  CodePointMap marks_;                // what combining marks they are, or have
  std::vector<int64_t> white_space_;  // that added tokens take with them
};

}  // namespace sparse_ops
