// Added tokens, most of them special: they are found in the original text, before anything else is done to
// it.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "runtime/kernel_context.h"
#include "tokenizer/tokens.h"
#include "tokenizer/trie.h"

namespace sparse_ops {

class AddedTokens {
 public:
  struct Match {
    const char* begin;
    const char* end;
    int32_t id;
    bool strips_left, strips_right;  // the token takes the white space on that side with it
  };

  // A match, with the white space that it strips, and how many code points of that there are on either side.
  struct Stripped {
    const char* begin;
    const char* end;
    int32_t leading, trailing;

    Span SpanIn(const char* text) const {
      return {{static_cast<int32_t>(begin - text), static_cast<int32_t>(end - text)}, leading, trailing};
    }
  };

  // From two constant inputs: the tokens (N,), and id and stripping (1 left, 2 right) of each, (N, 2).
  AddedTokens(const KernelInfo& info, const Operand<std::string_view>& added,
              const Operand<int32_t>& added_info);

  // The leftmost match from p on; of several that begin there, the longest.
  bool Find(const char* p, const char* end, Match* match) const {
    for (; p < end; ++p) {
      if (one_start_ >= 0) {
        p = static_cast<const char*>(std::memchr(p, one_start_, static_cast<size_t>(end - p)));
        if (p == nullptr) return false;
      }
      if (!is_start_[ByteAt(p)]) continue;
      const int32_t token = trie_.Longest(p, end, &match->end);
      if (token == Trie::kNone) continue;
      match->begin = p;
      const Properties& found = properties_[static_cast<size_t>(token)];
      match->id = found.id;
      match->strips_left = (found.strips & kLeft) != 0;
      match->strips_right = (found.strips & kRight) != 0;
      return true;
    }
    return false;
  }

  // `begin` and `end` bound the white space that it may take.
  template <class IsSpace>
  static Stripped Strip(const Match& match, const char* begin, const char* end, IsSpace is_space) {
    Stripped stripped{match.begin, match.end, 0, 0};
    for (; match.strips_left && stripped.begin > begin; ++stripped.leading) {
      const char* const previous = Previous(stripped.begin);
      if (!is_space(previous)) break;
      stripped.begin = previous;
    }
    for (; match.strips_right && stripped.end < end && is_space(stripped.end); ++stripped.trailing) {
      stripped.end += SequenceAt(stripped.end, end);
    }
    return stripped;
  }

 private:
  static constexpr int32_t kLeft = 1, kRight = 2;

  struct Properties {
    int32_t id;
    int32_t strips;
  };

  AddedTokens(const KernelInfo& info, const Strings& tokens, const Input<int32_t>& table);

  Trie trie_;
  std::vector<Properties> properties_;
  std::array<bool, 256> is_start_{};
  int one_start_ = -1;  // the byte that all of them begin with, if they do
};

}  // namespace sparse_ops
