// UTF-8 as Unicode defines it (table 3-7) and as Python decodes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace sparse_ops {

constexpr uint32_t kCodePoints = 0x110000;

inline uint8_t ByteAt(const char* p) { return static_cast<uint8_t>(*p); }

// Whether a byte continues a sequence.
inline bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// The number of bytes of the sequence that begins at p and ends by `end`; 0 where there is none.
inline size_t SequenceAt(const char* p, const char* end) {
  const uint8_t lead = ByteAt(p);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (static_cast<size_t>(end - p) < length) return 0;
  // Sequences must not be longer than needed, nor surrogates, nor beyond U+10FFFF.
  const uint8_t lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (ByteAt(p + 1) < lowest || ByteAt(p + 1) > highest) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (!IsContinuation(p[i])) return 0;
  }
  return length;
}

// Where the text stops being UTF-8, as in `UnicodeDecodeError.start`; text.size() where it does not.
inline size_t ValidBytes(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    uint64_t eight;
    while (end - p >= 8 && (std::memcpy(&eight, p, 8), (eight & 0x8080808080808080u) == 0)) p += 8;
    while (p < end && ByteAt(p) < 0x80) ++p;
    while (p < end && ByteAt(p) >= 0x80) {
      const size_t length = SequenceAt(p, end);
      if (length == 0) return static_cast<size_t>(p - text.data());
      p += length;
    }
  }
  return text.size();
}

// The code point at p, of valid UTF-8; moves p to the next.
inline uint32_t Decode(const char*& p) {
  const uint32_t lead = ByteAt(p++);
  if (lead < 0x80) return lead;
  const auto six_bits = [&p] { return ByteAt(p++) & 0x3Fu; };
  uint32_t point = lead < 0xE0 ? lead & 0x1F : lead < 0xF0 ? lead & 0x0F : lead & 0x07;
  if (lead >= 0xF0) point = point << 6 | six_bits();
  if (lead >= 0xE0) point = point << 6 | six_bits();
  return point << 6 | six_bits();
}

// The number of code points from p to the end, of valid UTF-8.
inline int32_t CodePoints(const char* p, const char* end) {
  int32_t count = 0;
  for (; p < end; ++p) count += !IsContinuation(*p);
  return count;
}

// The begin of the code point that ends before p.
inline const char* Previous(const char* p) {
  do --p;
  while (IsContinuation(*p));
  return p;
}

}  // namespace sparse_ops
