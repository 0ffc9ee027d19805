// Which kernels compute the sequences of one call, and what their blocks have in shared memory.
#pragma once

#include "attention/attention_tile_cuda.h"
#include "sparsegen_attention/sparsegen_candidates_cuda.h"

namespace sparse_ops {
namespace cuda {

// The limits of a launch: the numbers of keys of the sequences that it computes, and its use of shared
// memory.
struct SparsegenLimits {
  int64_t more_than;  // keys
  int64_t at_most;    // keys
  bool resident;      // whether shared memory holds the scores of at_most keys
  int slots;          // of a list, where not resident; 0: there are no lists, all is dense
};

// Constants of a kernel, for sequences of few keys (kResident) or of many. Where tensor cores compute the
// scores, that takes little longer than reading them from shared memory. So few are kept there, and blocks
// have 128 queries, for which keys are read half as often from L2.
template <class Element, bool kResident>
struct SparsegenKind {
  static constexpr bool kIsFloat = sizeof(Element) == sizeof(float);
  using AnyBlock = Block<kResident || kIsFloat ? 4 : 8>;
  static constexpr int64_t kMostResidentKeys = kIsFloat ? 512 : 256;
  // Slots of a list, which holds two candidates less. For elements of 16 bits and heads up to 64 the most are
  // such that two blocks fit beside each other on 9.0. In float32 a whole tile of keys must fit, as the first
  // tile has no cut.
  static constexpr int kMostSlots = kIsFloat ? 32 : 22;
  static constexpr int kFewestSlots = kIsFloat ? kTileKeys / 4 + 2 : 12;
  // Whether a cut is found before keys are listed. Not in float32, where computing their scores twice costs
  // too much.
  static constexpr bool kBoundFirst = !kResident && !kIsFloat;
};

// What a block computes. It is kept in shared memory, as registers are few.
struct SparsegenWork {
  QueryTile tile;
  int64_t head;
};

// Layout of shared memory: the search, what it found, stages of tiles, queries that are not in registers,
// then scores or lists.
template <class Element, int kWidth, bool kResident>
struct SparsegenMemory {
  using Kind = SparsegenKind<Element, kResident>;
  using AnyBlock = typename Kind::AnyBlock;
  using Stages = TileStages<Element, kWidth, kStagesOf<Element, kWidth>>;
  static constexpr bool kQueriesInRegisters = TileProducts<Element, kWidth>::kQueriesInRegisters;
  static constexpr int64_t kWorkAt = RoundUp(sizeof(QueryTileSearch), 16);
  static constexpr int64_t kSearchBytes = RoundUp(kWorkAt + sizeof(SparsegenWork), 16);
  static constexpr int64_t kTileBytes =
      CeilDivide(kTileQueries<AnyBlock>, kTileKeys) * TileLayout<Element, kWidth>::kBytes;
  static constexpr int64_t kQueryBytes = kQueriesInRegisters ? 0 : kTileBytes;
  static_assert(!kQueriesInRegisters || kTileBytes <= Stages::kBytes, "queries come through the stages");
  static constexpr int64_t kFixedBytes = kSearchBytes + Stages::kBytes + kQueryBytes;
  static constexpr int64_t kKeyBytes = kTileQueries<AnyBlock> * static_cast<int64_t>(sizeof(float));
  static constexpr int64_t kCountBytes = CandidateLists<AnyBlock>::kCountBytes;
  static constexpr int64_t kSlotBytes = CandidateLists<AnyBlock>::kSlotBytes;

