// Combining marks after one base character, which normalizing (NFD) reorders.
#pragma once

#include <vector>

#include "tokenizer/tokens.h"

namespace sparse_ops {

// Normalizing orders marks by their combining class, those of one class as they came (Unicode, D109), and
// BERT's normalizer then removes most of them. The `tokenizers` library reports where those left came from as
// if nothing had been reordered: it takes the first of the ordered marks for the first of the text, and so
// on.
class CombiningMarks {
 public:
  // Adds a mark of the text. `is_left`: whether normalizing leaves it.
  void Add(Extent where, int32_t combining_class, bool is_left) {
    places_.push_back(where);
    marks_.push_back({where, combining_class, is_left, false});
  }

  // Adds a mark that normalizing leaves of the base character itself: a part of it.
  void AddPart(Extent base, int32_t combining_class) {
    marks_.push_back({base, combining_class, true, true});
  }

  void Clear() {
    places_.clear();
    marks_.clear();
  }

  bool empty() const { return marks_.empty(); }

  // Sets the end of a word to that of the last mark that is left, if any is, and, where the word begins with
  // a mark, its begin to that of the first.
  void Place(Extent* word) const;

 private:
  struct Mark {
    Extent base;  // of the base character, for a part; else of the mark
    int32_t combining_class;
    bool is_left, is_part;
  };

  std::vector<Extent> places_;  // of the marks that are not parts
  std::vector<Mark> marks_;
};

}  // namespace sparse_ops
