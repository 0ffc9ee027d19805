#include "onnxruntime_backend/json.h"

#include <charconv>
#include <stdexcept>

namespace sparse_serve {
namespace {

constexpr int kMostDepth = 64;

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto append = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    append(code_point);
  } else if (code_point < 0x800) {
    append(0xC0 | code_point >> 6);
    append(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    append(0xE0 | code_point >> 12);
    append(0x80 | (code_point >> 6 & 0x3F));
    append(0x80 | (code_point & 0x3F));
  } else {
    append(0xF0 | code_point >> 18);
    append(0x80 | (code_point >> 12 & 0x3F));
    append(0x80 | (code_point >> 6 & 0x3F));
    append(0x80 | (code_point & 0x3F));
  }
}

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json Read() {
    Json value = Value(0);
    SkipSpace();
    if (place_ != text_.size()) {
      Refuse("its end");
    }
    return value;
  }

 private:
  Json Value(int depth) {
    if (depth > kMostDepth) {
      Refuse("fewer values within each other");
    }
    SkipSpace();
    Json value;
    if (Take('{')) {
      while (!TakeEnd('}', value.members_.empty())) {
        SkipSpace();
        std::string name = String();
        SkipSpace();
        Expect(':');
        value.members_.emplace_back(std::move(name), Value(depth + 1));
      }
    } else if (Take('[')) {
      while (!TakeEnd(']', value.items_.empty())) {
        value.items_.push_back(Value(depth + 1));
      }
    } else if (place_ < text_.size() && text_[place_] == '"') {
      value.text_ = String();
    } else {
      value.text_ = Word();
      value.is_true_ = value.text_ == "true";
      value.is_number_ =
          !value.text_.empty() && value.text_.find_first_not_of("+-.0123456789eE") == value.text_.npos;
      if (!value.is_number_) {
        if (!value.is_true_ && value.text_ != "false" && value.text_ != "null") {
          Refuse("a value");
        }
        value.text_.clear();
      }
    }
    return value;
  }

  // Takes the end of a list, or the comma before its next member.
  bool TakeEnd(char end, bool is_first) {
    SkipSpace();
    if (Take(end)) {
      return true;
    }
    if (!is_first) {
      Expect(',');
    }
    return false;
  }

  std::string Word() {
    const size_t begin = place_;
    while (place_ < text_.size() &&
           std::string_view(",]} \t\r\n").find(text_[place_]) == std::string_view::npos) {
      ++place_;
    }
    return std::string(text_.substr(begin, place_ - begin));
  }

  std::string String() {
    Expect('"');
    std::string text;
    for (char next = Next(); next != '"'; next = Next()) {
      if (next != '\\') {
        text.push_back(next);
        continue;
      }
      const char escaped = Next();
      constexpr std::string_view kEscaped = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
      if (const size_t found = kEscaped.find(escaped); found != kEscaped.npos) {
        text.push_back(kMeant[found]);
      } else if (escaped == 'u') {
        AppendUtf8(CodePoint(), &text);
      } else {
        Refuse("an escape");
      }
    }
    return text;
  }

  uint32_t CodePoint() {
    const uint32_t first = Unit();
    if (first < 0xD800 || first >= 0xDC00) {
      return first;
    }
    Expect('\\');
    Expect('u');
    return 0x10000 + ((first - 0xD800) << 10) + (Unit() - 0xDC00) % 0x400;
  }

  uint32_t Unit() {
    const std::string_view digits = text_.substr(place_, 4);
    uint32_t unit = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), unit, 16);
    if (error != std::errc() || end != digits.data() + 4) {
      Refuse("four hexadecimal digits");
    }
    place_ += 4;
    return unit;
  }

  void SkipSpace() {
    while (place_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[place_]) != std::string_view::npos) {
      ++place_;
    }
  }

  bool Take(char wanted) {
    const bool is_next = place_ < text_.size() && text_[place_] == wanted;
    place_ += is_next ? 1 : 0;
    return is_next;
  }

  void Expect(char wanted) {
    if (!Take(wanted)) {
      Refuse(std::string(1, wanted));
    }
  }

  char Next() {
    if (place_ == text_.size()) {
      Refuse("the end of a string");
    }
    return text_[place_++];
  }

  [[noreturn]] void Refuse(const std::string& expected) const {
    throw std::runtime_error("no JSON: at byte " + std::to_string(place_) + " stands no " + expected);
  }

  std::string_view text_;
  size_t place_ = 0;
};

Json Json::Parse(std::string_view text) { return JsonReader(text).Read(); }

const Json& Json::operator[](std::string_view name) const {
  static const Json kNull;
  for (const auto& [own, value] : members_) {
    if (own == name) {
      return value;
    }
  }
  return kNull;
}

int64_t Json::Integer() const {
  int64_t number = 0;
  std::from_chars(text_.data(), text_.data() + text_.size(), number);
  return number;
}

bool Json::is_set() const {
  return !members_.empty() || !items_.empty() || is_true_ || (is_number_ ? Integer() != 0 : !text_.empty());
}

}  // namespace sparse_serve
