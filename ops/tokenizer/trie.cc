#include "tokenizer/trie.h"

#include <algorithm>

#include "runtime/status.h"

namespace sparse_ops {
namespace {

constexpr int32_t kBytes = 256;
constexpr size_t kMostNodes = size_t{1} << 28;

// A range of the sorted keys: those with the prefix that leads to `node`.
struct Subtree {
  int32_t node;
  size_t depth;
  size_t begin, end;
};

}  // namespace

Trie::Trie(const KernelInfo& info, std::vector<Key> keys) : nodes_(kBytes + 1) {
  std::sort(keys.begin(), keys.end());
  At(kRoot).parent = kNone;
  std::vector<Subtree> pending{{kRoot, 0, 0, keys.size()}};
  std::vector<uint8_t> bytes;
  std::vector<size_t> begins;
  while (!pending.empty()) {  // keys may be too long to recurse on their bytes
    auto [node, depth, begin, end] = pending.back();
    pending.pop_back();
    // A key that ends here is the first of the range.
    if (begin < end && keys[begin].first.size() == depth) At(node).number = keys[begin++].second;
    if (begin == end) continue;
    bytes.clear();
    begins.clear();
    for (size_t i = begin; i < end; ++i) {
      const uint8_t byte = ByteAt(&keys[i].first[depth]);
      if (!bytes.empty() && bytes.back() == byte) continue;
      bytes.push_back(byte);
      begins.push_back(i);
    }
    begins.push_back(end);
    const int32_t base = FreeBase(info, bytes);
    At(node).base = base;
    for (size_t i = 0; i < bytes.size(); ++i) {
      At(base + bytes[i]).parent = node;
      pending.push_back({base + bytes[i], depth + 1, begins[i], begins[i + 1]});
    }
  }
}

// Finds a base from which all these bytes lead to free nodes.
int32_t Trie::FreeBase(const KernelInfo& info, const std::vector<uint8_t>& bytes) {
  constexpr int32_t kPatience = 64;
  const int32_t start = std::max(1, first_free_ - bytes[0]);
  for (int32_t base = start;; ++base) {
    const auto needed = static_cast<size_t>(base + kBytes);
    if (needed > nodes_.size()) {
      if (needed > kMostNodes) {
        throw InvalidArgument(Message(info.op(), ": the tokens need more than ", kMostNodes,
                                      " nodes; accepted: fewer bytes in all of them"));
      }
      nodes_.resize(std::min(kMostNodes, 2 * nodes_.size()));
    }
    const bool fits = std::all_of(bytes.begin(), bytes.end(),
                                  [&](uint8_t byte) { return At(base + byte).parent == kFree; });
    if (!fits) continue;
    if (base - start > kPatience) first_free_ = base + bytes[0];
    return base;
  }
}

}  // namespace sparse_ops
