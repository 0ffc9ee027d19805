#include "tokenizer/byte_level_bpe.h"

#include <algorithm>

#include "runtime/status.h"
#include "tokenizer/tables.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

// The classes of code points, by which words are split.
enum Class : int32_t { kSpace, kLetter, kNumber, kOther };

// The bytes that a token of the vocabulary stands for. It has a character for each: printable bytes stand for
// themselves, as in Latin-1, and U+0100 to U+0143 for the others in turn. Empty where it has any other
// character.
std::string BytesOf(std::string_view token) {
  std::string bytes;
  for (const char *p = token.data(), *const end = p + token.size(); p < end;) {
    const uint32_t c = Decode(p);
    const uint32_t other = c - 0x100;
    if ((c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xFF && c != 0xAD)) {
      bytes += static_cast<char>(c);
    } else if (c >= 0x100 && other < 68) {
      bytes += static_cast<char>(other < 33 ? other : other < 67 ? other - 33 + 0x7F : 0xAD);
    } else {
      return {};
    }
  }
  return bytes;
}

// How many bytes the character for a byte has in a token of the vocabulary.
size_t CharacterBytes(char byte) { return byte >= 0x21 && byte <= 0x7E ? 1 : 2; }

// The span of a token with these bytes.
Span SpanOf(Extent extent, std::string_view bytes) {
  const size_t first = std::min(bytes.find_first_not_of(' '), bytes.size());
  const size_t behind = bytes.find_last_not_of(' ') + 1;  // 0 where all are spaces
  return {extent, static_cast<int32_t>(first), static_cast<int32_t>(bytes.size() - behind)};
}

std::array<int32_t, 256> ByteIds(const Strings& vocabulary) {
  std::array<int32_t, 256> ids;
  ids.fill(Merges::kNone);
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const std::string bytes = BytesOf(vocabulary[i]);
    if (bytes.size() == 1) ids[ByteAt(bytes.data())] = static_cast<int32_t>(i);
  }
  return ids;
}

Trie WholeWords(const KernelInfo& info, const Strings& vocabulary, const Merges& merges) {
  std::vector<std::string> words;
  std::vector<int32_t> numbers, merged;
  Merges::Workspace workspace;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    std::string bytes = BytesOf(vocabulary[i]);
    merged.clear();
    merges.Encode(bytes, &workspace, &merged);
    const auto id = static_cast<int32_t>(i);
    if (merged.size() != 1 || merged[0] != id) continue;
    words.push_back(std::move(bytes));
    numbers.push_back(id);
  }
  std::vector<Trie::Key> keys;
  for (size_t i = 0; i < words.size(); ++i) keys.emplace_back(words[i], numbers[i]);
  return Trie(info, std::move(keys));
}

// The bytes of 's, 't, 're, 've, 'm, 'll or 'd at p; 0 where it has none.
size_t Contraction(const char* p, const char* end) {
  if (*p != '\'') return 0;
  const std::string_view rest(p + 1, static_cast<size_t>(end - p - 1));
  for (const std::string_view suffix : {"s", "t", "re", "ve", "m", "ll", "d"}) {
    if (rest.substr(0, suffix.size()) == suffix) return 1 + suffix.size();
  }
  return 0;
}

}  // namespace

ByteLevelBpe::ByteLevelBpe(const KernelInfo& info)
    : ByteLevelBpe(info, TokenTable(info, Signature::vocabulary)) {}

ByteLevelBpe::ByteLevelBpe(const KernelInfo& info, const Strings& vocabulary)
    : classes_(info, Signature::char_classes, kSpace, kOther),
      add_prefix_space_(IntWithin(info, Signature::add_prefix_space, 0, 1) != 0),
      merges_(info, Signature::merges, static_cast<int64_t>(vocabulary.size()), ByteIds(vocabulary)),
      whole_(WholeWords(info, vocabulary, merges_)),
      added_(info, Signature::added, Signature::added_info) {}

void ByteLevelBpe::Encode(std::string_view text, Workspace* workspace, Tokens* tokens) const {
  return tokens->has_spans ? EncodeText<true>(text, workspace, tokens)
                           : EncodeText<false>(text, workspace, tokens);
}

