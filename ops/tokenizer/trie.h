// Finds the keys that a text begins with.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/kernel_context.h"
#include "tokenizer/utf8.h"

namespace sparse_ops {

// A map from byte strings to numbers >= 0, as a double array (Aoe, 1989): the child of node n by byte c is
// node base[n] + c, if the parent of that node is n.
class Trie {
 public:
  using Key = std::pair<std::string_view, int32_t>;

  static constexpr int32_t kNone = -1;

  // Keys must be different and not empty. `info` is for the message where there are too many.
  Trie(const KernelInfo& info, std::vector<Key> keys);

  // The number of the longest key that begins at p, and where it ends; kNone where none does.
  int32_t Longest(const char* p, const char* end, const char** match) const {
    int32_t number = kNone;
    for (int32_t node = kRoot; p < end;) {
      node = Child(node, ByteAt(p++));
      if (node == kNone) break;
      if (At(node).number != kNone) {
        number = At(node).number;
        *match = p;
      }
    }
    return number;
  }

  // The number of this key, kNone where it is none.
  int32_t Find(std::string_view key) const {
    int32_t node = kRoot;
    for (const char& byte : key) {
      node = Child(node, ByteAt(&byte));
      if (node == kNone) return kNone;
    }
    return At(node).number;
  }

 private:
  static constexpr int32_t kRoot = 0;
  static constexpr int32_t kFree = -2;  // the parent of an unused node

  struct Node {
    int32_t base = 1;
    int32_t parent = kFree;
    int32_t number = kNone;
  };

  const Node& At(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  Node& At(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  int32_t Child(int32_t node, uint8_t byte) const {
    const int32_t child = At(node).base + byte;
    return At(child).parent == node ? child : kNone;
  }
  int32_t FreeBase(const KernelInfo& info, const std::vector<uint8_t>& bytes);

  std::vector<Node> nodes_;  // 256 more than the highest base
  int32_t first_free_ = 1;   // hardly any node below it is free
};

}  // namespace sparse_ops
