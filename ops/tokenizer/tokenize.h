// The tokenizer ops: texts in, packed token ids out.
#pragma once

#include <iterator>
#include <vector>

#include "runtime/kernel_context.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/offsets.h"
#include "tokenizer/template.h"
#include "tokenizer/tokens.h"
#include "tokenizer/wordpiece.h"

namespace sparse_ops {

struct Texts;

template <class Tokenizer>
class Tokenize {
 public:
  static constexpr const char* kName = Tokenizer::kName;
  static constexpr auto& kInputs = Tokenizer::kInputs;
  static constexpr size_t kRequiredInputs = std::size(Tokenizer::kInputs) - 2;  // but pair, single
  static constexpr ONNXTensorElementDataType kOutputs[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,  // input_ids
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,  // token_type_ids
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,  // positions
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // cu_seqlens
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // token_count
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,   // truncated
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // invalid_at
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,  // offsets
  };
  static constexpr size_t kRequiredOutputs = std::size(kOutputs) - 1;  // but offsets

  explicit Tokenize(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(KernelContext& context) const;

 private:
  // The rows that one task has made.
  struct Rows {
    std::vector<int64_t> ids, type_ids;
    std::vector<int32_t> offsets;  // two for each id, where the node has them
  };
  // The outputs (rows, 1).
  struct Columns {
    int32_t* token_count;
    uint8_t* truncated;
    int32_t* invalid_at;
  };
  // What is kept from row to row. One text alone has an empty pair.
  struct Workspace {
    typename Tokenizer::Workspace tokenizer;
    Tokens text, pair;
  };

  Rows ReadRows(const Texts& texts, size_t first, size_t last, const Columns& columns) const;
  void ReadText(std::string_view text, size_t budget, Workspace* workspace) const;
  void ReadPair(std::string_view text, std::string_view pair, size_t budget, Workspace* workspace) const;
  size_t Enough(size_t budget) const;
  void Read(std::string_view text, size_t enough, Workspace* workspace, Tokens* tokens) const;
  bool AddRow(const Template& form, size_t budget, const Workspace& read, Rows* rows) const;
  void AddText(const Tokens& read, size_t count, Rows* rows) const;

  Tokenizer tokenizer_;
  Template single_, pair_;
  size_t max_length_;
  bool cuts_left_;
  bool stop_early_;
  bool has_offsets_;
  Trimming trimming_;
};

using WordPieceTokenize = Tokenize<WordPiece>;
using ByteLevelBpeTokenize = Tokenize<ByteLevelBpe>;

}  // namespace sparse_ops
