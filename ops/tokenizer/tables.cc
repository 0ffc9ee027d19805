#include "tokenizer/tables.h"

#include <string_view>
#include <unordered_map>

#include "runtime/status.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {

int64_t IntWithin(const KernelInfo& info, const Attribute<int64_t>& attribute, int64_t least, int64_t most) {
  const std::string accepted = Message("an integer from ", least, " to ", most);
  const int64_t value = info.Get(attribute, accepted.c_str());
  if (value < least || value > most) info.Refuse(attribute, value, accepted.c_str());
  return value;
}

Strings TokenTable(const KernelInfo& info, const Operand<std::string_view>& operand) {
  const char* name = operand.name;
  Strings table = info.ConstantStrings(operand);
  if (table.shape().size() != 1) {
    throw InvalidArgument(Message(info.op(), ": ", name, " has shape ", ToString(table.shape()),
                                  "; accepted: rank 1, a token for each id"));
  }
  std::unordered_map<std::string_view, size_t> seen(table.size());
  for (size_t i = 0; i < table.size(); ++i) {
    const std::string_view token = table[i];
    if (const size_t at = ValidBytes(token); at < token.size()) {
      throw InvalidArgument(
          Message(info.op(), ": ", name, "[", i, "] is no UTF-8 from byte ", at, " on; accepted: UTF-8"));
    }
    if (token.empty()) continue;
    if (const auto [first, is_new] = seen.try_emplace(token, i); !is_new) {
      throw InvalidArgument(Message(info.op(), ": ", name, "[", i, "] is the same token as ", name, "[",
                                    first->second, "]; accepted: each once"));
    }
  }
  return table;
}

Input<int32_t> IntTable(const KernelInfo& info, const Operand<int32_t>& operand, int64_t columns) {
  Input<int32_t> table = info.Constant(operand);
  if (table.shape.size() != 2 || table.shape[1] != columns) {
    throw InvalidArgument(Message(info.op(), ": ", table.name, " has shape ", ToString(table.shape),
                                  "; accepted: (rows, ", columns, ")"));
  }
  return table;
}

}  // namespace sparse_ops
