// Tensors of any element type, float32 in registers. Reading is exact; writing rounds once, to the nearest
// and to even between two, and keeps infinities and NaN. Neither depends on how the thread treats subnormal
// numbers.
//
//   Load, LoadPartial, Store       those of simd.h, for Half and BFloat16 too
//   StorePartial(p, n, a)          p[0..n) = a[0..n), 0 < n <= kLanes; writes nothing beyond
//   LoadFirst(p, n)                the first of p[0..n) as LoadPartial, kLanes of them at most, 0 < n
//   StoreFirst(p, n, a)            likewise
//   ForEachVector(n, each)         each(j, count) for a row of n: kLanes from the j-th on, then those left
//   ReadOne, WriteOne              a single element
//   CopyRow, ReadRows, WriteRow    rows of any number of columns
#pragma once

#include "cpu/simd.h"
#include "runtime/elements.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

inline Floats ToFloats(HalfWords bits, Half) { return FromHalf(bits); }
inline HalfWords ToElements(Floats a, Half) { return ToHalf(a); }

inline Floats ToFloats(HalfWords bits, BFloat16) {
  return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
}
inline HalfWords ToElements(Floats a, BFloat16) {
  const Words bits = reinterpret_cast<Words>(a);
  const Words rounded = bits + 0x7fffu + (bits >> 16 & 1u);
  const Words quiet = bits | 0x00400000u;  // rounded, a NaN could become infinity or wrap around
  return __builtin_convertvector(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16, HalfWords);
}

template <class Element>
inline Floats Load(const Element* from) {
  HalfWords bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return ToFloats(bits, Element{});
}
template <class Element>
inline Floats LoadPartial(const Element* from, int64_t count) {
  return ToFloats(LoadPartialWords(&from->bits, count), Element{});
}
template <class Element>
inline void Store(Element* to, Floats a) {
  const HalfWords bits = ToElements(a, Element{});
  __builtin_memcpy(to, &bits, sizeof(bits));
}

inline void StorePartial(float* to, int64_t count, Floats a) {
  __builtin_memcpy(to, &a, static_cast<size_t>(count) * sizeof(float));
}
template <class Element>
inline void StorePartial(Element* to, int64_t count, Floats a) {
  const HalfWords bits = ToElements(a, Element{});
  __builtin_memcpy(to, &bits, static_cast<size_t>(count) * sizeof(Element));
}

template <class Element>
inline Floats LoadFirst(const Element* from, int64_t count) {
  return count >= kLanes ? Load(from) : LoadPartial(from, count);
}

template <class Element>
inline void StoreFirst(Element* to, int64_t count, Floats a) {
  return count >= kLanes ? Store(to, a) : StorePartial(to, count, a);
}

template <class Each>
inline void ForEachVector(int64_t columns, const Each& each) {
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) each(j, kLanes);
  if (j < columns) each(j, columns - j);
}

inline float ReadOne(const float* from) { return *from; }
template <class Element>
inline float ReadOne(const Element* from) {
  return LoadPartial(from, 1)[0];
}
inline void WriteOne(float* to, float a) { *to = a; }
template <class Element>
inline void WriteOne(Element* to, float a) {
  StorePartial(to, 1, Broadcast(a));
}

// to[0..columns) = from[0..columns), zeros up to the next multiple of kLanes.
template <class Element>
inline void CopyRow(const Element* from, int64_t columns, float* to) {
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) Store(to + j, Load(from + j));
  if (j < columns) Store(to + j, LoadPartial(from + j, columns - j));
}

// Rows of a matrix in float32.
struct FloatRows {
  const float* first;
  ptrdiff_t stride;
};

// The number of floats that ReadRows needs in `buffer` to convert that many rows and columns.
constexpr int64_t RowsBufferFloats(int64_t rows, int64_t columns) { return rows * RoundUp(columns, kLanes); }

// float32 rows are read where they lie, others are converted into `buffer`.
inline FloatRows ReadRows(const float* from, ptrdiff_t stride, int64_t, int64_t, float*) {
  return {from, stride};
}
template <class Element>
inline FloatRows ReadRows(const Element* from, ptrdiff_t stride, int64_t rows, int64_t columns,
                          float* buffer) {
  const ptrdiff_t buffer_stride = RoundUp(columns, kLanes);
  for (int64_t r = 0; r < rows; ++r) CopyRow(from + r * stride, columns, buffer + r * buffer_stride);
  return {buffer, buffer_stride};
}

// to[0..columns) = from[0..columns) * factor; `from` is readable up to the next multiple of kLanes.
template <class Element>
inline void WriteRow(const float* from, int64_t columns, Floats factor, Element* to) {
  int64_t j = 0;
  for (; j + kLanes <= columns; j += kLanes) Store(to + j, Load(from + j) * factor);
  if (j < columns) StorePartial(to + j, columns - j, Load(from + j) * factor);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