  // How many keys `shared_bytes` have room for, in whole tiles.
  static constexpr int64_t ResidentKeys(int64_t shared_bytes) {
    const int64_t keys = (shared_bytes - kFixedBytes) / kKeyBytes / kTileKeys * kTileKeys;
    return keys < 0 ? 0 : keys < Kind::kMostResidentKeys ? keys : Kind::kMostResidentKeys;
  }
  // Slots of a list; 0 where there would be too few.
  static constexpr int Slots(int64_t shared_bytes) {
    const int64_t slots = (shared_bytes - kFixedBytes - kCountBytes) / kSlotBytes;
    return slots < Kind::kFewestSlots ? 0
           : slots < Kind::kMostSlots ? static_cast<int>(slots)
                                      : Kind::kMostSlots;
  }
  static constexpr int64_t Bytes(const SparsegenLimits& limits) {
    if (kResident) return kFixedBytes + limits.at_most * kKeyBytes;
    return kFixedBytes + (limits.slots > 0 ? kCountBytes + limits.slots * kSlotBytes : 0);
  }
};

// Shared memory of one block: on compute capability 8.0; on 8.6, which has the least; and on 9.0 where two
// blocks run beside each other, each of which takes one more KiB.
constexpr int64_t kSharedBytesOfA100 = 163 * 1024;
constexpr int64_t kFewestSharedBytes = 99 * 1024;
constexpr int64_t kHalfOfSharedBytes = 113 * 1024;
template <class Element, int kWidth>
constexpr int64_t kListBytes =
    SparsegenMemory<Element, kWidth, false>::Bytes({0, 0, false, SparsegenKind<Element, false>::kMostSlots});
static_assert(SparsegenMemory<Half, 128, true>::ResidentKeys(kFewestSharedBytes) == 256, "256 are resident");
static_assert(SparsegenMemory<float, 32, true>::ResidentKeys(kSharedBytesOfA100) == 512, "512 are resident");
static_assert(SparsegenMemory<float, 64, true>::ResidentKeys(kSharedBytesOfA100) == 384, "384 are resident");
static_assert(SparsegenMemory<float, 128, true>::ResidentKeys(kSharedBytesOfA100) == 384, "384 are resident");
static_assert(kListBytes<Half, 64> <= kHalfOfSharedBytes, "two blocks have lists beside each other");
static_assert(kListBytes<Half, 128> <= kSharedBytesOfA100, "lists are whole");
static_assert(kListBytes<float, 128> <= kSharedBytesOfA100, "lists are whole");
static_assert(SparsegenMemory<Half, 64, false>::Slots(kFewestSharedBytes) > 0, "there are lists everywhere");
static_assert(SparsegenMemory<Half, 128, false>::Slots(kFewestSharedBytes) > 0, "there are lists everywhere");

// Blocks for which a multiprocessor is to have registers: as many as can run without spills and have room for
// their lists. The latter is one on compute capability 8.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int kBlocksWithLists = 1;
#else
constexpr int kBlocksWithLists = 2;
#endif
template <class Element, int kWidth, bool kResident>
constexpr int kSparsegenBlocks = sizeof(Element) == 4 ? 1
                                 : kResident          ? (kWidth > 64 ? 2 : 4)
                                 : kWidth > 64        ? 1
                                                      : kBlocksWithLists;

// The launches of one call: one for sequences whose scores fit in little shared memory, so that several
// blocks run beside each other, one for those that take more of it, and one for longer sequences.
struct SparsegenPlan {
  SparsegenLimits limits[3];
  int64_t shared_bytes[3];
  int count;
};

template <class Element, int kWidth>
SparsegenPlan PlanSparsegen(int64_t key_rows, int64_t shared_bytes) {
  using Resident = SparsegenMemory<Element, kWidth, true>;
  using Listed = SparsegenMemory<Element, kWidth, false>;
  SparsegenPlan plan{};
  int64_t more_than = -1;
  for (const int64_t keys :
       {Min(128, Resident::ResidentKeys(shared_bytes)), Resident::ResidentKeys(shared_bytes)}) {
    if (keys <= more_than || key_rows <= more_than) continue;
    plan.limits[plan.count] = {more_than, keys, true, 0};
    plan.shared_bytes[plan.count] = Resident::Bytes(plan.limits[plan.count]);
    ++plan.count;
    more_than = keys;
  }
  if (key_rows > more_than) {
    plan.limits[plan.count] = {more_than, key_rows, false, Listed::Slots(shared_bytes)};
    plan.shared_bytes[plan.count] = Listed::Bytes(plan.limits[plan.count]);
    ++plan.count;
  }
  return plan;
}

}  // namespace cuda
}  // namespace sparse_ops
