#include "tokenizer/merges.h"

#include <algorithm>

#include "runtime/status.h"
#include "tokenizer/tables.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {
namespace {

uint64_t PairOf(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// The order of a heap of candidates with the best on top.
constexpr auto kLater = [](const auto& a, const auto& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.symbol > b.symbol;
};

}  // namespace

Merges::Merges(const KernelInfo& info, const Operand<int32_t>& operand, int64_t vocabulary_size,
               const std::array<int32_t, 256>& byte_ids)
    : byte_ids_(byte_ids) {
  const Input<int32_t> table = IntTable(info, operand, 3);
  const auto count = static_cast<size_t>(table.shape[0]);
  size_t size = 2;
  while (size < 2 * count) size *= 2;
  slots_.resize(size);
  for (size_t i = 0; i < count; ++i) {
    const int32_t* row = table.data + 3 * i;
    if (const auto [least, most] = std::minmax({row[0], row[1], row[2]});
        least < 0 || most >= vocabulary_size) {
      throw InvalidArgument(Message(info.op(), ": ", table.name, "[", i, "] is (", row[0], ", ", row[1], ", ",
                                    row[2], "); accepted: ids from 0 to ", vocabulary_size - 1));
    }
    const uint64_t pair = PairOf(row[0], row[1]);
    slots_[SlotOf(pair)] = {pair, static_cast<int32_t>(i), row[2]};  // of equal pairs the last counts
  }
}

// The slot where the pair is, or would be.
size_t Merges::SlotOf(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = (pair * 0x9E3779B97F4A7C15u) >> 20 & mask;
  while (slots_[slot].pair != pair && slots_[slot].pair != kNoPair) slot = (slot + 1) & mask;
  return slot;
}

const Merges::Merge* Merges::Find(int32_t left, int32_t right) const {
  const Merge& merge = slots_[SlotOf(PairOf(left, right))];
  return merge.pair == kNoPair ? nullptr : &merge;
}

// Adds the pair of a symbol and the next one as the last candidate, if it can be merged.
void Merges::Consider(int32_t symbol, Workspace* workspace) const {
  if (symbol == kNone) return;
  const Symbol& left = workspace->symbols[static_cast<size_t>(symbol)];
  if (left.next == kNone) return;
  const Merge* merge = Find(left.id, workspace->symbols[static_cast<size_t>(left.next)].id);
  if (merge != nullptr) workspace->candidates.push_back({merge->rank, symbol, merge->id});
}

void Merges::Encode(std::string_view word, Workspace* workspace, std::vector<int32_t>* ids) const {
  auto& [symbols, candidates] = *workspace;
  symbols.clear();
  candidates.clear();
  for (const char& byte : word) {
    const int32_t id = byte_ids_[ByteAt(&byte)];
    const auto at = static_cast<int32_t>(symbols.size());
    if (id != kNone) symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = kNone;
  for (size_t i = 0; i < symbols.size(); ++i) Consider(static_cast<int32_t>(i), workspace);
  std::make_heap(candidates.begin(), candidates.end(), kLater);

  while (!candidates.empty()) {
    std::pop_heap(candidates.begin(), candidates.end(), kLater);
    const Candidate best = candidates.back();
    candidates.pop_back();
    Symbol& left = symbols[static_cast<size_t>(best.symbol)];
    if (left.id == kMerged || left.next == kNone) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const Merge* merge = Find(left.id, right.id);
    if (merge == nullptr || merge->id != best.id) continue;  // one of the two has been merged otherwise since
    left.id = best.id;
    left.next = right.next;
    right.id = kMerged;
    if (left.next != kNone) symbols[static_cast<size_t>(left.next)].previous = best.symbol;
    for (const int32_t changed : {left.previous, best.symbol}) {
      const size_t before = candidates.size();
      Consider(changed, workspace);
      if (candidates.size() > before) std::push_heap(candidates.begin(), candidates.end(), kLater);
    }
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kMerged) ids->push_back(symbol.id);
  }
}

void Merges::Begins(const Workspace& workspace, std::vector<size_t>* begins) {
  begins->clear();
  const std::vector<Symbol>& symbols = workspace.symbols;  // one for each byte that has a token
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].id != kMerged) begins->push_back(i);
  }
  begins->push_back(symbols.size());
}

}  // namespace sparse_ops
