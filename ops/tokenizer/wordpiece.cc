#include "tokenizer/wordpiece.h"

#include <algorithm>

#include "runtime/status.h"
#include "tokenizer/tables.h"
#include "tokenizer/tokens.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

// Actions, which say what becomes of a code point: itself, itself as a word of its own, or the string at an
// offset >= 0 of the pool, after a byte that is its length. The strings are UTF-8 with two additional bytes
// that UTF-8 never has, kWordEnd and kUnknown.
constexpr int32_t kItself = -1, kWord = -2;
constexpr char kWordEnd = '\xF8', kUnknown = '\xF9';

// Values of marks_. kNoMark: not a mark, nor a base character of which a mark is left. 1 to kMostClass: a
// mark, by its combining class. Less than 0: a base character of which a mark is left, minus its class.
// kRemovedBase: a base character that normalizing removes, beyond which marks are not reordered.
constexpr int32_t kNoMark = 0, kMostClass = 254, kRemovedBase = 255;

// In short_actions_: see actions_.
constexpr uint8_t kLongAction = 0xFF;

std::string ReadPool(const KernelInfo& info) {
  const Input<uint8_t> pool = info.Constant(WordPieceSignature::char_pool);
  if (pool.shape.size() != 1) {
    throw InvalidArgument(
        Message(info.op(), ": char_pool has shape ", ToString(pool.shape), "; accepted: rank 1"));
  }
  return std::string(pool.data, pool.data + pool.shape[0]);
}

// Whether the string at `offset` lies within the pool and is valid, so that it can be read without checks.
bool IsReadable(std::string_view pool, size_t offset) {
  const size_t length = ByteAt(&pool[offset]);
  if (offset + 1 + length > pool.size()) return false;
  const char* p = pool.data() + offset + 1;
  for (const char* const end = p + length; p < end;) {
    const size_t bytes = *p == kWordEnd || *p == kUnknown ? 1 : SequenceAt(p, end);
    if (bytes == 0) return false;
    p += bytes;
  }
  return true;
}

CodePointMap ReadActions(const KernelInfo& info, std::string_view pool) {
  if (pool.size() > kMostInt) {
    throw InvalidArgument(
        Message(info.op(), ": char_pool has ", pool.size(), " bytes; accepted: ", kMostInt));
  }
  CodePointMap actions(info, WordPieceSignature::char_actions, kWord, static_cast<int32_t>(pool.size()) - 1);
  const Input<int32_t> ranges = IntTable(info, WordPieceSignature::char_actions, 2);
  for (int64_t i = 0; i < ranges.shape[0]; ++i) {
    const int32_t offset = ranges.data[2 * i + 1];
    if (offset >= 0 && !IsReadable(pool, static_cast<size_t>(offset))) {
      throw InvalidArgument(Message(info.op(), ": char_pool has no string at ", offset,
                                    ", where char_actions[", i,
                                    "] points; accepted: a byte of length, then UTF-8, 0xF8 and 0xF9"));
    }
  }
  return actions;
}

std::vector<Trie::Key> Keys(const Strings& vocabulary, std::string_view prefix) {
  std::vector<Trie::Key> keys;
  for (size_t i = 0; i < vocabulary.size(); ++i) {
    const std::string_view token = vocabulary[i];
    if (token.size() > prefix.size() && token.substr(0, prefix.size()) == prefix) {
      keys.emplace_back(token.substr(prefix.size()), static_cast<int32_t>(i));
    }
  }
  return keys;
}

int64_t LastId(const KernelInfo& info, const Strings& vocabulary) {
  const auto size = static_cast<int64_t>(vocabulary.size());
  if (size > 0 && size <= kMostInt) return size - 1;
  throw InvalidArgument(Message(info.op(), ": vocabulary has ", size, " tokens; accepted: 1 to ", kMostInt));
}

}  // namespace

WordPiece::WordPiece(const KernelInfo& info) : WordPiece(info, TokenTable(info, Signature::vocabulary)) {}

