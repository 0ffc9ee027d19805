// The tokenizer ops: texts in, packed token ids out.
#pragma once

#include <iterator>
#include <vector>

#include "runtime/kernel_context.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/template.h"
#include "tokenizer/tokens.h"
#include "tokenizer/wordpiece.h"

namespace sparse_ops {

template <class Tokenizer>
class Tokenize {
 public:
  static constexpr const char* kName = Tokenizer::kName;
  static constexpr auto& kInputs = Tokenizer::kInputs;
  static constexpr size_t kRequiredInputs = std::size(Tokenizer::kInputs) - 1;
  static constexpr ONNXTensorElementDataType kOutputs[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,  // input_ids
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,  // token_type_ids
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,  // positions
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // cu_seqlens
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // token_count
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,   // truncated
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // invalid_at
  };
  static constexpr size_t kRequiredOutputs = std::size(kOutputs);

  explicit Tokenize(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  // The rows that one task has made.
  struct Rows {
    std::vector<int64_t> ids, type_ids;
  };
  // What is kept from row to row.
  struct Workspace {
    typename Tokenizer::Workspace tokenizer;
    Tokens text, pair;
  };

  void Read(std::string_view text, size_t enough, Workspace* workspace, Tokens* tokens) const;
  void ReadRow(std::string_view text, size_t budget, Workspace* workspace) const;
  void ReadRow(std::string_view text, std::string_view pair, size_t budget, Workspace* workspace) const;
  bool AddRow(const Template& form, const Workspace& read, Rows* rows) const;

  Tokenizer tokenizer_;
  Template single_, pair_;
  size_t max_length_;
  bool stop_early_;
};

using WordPieceTokenize = Tokenize<WordPiece>;
using ByteLevelBpeTokenize = Tokenize<ByteLevelBpe>;

}  // namespace sparse_ops
