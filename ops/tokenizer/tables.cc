#include "tokenizer/tables.h"

#include <string_view>
#include <unordered_map>

#include "runtime/status.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

std::string Range(int64_t least, int64_t most) { return Message("an integer from ", least, " to ", most); }

int64_t Checked(const KernelInfo& info, const char* name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return value;
  throw InvalidArgument(
      Message(info.op(), ": attribute ", name, " is ", value, "; accepted: ", Range(least, most)));
}

}  // namespace

int64_t IntWithin(const KernelInfo& info, const char* name, int64_t least, int64_t most) {
  return Checked(info, name, info.Int(name, Range(least, most).c_str()), least, most);
}

int64_t IntWithin(const KernelInfo& info, const char* name, int64_t least, int64_t most, int64_t absent) {
  return Checked(info, name, info.IntOr(name, absent, Range(least, most).c_str()), least, most);
}

Strings TokenTable(const KernelInfo& info, size_t index, const char* name) {
  Strings table = info.ConstantStrings(index, name);
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

Input<int32_t> IntTable(const KernelInfo& info, size_t index, const char* name, int64_t columns) {
  Input<int32_t> table = info.Constant<int32_t>(index, name);
  if (table.shape.size() != 2 || table.shape[1] != columns) {
    throw InvalidArgument(Message(info.op(), ": ", name, " has shape ", ToString(table.shape),
                                  "; accepted: (rows, ", columns, ")"));
  }
  return table;
}

}  // namespace sparse_ops