WordPiece::WordPiece(const KernelInfo& info, const Strings& vocabulary)
    : unknown_id_(static_cast<int32_t>(IntWithin(info, Signature::unk_id, 0, LastId(info, vocabulary)))),
      most_characters_(IntWithin(info, Signature::max_input_chars_per_word, 0, kMostInt)),
      pool_(ReadPool(info)),
      actions_(ReadActions(info, pool_)),
      beginnings_(info, Keys(vocabulary, "")),
      continuations_(info, Keys(vocabulary, info.Get(Signature::continuing_prefix, "a string"))),
      added_(info, Signature::added, Signature::added_info),
      marks_(info, Signature::marks, -kMostClass, kRemovedBase),
      white_space_(info.Get(Signature::white_space, "code points")) {
  for (uint32_t c = 0; c < short_actions_.size(); ++c) short_actions_[c] = ShortAction(c);
}

// The action of an ASCII character as one byte, where it becomes one ASCII character or a word's end.
uint8_t WordPiece::ShortAction(uint32_t character) const {
  const int32_t action = actions_[character];
  if (action == kItself) return static_cast<uint8_t>(character);
  if (action == kWord || Pooled(action).size() != 1) return kLongAction;
  const char only = Pooled(action)[0];
  return only == kUnknown ? kLongAction : static_cast<uint8_t>(only);
}

std::string_view WordPiece::Pooled(int32_t offset) const {
  const auto at = static_cast<size_t>(offset);
  return std::string_view(pool_).substr(at + 1, ByteAt(&pool_[at]));
}

void WordPiece::Encode(std::string_view text, Workspace* word, Tokens* tokens) const {
  return tokens->has_spans ? EncodeText<true>(text, word, tokens) : EncodeText<false>(text, word, tokens);
}

template <bool kSpans>
void WordPiece::EncodeText(std::string_view text, Workspace* word, Tokens* tokens) const {
  const char* p = text.data();
  const char* const end = p + text.size();
  if constexpr (kSpans) {
    word->text = p;
    word->marks.Clear();
  }
  // White space that an added token takes with it matters only for spans: it would end a word, which ends
  // here anyway.
  for (AddedTokens::Match match; added_.Find(p, end, &match);) {
    const auto stripped = AddedTokens::Strip(match, p, end, [this](const char* at) { return IsSpace(at); });
    if (!EncodePiece<kSpans>(p, stripped.begin, word, tokens)) return;
    tokens->ids.push_back(match.id);
    if constexpr (kSpans) tokens->spans.push_back(stripped.SpanIn(text.data()));
    p = stripped.end;
  }
  EncodePiece<kSpans>(p, end, word, tokens);
}

bool WordPiece::IsSpace(const char* p) const {
  const int64_t point = Decode(p);
  return std::find(white_space_.begin(), white_space_.end(), point) != white_space_.end();
}

// Returns false once there are enough tokens, as do the functions below.
template <bool kSpans>
bool WordPiece::EncodePiece(const char* p, const char* end, Workspace* word, Tokens* tokens) const {
  while (p < end) {
    const uint8_t action = ByteAt(p) < 0x80 ? short_actions_[ByteAt(p)] : kLongAction;
    if (action < 0x80) {
      const char character = static_cast<char>(action);
      if constexpr (kSpans) Place(p, p + 1, kItself, word);
      Append<kSpans>({&character, 1}, word);
      ++p;
    } else if (action == static_cast<uint8_t>(kWordEnd)) {
      if constexpr (kSpans) EndMarks(word);
      if (!EndWord<kSpans>(word, tokens)) return false;
      ++p;
    } else {
      const char* const begin = p;
      const int32_t long_action = actions_[Decode(p)];
      if constexpr (kSpans) Place(begin, p, long_action, word);
      if (!ReadCharacter<kSpans>({begin, static_cast<size_t>(p - begin)}, long_action, word, tokens)) {
        return false;
      }
    }
  }
  if constexpr (kSpans) EndMarks(word);
  return EndWord<kSpans>(word, tokens);
}

