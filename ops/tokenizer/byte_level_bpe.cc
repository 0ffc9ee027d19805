#include "tokenizer/byte_level_bpe.h"

#include <limits>

#include "runtime/status.h"
#include "tokenizer/tables.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

// The classes of code points that words are split by.
enum Class : int32_t { kSpace, kLetter, kNumber, kOther };

// The bytes that a token of the vocabulary stands for: it has a character for each, those of Latin-1 that
// print for themselves and U+0100 to U+0143 for the others in turn. Empty where it has another character.
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

ByteLevelBpe::ByteLevelBpe(const KernelInfo& info) : ByteLevelBpe(info, TokenTable(info, 2, "vocabulary")) {}

ByteLevelBpe::ByteLevelBpe(const KernelInfo& info, const Strings& vocabulary)
    : classes_(info, 1, "char_classes", kSpace, kOther),
      add_prefix_space_(IntWithin(info, "add_prefix_space", 0, 1, 0) != 0),
      merges_(info, 3, static_cast<int64_t>(vocabulary.size()), ByteIds(vocabulary)),
      whole_(WholeWords(info, vocabulary, merges_)),
      added_(info, 4, 5) {}

void ByteLevelBpe::Encode(std::string_view text, Workspace* workspace, Tokens* tokens) const {
  const char* p = text.data();
  const char* const end = p + text.size();
  const char* search = p;
  for (AddedTokens::Match match; added_.Find(search, end, &match); search = match.end) {
    const char* const stop = match.strips_left ? SpacesBegin(p, match.begin) : match.begin;
    if (!EncodePiece(p, stop, workspace, tokens)) return;
    tokens->ids.push_back(match.id);
    p = match.strips_right ? SpacesEnd(match.end, end) : match.end;
  }
  EncodePiece(p, end, workspace, tokens);
}

bool ByteLevelBpe::IsSpace(const char* p) const { return classes_[Decode(p)] == kSpace; }

const char* ByteLevelBpe::SpacesBegin(const char* begin, const char* p) const {
  while (p > begin && IsSpace(Previous(p))) p = Previous(p);
  return p;
}

const char* ByteLevelBpe::SpacesEnd(const char* p, const char* end) const {
  while (p < end && IsSpace(p)) p += SequenceAt(p, end);
  return p;
}

// What lies between two added tokens, which may be nothing. False once there are enough tokens.
bool ByteLevelBpe::EncodePiece(const char* p, const char* end, Workspace* workspace, Tokens* tokens) const {
  if (p >= end) return true;
  if (add_prefix_space_ && *p != ' ') {
    workspace->spaced.assign(1, ' ').append(p, end);
    p = workspace->spaced.data();
    end = p + workspace->spaced.size();
  }
  while (p < end) {
    const char* const begin = p;
    p = WordEnd(p, end);
    const std::string_view word(begin, static_cast<size_t>(p - begin));
    const int32_t id = whole_.Find(word);
    if (id != Trie::kNone) {
      tokens->ids.push_back(id);
    } else {
      merges_.Encode(word, &workspace->merging, &tokens->ids);
    }
    if (tokens->full()) return false;
  }
  return true;
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
  // Of several spaces the last is left to what follows, if something does.
  return kind == kSpace && last > begin && p < end ? last : p;
}

}  // namespace sparse_ops
