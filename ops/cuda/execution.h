// How a kernel is written once and run in two ways: by a GPU, or by a loop on the CPU, which tests compare
// with the reference where there is no GPU.
//
// A kernel's body is a function of a Block. What each thread does is a function that is passed to
// Block::Threads, Block::Warps or Warp::Each: on a GPU each thread calls it once, for itself; on the CPU one
// thread calls it for all of them in turn. Values that a lane keeps from one such call to the next are a
// PerLane, those of a warp a PerWarp. Nothing else may differ between threads. After one warp writes to
// shared memory, a Block::Sync must come before another warp reads it; within a warp a Warp::Sync.
#pragma once

#include <cstdint>

#if defined(SPARSE_OPS_WARP_THREADS)
#include <pthread.h>
#endif

#if defined(__CUDACC__)
#define SPARSE_OPS_BOTH __host__ __device__ __forceinline__
#else
#define SPARSE_OPS_BOTH inline
#endif

#if defined(__CUDA_ARCH__)
#define SPARSE_OPS_LANES _Pragma("unroll")
#define SPARSE_OPS_ROLLED _Pragma("unroll 1")
#else
#define SPARSE_OPS_LANES
#define SPARSE_OPS_ROLLED
#endif

namespace sparse_ops {
namespace cuda {

constexpr int kWarpLanes = 32;
constexpr int kWarpQueries = 16;  // of attention: a product of tensor cores has as many rows
constexpr float kInfinity = __builtin_huge_valf();
constexpr float kLargest = 3.4028234663852886e38f;

SPARSE_OPS_BOTH float NotANumber() { return __builtin_nanf(""); }
SPARSE_OPS_BOTH int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
SPARSE_OPS_BOTH int32_t Lesser(int32_t a, int32_t b) { return a < b ? a : b; }
SPARSE_OPS_BOTH int32_t Greater(int32_t a, int32_t b) { return a > b ? a : b; }
// b where a is NaN.
SPARSE_OPS_BOTH float Max(float a, float b) { return a > b ? a : b; }
constexpr int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Sets bits of a word that other threads write to as well.
SPARSE_OPS_BOTH void AtomicOr(uint32_t* word, uint32_t bits) {
#if defined(__CUDA_ARCH__)
  atomicOr(word, bits);
#else
  *word |= bits;
#endif
}
// Returns the number before the addition.
SPARSE_OPS_BOTH int AtomicAdd(int* number, int more) {
#if defined(__CUDA_ARCH__)
  return atomicAdd(number, more);
#else
  const int before = *number;
  *number += more;
  return before;
#endif
}

// e to the x; 0 where that is less than the least normal number.
SPARSE_OPS_BOTH float Exponential(float x) {
  constexpr float kLog2OfE = 1.4426950408889634f;
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * kLog2OfE));
  return power;
#else
  return __builtin_exp2f(x * kLog2OfE);
#endif
}

