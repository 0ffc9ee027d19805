// The products of 16 queries of one head with keys and of weights with values, 16 slots at a time, straight
// from the tensors: a warp's reads are whole lines of them, the few columns stay in the first cache, and no
// shared memory is needed. Keys that all queries share are multiplied by tensor cores where elements have 16
// bits. Keys of each query's own, and float32, are multiplied one by one, by a quad of lanes for each of its
// two queries.
//
// As the order of columns does not matter to tensor cores, lanes read what lies together: of each 32 columns
// of queries and keys lane 4g + t has those from 8t to 8t + 7; of values lane 4g + t reads columns kGroups *
// g to kGroups * (g + 1) - 1, of which the u-th is column g of the u-th product. Of the outputs it then has
// kColumns from kColumns * t on.
#pragma once

#include "attention/packed_tensors.h"
#include "axis_attention/axis_keys_cuda.h"
#include "cuda/matrix.h"
#include "cuda/row_pieces.h"

namespace sparse_ops {
namespace cuda {

using ChunkScores = Array<float, kLaneScores>;

// kPadded: the head size rounded up to 32, 64 or 128. kVector: see Read.
template <class Element, int kPadded, bool kVector>
class AxisProducts {
 public:
  static constexpr bool kTensorCores = sizeof(Element) == 2;
  static constexpr int kPieces = kPadded / 32;  // of a row, 8 columns each, that a lane has
  static constexpr int kGroups = kPadded / 8;   // of 8 columns, each one product
  static constexpr int kColumns = kPadded / 4;  // of the output that a lane has

