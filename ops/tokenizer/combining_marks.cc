#include "tokenizer/combining_marks.h"

#include <algorithm>

namespace sparse_ops {

void CombiningMarks::Place(Extent* word) const {
  const bool any_is_left =
      std::any_of(marks_.begin(), marks_.end(), [](const Mark& mark) { return mark.is_left; });
  if (!any_is_left) return;
  std::vector<Mark> ordered = marks_;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; });
  const bool begins = !places_.empty() && word->begin >= places_[0].begin;
  bool is_first = true;
  size_t taken = 0;
  for (const Mark& mark : ordered) {
    taken += !mark.is_part;
    if (!mark.is_left) continue;
    // A part has no place of its own: it shares that of what is before it.
    const Extent place = taken == 0 ? mark.base : places_[taken - 1];
    if (begins && is_first) word->begin = place.begin;
    word->end = place.end;
    is_first = false;
  }
}

}  // namespace sparse_ops
