#include "tokenizer/template.h"

#include <algorithm>
#include <limits>

namespace sparse_ops {

Template::Template(const KernelInfo& info, const Attribute<IntList>& attribute, bool is_pair) {
  const char* accepted = is_pair ? "(id, type id) of each piece, flat; id -1 (text) and -2 (pair) once each"
                                 : "(id, type id) of each piece, flat; id -1 (text) once";
  const std::vector<int64_t> flat = info.Get(attribute, accepted);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  size_t texts = 0, pairs = 0;
  bool is_valid = flat.size() % 2 == 0;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    const Piece piece{flat[i], flat[i + 1]};
    texts += piece.id == kText;
    pairs += piece.id == kPair;
    special_tokens_ += piece.id >= 0;
    is_valid &= piece.id >= kPair && piece.id <= kMost && piece.type_id >= 0 && piece.type_id <= kMost;
    pieces_.push_back(piece);
  }
  if (!is_valid || texts != 1 || pairs != (is_pair ? 1 : 0)) {
    info.Refuse(attribute, ToString(flat), accepted);
  }
}

Lengths CutLongestFirst(Lengths lengths, size_t budget) {
  if (lengths.text + lengths.pair <= budget) return lengths;
  const bool text_is_longer = lengths.text > lengths.pair;
  size_t& shorter = text_is_longer ? lengths.pair : lengths.text;
  size_t& longer = text_is_longer ? lengths.text : lengths.pair;
  // The shorter text keeps half; the longer gets the rest: an odd token, and what the shorter does not need.
  shorter = std::min(shorter, budget / 2);
  longer = budget - shorter;
  return lengths;
}

}  // namespace sparse_ops
