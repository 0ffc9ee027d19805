// A warp's matrix products, by tensor cores on a GPU. On the CPU the same fragments are read as the PTX
// manual lays them out, so that tests there check every index that a kernel computes.
//
// Lane l holds rows g = l / 4 and g + 8 of a result of 16 rows and 8 columns, columns 2t and 2t + 1, t = l
// % 4.
#pragma once

#include <cstdint>

#include "cuda/conversion.h"

#if defined(SPARSE_OPS_WARP_THREADS)
#include <vector>
#endif

namespace sparse_ops {
namespace cuda {

#if defined(SPARSE_OPS_WARP_THREADS)
// One warp's copies that are not made yet, and where each group of each of its lanes ends.
struct LateCopies {
  struct Copy {
    const void* from;
    void* to;
  };

  void Make(size_t left) {
    if (groups.size() <= left) return;
    const size_t end = groups[groups.size() - 1 - left];
    for (; made < end; ++made) __builtin_memcpy(copies[made].to, copies[made].from, 16);
  }

  std::vector<Copy> copies;
  std::vector<size_t> groups;
  size_t made = 0;
};
inline thread_local LateCopies late_copies;
#endif

// of[0], of[1]: row g, columns 2t and 2t + 1; of[2], of[3]: row g + 8. Aligned, so that it is moved at once.
struct alignas(16) Four {
  float of[4];
};

// Two numbers of 16 bits each: of[0] row g, columns 2t and 2t + 1; of[1] row g + 8; of[2], of[3] eight
// columns on.
struct LeftFragment {
  uint32_t of[4];
};
// Four 8x8 matrices, as LoadMatrices reads them.
struct Matrices {
  uint32_t of[4];
};

// Reads matrices of 8x8 16-bit numbers: address(8i + r) is where row r of the i-th matrix lies, aligned to 16
// bytes. Lane l gets row l / 4, columns 2t and 2t + 1, of each matrix; with kTransposed rows and columns are
// exchanged.
template <bool kTransposed, class Address>
SPARSE_OPS_BOTH PerLane<Matrices> LoadMatrices(const Warp& warp, const Address& address) {
  PerLane<Matrices> loaded;
#if defined(__CUDA_ARCH__)
  warp.Each([&](int lane) {
    const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(address(lane)));
    uint32_t* to = loaded.own.of;
    if (kTransposed) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(from)
                   : "memory");
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "r"(from)
                   : "memory");
    }
  });
#else
  for (int i = 0; i < 4; ++i) {
    uint16_t matrix[8][8];
    for (int r = 0; r < 8; ++r) __builtin_memcpy(matrix[r], address(8 * i + r), sizeof(matrix[r]));
    warp.Each([&](int lane) {
      const int g = lane / 4;
      const int t = lane % 4;
      const uint32_t low = kTransposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint32_t high = kTransposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      loaded[lane].of[i] = low | high << 16;
    });
  }
#endif
  return loaded;
}

// sums += left * right: left of 16 rows and columns, right of 16 rows and 8 columns, whose fragment is words
// first and first + 1 of `right`: rows 2t and 2t + 1 of column g, and eight rows on.
template <class Element>
SPARSE_OPS_BOTH void MultiplyAdd(const Warp& warp, const PerLane<LeftFragment>& left,
                                 const PerLane<Matrices>& right, int first, PerLane<Four>* sums) {
#if defined(__CUDA_ARCH__)
  (void)warp;
  const uint32_t* a = left.own.of;
  const uint32_t* b = right.own.of + first;
  float* c = sums->own.of;
  if (kIsHalf<Element>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  const auto number = [](uint32_t word, int half) {
    return ToFloat(Element{static_cast<uint16_t>(word >> (16 * half))});
  };
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      a[g][2 * t + i] = number(left[lane].of[0], i);
      a[g + 8][2 * t + i] = number(left[lane].of[1], i);
      a[g][2 * t + 8 + i] = number(left[lane].of[2], i);
      a[g + 8][2 * t + 8 + i] = number(left[lane].of[3], i);
      b[2 * t + i][g] = number(right[lane].of[first], i);
      b[2 * t + 8 + i][g] = number(right[lane].of[first + 1], i);
      c[g][2 * t + i] = (*sums)[lane].of[i];
      c[g + 8][2 * t + i] = (*sums)[lane].of[2 + i];
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) c[i][j] += a[i][k] * b[k][j];
    }
  }
  warp.Each([&](int lane) {
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      (*sums)[lane].of[i] = c[g][2 * t + i];
      (*sums)[lane].of[2 + i] = c[g + 8][2 * t + i];
    }
  });
#endif
}

// Copies 16 bytes of a tensor, aligned, to shared memory, also aligned; on a GPU in the background, see
// CommitCopies. Where warps are threads of a CPU, a copy is made as late as is allowed, so that races show.
SPARSE_OPS_BOTH void CopyInBackground(const void* from, void* to) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
#elif defined(SPARSE_OPS_WARP_THREADS)
  late_copies.copies.push_back({from, to});
#else
  __builtin_memcpy(to, from, 16);
#endif
}
// Makes a group of the copies that a thread has begun since the last such call.
SPARSE_OPS_BOTH void CommitCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(SPARSE_OPS_WARP_THREADS)
  late_copies.groups.push_back(late_copies.copies.size());
#endif
}
// Waits for all of a thread's groups but the last kGroups.
template <int kGroups>
SPARSE_OPS_BOTH void WaitForCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#elif defined(SPARSE_OPS_WARP_THREADS)
  late_copies.Make(kGroups * kWarpLanes);
#endif
}

}  // namespace cuda
}  // namespace sparse_ops