SPARSE_OPS_BOTH int CountBits(uint32_t word) {
#if defined(__CUDA_ARCH__)
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

#if defined(__CUDA_ARCH__)

template <class T>
struct PerLane {
  T own;
  __device__ __forceinline__ T& operator[](int) { return own; }
  __device__ __forceinline__ const T& operator[](int) const { return own; }
};

template <class T, int kWarps>
struct PerWarp {
  T own;
  __device__ __forceinline__ T& operator[](int) { return own; }
};

class Warp {
 public:
  __device__ __forceinline__ explicit Warp(int index) : index_(index) {}
  __device__ __forceinline__ int index() const { return index_; }

  template <class Function>
  __device__ __forceinline__ void Each(const Function& function) const {
    function(static_cast<int>(threadIdx.x) % kWarpLanes);
  }
  __device__ __forceinline__ void Sync() const { __syncwarp(); }

  // Reductions over all lanes; every lane gets the result.
  __device__ __forceinline__ bool Any(const PerLane<bool>& truth) const {
    return __any_sync(0xffffffffu, truth.own) != 0;
  }
  __device__ __forceinline__ float Sum(const PerLane<float>& each) const { return Reduce<Add>(each.own, 16); }
  __device__ __forceinline__ int Sum(const PerLane<int>& each) const { return Reduce<Add>(each.own, 16); }
  __device__ __forceinline__ float Max(const PerLane<float>& each) const {
    return Reduce<Larger>(each.own, 16);
  }
  __device__ __forceinline__ int Max(const PerLane<int>& each) const { return Reduce<Larger>(each.own, 16); }

  // Reductions over the four lanes 4i to 4i + 3; each of them gets the result.
  __device__ __forceinline__ void QuadSum(PerLane<float>* each) const {
    each->own = Reduce<Add>(each->own, 2);
  }
  __device__ __forceinline__ void QuadSum(PerLane<int>* each) const { each->own = Reduce<Add>(each->own, 2); }
  __device__ __forceinline__ void QuadMax(PerLane<float>* each) const {
    each->own = Reduce<Larger>(each->own, 2);
  }
  __device__ __forceinline__ void QuadAny(PerLane<bool>* each) const {
    each->own = Reduce<Add>(each->own ? 1 : 0, 2) != 0;
  }
  // The value of lane 4i + from, for each of the four lanes.
  template <class T>
  __device__ __forceinline__ PerLane<T> QuadGet(const PerLane<T>& each, int from) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    return {__shfl_sync(0xffffffffu, each.own, lane / 4 * 4 + from)};
  }

  // Bit i is that of lane i.
  __device__ __forceinline__ uint32_t Ballot(const PerLane<bool>& truth) const {
    return __ballot_sync(0xffffffffu, truth.own);
  }
  // A running total: each lane's value becomes that of `carry`, all lanes before it and its own. `carry`
  // becomes the last lane's.
  template <class Combine>
  __device__ __forceinline__ void Scan(PerLane<int>* each, int* carry, const Combine& combine) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
#pragma unroll
    for (int d = 1; d < kWarpLanes; d *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, each->own, d);
      if (lane >= d) each->own = combine(before, each->own);
    }
    each->own = combine(*carry, each->own);
    *carry = __shfl_sync(0xffffffffu, each->own, kWarpLanes - 1);
  }

 private:
  struct Add {
    template <class T>
    static __device__ __forceinline__ T Of(T a, T b) {
      return a + b;
    }
  };
  struct Larger {
    template <class T>
    static __device__ __forceinline__ T Of(T a, T b) {
      return a > b ? a : b;
    }
  };
  template <class Operation, class T>
  static __device__ __forceinline__ T Reduce(T own, int distance) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      if (d <= distance) own = Operation::Of(own, __shfl_xor_sync(0xffffffffu, own, d));
    }
    return own;
  }

  int index_;
};

template <int kBlockWarps>
class Block {
 public:
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kThreads = kBlockWarps * kWarpLanes;

  __device__ __forceinline__ Block() {}

  template <class Function>
  __device__ __forceinline__ void Threads(const Function& function) const {
    function(static_cast<int>(threadIdx.x));
  }
  template <class Function>
  __device__ __forceinline__ void Warps(const Function& function) const {
    function(Warp(static_cast<int>(threadIdx.x) / kWarpLanes));
  }
  __device__ __forceinline__ void Sync() const { __syncthreads(); }
  // Whether it is true for any warp; every warp gets the result. It is a Sync too.
  __device__ __forceinline__ bool Any(PerWarp<bool, kBlockWarps>& truth) const {
    return __syncthreads_or(truth.own) != 0;
  }
};

#else  // a CPU, lane after lane

template <class T>
struct PerLane {
  T each[kWarpLanes];
  T& operator[](int lane) { return each[lane]; }
  const T& operator[](int lane) const { return each[lane]; }
};

class Warp {
 public:
  SPARSE_OPS_BOTH explicit Warp(int index) : index_(index) {}
  SPARSE_OPS_BOTH int index() const { return index_; }

  template <class Function>
  SPARSE_OPS_BOTH void Each(const Function& function) const {
    for (int lane = 0; lane < kWarpLanes; ++lane) function(lane);
  }
  SPARSE_OPS_BOTH void Sync() const {}

  SPARSE_OPS_BOTH bool Any(const PerLane<bool>& truth) const {
    bool any = false;
    for (int lane = 0; lane < kWarpLanes; ++lane) any = any || truth[lane];
    return any;
  }
  SPARSE_OPS_BOTH float Sum(PerLane<float> each) const { return Reduce(&each, 16, Add<float>)[0]; }
  SPARSE_OPS_BOTH int Sum(PerLane<int> each) const { return Reduce(&each, 16, Add<int>)[0]; }
  SPARSE_OPS_BOTH float Max(PerLane<float> each) const { return Reduce(&each, 16, Larger<float>)[0]; }
  SPARSE_OPS_BOTH int Max(PerLane<int> each) const { return Reduce(&each, 16, Larger<int>)[0]; }

