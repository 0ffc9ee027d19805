// Pieces of rows, as lanes read them from tensors and write them, without shared memory.
#pragma once

#include "cuda/conversion.h"

namespace sparse_ops {
namespace cuda {

template <class T, int kSize>
struct Array {
  T at[kSize];
  SPARSE_OPS_BOTH T& operator[](int i) { return at[i]; }
  SPARSE_OPS_BOTH const T& operator[](int i) const { return at[i]; }
};

// One word of the lower halves of two words, and one of the upper halves.
SPARSE_OPS_BOTH uint32_t LowHalves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x5410);
#else
  return (a & 0xffffu) | b << 16;
#endif
}
SPARSE_OPS_BOTH uint32_t HighHalves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x7632);
#else
  return a >> 16 | (b & 0xffff0000u);
#endif
}

// Consecutive columns of a row, as they lie in memory: words of two elements, or of one float.
template <class Element, int kColumns>
struct Piece {
  static constexpr bool kIsFloat = sizeof(Element) == sizeof(float);
  static constexpr int kWords = kIsFloat ? kColumns : kColumns / 2;

  uint32_t words[kWords];

  // Column i; i is constant where the loop around it is unrolled.
  SPARSE_OPS_BOTH float At(int i) const {
    if constexpr (kIsFloat) {
      return FloatOf(words[i]);
    } else {
      return ToFloat(Element{static_cast<uint16_t>(words[i / 2] >> i % 2 * 16)});
    }
  }
};

// Reads columns of one row from `first` on; zeros where the row is null and beyond the head. kVector: rows
// lie at multiples of 16 bytes and are a whole number of these, 8 elements of 16 bits or 4 of float32.
template <bool kVector, class Element, int kColumns>
SPARSE_OPS_BOTH void Read(const Element* row, int first, int head_size, Piece<Element, kColumns>* piece) {
  constexpr int kPieceWords = Piece<Element, kColumns>::kWords;
  if constexpr (kVector) {
    constexpr int kWordsAtOnce = kPieceWords < 4 ? kPieceWords : 4;
    constexpr int kColumnsAtOnce = kColumns / kPieceWords * kWordsAtOnce;
    SPARSE_OPS_LANES
    for (int w = 0; w < kPieceWords; w += kWordsAtOnce) {
      const int column = first + w / kWordsAtOnce * kColumnsAtOnce;
      const bool exists = row != nullptr && column < head_size;
#if defined(__CUDA_ARCH__)
      if constexpr (kWordsAtOnce == 4) {
        uint4 read = {};
        if (exists) read = __ldg(reinterpret_cast<const uint4*>(row + column));
        piece->words[w] = read.x, piece->words[w + 1] = read.y;
        piece->words[w + 2] = read.z, piece->words[w + 3] = read.w;
      } else {
        uint2 read = {};
        if (exists) read = __ldg(reinterpret_cast<const uint2*>(row + column));
        piece->words[w] = read.x, piece->words[w + 1] = read.y;
      }
#else
      if (exists) __builtin_memcpy(piece->words + w, row + column, kWordsAtOnce * sizeof(uint32_t));
      if (!exists) __builtin_memset(piece->words + w, 0, kWordsAtOnce * sizeof(uint32_t));
#endif
    }
  } else {
    int columns = row == nullptr ? 0 : head_size - first;
#if defined(__CUDA_ARCH__)
    asm volatile("" : "+r"(columns));  // else the result of each comparison is kept from one row to the next
#endif
    const auto bits = [&](int i) -> uint32_t {
      if (i >= columns) return 0;
      if constexpr (sizeof(Element) == sizeof(float)) {
        return BitsOf(row[first + i]);
      } else {
        return row[first + i].bits;
      }
    };
    SPARSE_OPS_LANES
    for (int w = 0; w < kPieceWords; ++w) {
      piece->words[w] = kPieceWords == kColumns ? bits(w) : bits(2 * w) | bits(2 * w + 1) << 16;
    }
  }
}

// Writes numbers, one a column, to a row's columns from `first` on, as far as the head has them.
template <bool kVector, class Element, int kColumns>
SPARSE_OPS_BOTH void Write(const Array<float, kColumns>& numbers, int first, int head_size, Element* row) {
  Piece<Element, kColumns> piece;
  constexpr int kPieceWords = Piece<Element, kColumns>::kWords;
  SPARSE_OPS_LANES
  for (int w = 0; w < kPieceWords; ++w) {
    if constexpr (sizeof(Element) == sizeof(float)) {
      piece.words[w] = BitsOf(numbers[w]);
    } else {
      piece.words[w] = PackPair<Element>(numbers[2 * w], numbers[2 * w + 1]);
    }
  }
  if constexpr (kVector) {
    constexpr int kColumnsAtOnce = kColumns / kPieceWords * 4;
    SPARSE_OPS_LANES
    for (int w = 0; w < kPieceWords; w += 4) {
      const int column = first + w / 4 * kColumnsAtOnce;
      if (column >= head_size) continue;
#if defined(__CUDA_ARCH__)
      *reinterpret_cast<uint4*>(row + column) =
          make_uint4(piece.words[w], piece.words[w + 1], piece.words[w + 2], piece.words[w + 3]);
#else
      __builtin_memcpy(row + column, piece.words + w, 4 * sizeof(uint32_t));
#endif
    }
  } else {
    SPARSE_OPS_LANES
    for (int i = 0; i < kColumns; ++i) {
      if (first + i >= head_size) continue;
      if constexpr (sizeof(Element) == sizeof(float)) {
        row[first + i] = numbers[i];
      } else {
        row[first + i] = Element{static_cast<uint16_t>(piece.words[i / 2] >> i % 2 * 16)};
      }
    }
  }
}

}  // namespace cuda
}  // namespace sparse_ops
