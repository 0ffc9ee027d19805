#include "tokenizer/code_point_map.h"

#include <algorithm>
#include <limits>
#include <map>

#include "runtime/status.h"
#include "tokenizer/tables.h"

namespace sparse_ops {
namespace {

void CheckRanges(const KernelInfo& info, const Input<int32_t>& ranges, int32_t least, int32_t most) {
  const char* name = ranges.name;
  if (ranges.shape[0] == 0 || ranges.data[0] != 0) {
    throw InvalidArgument(Message(info.op(), ": ", name,
                                  " does not begin with code point 0; accepted: ranges ",
                                  "(first code point, number) from 0 on"));
  }
  for (int64_t i = 0; i < ranges.shape[0]; ++i) {
    const int32_t first = ranges.data[2 * i], number = ranges.data[2 * i + 1];
    if (first >= static_cast<int32_t>(kCodePoints) || (i > 0 && first <= ranges.data[2 * i - 2])) {
      throw InvalidArgument(Message(info.op(), ": ", name, "[", i, "] begins with ", first,
                                    "; accepted: code points that rise, below ", kCodePoints));
    }
    if (number < least || number > most) {
      throw InvalidArgument(
          Message(info.op(), ": ", name, "[", i, "] is ", number, "; accepted: ", least, " to ", most));
    }
  }
}

}  // namespace

CodePointMap::CodePointMap(const KernelInfo& info, const Operand<int32_t>& table, int32_t least,
                           int32_t most) {
  const Input<int32_t> ranges = IntTable(info, table, 2);
  CheckRanges(info, ranges, least, most);
  Fill(ranges);
}

CodePointMap::CodePointMap(const KernelInfo& info, const Attribute<IntList>& attribute, int32_t least,
                           int32_t most) {
  constexpr const char* kAccepted = "first code point and number of each range, flat";
  const std::vector<int64_t> flat = info.Get(attribute, kAccepted);
  if (flat.size() % 2 != 0) {
    throw InvalidArgument(Message(info.op(), ": attribute ", attribute.name, " has ", flat.size(),
                                  " integers; accepted: ", kAccepted));
  }
  std::vector<int32_t> rows;
  for (const int64_t value : flat) {
    rows.push_back(static_cast<int32_t>(std::clamp<int64_t>(value, std::numeric_limits<int32_t>::min(),
                                                            std::numeric_limits<int32_t>::max())));
  }
  if (rows.empty()) rows = {0, 0};
  const Input<int32_t> ranges{attribute.name, rows.data(), {static_cast<int64_t>(rows.size() / 2), 2}};
  CheckRanges(info, ranges, least, most);
  Fill(ranges);
}

void CodePointMap::Fill(const Input<int32_t>& ranges) {
  std::map<int32_t, uint16_t> page_of;  // by the number that all of a page has
  int64_t range = 0;
  for (uint32_t page = 0; page < pages_.size(); ++page) {
    std::array<int32_t, kPage> numbers;
    for (uint32_t i = 0; i < kPage; ++i) {
      const auto point = static_cast<int32_t>(page * kPage + i);
      while (range + 1 < ranges.shape[0] && ranges.data[2 * range + 2] <= point) ++range;
      numbers[i] = ranges.data[2 * range + 1];
    }
    const auto next = static_cast<uint16_t>(numbers_.size() / kPage);
    const bool is_plain = std::count(numbers.begin(), numbers.end(), numbers[0]) == kPage;
    pages_[page] = is_plain ? page_of.try_emplace(numbers[0], next).first->second : next;
    if (pages_[page] == next) numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  }
}

}  // namespace sparse_ops