  SPARSE_OPS_BOTH void QuadSum(PerLane<float>* each) const { Reduce(each, 2, Add<float>); }
  SPARSE_OPS_BOTH void QuadSum(PerLane<int>* each) const { Reduce(each, 2, Add<int>); }
  SPARSE_OPS_BOTH void QuadMax(PerLane<float>* each) const { Reduce(each, 2, Larger<float>); }
  SPARSE_OPS_BOTH void QuadAny(PerLane<bool>* each) const { Reduce(each, 2, Either); }
  template <class T>
  SPARSE_OPS_BOTH PerLane<T> QuadGet(const PerLane<T>& each, int from) const {
    PerLane<T> got;
    for (int lane = 0; lane < kWarpLanes; ++lane) got[lane] = each[lane / 4 * 4 + from];
    return got;
  }

  SPARSE_OPS_BOTH uint32_t Ballot(const PerLane<bool>& truth) const {
    uint32_t bits = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) bits |= uint32_t{truth[lane]} << lane;
    return bits;
  }
  template <class Combine>
  SPARSE_OPS_BOTH void Scan(PerLane<int>* each, int* carry, const Combine& combine) const {
    for (int lane = 0; lane < kWarpLanes; ++lane) *carry = (*each)[lane] = combine(*carry, (*each)[lane]);
  }

 private:
  template <class T>
  static SPARSE_OPS_BOTH T Add(T a, T b) {
    return a + b;
  }
  template <class T>
  static SPARSE_OPS_BOTH T Larger(T a, T b) {
    return a > b ? a : b;
  }
  static SPARSE_OPS_BOTH bool Either(bool a, bool b) { return a || b; }
  // In the order of a GPU's shuffles, so that sums are the same.
  template <class T>
  static SPARSE_OPS_BOTH PerLane<T>& Reduce(PerLane<T>* each, int distance, T (*operation)(T, T)) {
    for (; distance > 0; distance /= 2) {
      const PerLane<T> before = *each;
      for (int lane = 0; lane < kWarpLanes; ++lane) {
        (*each)[lane] = operation(before[lane], before[lane ^ distance]);
      }
    }
    return *each;
  }

  int index_;
};

#if defined(SPARSE_OPS_WARP_THREADS)

// What the threads of one block share, and which warp a thread belongs to.
struct BlockThreads {
  pthread_barrier_t barrier;
  bool votes[kWarpLanes];
};
inline BlockThreads* block_threads = nullptr;
inline thread_local int own_warp = 0;

template <class T, int kWarps>
struct PerWarp {
  T own;
  T& operator[](int) { return own; }
};

template <int kBlockWarps>
class Block {
 public:
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kThreads = kBlockWarps * kWarpLanes;

  template <class Function>
  void Threads(const Function& function) const {
    for (int lane = kWarpLanes - 1; lane >= 0; --lane) function(own_warp * kWarpLanes + lane);
  }
  template <class Function>
  void Warps(const Function& function) const {
    function(Warp(own_warp));
  }
  void Sync() const { pthread_barrier_wait(&block_threads->barrier); }
  bool Any(PerWarp<bool, kBlockWarps>& truth) const {
    block_threads->votes[own_warp] = truth.own;
    Sync();
    bool any = false;
    for (int warp = 0; warp < kBlockWarps; ++warp) any = any || block_threads->votes[warp];
    Sync();
    return any;
  }
};

#else  // one thread, warp after warp

template <class T, int kWarps>
struct PerWarp {
  T each[kWarps];
  T& operator[](int warp) { return each[warp]; }
};

template <int kBlockWarps>
class Block {
 public:
  static constexpr int kWarps = kBlockWarps;
  static constexpr int kThreads = kBlockWarps * kWarpLanes;

  template <class Function>
  SPARSE_OPS_BOTH void Threads(const Function& function) const {
    for (int thread = 0; thread < kThreads; ++thread) function(thread);
  }
  template <class Function>
  SPARSE_OPS_BOTH void Warps(const Function& function) const {
    for (int warp = 0; warp < kBlockWarps; ++warp) function(Warp(warp));
  }
  SPARSE_OPS_BOTH void Sync() const {}
  SPARSE_OPS_BOTH bool Any(PerWarp<bool, kBlockWarps>& truth) const {
    bool any = false;
    for (int warp = 0; warp < kBlockWarps; ++warp) any = any || truth[warp];
    return any;
  }
};

#endif  // SPARSE_OPS_WARP_THREADS
#endif  // __CUDA_ARCH__

}  // namespace cuda
}  // namespace sparse_ops