// Makes a code point the current one: the sources of what it becomes are in its extent.
void WordPiece::Place(const char* begin, const char* end, int32_t action, Workspace* word) const {
  word->character = {static_cast<int32_t>(begin - word->text), static_cast<int32_t>(end - word->text)};
  const int32_t mark = marks_[Decode(begin)];
  const bool is_left = action < 0 || !Pooled(action).empty();
  if (mark > kNoMark && mark <= kMostClass) {
    word->marks.Add(word->character, mark, is_left);
  } else if (is_left || mark != kNoMark) {
    EndMarks(word);
    if (mark < kNoMark) word->marks.AddPart(word->character, -mark);
  }
}

// Ends a run of marks: no later mark is ordered among them.
void WordPiece::EndMarks(Workspace* word) {
  if (word->marks.empty()) return;
  if (word->characters > 0) word->marks.Place(&word->whole);
  word->marks.Clear();
}

template <bool kSpans>
bool WordPiece::ReadCharacter(std::string_view character, int32_t action, Workspace* word,
                              Tokens* tokens) const {
  if (action == kItself) {
    Append<kSpans>(character, word);
    return true;
  }
  if (action == kWord) {
    if (!EndWord<kSpans>(word, tokens)) return false;
    Append<kSpans>(character, word);
    return EndWord<kSpans>(word, tokens);
  }
  const std::string_view string = Pooled(action);
  for (const char *p = string.data(), *const end = p + string.size(); p < end;) {
    if (*p == kWordEnd) {
      if (!EndWord<kSpans>(word, tokens)) return false;
      ++p;
    } else if (*p == kUnknown) {
      word->has_unknown = true;
      CountCharacter<kSpans>(word);
      ++p;
    } else {
      const char* const begin = p;
      Decode(p);
      Append<kSpans>({begin, static_cast<size_t>(p - begin)}, word);
    }
  }
  return true;
}

// However long a word is, only as much of it is kept as can have tokens.
template <bool kSpans>
void WordPiece::Append(std::string_view character, Workspace* word) const {
  if (word->characters < most_characters_) {
    word->bytes.append(character);
    if constexpr (kSpans) word->sources.resize(word->bytes.size(), word->character);
  }
  CountCharacter<kSpans>(word);
}

template <bool kSpans>
void WordPiece::CountCharacter(Workspace* word) {
  if constexpr (kSpans) {
    if (word->characters == 0) word->whole.begin = word->character.begin;
    word->whole.end = word->character.end;
  }
  ++word->characters;
}

template <bool kSpans>
bool WordPiece::EndWord(Workspace* word, Tokens* tokens) const {
  if (word->characters == 0) return true;
  const size_t before = tokens->ids.size();
  const bool is_known = !word->has_unknown && word->characters <= most_characters_;
  if (!is_known || !Cover<kSpans>(*word, tokens)) {
    tokens->ids.resize(before);
    tokens->ids.push_back(unknown_id_);
    if constexpr (kSpans) {
      tokens->spans.resize(before);
      tokens->spans.push_back({word->whole});
    }
  }
  if constexpr (kSpans) word->sources.clear();
  word->bytes.clear();
  word->characters = 0;
  word->has_unknown = false;
  return !tokens->full();
}

// Covers a word with the longest token that it begins with, then each time the longest that continues it, to
// its end. Returns false where there is none.
template <bool kSpans>
bool WordPiece::Cover(const Workspace& word, Tokens* tokens) const {
  const char* p = word.bytes.data();
  const char* const end = p + word.bytes.size();
  for (const Trie* trie = &beginnings_; p < end; trie = &continuations_) {
    [[maybe_unused]] const auto first = static_cast<size_t>(p - word.bytes.data());
    const int32_t id = trie->Longest(p, end, &p);
    if (id == Trie::kNone) return false;
    tokens->ids.push_back(id);
    if constexpr (kSpans) {
      const auto behind = static_cast<size_t>(p - word.bytes.data());
      tokens->spans.push_back({{word.sources[first].begin, word.sources[behind - 1].end}});
    }
  }
  return true;
}

}  // namespace sparse_ops
