// A reader of JSON, the form in which Triton hands over a model's configuration.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparse_serve {

// A value of one kind, or null. Accessors of other kinds return something empty.
class Json {
 public:
  using Member = std::pair<std::string, Json>;

  // Throws std::runtime_error where `text` is no JSON.
  static Json Parse(std::string_view text);

  // The member of an object, null where it has none.
  const Json& operator[](std::string_view name) const;
  const std::vector<Member>& members() const { return members_; }  // of an object, as they were written
  const std::vector<Json>& items() const { return items_; }        // of an array
  const std::string& text() const { return text_; }                // of a string; a number as it was written

  // The value of a number, or of a string that is one, as protobuf writes integers of 64 bits; 0 for null.
  int64_t Integer() const;

  // Whether it says anything: neither null, false, zero, nor empty.
  bool is_set() const;

 private:
  friend class JsonReader;

  std::vector<Member> members_;
  std::vector<Json> items_;
  std::string text_;
  bool is_true_ = false;
  bool is_number_ = false;
};

}  // namespace sparse_serve
