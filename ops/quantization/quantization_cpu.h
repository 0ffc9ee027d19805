#pragma once

#include "cpu/conversion.h"
#include "cpu/gelu.h"
#include "cpu/kernels.h"
#include "cpu/scratch_layout.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

constexpr float kLargestInt8 = 127.0f;
// Rows whose largest magnitude is smaller count as zeros: 127 / it would not be finite.
constexpr float kSmallestMagnitude = 0x1p-100f;
constexpr uint32_t kInfinityBits = 0x7f800000u;

// The largest magnitude of some numbers, by its bits, which are ordered as the numbers are, with NaN above
// all.
class LargestMagnitude {
 public:
  void Add(Floats a) {
    const Words bits = MagnitudeBits(a);
    bits_ = bits > bits_ ? bits : bits_;
  }
  uint32_t Get() const {
    uint32_t largest = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) largest = bits_[lane] > largest ? bits_[lane] : largest;
    return largest;
  }

 private:
  Words bits_{};
};

// Rounds a * factor, which is from -127 to 127, to the nearest and to even between two, and returns it as 1
// to 255. Adding 1.5 * 2^23 leaves an integer in the low bits.
inline Bytes Quantized(Floats a, Floats factor) {
  const Floats shifted = MulAdd(a, factor, Broadcast(12582912.0f + 128.0f));
  return __builtin_convertvector(reinterpret_cast<Words>(shifted) & 0xffu, Bytes);
}

// Writes one row whose largest magnitude has these bits.
inline void QuantizeRow(const float* values, int64_t columns, uint32_t largest_bits, uint8_t* quantized,
                        float* scale) {
  float largest = 0.0f;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  const bool is_finite = largest_bits < kInfinityBits;
  if (!is_finite || largest < kSmallestMagnitude) {
    __builtin_memset(quantized, 128, static_cast<size_t>(columns));
    *scale = is_finite ? 0.0f : __builtin_nanf("");
    return;
  }
  const Floats factor = Broadcast(kLargestInt8 / largest);
  ForEachVector(columns, [&](int64_t j, int64_t count) {
    const Bytes bytes = Quantized(LoadFirst(values + j, count), factor);
    __builtin_memcpy(quantized + j, &bytes, static_cast<size_t>(count));
  });
  *scale = largest / kLargestInt8;
}

inline void QuantizeRows(const float* values, int64_t count, int64_t columns, uint8_t* quantized,
                         float* scale) {
  for (int64_t row = 0; row < count; ++row, values += columns, quantized += columns) {
    LargestMagnitude largest[2];  // two chains, which hide latency
    int64_t j = 0;
    for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
      largest[0].Add(Load(values + j));
      largest[1].Add(Load(values + j + kLanes));
    }
    for (; j + kLanes <= columns; j += kLanes) largest[0].Add(Load(values + j));
    if (j < columns) largest[0].Add(LoadPartial(values + j, columns - j));
    const uint32_t first = largest[0].Get();
    const uint32_t second = largest[1].Get();
    QuantizeRow(values, columns, first > second ? first : second, quantized, scale + row);
  }
}

inline Floats FromInts(const int32_t* from, int64_t count) {
  Ints ints{};
  __builtin_memcpy(&ints, from, static_cast<size_t>(count) * sizeof(int32_t));
  return __builtin_convertvector(ints, Floats);
}

// Calls each(j, values, count) for every vector of the dequantized row.
template <class Each>
inline void DequantizeRow(const ProductRows& product, int64_t row, const Each& each) {
  const int32_t* products = product.products + row * product.columns;
  const Floats scale = Broadcast(product.scale[row]);
  ForEachVector(product.columns, [&](int64_t j, int64_t count) {
    const Floats scaled = FromInts(products + j, count) * scale;
    const Floats column_scale = LoadFirst(product.column_scale + j, count);
    each(j, MulAdd(scaled, column_scale, LoadFirst(product.bias + j, count)), count);
  });
}

inline void DequantizeRows(const ProductRows& product, int64_t count, float* values) {
  for (int64_t row = 0; row < count; ++row, values += product.columns) {
    DequantizeRow(product, row,
                  [&](int64_t j, Floats a, int64_t lanes) { StorePartial(values + j, lanes, a); });
  }
}

struct RequantizeGeluScratch {
  RequantizeGeluScratch(int64_t columns, float* base)
      : layout(base), row(layout.Take(RoundUp(columns, kLanes))) {}

  ScratchLayout layout;
  float* row;
};

inline size_t RequantizeGeluScratchFloats(int64_t columns) {
  return static_cast<size_t>(RequantizeGeluScratch(columns, nullptr).layout.used());
}

inline void RequantizeGelu(const ProductRows& product, int64_t count, uint8_t* quantized, float* row_scale,
                           float* memory) {
  const RequantizeGeluScratch scratch(product.columns, memory);
  for (int64_t row = 0; row < count; ++row, quantized += product.columns) {
    LargestMagnitude largest;
    DequantizeRow(product, row, [&](int64_t j, Floats a, int64_t) {
      // Lanes beyond the row are 0, and GELU of 0 is 0.
      const Floats activated = Gelu(a);
      Store(scratch.row + j, activated);
      largest.Add(activated);
    });
    QuantizeRow(scratch.row, product.columns, largest.Get(), quantized, row_scale + row);
  }
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
