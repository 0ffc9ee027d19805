// The tokenizer ops: texts in, packed token ids out.
#pragma once

#include <vector>

#include "runtime/cpu_context.h"
#include "tokenizer/byte_level_bpe.h"
#include "tokenizer/offsets.h"
#include "tokenizer/template.h"
#include "tokenizer/tokens.h"
#include "tokenizer/wordpiece.h"

namespace sparse_ops {

struct Texts;

// The inputs, outputs and attributes that both ops have, after those of their own.
template <class Tokenizer>
struct TokenizeSignature : Tokenizer::Signature {
  static constexpr Operand<int64_t> input_ids{0, "input_ids"}, token_type_ids{1, "token_type_ids"};
  static constexpr Operand<int64_t> positions{2, "positions"};
  static constexpr Operand<int32_t> cu_seqlens{3, "cu_seqlens"}, token_count{4, "token_count"};
  static constexpr Operand<bool> truncated{5, "truncated"};
  static constexpr Operand<int32_t> invalid_at{6, "invalid_at"}, offsets{7, "offsets", kOptional};
  static constexpr auto outputs =
      Operands(input_ids, token_type_ids, positions, cu_seqlens, token_count, truncated, invalid_at, offsets);
  static constexpr Attribute<int64_t> max_length{"max_length"};
  static constexpr Attribute<IntList> single_template{"single_template"}, pair_template{"pair_template"};
  static constexpr Attribute<std::string_view> truncation_side{"truncation_side", "right"};
  static constexpr Attribute<int64_t> stop_early{"stop_early", 0}, trim_offsets{"trim_offsets", 0};
};

template <class Tokenizer>
class Tokenize {
 public:
  using Signature = TokenizeSignature<Tokenizer>;
  using Provider = CpuProvider;

  explicit Tokenize(const KernelInfo& info);
  static void InferShapes(ShapeContext& context);
  void Compute(CpuContext& context) const;

 private:
  // The rows of one task.
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
  // Memory that is reused from row to row. `pair` is empty where there is one text.
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
