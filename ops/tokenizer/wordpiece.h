// BERT's tokenizer: BertNormalizer, BertPreTokenizer and WordPiece of the `tokenizers` library.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "runtime/kernel_context.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/code_point_map.h"
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
  };

  explicit WordPiece(const KernelInfo& info);

  // Adds the tokens of a text, which is UTF-8.
  void Encode(std::string_view text, Workspace* word, Tokens* tokens) const;

 private:
  WordPiece(const KernelInfo& info, const Strings& vocabulary);

  bool EncodePiece(const char* p, const char* end, Workspace* word, Tokens* tokens) const;
  bool ReadCharacter(std::string_view character, int32_t action, Workspace* word, Tokens* tokens) const;
  bool EndWord(Workspace* word, Tokens* tokens) const;
  bool Cover(std::string_view word, std::vector<int32_t>* ids) const;
  void Append(std::string_view character, Workspace* word) const;
  std::string_view Pooled(int32_t offset) const;
  uint8_t ShortAction(uint32_t character) const;

  int32_t unknown_id_;
  int64_t most_characters_;  // of a word that is not unknown
  std::string pool_;
  CodePointMap actions_;
  std::array<uint8_t, 128> short_actions_;  // of ASCII, where one byte says it
  Trie beginnings_, continuations_;         // the tokens that begin a word; those that go on, without prefix
  AddedTokens added_;
};

}  // namespace sparse_ops