  SPARSE_OPS_BOTH void Begin(const Warp& warp, const PackedAttention<Element>& tensors, int32_t head,
                             const TileKeys& keys) {
    tensors_ = &tensors;
    head_ = head;
    key_ = Row(tensors.key, keys.begin);
    value_ = Row(tensors.value, keys.begin);
    if (!kHoldsQueries) return;
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        SPARSE_OPS_LANES
        for (int c = 0; c < kPieces; ++c) ReadQuery(keys, lane, half, c, &queries_[c][half][lane]);
      }
    });
  }

  // Sets all sums to 0.
  SPARSE_OPS_BOTH void ClearSums(const Warp& warp) {
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int u = 0; u < kGroups; ++u) sums_[u][lane] = {};
    });
  }

  // Scaled scores; -inf where a query does not attend to a key, which bit i of `allowed` says of score i.
  template <KeyKind kKind>
  SPARSE_OPS_BOTH void Score(const Warp& warp, const TileKeys& keys, const KeyChunk<kKind>& chunk,
                             const PerLane<uint32_t>& allowed, PerLane<ChunkScores>* scores) const {
    if constexpr (kOneByOne<kKind>) {
      ScoreOneByOne(warp, keys, chunk, scores);
    } else {
      ScoreTogether(warp, keys, chunk, scores);
    }
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int i = 0; i < kLaneScores; ++i) {
        float& score = (*scores)[lane][i];
        score = allowed[lane] >> i & 1 ? score * tensors_->scale : -kInfinity;
      }
    });
  }

  // Adds the weighted values of a chunk. The weight of a pair that is not allowed must be 0.
  template <KeyKind kKind>
  SPARSE_OPS_BOTH void AddValues(const Warp& warp, const TileKeys& keys, const KeyChunk<kKind>& chunk,
                                 const PerLane<ChunkScores>& weights) {
    if constexpr (kOneByOne<kKind>) {
      AddOneByOne(warp, keys, chunk, weights);
    } else {
      AddTogether(warp, keys, chunk, weights);
    }
  }

  // One of a lane's sums in either half: column j * kGroups + u is number j of the u-th product.
  SPARSE_OPS_BOTH float& Sum(int lane, int half, int column) {
    return sums_[column % kGroups][lane].of[2 * half + column / kGroups];
  }

  SPARSE_OPS_BOTH void Scale(int lane, int half, float factor) {
    SPARSE_OPS_LANES
    for (int i = 0; i < kColumns; ++i) Sum(lane, half, i) *= factor;
  }

  // Writes the sums, multiplied by a factor, to the output of a query.
  SPARSE_OPS_BOTH void WriteOutput(int lane, int half, float factor, int32_t query) {
    Array<float, kColumns> numbers;
    SPARSE_OPS_LANES
    for (int i = 0; i < kColumns; ++i) numbers[i] = Sum(lane, half, i) * factor;
    Write<kVector>(numbers, kColumns * (lane % 4), HeadSize(), Row(tensors_->output, query));
  }
  SPARSE_OPS_BOTH void WriteSupport(int32_t support, int32_t query) const {
    if (tensors_->support != nullptr) tensors_->support[query * tensors_->num_heads + head_] = support;
  }

 private:
  // Whether keys are multiplied one by one: where each query may have another key in a slot, or tensor cores
  // do not support the element type.
  template <KeyKind kKind>
  static constexpr bool kOneByOne = !kTensorCores || kKind == KeyKind::kPairs;

  // Whether queries stay in registers. For wide heads there are too few registers where a piece takes twice
  // as many, or its reading does: such queries are read again for each key.
  static constexpr bool kHoldsQueries = kPadded <= 64 || (kTensorCores && kVector);

  SPARSE_OPS_BOTH void ReadQuery(const TileKeys& keys, int lane, int half, int c,
                                 Piece<Element, 8>* piece) const {
    int32_t query = keys.queries[lane].query[half];
#if defined(__CUDA_ARCH__)
    // Else the query would be read once, into more registers than there are.
    if (!kHoldsQueries) asm volatile("" : "+r"(query));
#endif
    ReadPiece(query < 0 ? nullptr : Row(tensors_->query, query), 32 * c + 8 * (lane % 4), piece);
  }
  SPARSE_OPS_BOTH Piece<Element, 8> QueryPiece(const TileKeys& keys, int lane, int half, int c) const {
    if constexpr (kHoldsQueries) return queries_[c][half][lane];
    Piece<Element, 8> piece;
    ReadQuery(keys, lane, half, c, &piece);
    return piece;
  }

  SPARSE_OPS_BOTH int HeadSize() const { return static_cast<int>(tensors_->head_size); }
  SPARSE_OPS_BOTH int64_t Stride() const { return tensors_->num_heads * tensors_->head_size; }
  template <class Tensor>
  SPARSE_OPS_BOTH Tensor* Row(Tensor* tensor, int64_t row) const {
    return tensor + row * Stride() + head_ * tensors_->head_size;
  }
  // A row of the sequence's keys or values; null for -1.
  SPARSE_OPS_BOTH const Element* KeyRow(const Element* first, int32_t key) const {
    return key < 0 ? nullptr : first + key * Stride();
  }
  template <int kSize>
  SPARSE_OPS_BOTH void ReadPiece(const Element* row, int first, Piece<Element, kSize>* piece) const {
    Read<kVector>(row, first, HeadSize(), piece);
  }

  template <KeyKind kKind>
  SPARSE_OPS_BOTH void ScoreTogether(const Warp& warp, const TileKeys& keys, const KeyChunk<kKind>& chunk,
                                     PerLane<ChunkScores>* scores) const {
    SPARSE_OPS_LANES
    for (int a = 0; a < 2; ++a) {
      PerLane<Piece<Element, 8>> read[kPieces];
      warp.Each([&](int lane) {
        const Element* row = KeyRow(key_, keys.KeyAt(chunk, 8 * a + lane / 4));
        SPARSE_OPS_LANES
        for (int c = 0; c < kPieces; ++c) ReadPiece(row, 32 * c + 8 * (lane % 4), &read[c][lane]);
      });
      PerLane<Four> products;
      warp.Each([&](int lane) { products[lane] = {}; });
      SPARSE_OPS_LANES
      for (int c = 0; c < kPieces; ++c) {
        PerLane<LeftFragment> left[2];
        PerLane<Matrices> right;
        warp.Each([&](int lane) {
          const Piece<Element, 8> first = QueryPiece(keys, lane, 0, c), second = QueryPiece(keys, lane, 1, c);
          SPARSE_OPS_LANES
          for (int w = 0; w < 4; ++w) {
            left[w / 2][lane].of[w % 2 * 2] = first.words[w];
            left[w / 2][lane].of[w % 2 * 2 + 1] = second.words[w];
            right[lane].of[w] = read[c][lane].words[w];
          }
        });
        SPARSE_OPS_LANES
        for (int step = 0; step < 2; ++step)
          MultiplyAdd<Element>(warp, left[step], right, 2 * step, &products);
      }
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int i = 0; i < 4; ++i) (*scores)[lane][4 * a + i] = products[lane].of[i];
      });
    }
  }

  template <KeyKind kKind>
  SPARSE_OPS_BOTH void AddTogether(const Warp& warp, const TileKeys& keys, const KeyChunk<kKind>& chunk,
                                   const PerLane<ChunkScores>& weights) {
    constexpr int kAtOnce = kGroups < 8 ? kGroups : 8;
    PerLane<LeftFragment> left;
    warp.Each([&](int lane) {
      SPARSE_OPS_LANES
      for (int w = 0; w < 4; ++w) {
        left[lane].of[w] = PackPair<Element>(weights[lane][2 * w], weights[lane][2 * w + 1]);
      }
    });
    SPARSE_OPS_LANES
    for (int first = 0; first < kGroups; first += kAtOnce) {
      PerLane<Piece<Element, kAtOnce>> read[4];  // of slots 2t, 2t + 1, 2t + 8 and 2t + 9
      warp.Each([&](int lane) {
        SPARSE_OPS_LANES
        for (int k = 0; k < 4; ++k) {
          const Element* row = KeyRow(value_, keys.KeyAt(chunk, lane % 4 * 2 + k % 2 + k / 2 * 8));
          ReadPiece(row, kGroups * (lane / 4) + first, &read[k][lane]);
        }
      });
      SPARSE_OPS_LANES
      for (int u = 0; u < kAtOnce; ++u) {
        PerLane<Matrices> right;
        warp.Each([&](int lane) {
          SPARSE_OPS_LANES
          for (int w = 0; w < 2; ++w) {
            const uint32_t a = read[2 * w][lane].words[u / 2], b = read[2 * w + 1][lane].words[u / 2];
            right[lane].of[w] = u % 2 == 0 ? LowHalves(a, b) : HighHalves(a, b);
          }
        });
        MultiplyAdd<Element>(warp, left, right, 0, &sums_[first + u]);
      }
    }
  }

  template <KeyKind kKind>
  SPARSE_OPS_BOTH void ScoreOneByOne(const Warp& warp, const TileKeys& keys, const KeyChunk<kKind>& chunk,
                                     PerLane<ChunkScores>* scores) const {
    SPARSE_OPS_ROLLED
    for (int slot = 0; slot < chunk.count; ++slot) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        PerLane<float> product;
        warp.Each([&](int lane) {
          product[lane] = 0.0f;
          const Element* row = KeyRow(key_, keys.KeyOf(chunk, lane, half, slot));
          SPARSE_OPS_LANES
          for (int c = 0; c < kPieces; ++c) {
            Piece<Element, 8> read;
            ReadPiece(row, 32 * c + 8 * (lane % 4), &read);
            const Piece<Element, 8> query = QueryPiece(keys, lane, half, c);
            SPARSE_OPS_LANES
            for (int d = 0; d < 8; ++d)
              product[lane] = __builtin_fmaf(query.At(d), read.At(d), product[lane]);
          }
        });
        warp.QuadSum(&product);
        warp.Each([&](int lane) {
          SPARSE_OPS_LANES
          for (int i = 0; i < kLaneScores; ++i) {
            if (HalfOf(i) == half && SlotOf(i, lane) == slot) (*scores)[lane][i] = product[lane];
          }
        });
      }
    }
  }

  template <KeyKind kKind>
  SPARSE_OPS_BOTH void AddOneByOne(const Warp& warp, const TileKeys& keys, const KeyChunk<kKind>& chunk,
                                   const PerLane<ChunkScores>& weights) {
    constexpr int kAtOnce = 8;
    SPARSE_OPS_ROLLED
    for (int slot = 0; slot < chunk.count; ++slot) {
      SPARSE_OPS_LANES
      for (int half = 0; half < 2; ++half) {
        PerLane<float> weight;
        warp.Each([&](int lane) {
          weight[lane] = 0.0f;
          SPARSE_OPS_LANES
          for (int i = 0; i < kLaneScores; ++i) {
            if (HalfOf(i) == half && SlotOf(i, lane) == slot) weight[lane] = weights[lane][i];
          }
        });
        weight = warp.QuadGet(weight, slot % 8 / 2);
        warp.Each([&](int lane) {
          if (weight[lane] == 0.0f) return;
          const Element* row = KeyRow(value_, keys.KeyOf(chunk, lane, half, slot));
          SPARSE_OPS_LANES
          for (int first = 0; first < kColumns; first += kAtOnce) {
            Piece<Element, kAtOnce> read;
            ReadPiece(row, kColumns * (lane % 4) + first, &read);
            SPARSE_OPS_LANES
            for (int d = 0; d < kAtOnce; ++d) {
              float& sum = Sum(lane, half, first + d);
              sum = __builtin_fmaf(weight[lane], read.At(d), sum);
            }
          }
        });
      }
    }
  }

  const PackedAttention<Element>* tensors_;
  int32_t head_;
  const Element *key_, *value_;  // rows of the sequence's first key
  PerLane<Piece<Element, 8>> queries_[kPieces][2];
  PerLane<Four> sums_[kGroups];
};

}  // namespace cuda
}  // namespace sparse_ops