template <bool kSpans>
void ByteLevelBpe::EncodeText(std::string_view text, Workspace* workspace, Tokens* tokens) const {
  const char* p = text.data();
  const char* const end = p + text.size();
  for (AddedTokens::Match match; added_.Find(p, end, &match);) {
    const auto stripped = AddedTokens::Strip(match, p, end, [this](const char* at) { return IsSpace(at); });
    if (!EncodePiece<kSpans>(text, p, stripped.begin, workspace, tokens)) return;
    tokens->ids.push_back(match.id);
    if constexpr (kSpans) tokens->spans.push_back(stripped.SpanIn(text.data()));
    p = stripped.end;
  }
  EncodePiece<kSpans>(text, p, end, workspace, tokens);
}

bool ByteLevelBpe::IsSpace(const char* p) const { return classes_[Decode(p)] == kSpace; }

// Reads the text between two added tokens, which may be empty. Returns false once there are enough tokens.
template <bool kSpans>
bool ByteLevelBpe::EncodePiece(std::string_view text, const char* p, const char* end, Workspace* workspace,
                               Tokens* tokens) const {
  if (p >= end) return true;
  Piece piece{text, static_cast<size_t>(p - text.data()), 0};
  if (add_prefix_space_ && *p != ' ') {
    workspace->spaced.assign(1, ' ').append(p, end);
    p = workspace->spaced.data();
    end = p + workspace->spaced.size();
    piece.prefix_space = 1;
  }
  [[maybe_unused]] const char* const first = p;
  while (p < end) {
    const char* const begin = p;
    p = WordEnd(p, end);
    const std::string_view word(begin, static_cast<size_t>(p - begin));
    const int32_t id = whole_.Find(word);
    if (id != Trie::kNone) {
      tokens->ids.push_back(id);
      if constexpr (kSpans) {
        const auto at = static_cast<size_t>(begin - first);
        tokens->spans.push_back(SpanOf(piece.ExtentOf(at, at + word.size() - 1), word));
      }
    } else {
      merges_.Encode(word, &workspace->merging, &tokens->ids);
      if constexpr (kSpans) {
        AddMergedSpans(piece, static_cast<size_t>(begin - first), word, workspace, &tokens->spans);
      }
    }
    if (tokens->full()) return false;
  }
  return true;
}

// What the bytes from `first` to `last` of a piece came from; a space put before the piece counts too. A byte
// came from its whole code point, and that space from the code point after it.
Extent ByteLevelBpe::Piece::ExtentOf(size_t first, size_t last) const {
  const auto in_text = [this](size_t byte) {
    return begin + (byte < prefix_space ? 0 : byte - prefix_space);
  };
  size_t from = in_text(first), to = in_text(last) + 1;
  while (IsContinuation(text[from])) --from;
  while (to < text.size() && IsContinuation(text[to])) ++to;
  return {static_cast<int32_t>(from), static_cast<int32_t>(to)};
}

// Adds the spans of the tokens of a merged word, which begins at byte `at` of its piece.
void ByteLevelBpe::AddMergedSpans(const Piece& piece, size_t at, std::string_view word, Workspace* workspace,
                                  std::vector<Span>* spans) const {
  auto& [merging, spaced, begins, kept, sources] = *workspace;
  Merges::Begins(merging, &begins);
  sources.clear();
  kept.clear();
  for (size_t i = 0; i < word.size(); ++i) {
    sources.insert(sources.end(), CharacterBytes(word[i]), i);
    if (merges_.HasToken(ByteAt(&word[i]))) kept.push_back(word[i]);
  }
  // The library does not track which bytes it leaves out: it adds up the lengths of the others.
  size_t length = 0;
  for (size_t token = 0; token + 1 < begins.size(); ++token) {
    const auto bytes = std::string_view(kept).substr(begins[token], begins[token + 1] - begins[token]);
    const size_t first = sources[length];
    for (const char byte : bytes) length += CharacterBytes(byte);
    spans->push_back(SpanOf(piece.ExtentOf(at + first, at + sources[length - 1]), bytes));
  }
}

// The end of the word that begins at p, by GPT-2's expression:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
const char* ByteLevelBpe::WordEnd(const char* p, const char* end) const {
  if (const size_t length = Contraction(p, end)) return p + length;
  const char* const begin = p;
  int32_t kind = classes_[Decode(p)];
  if (*begin == ' ' && p < end && !IsSpace(p)) kind = classes_[Decode(p)];
  const char* last = begin;
  for (const char* next = p; next < end && classes_[Decode(next)] == kind; p = next) last = p;
  // Of several spaces the last belongs to what follows, if anything does.
  return kind == kSpace && last > begin && p < end ? last : p;
}

}  // namespace sparse_ops
