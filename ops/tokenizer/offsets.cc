#include "tokenizer/offsets.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

// `process_offsets` of the library's ByteLevel. It removes as much white space as the token has, not as the
// text has there.
Extent Trimmed(Extent characters, const Span& span, bool is_first, Trimming trimming) {
  auto [begin, end] = characters;
  const bool is_put_there = is_first && trimming == Trimming::kAllButFirst && span.leading == 1;
  if (!is_put_there) begin += std::min(span.leading, end - begin);
  if (end >= span.trailing) end = std::max(end - span.trailing, begin);
  return {begin, end};
}

}  // namespace

void AddOffsets(const Tokens& tokens, size_t first, size_t count, Trimming trimming,
                std::vector<int32_t>* offsets) {
  const char* const text = tokens.text.data();
  int32_t byte = 0, character = 0;  // no span begins before the previous token's
  for (size_t i = first; i < first + count; ++i) {
    const Span& span = tokens.spans[i];
    character += CodePoints(text + byte, text + span.bytes.begin);
    byte = span.bytes.begin;
    Extent each{character, character + CodePoints(text + byte, text + span.bytes.end)};
    if (trimming != Trimming::kNone) each = Trimmed(each, span, i == 0 || each.begin == 0, trimming);
    offsets->insert(offsets->end(), {each.begin, each.end});
  }
}

}  // namespace sparse_ops
