#include "tokenizer/tokenize.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "runtime/status.h"
#include "tokenizer/tables.h"
#include "tokenizer/tokens.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

// Bytes of text that are worth a task of their own: about 0.1 ms.
constexpr size_t kTaskBytes = size_t{1} << 14;

void CheckTexts(const char* op, const char* name, const Shape& shape) {
  if (shape.size() == 1 || (shape.size() == 2 && shape[1] == 1)) return;
  throw InvalidArgument(
      Message(op, ": ", name, " has shape ", ToString(shape), "; accepted: (rows,) or (rows, 1)"));
}

bool CutsLeft(const KernelInfo& info, const Attribute<std::string_view>& truncation_side) {
  constexpr const char* kAccepted = "\"right\" or \"left\"";
  const std::string side = info.Get(truncation_side, kAccepted);
  if (side != "right" && side != "left") info.Refuse(truncation_side, "\"" + side + "\"", kAccepted);
  return side == "left";
}

}  // namespace

// The texts of a call.
struct Texts {
  template <class Signature>
  Texts(const KernelContext& context, Signature)
      : text(context.GetStrings(Signature::text)), has_pairs(context.HasInput(Signature::pair)) {
    const char* op = Signature::kName;
    CheckTexts(op, Signature::text.name, text.shape());
    if (has_pairs) {
      pair = context.GetStrings(Signature::pair);
      CheckTexts(op, Signature::pair.name, pair.shape());
      CheckRows(op, Signature::pair.name, pair.size());
    }
    if (context.HasInput(Signature::single)) {
      single = context.GetInput(Signature::single);
      CheckTexts(op, single.name, single.shape);
      CheckRows(op, single.name, static_cast<size_t>(single.shape[0]));
    }
    for (size_t row = 0; row < text.size(); ++row) {
      if (Bytes(row) > kMostInt) {
        throw InvalidArgument(
            Message(op, ": row ", row, " has ", Bytes(row), " bytes; accepted: at most ", kMostInt));
      }
    }
  }

  // Whether the row has a second text that is read.
  bool HasPair(size_t row) const { return has_pairs && !(single.data != nullptr && single.data[row]); }

  // The byte at which the row stops being UTF-8, counted through its first text and on through the second;
  // -1: it is UTF-8.
  int32_t InvalidAt(size_t row) const {
    size_t at = ValidBytes(text[row]), bytes = text[row].size();
    if (at == bytes && HasPair(row)) {
      at += ValidBytes(pair[row]);
      bytes += pair[row].size();
    }
    return at == bytes ? -1 : static_cast<int32_t>(at);
  }

  size_t Bytes(size_t row) const { return text[row].size() + (HasPair(row) ? pair[row].size() : 0); }

  Strings text;
  bool has_pairs;
  Strings pair;

 private:
  void CheckRows(const char* op, const char* name, size_t rows) const {
    if (rows != text.size()) {
      throw InvalidArgument(
          Message(op, ": ", name, " has ", rows, " rows; accepted: ", text.size(), ", as many as text"));
    }
  }

  Input<bool> single{};  // data is null where the node leaves it out
};

namespace {

// The first row of each task, and at the end the number of rows.
std::vector<size_t> DivideRows(const Texts& texts) {
  std::vector<size_t> firsts{0};
  size_t bytes = 0;
  for (size_t row = 0; row < texts.text.size(); ++row) {
    if (bytes >= kTaskBytes) {
      firsts.push_back(row);
      bytes = 0;
    }
    bytes += texts.Bytes(row);
  }
  firsts.push_back(texts.text.size());
  return firsts;
}

}  // namespace

template <class Tokenizer>
Tokenize<Tokenizer>::Tokenize(const KernelInfo& info)
    : tokenizer_(info),
      single_(info, Signature::single_template, false),
      pair_(info, Signature::pair_template, true),
      max_length_(static_cast<size_t>(IntWithin(
          info, Signature::max_length,
          static_cast<int64_t>(std::max({single_.special_tokens(), pair_.special_tokens(), size_t{1}})),
          kMostInt))),
      cuts_left_(CutsLeft(info, Signature::truncation_side)),
      stop_early_(IntWithin(info, Signature::stop_early, 0, 1) != 0 && !cuts_left_),
      has_offsets_(info.HasOutput(Signature::offsets)),
      trimming_(static_cast<Trimming>(IntWithin(info, Signature::trim_offsets, 0, 2))) {}

template <class Tokenizer>
void Tokenize<Tokenizer>::InferShapes(ShapeContext& context) {
  context.SetOutputColumnLike(Signature::token_count, Signature::text);
  context.SetOutputColumnLike(Signature::truncated, Signature::text);
  context.SetOutputColumnLike(Signature::invalid_at, Signature::text);
}

