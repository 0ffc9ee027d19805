// Combining marks behind one base character, which normalizing (NFD) puts in another order.
#pragma once

#include <vector>

#include "tokenizer/tokens.h"

namespace sparse_ops {

// Normalizing orders marks by their combining class, those of one class as they came (Unicode, D109), and
// BERT's then removes most of them. Of what it leaves the `tokenizers` library says where it came from as if
// nothing had moved: the first of the ordered marks it takes for the first of the text, and so on.
class CombiningMarks {
 public:
  // A mark of the text. `is_left` says whether it is one that normalizing leaves.
  void Add(Extent where, int32_t combining_class, bool is_left) {
    places_.push_back(where);
    marks_.push_back({where, combining_class, is_left, false});
  }

  // A mark that is left of the base character itself.
  void AddPart(Extent base, int32_t combining_class) {
    marks_.push_back({base, combining_class, true, true});
  }

  void Clear() {
    places_.clear();
    marks_.clear();
  }

  bool empty() const { return marks_.empty(); }

  // Makes the end of a word that of the last mark that is left, where any is, and its begin that of the
  // first if a mark is what it begins with.
  void Place(Extent* word) const;

 private:
  struct Mark {
    Extent base;  // of a part
    int32_t combining_class;
    bool is_left, is_part;
  };

  std::vector<Extent> places_;  // of the marks that are no parts
  std::vector<Mark> marks_;
};

}  // namespace sparse_ops
