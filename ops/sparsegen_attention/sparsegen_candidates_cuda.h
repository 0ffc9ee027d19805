// Lists of candidates, the keys that may be above tau, in shared memory. Each lane has one for each of its
// queries.
#pragma once

#include "attention/attention_tile_cuda.h"
#include "cuda/row_pieces.h"
#include "sparsegen_attention/sparsegen_rows_cuda.h"

namespace sparse_ops {
namespace cuda {

struct alignas(8) Candidate {
  float score;  // replaced by the weight at the end
  int32_t key;
};

template <class AnyBlock>
class CandidateLists {
 public:
  static constexpr int64_t kCountBytes = 2 * AnyBlock::kThreads * static_cast<int64_t>(sizeof(int));
  // Bytes of one slot in all lists.
  static constexpr int64_t kSlotBytes = 2 * AnyBlock::kThreads * static_cast<int64_t>(sizeof(Candidate));

  SPARSE_OPS_BOTH CandidateLists(void* memory, int slots)
      : counts_(static_cast<int*>(memory)),
        candidates_(reinterpret_cast<Candidate*>(counts_ + 2 * AnyBlock::kThreads)),
        slots_(slots) {}

  // Appends the keys above the cut. Where a list would be full it appends none and returns false. The last
  // slot takes whatever no longer fits, so that no score needs a branch.
  SPARSE_OPS_BOTH bool Add(const Warp& warp, int key_tile, const Scores& scores,
                           PerLane<SparsegenRows>* rows) const {
    PerLane<int> counts[2];
    PerLane<bool> is_full;
    warp.Each([&](int lane) {
      const int32_t first = key_tile * kTileKeys + lane % 4 * 2;
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        const float cut = (*rows)[lane].cut[h];
        const int last = OffsetOf(warp, lane, h, slots_ - 1);
        int end = OffsetOf(warp, lane, h, (*rows)[lane].count[h]);
        SPARSE_OPS_LANES
        for (int j = 0; j < kSlices; ++j) {
          SPARSE_OPS_LANES
          for (int i = 0; i < 2; ++i) {
            const float score = scores.of[j][lane].of[2 * h + i];
            if (!(score <= cut)) {  // also true for NaN
              AtOffset(end) = {score, first + 8 * j + i};
              end = Lesser(end + static_cast<int>(kSlotBytes), last);
            }
          }
        }
        // With an infinite cut nothing counts but NaN, which is known by then.
        counts[h][lane] = cut < kInfinity ? (end - OffsetOf(warp, lane, h, 0)) / static_cast<int>(kSlotBytes)
                                          : (*rows)[lane].count[h];
      }
      is_full[lane] = counts[0][lane] == slots_ - 1 || counts[1][lane] == slots_ - 1;
    });
    if (warp.Any(is_full)) return false;
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) (*rows)[lane].count[h] = counts[h][lane];
    });
    return true;
  }

  // Finds tau of the candidates so far, and the cut that follows from it. Drops the candidates at tau - slack
  // and below.
  SPARSE_OPS_BOTH void Solve(const Warp& warp, float slack, float divisor, float reciprocal,
                             PerLane<SparsegenRows>* rows) const {
    JoinCandidates(warp, reciprocal, rows);
    for (int step = 0; step < kMaxSteps; ++step) {
      warp.Each([&](int lane) {
        SparsegenRows& own = (*rows)[lane];
        SPARSE_OPS_LANES
        for (int h = 0; h < 2; ++h) {
          NewtonSums sums{0.0f, 0};
          for (int i = 0; i < own.count[h]; ++i) {
            sums.Add(own.Value(h, At(warp, lane, h, i).score, reciprocal), own.tau[h]);
          }
          own.sum[h] = sums.sum;
          own.above[h] = sums.above;
        }
      });
      if (!RiseAll(warp, rows)) break;
    }
    warp.Each([&](int lane) {
      SparsegenRows& own = (*rows)[lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        const float bound = own.tau[h] - slack;
        int kept = 0;
        for (int i = 0; i < own.count[h]; ++i) {
          const Candidate candidate = At(warp, lane, h, i);
          if (own.Value(h, candidate.score, reciprocal) > bound) At(warp, lane, h, kept++) = candidate;
        }
        own.count[h] = kept;
        own.CutAt(h, bound, divisor);
      }
    });
  }

  // Turns scores into weights, all of which are above 0, and tells the warp how many there are.
  SPARSE_OPS_BOTH void Weigh(const Warp& warp, float reciprocal, const PerLane<SparsegenRows>& rows) const {
    warp.Each([&](int lane) {
      const SparsegenRows& own = rows[lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        for (int i = 0; i < own.count[h]; ++i) {
          float& score = At(warp, lane, h, i).score;
          score = own.Value(h, score, reciprocal) - own.tau[h];
        }
        counts_[h * AnyBlock::kThreads + Thread(warp, lane)] = own.nan[h] ? -1 : own.count[h];
      }
    });
  }

  // Weighted sums of the candidates' values for four of a warp's queries at once, each by eight lanes of
  // eight columns each. Several values are loaded at a time.
  template <bool kVector, int kWidth, class Element>
  SPARSE_OPS_BOTH void AddValues(const Warp& warp, int four, const HeadRows<Element>& values,
                                 const QueryTile& tile, Element* output) const {
    constexpr int kColumns = 8;
    constexpr int kSpan = 8 * kColumns;  // columns of eight lanes
    constexpr int kSpans = (kWidth + kSpan - 1) / kSpan;
    constexpr int kAtOnce = sizeof(Element) == sizeof(float) ? 2 : 4;
    warp.Each([&](int lane) {
      const int row = 4 * four + lane / 8;
      const int query = warp.index() * kWarpQueries + row;
      if (query >= tile.queries) return;
      const int h = row / 8;
      const RowList list(counts_ + h * AnyBlock::kThreads + Thread(warp, row % 8 * 4));
      const int head_size = values.head_size;
      float sums[kSpans][kColumns] = {};
      for (int first = 0; first < list.count; first += kAtOnce) {
        Piece<Element, kColumns> own[kAtOnce][kSpans];
        float weights[kAtOnce];
        SPARSE_OPS_LANES
        for (int k = 0; k < kAtOnce; ++k) {
          Candidate candidate{0.0f, 0};
          const Element* value = nullptr;  // read as zeros
          if (first + k < list.count) {
            const int of = list.LaneOf(first + k);
            candidate = At(warp, row % 8 * 4 + of, h, first + k - list.Before(of));
            value = values.first + candidate.key * values.stride;
          }
          weights[k] = candidate.score;
          SPARSE_OPS_LANES
          for (int s = 0; s < kSpans; ++s) {
            Read<kVector>(value, s * kSpan + lane % 8 * kColumns, head_size, &own[k][s]);
          }
        }
        SPARSE_OPS_LANES
        for (int k = 0; k < kAtOnce; ++k) {
          SPARSE_OPS_LANES
          for (int s = 0; s < kSpans; ++s) {
            SPARSE_OPS_LANES
            for (int d = 0; d < kColumns; ++d)
              sums[s][d] = __builtin_fmaf(weights[k], own[k][s].At(d), sums[s][d]);
          }
        }
      }
      Element* to = output + (tile.query + query) * values.stride;
      SPARSE_OPS_LANES
      for (int s = 0; s < kSpans; ++s) {
        SPARSE_OPS_LANES
        for (int d = 0; d < kColumns; ++d) {
          const int column = s * kSpan + lane % 8 * kColumns + d;
          if (column < head_size) FromFloat(list.is_nan ? NotANumber() : sums[s][d], to + column);
        }
      }
    });
  }

 private:
  // The lists of a query's four lanes, seen as one.
  struct RowList {
    SPARSE_OPS_BOTH explicit RowList(const int* counts) {
      SPARSE_OPS_LANES
      for (int of = 0; of < 4; ++of) {
        is_nan = is_nan || counts[of] < 0;
        count += counts[of] < 0 ? 0 : counts[of];
        ends[of] = count;
      }
    }
    SPARSE_OPS_BOTH int LaneOf(int i) const { return (i >= ends[0]) + (i >= ends[1]) + (i >= ends[2]); }
    SPARSE_OPS_BOTH int Before(int of) const {
      return of == 0 ? 0 : of == 1 ? ends[0] : of == 2 ? ends[1] : ends[2];
    }

    int ends[4] = {};
    int count = 0;
    bool is_nan = false;
  };

  static SPARSE_OPS_BOTH int Thread(const Warp& warp, int lane) { return warp.index() * kWarpLanes + lane; }

  // An offset in bytes, so that an address takes one addition.
  static SPARSE_OPS_BOTH int OffsetOf(const Warp& warp, int lane, int h, int i) {
    return ((i * 2 + h) * AnyBlock::kThreads + Thread(warp, lane)) * static_cast<int>(sizeof(Candidate));
  }
  SPARSE_OPS_BOTH Candidate& AtOffset(int offset) const {
    return *reinterpret_cast<Candidate*>(reinterpret_cast<char*>(candidates_) + offset);
  }
  SPARSE_OPS_BOTH Candidate& At(const Warp& warp, int lane, int h, int i) const {
    return AtOffset(OffsetOf(warp, lane, h, i));
  }

  // Finds the largest score so far, to which values are relative, and a tau to begin with: the last one,
  // converted to the new maximum, as no key above it has been dropped.
  SPARSE_OPS_BOTH void JoinCandidates(const Warp& warp, float reciprocal,
                                      PerLane<SparsegenRows>* rows) const {
    PerLane<float> former[2];
    warp.Each([&](int lane) {
      SparsegenRows& own = (*rows)[lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        former[h][lane] = own.maximum[h];
        for (int i = 0; i < own.count[h]; ++i) {
          const float score = At(warp, lane, h, i).score;
          own.nan[h] = own.nan[h] || !(score <= kLargest);
          own.maximum[h] = Max(score, own.maximum[h]);
        }
      }
    });
    JoinMaxima(warp, rows);
    warp.Each([&](int lane) {
      SparsegenRows& own = (*rows)[lane];
      SPARSE_OPS_LANES
      for (int h = 0; h < 2; ++h) {
        own.tau[h] = Max(own.tau[h] + (former[h][lane] - own.Shift(h)) * reciprocal - kBoundSlack, -1.0f);
      }
    });
  }

  int* const counts_;
  Candidate* const candidates_;
  const int slots_;
};

}  // namespace cuda
}  // namespace sparse_ops
