// Four floats, in the compiler's own vectors.
#pragma once

namespace sparse_ops {
namespace SPARSE_OPS_TARGET {

typedef float Quad __attribute__((vector_size(16)));
typedef int QuadIndex __attribute__((vector_size(16)));

#if defined(__clang__)
#define SPARSE_OPS_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define SPARSE_OPS_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, QuadIndex{i, j, k, l})
#endif

// Exchanges rows[i][j] and rows[j][i].
inline void TransposeQuads(Quad (&rows)[4]) {
  const Quad low01 = SPARSE_OPS_SHUFFLE(rows[0], rows[1], 0, 4, 1, 5);
  const Quad high01 = SPARSE_OPS_SHUFFLE(rows[0], rows[1], 2, 6, 3, 7);
  const Quad low23 = SPARSE_OPS_SHUFFLE(rows[2], rows[3], 0, 4, 1, 5);
  const Quad high23 = SPARSE_OPS_SHUFFLE(rows[2], rows[3], 2, 6, 3, 7);
  rows[0] = SPARSE_OPS_SHUFFLE(low01, low23, 0, 1, 4, 5);
  rows[1] = SPARSE_OPS_SHUFFLE(low01, low23, 2, 3, 6, 7);
  rows[2] = SPARSE_OPS_SHUFFLE(high01, high23, 0, 1, 4, 5);
  rows[3] = SPARSE_OPS_SHUFFLE(high01, high23, 2, 3, 6, 7);
}

}  // namespace SPARSE_OPS_TARGET
}  // namespace sparse_ops