template <class Tokenizer>
void Tokenize<Tokenizer>::Compute(CpuContext& context) const {
  const Texts texts(context, Signature{});
  const auto count = static_cast<int64_t>(texts.text.size());
  int32_t* cu_seqlens = context.GetOutput(Signature::cu_seqlens, {count + 1});
  const Columns columns{context.GetOutput(Signature::token_count, {count, 1}),
                        context.GetOutput(Signature::truncated, {count, 1}),
                        context.GetOutput(Signature::invalid_at, {count, 1})};

  const std::vector<size_t> firsts = DivideRows(texts);
  std::vector<Rows> tasks(firsts.size() - 1);
  context.ParallelFor(tasks.size(), 0, [&](size_t task, float*) {
    tasks[task] = ReadRows(texts, firsts[task], firsts[task + 1], columns);
  });

  int64_t total = 0;
  cu_seqlens[0] = 0;
  for (int64_t row = 0; row < count; ++row) {
    total += columns.token_count[row];
    if (total > kMostInt) {
      throw InvalidArgument(Message(Signature::kName, ": the rows have more than ", kMostInt,
                                    " tokens; accepted: fewer rows at once"));
    }
    cu_seqlens[row + 1] = static_cast<int32_t>(total);
  }
  int64_t* input_ids = context.GetOutput(Signature::input_ids, {total});
  int64_t* token_type_ids = context.GetOutput(Signature::token_type_ids, {total});
  int64_t* positions = context.GetOutput(Signature::positions, {total});
  int32_t* offsets = context.GetOutput(Signature::offsets, {total, 2});
  for (const Rows& rows : tasks) {
    if (has_offsets_) offsets = std::copy(rows.offsets.begin(), rows.offsets.end(), offsets);
    input_ids = std::copy(rows.ids.begin(), rows.ids.end(), input_ids);
    token_type_ids = std::copy(rows.type_ids.begin(), rows.type_ids.end(), token_type_ids);
  }
  for (int64_t row = 0; row < count; ++row) {
    std::iota(positions, positions + columns.token_count[row], 0);
    positions += columns.token_count[row];
  }
}

template <class Tokenizer>
typename Tokenize<Tokenizer>::Rows Tokenize<Tokenizer>::ReadRows(const Texts& texts, size_t first,
                                                                 size_t last, const Columns& columns) const {
  Rows rows;
  Workspace workspace;
  for (size_t row = first; row < last; ++row) {
    const Template& form = texts.HasPair(row) ? pair_ : single_;
    const size_t budget = max_length_ - form.special_tokens();
    const size_t begin = rows.ids.size();
    workspace.text.ids.clear();
    workspace.pair.ids.clear();
    columns.invalid_at[row] = texts.InvalidAt(row);
    if (const bool is_valid = columns.invalid_at[row] < 0; is_valid && texts.HasPair(row)) {
      ReadPair(texts.text[row], texts.pair[row], budget, &workspace);
    } else if (is_valid) {
      ReadText(texts.text[row], budget, &workspace);
    }
    columns.truncated[row] = AddRow(form, budget, workspace, &rows);
    columns.token_count[row] = static_cast<int32_t>(rows.ids.size() - begin);
  }
  return rows;
}

template <class Tokenizer>
void Tokenize<Tokenizer>::Read(std::string_view text, size_t enough, Workspace* workspace,
                               Tokens* tokens) const {
  tokens->text = text;
  tokens->ids.clear();
  tokens->spans.clear();
  tokens->has_spans = has_offsets_;
  tokens->enough = enough;
  tokenizer_.Encode(text, &workspace->tokenizer, tokens);
}

// How many tokens of a text are enough, so that more would not change the row: all, where the last ones are
// kept.
template <class Tokenizer>
size_t Tokenize<Tokenizer>::Enough(size_t budget) const {
  return cuts_left_ ? std::numeric_limits<size_t>::max() : budget + 1;
}

template <class Tokenizer>
void Tokenize<Tokenizer>::ReadText(std::string_view text, size_t budget, Workspace* workspace) const {
  const size_t enough = Enough(budget);
  Read(text, stop_early_ ? std::min(enough, max_length_) : enough, workspace, &workspace->text);
}

template <class Tokenizer>
void Tokenize<Tokenizer>::ReadPair(std::string_view text, std::string_view pair, size_t budget,
                                   Workspace* workspace) const {
  constexpr size_t kFurther = 8;  // large, so that the shorter readings before the last cost little
  for (size_t enough = stop_early_ ? max_length_ : Enough(budget);; enough *= kFurther) {
    Read(text, enough, workspace, &workspace->text);
    Read(pair, enough, workspace, &workspace->pair);
    // Where both are cut, an odd token goes to the longer text. Which one that is, is known once the shorter
    // one ends.
    const bool is_decided = !workspace->text.full() || !workspace->pair.full() || budget % 2 == 0;
    if (is_decided || stop_early_) return;
  }
}

// Writes what has been read as a row; returns whether it is cut.
template <class Tokenizer>
bool Tokenize<Tokenizer>::AddRow(const Template& form, size_t budget, const Workspace& read,
                                 Rows* rows) const {
  const Lengths all{read.text.ids.size(), read.pair.ids.size()};
  const Lengths kept = CutLongestFirst(all, budget);
  for (const Template::Piece& piece : form.pieces()) {
    if (piece.id == Template::kText) {
      AddText(read.text, kept.text, rows);
    } else if (piece.id == Template::kPair) {
      AddText(read.pair, kept.pair, rows);
    } else {
      rows->ids.push_back(piece.id);
      if (has_offsets_) rows->offsets.insert(rows->offsets.end(), {0, 0});
    }
    rows->type_ids.resize(rows->ids.size(), piece.type_id);
  }
  return kept.text < all.text || kept.pair < all.pair;
}

template <class Tokenizer>
void Tokenize<Tokenizer>::AddText(const Tokens& read, size_t count, Rows* rows) const {
  const size_t first = cuts_left_ ? read.ids.size() - count : 0;
  const auto begin = read.ids.begin() + static_cast<ptrdiff_t>(first);
  rows->ids.insert(rows->ids.end(), begin, begin + static_cast<ptrdiff_t>(count));
  if (has_offsets_) AddOffsets(read, first, count, trimming_, &rows->offsets);
}

template class Tokenize<WordPiece>;
template class Tokenize<ByteLevelBpe>;

}  // namespace sparse_ops
