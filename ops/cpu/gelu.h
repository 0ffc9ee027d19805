#pragma once

#include "cpu/simd.h"

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

inline Words MagnitudeBits(Floats a) { return reinterpret_cast<Words>(a) & 0x7fffffffu; }

// GELU, x times the share of a normal distribution below x, within 3e-7 * |x|. It is computed as max(x, 0) -
// |x| times the share beyond |x|. That share is 1/2 - |x| P(x^2) / Q(x^2) up to 5.6, where it reaches 0; the
// polynomials were fitted by least squares, reweighted until all errors were alike.
inline Floats Gelu(Floats x) {
  const Floats negative = -reinterpret_cast<Floats>(MagnitudeBits(x));
  const Floats u = Max(Broadcast(-5.6f), negative);
  const Floats t = u * u;
  Floats p = Broadcast(2.21545344e-8f);
  p = MulAdd(p, t, Broadcast(6.35716731e-6f));
  p = MulAdd(p, t, Broadcast(1.73831308e-4f));
  p = MulAdd(p, t, Broadcast(4.70718064e-3f));
  p = MulAdd(p, t, Broadcast(3.43736132e-2f));
  p = MulAdd(p, t, Broadcast(3.98942222e-1f));
  Floats q = Broadcast(1.18050202e-6f);
  q = MulAdd(q, t, Broadcast(7.50989899e-5f));
  q = MulAdd(q, t, Broadcast(1.91288025e-3f));
  q = MulAdd(q, t, Broadcast(2.89388471e-2f));
  q = MulAdd(q, t, Broadcast(2.52827585e-1f));
  q = MulAdd(q, t, Broadcast(1.0f));
  const Floats beyond = Max(Floats{}, Broadcast(0.5f) + u * p / q);
  return MulAdd(negative, beyond, Select(Above(x, Floats{}), x, Floats{}));
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
