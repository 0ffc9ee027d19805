#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "runtime/status.h"
#include "tokenizer/tables.h"

namespace sparse_ops {
namespace {

std::vector<Trie::Key> Keys(const KernelInfo& info, const Strings& tokens) {
  std::vector<Trie::Key> keys;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) {
      throw InvalidArgument(Message(info.op(), ": added[", i, "] is empty; accepted: a token"));
    }
    keys.emplace_back(tokens[i], static_cast<int32_t>(i));
  }
  return keys;
}

}  // namespace

AddedTokens::AddedTokens(const KernelInfo& info, const Operand<std::string_view>& added,
                         const Operand<int32_t>& added_info)
    : AddedTokens(info, TokenTable(info, added), IntTable(info, added_info, 2)) {}

AddedTokens::AddedTokens(const KernelInfo& info, const Strings& tokens, const Input<int32_t>& table)
    : trie_(info, Keys(info, tokens)) {
  if (static_cast<size_t>(table.shape[0]) != tokens.size()) {
    throw InvalidArgument(Message(info.op(), ": added_info has ", table.shape[0],
                                  " rows; accepted: ", tokens.size(), ", as many as added"));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Properties each{table.data[2 * i], table.data[2 * i + 1]};
    if (each.id < 0 || each.strips < 0 || each.strips > (kLeft | kRight)) {
      throw InvalidArgument(Message(info.op(), ": added_info[", i, "] is (", each.id, ", ", each.strips,
                                    "); accepted: an id >= 0, and 0 to 3"));
    }
    properties_.push_back(each);
    is_start_[ByteAt(tokens[i].data())] = true;
  }
  if (std::count(is_start_.begin(), is_start_.end(), true) == 1) {
    one_start_ = static_cast<int>(std::find(is_start_.begin(), is_start_.end(), true) - is_start_.begin());
  }
}

}  // namespace sparse_ops
