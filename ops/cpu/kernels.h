// The CPU kernels of all ops as one table per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/packed_tensors.h"
#include "runtime/elements.h"
#include "sparsegen_lin/axis_rows.h"

namespace sparse_ops {

// Some consecutive queries of one sequence, in one head or a few consecutive ones.
struct QueryRange {
  int64_t sequence;         // its index
  int64_t sequence_begin;   // first key of the sequence
  int64_t sequence_length;  // its keys
  int64_t query_begin;      // its first query
  int64_t sequence_queries;
  int64_t first;  // query of the range, counted within the sequence: a multiple of query_block
  int64_t count;
  int64_t head;
  int64_t heads;
};

// Consecutive offsets.
struct OffsetRun {
  int32_t first;
  int32_t last;
};

// What axis attention allows in one sequence, and how its kernel computes it.
struct AxisSequence {
  int64_t order;      // where its rows begin in the pattern's order
  int64_t full_rows;  // rows that attend to every key
  int64_t columns;    // keys that every row attends to and that are gathered; 0 where masked
  int64_t reach;      // offsets up to this one lie in a block's band of masked keys; -1: none do
  bool masked;        // a block's band is the whole sequence, columns, full rows and random keys included
  int64_t heads;      // computed together, but for full rows in blocks of their own
  // Keys of a chunk, a multiple of query_block. The full rows are computed along with the blocks of a chunk,
  // which leaves a partial result of each. 0: there are none, or they have blocks of their own.
  int64_t chunk;
  int64_t partials;     // the number of its first partial result; they are (chunks, num_heads, full_rows)
  int64_t full_tokens;  // how many rows are full where every token is a query
};

constexpr int64_t kMostChunks = 16;  // of a sequence

// A partial result of a full row, one after the other in memory: the sums of its values, padded to a multiple
// of kPartialLanes, the sums of its weights, one to a lane, and the maximum, padded likewise.
constexpr int64_t kPartialLanes = 16;  // those of the widest instruction set
static constexpr int64_t PartialFloats(int64_t head_size) {
  return (head_size + kPartialLanes - 1) / kPartialLanes * kPartialLanes + 2 * kPartialLanes;
}

constexpr int64_t kColumnPadding = 8;

// Keys and values are copied head by head where a sequence has at least this many keys and queries.
constexpr int64_t kHeldKeys = 512;
constexpr int64_t kHeldQueries = 256;

// The most that any block of one call has: the size of its scratch memory follows from these.
struct AxisExtent {
  int64_t head_size;
  int64_t keys;       // of the longest sequence
  int64_t held_keys;  // of the longest sequence of which a copy is kept; 0: there is none
  int64_t slots;      // scores of a row
  int64_t columns;    // gathered, over the heads of a range, with kColumnPadding more for each
  int64_t diagonals;  // outside of a band
  int64_t pairs;      // scores of a row with keys of its own
  int64_t full_rows;  // computed along with blocks, over the heads of a range
  bool sparsegen;     // whether sparsegen-lin normalizes, not softmax
};

// The pairs that axis attention computes. Positions are counted within their sequence; a query that is not a
// key of it has position -1.
struct AxisPattern {
  const AxisSequence* sequences;
  const int32_t* order;    // each sequence's full rows, then blocks of consecutive rows, full ones among them
  const int32_t* queries;  // of each row in order: its query of the sequence; -1: not asked for there
  const int32_t* columns;  // (tokens): from a sequence's first token on, its gathered columns, rising
  const uint8_t* is_row;   // (tokens)
  const uint8_t* is_column;  // (tokens)
  const OffsetRun* runs;     // of diagonals: rising, with gaps between them
  int64_t run_count;
  const uint8_t* is_offset;  // (longest sequence + 1)
  int64_t random_keys;       // draws for each row
  uint64_t seed;
  float* partials;  // those of the call, of PartialFloats each
  AxisExtent extent;
};

// Some consecutive rows of a product of 8-bit integers, (rows, columns).
struct ProductRows {
  const int32_t* products;
  const float* scale;         // (rows)
  const float* column_scale;  // (columns)
  const float* bias;          // (columns)
  int64_t columns;
};

// Some consecutive rows of a sum, (rows, columns), which are normalized.
struct SumRows {
  const float* input;
  const float* skip;
  const float* bias;   // (columns)
  const float* gamma;  // (columns)
  const float* beta;   // (columns)
  int64_t columns;
  float epsilon;
};

// The kernels for tensors of one element type.
template <class Element>
struct ElementKernels {
  // Up to row_block rows from `first_row`; row r is the r-th of all (outer, inner) pairs.
  void (*sparsegen_lin)(const AxisRows<Element>& rows, float divisor, int64_t first_row, int64_t count,
                        float* scratch);
  // next: the range that comes after; null after the last.
  void (*sparsegen_attention)(const PackedAttention<Element>& tensors, const QueryRange& range,
                              const QueryRange* next, float* scratch);
  void (*softmax_attention)(const PackedAttention<Element>& tensors, const QueryRange& range,
                            const QueryRange* next, float* scratch);
  // The range counts places in the sequence's `order`. It has either full rows or others, in blocks of
  // query_block from its first place on, which need not be a multiple of that; of a sequence with chunks it
  // has whole ones.
  // next: the range that comes after; null after the last.
  void (*axis_attention)(const PackedAttention<Element>& tensors, const AxisPattern& pattern,
                         const QueryRange& range, const QueryRange* next, float* scratch);
  // Writes the full rows of a sequence with chunks, all of which have been computed, in the heads of a
  // range.
  void (*axis_full_rows)(const PackedAttention<Element>& tensors, const AxisPattern& pattern,
                         const QueryRange& range);
  // Whether weight (2, width) times each of `count` rows of hidden, plus bias, is above 0.
  void (*axis_mask)(const Element* hidden, int64_t count, int64_t width, const Element* weight,
                    const Element* bias, uint8_t* rows, uint8_t* columns);
};

struct Kernels : ElementKernels<float>, ElementKernels<Half>, ElementKernels<BFloat16> {
  const char* instruction_set;
  int64_t query_block;  // queries that are computed together
  int64_t row_block;    // rows that are computed together by sparsegen_lin

  // Quantizes each row of (count, columns) by a scale of its own.
  void (*quantize_rows)(const float* values, int64_t count, int64_t columns, uint8_t* quantized,
                        float* scale);
  void (*dequantize_rows)(const ProductRows& product, int64_t count, float* values);
  void (*requantize_gelu)(const ProductRows& product, int64_t count, uint8_t* quantized, float* row_scale,
                          float* scratch);

  void (*bias_gelu)(const float* input, int64_t count, int64_t columns, const float* bias, float* output);
  void (*skip_layer_normalization)(const SumRows& rows, int64_t count, float* output);

  // How many floats of scratch memory one call needs.
  size_t (*sparsegen_lin_scratch)(int64_t length);
  size_t (*sparsegen_attention_scratch)(int64_t longest_sequence, int64_t head_size);
  size_t (*softmax_attention_scratch)(int64_t longest_sequence, int64_t head_size);
  size_t (*axis_attention_scratch)(const AxisExtent& extent);
  size_t (*requantize_gelu_scratch)(int64_t columns);
};

extern const Kernels kKernelsGeneric;
#if defined(SPARSE_OPS_X86)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAvx512Vnni;
#elif defined(SPARSE_OPS_AARCH64)
extern const Kernels kKernelsNeon;
#endif

}  // namespace sparse_ops
