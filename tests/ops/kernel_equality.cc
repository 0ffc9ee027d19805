// Holds the kernels of an instruction set against the generic ones on one case table. Prints what differs,
// and exits with 1 where anything does. test_instruction_sets.py compiles and runs it:
//
//   SPARSE_OPS_TABLE     the table that is held
//   SPARSE_OPS_USE_NEON  it is NEON's; AVX-512's without
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "axis_attention/axis_plan.h"
#include "cpu/kernels.h"

// The operations of both on vectors.
#define SPARSE_OPS_TARGET generic
#include "cpu/simd_generic.h"
#undef SPARSE_OPS_TARGET
#define SPARSE_OPS_TARGET own
#if defined(SPARSE_OPS_USE_NEON)
#include "cpu/simd_neon.h"
#else
#include "cpu/simd_avx512.h"
#endif

using namespace sparse_ops;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSpecial[] = {kNan, kInfinity, -kInfinity, 3e38f, 0x1p-130f, -0x1p-149f};

int held = 0;
int failed = 0;

void Expect(bool holds, const std::string& what) {
  ++held;
  if (holds) return;
  ++failed;
  std::printf("%s\n", what.c_str());
}

const Kernels& kOwn = SPARSE_OPS_TABLE;

// Makes subnormal numbers 0 to this thread, or no longer.
void TreatSubnormalsAsZero(bool zero) {
#if defined(SPARSE_OPS_USE_NEON)
  const uint64_t control = uint64_t{zero} << 24;
  asm volatile("msr fpcr, %0" ::"r"(control) : "memory");
#else
  _MM_SET_FLUSH_ZERO_MODE(zero ? _MM_FLUSH_ZERO_ON : _MM_FLUSH_ZERO_OFF);
  _MM_SET_DENORMALS_ZERO_MODE(zero ? _MM_DENORMALS_ZERO_ON : _MM_DENORMALS_ZERO_OFF);
#endif
}

std::string Text(float number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(number));
  return text;
}

// ---- Elements

float ToFloat(float a) { return a; }
float ToFloat(Half a) { return generic::FromHalf(generic::HalfWords{a.bits})[0]; }
float ToFloat(BFloat16 a) {
  const uint32_t bits = uint32_t{a.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

void FromFloat(float a, float* to) { *to = a; }
void FromFloat(float a, Half* to) { to->bits = generic::ToHalf(generic::Broadcast(a))[0]; }
void FromFloat(float a, BFloat16* to) {
  uint32_t bits;
  std::memcpy(&bits, &a, sizeof(bits));
  to->bits = static_cast<uint16_t>(bits >> 16);
}

// What rounding products of the generic kernels, which need not be fused, may come to in each type.
float Tolerance(float) { return 2e-5f; }
float Tolerance(Half) { return 0x1p-10f; }
float Tolerance(BFloat16) { return 0x1p-7f; }

const char* NameOf(float) { return "float32"; }
const char* NameOf(Half) { return "float16"; }
const char* NameOf(BFloat16) { return "bfloat16"; }

std::mt19937 generator;

template <class Element>
std::vector<Element> Random(int64_t count, float spread) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<Element> numbers(static_cast<size_t>(count));
  for (Element& each : numbers) FromFloat(normal(generator), &each);
  return numbers;
}

// For outputs: other numbers each time, so that what one kernel leaves unwritten is seen.
template <class Element>
std::vector<Element> Unwritten(int64_t count) {
  static float filler = 0.0f;
  std::vector<Element> numbers(static_cast<size_t>(count));
  filler = filler == 1000.0f ? 2000.0f : 1000.0f;
  for (Element& each : numbers) FromFloat(filler, &each);
  return numbers;
}

std::vector<float> Scratch(size_t floats) { return std::vector<float>(floats); }

template <class Element>
bool AreClose(const std::vector<Element>& a, const std::vector<Element>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](Element left, Element right) {
    const float x = ToFloat(left), y = ToFloat(right);
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
    return x == y || std::abs(x - y) <= Tolerance(left) * std::max(1.0f, std::abs(y));
  });
}

// Whether `part` is what `all` holds from `begin` on.
template <class Element>
bool IsPart(const std::vector<Element>& part, const std::vector<Element>& all, int64_t begin) {
  return part.empty() ||
         std::memcmp(part.data(), &all[static_cast<size_t>(begin)], part.size() * sizeof(Element)) == 0;
}

// ---- Operations on vectors, which must give the same bits

// Every float16, to float32.
template <class HalfWords, class Widen>
__attribute__((noinline)) std::vector<float> EveryHalf(Widen widen) {
  std::vector<float> floats;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    floats.push_back(widen(HalfWords{static_cast<uint16_t>(bits)})[0]);
  }
  return floats;
}

template <class Floats, class Words, class Narrow>
__attribute__((noinline)) std::vector<uint16_t> ToHalves(const std::vector<uint32_t>& floats, Narrow narrow) {
  std::vector<uint16_t> halves;
  for (const uint32_t bits : floats) halves.push_back(narrow(reinterpret_cast<Floats>(Words{bits}))[0]);
  return halves;
}

// Floats of every magnitude, and those around every border at which rounding to float16 changes.
std::vector<uint32_t> FloatsAroundBorders() {
  std::vector<uint32_t> floats;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 99991) {
    floats.push_back(static_cast<uint32_t>(bits));
  }
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const float low = ToFloat(Half{static_cast<uint16_t>(half)});
    const float high = half == 0x7bff ? 65536.0f : ToFloat(Half{static_cast<uint16_t>(half + 1)});
    const float middle = low + (high - low) / 2;
    uint32_t bits;
    std::memcpy(&bits, &middle, sizeof(bits));
    for (const uint32_t each : {bits - 1, bits, bits + 1}) {
      floats.push_back(each);
      floats.push_back(each | 0x80000000u);
    }
  }
  return floats;
}

bool IsNanHalf(uint16_t bits) { return (bits & 0x7fff) > 0x7c00; }

void CompareConversions() {
  const std::vector<uint32_t> floats = FloatsAroundBorders();
  const std::vector<float> widened = EveryHalf<generic::HalfWords>(generic::FromHalf);
  const std::vector<uint16_t> halves = ToHalves<generic::Floats, generic::Words>(floats, generic::ToHalf);
  for (const bool zero : {false, true}) {
    TreatSubnormalsAsZero(zero);
    const std::vector<float> own_widened = EveryHalf<own::HalfWords>(own::FromHalf);
    const std::vector<uint16_t> own_halves = ToHalves<own::Floats, own::Words>(floats, own::ToHalf);
    TreatSubnormalsAsZero(false);
    bool same = true;
    for (size_t i = 0; i < widened.size(); ++i) {
      const bool nan = std::isnan(widened[i]) && std::isnan(own_widened[i]);
      same = same && (nan || std::memcmp(&widened[i], &own_widened[i], sizeof(float)) == 0);
    }
    Expect(same, "FromHalf");
    same = true;
    for (size_t i = 0; i < halves.size(); ++i) {
      const bool nan = IsNanHalf(halves[i]) && IsNanHalf(own_halves[i]);
      same = same && (nan || halves[i] == own_halves[i]);
    }
    Expect(same, "ToHalf");
  }
}

void CompareMaximum() {
  for (const float a : {kNan, -kInfinity, -0.0f, 0.0f, 1.0f, kInfinity}) {
    for (const float b : {kNan, -kInfinity, -0.0f, 0.0f, 2.0f, kInfinity}) {
      const generic::Floats expected = generic::Max(generic::Broadcast(a), generic::Broadcast(b));
      const own::Floats found = own::Max(own::Broadcast(a), own::Broadcast(b));
      Expect(std::memcmp(&expected, &found, sizeof(float)) == 0, "Max");
    }
  }
}

// ---- Attention

template <class Element>
struct Sequences {
  std::vector<int64_t> borders;
  int64_t heads;
  int64_t head_size;
  std::vector<Element> query, key, value;
  float divisor;
};

template <class Element>
Sequences<Element> RandomSequences(const std::vector<int64_t>& lengths, int64_t head_size, float divisor) {
  Sequences<Element> sequences{{0}, 2, head_size, {}, {}, {}, divisor};
  for (const int64_t length : lengths) sequences.borders.push_back(sequences.borders.back() + length);
  const int64_t count = sequences.borders.back() * sequences.heads * head_size;
  sequences.query = Random<Element>(count, 1.0f);
  sequences.key = Random<Element>(count, 2.0f);
  sequences.value = Random<Element>(count, 1.0f);
  return sequences;
}

// The sequence of this number by itself.
template <class Element>
Sequences<Element> Alone(const Sequences<Element>& all, size_t number) {
  const int64_t width = all.heads * all.head_size;
  const auto rows = [&](const std::vector<Element>& of) {
    return std::vector<Element>(of.begin() + all.borders[number] * width,
                                of.begin() + all.borders[number + 1] * width);
  };
  const int64_t length = all.borders[number + 1] - all.borders[number];
  return {{0, length},   all.heads,       all.head_size, rows(all.query),
          rows(all.key), rows(all.value), all.divisor};
}

template <class Element>
struct Answer {
  std::vector<Element> output;
  std::vector<int32_t> support;
};

template <class Element>
bool AreClose(const Answer<Element>& a, const Answer<Element>& b) {
  return AreClose(a.output, b.output) && a.support == b.support;
}

// Tensors for one call, which writes to `answer`.
template <class Element>
PackedAttention<Element> TensorsOf(const Sequences<Element>& sequences, Answer<Element>* answer) {
  const int64_t tokens = sequences.borders.back();
  answer->output = Unwritten<Element>(tokens * sequences.heads * sequences.head_size);
  answer->support.assign(static_cast<size_t>(tokens * sequences.heads), 0);
  PackedAttention<Element> tensors{};
  tensors.query = sequences.query.data();
  tensors.key = sequences.key.data();
  tensors.value = sequences.value.data();
  tensors.output = answer->output.data();
  tensors.support = answer->support.data();
  tensors.num_heads = sequences.heads;
  tensors.head_size = sequences.head_size;
  tensors.scale = 1.0f / std::sqrt(static_cast<float>(sequences.head_size));
  tensors.divisor = sequences.divisor;
  return tensors;
}

enum class Normalizer { kSoftmax, kSparsegen };

template <class Element>
std::string AttentionName(Normalizer normalizer) {
  return std::string(normalizer == Normalizer::kSoftmax ? "softmax " : "sparsegen ") + NameOf(Element{});
}

// The queries of all heads and sequences, in ranges of as many as a call has, or fewer.
template <class Element>
std::vector<QueryRange> RangesOf(const Sequences<Element>& sequences, int64_t queries_of_call) {
  std::vector<QueryRange> ranges;
  for (size_t b = 0; b + 1 < sequences.borders.size(); ++b) {
    QueryRange range{};
    range.sequence = static_cast<int64_t>(b);
    range.sequence_begin = range.query_begin = sequences.borders[b];
    range.sequence_length = range.sequence_queries = sequences.borders[b + 1] - sequences.borders[b];
    range.heads = 1;
    for (range.head = 0; range.head < sequences.heads; ++range.head) {
      for (range.first = 0; range.first < range.sequence_length; range.first += queries_of_call) {
        range.count = std::min(queries_of_call, range.sequence_length - range.first);
        ranges.push_back(range);
      }
    }
  }
  return ranges;
}

// Each range is a call of a kernel; all have the same scratch memory.
template <class Element>
Answer<Element> Attend(const Kernels& kernels, Normalizer normalizer, const Sequences<Element>& sequences,
                       const std::vector<QueryRange>& ranges) {
  Answer<Element> answer;
  const PackedAttention<Element> tensors = TensorsOf(sequences, &answer);
  const ElementKernels<Element>& typed = kernels;
  const bool sparsegen = normalizer == Normalizer::kSparsegen;
  const auto attend = sparsegen ? typed.sparsegen_attention : typed.softmax_attention;
  const auto scratch_floats =
      sparsegen ? kernels.sparsegen_attention_scratch : kernels.softmax_attention_scratch;
  std::vector<float> scratch;
  for (const QueryRange& range : ranges) {
    const size_t floats = scratch_floats(range.sequence_length, sequences.head_size);
    if (floats > scratch.size()) scratch = Scratch(floats);
    attend(tensors, range, /*next=*/&range, scratch.data());  // which changes no answer
  }
  return answer;
}

template <class Element>
Answer<Element> Attend(const Kernels& kernels, Normalizer normalizer, const Sequences<Element>& sequences,
                       int64_t queries_of_call) {
  return Attend(kernels, normalizer, sequences, RangesOf(sequences, queries_of_call));
}

template <class Element>
void CompareAttention(const std::string& name, Normalizer normalizer, const Sequences<Element>& sequences) {
  const int64_t block = kOwn.query_block;
  const Answer<Element> expected = Attend(kKernelsGeneric, normalizer, sequences, block);
  const Answer<Element> found = Attend(kOwn, normalizer, sequences, block);
  Expect(AreClose(found, expected), name);

  const Answer<Element> at_once = Attend(kOwn, normalizer, sequences, int64_t{1} << 20);
  Expect(IsPart(at_once.output, found.output, 0), name + ", all queries in one call");
  for (size_t b = 0; b + 1 < sequences.borders.size(); ++b) {
    const Answer<Element> alone = Attend(kOwn, normalizer, Alone(sequences, b), block);
    const int64_t begin = sequences.borders[b] * sequences.heads;
    Expect(IsPart(alone.output, found.output, begin * sequences.head_size) &&
               IsPart(alone.support, found.support, begin),
           name + ", a sequence alone");
  }
}

// Scratch memory goes from thread to thread, with what one range has left there for the next of its head, and
// none may take for its own what another sequence has written since.
template <class Element>
void CompareAnyOrder() {
  for (const Normalizer normalizer : {Normalizer::kSoftmax, Normalizer::kSparsegen}) {
    Sequences<Element> sequences = RandomSequences<Element>({300, 500, 270}, 64, 0.5f);
    // Of the second sequence all keys are alike: none can be screened out.
    const auto keys = sequences.key.begin() + sequences.borders[1] * 2 * 64;
    for (int64_t i = 1; i < 500; ++i) std::copy(keys, keys + 2 * 64, keys + i * 2 * 64);
    std::vector<QueryRange> ranges = RangesOf(sequences, kOwn.query_block);
    const Answer<Element> in_order = Attend(kOwn, normalizer, sequences, ranges);
    for (int orders = 0; orders < 3; ++orders) {
      std::shuffle(ranges.begin(), ranges.end(), generator);
      const Answer<Element> found = Attend(kOwn, normalizer, sequences, ranges);
      Expect(IsPart(found.output, in_order.output, 0) && IsPart(found.support, in_order.support, 0),
             AttentionName<Element>(normalizer) + ", ranges in another order");
    }
  }
}

// The borders of 4 and 16 lanes, of blocks of 8 and 32 queries, of 8 keys, and of words of 32.
const std::vector<std::vector<int64_t>> kLengths = {
    {1, 2, 3, 4, 5}, {7, 8, 9, 0, 12}, {15, 16, 17, 31}, {32, 33, 63, 65}};

template <class Element>
void CompareAttentionSizes() {
  for (const Normalizer normalizer : {Normalizer::kSoftmax, Normalizer::kSparsegen}) {
    const std::string op = AttentionName<Element>(normalizer);
    for (const std::vector<int64_t>& lengths : kLengths) {
      // Few keys with a weight, and almost all of them.
      for (const float divisor : {0.5f, 100.0f}) {
        const std::string name = op + ", " + std::to_string(lengths.back()) + " keys";
        CompareAttention(name, normalizer, RandomSequences<Element>(lengths, 16, divisor));
      }
    }
    // A class of more than 8 keys.
    CompareAttention(op + ", 523 keys", normalizer, RandomSequences<Element>({523}, 8, 20.0f));
    // Keys screened by products of integers, where there are any.
    for (const int64_t head_size : {24, 67}) {
      const std::string name = op + ", 300 keys of " + std::to_string(head_size);
      CompareAttention(name, normalizer, RandomSequences<Element>({256, 300}, head_size, 0.5f));
    }
    for (const int64_t head_size : {8, 9, 11, 14, 64, 67}) {
      const std::string name = op + ", head size " + std::to_string(head_size);
      CompareAttention(name, normalizer, RandomSequences<Element>({3, 41}, head_size, 1.0f));
    }
  }
}

template <class Element>
void CompareAttentionToSpecialNumbers() {
  for (const Normalizer normalizer : {Normalizer::kSoftmax, Normalizer::kSparsegen}) {
    for (const float special : kSpecial) {
      const std::string name = AttentionName<Element>(normalizer) + ", a key of " + Text(special);
      Sequences<Element> sequences = RandomSequences<Element>({6, 21}, 16, 1.0f);
      FromFloat(special, &sequences.key[10 * 32]);
      FromFloat(special, &sequences.key[11 * 32 + 16]);
      CompareAttention(name, normalizer, sequences);
    }
  }
}

// ---- Axis attention

struct AxisCase {
  const char* name;
  FixedPairs fixed;
  int row_every;     // which tokens are rows on: 0 none
  int column_every;  // the same of columns
};

const std::vector<AxisCase> kAxisCases = {
    {"columns", {{}, 0, 0}, 0, 13},
    {"band",
     {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27},
      0,
      0},
     0,
     0},
    {"strips", {{0, 1, 2}, 0, 0}, 0, 0},
    {"strips of all lengths", {{0, 1, 2, 3, 4, 5, 20, 21, 30, 31, 32, 40, 41, 42, 43, 96}, 0, 0}, 50, 0},
    {"far diagonals, columns", {{0, 1, 40}, 0, 0}, 0, 20},
    {"random keys, few rows", {{0}, 3, 7}, 60, 0},
    {"rows and columns", {{0}, 0, 0}, 4, 9},
    {"masked", {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 5, 3}, 3, 2},
    {"every row", {{}, 0, 0}, 1, 0},
    {"nothing", {{}, 0, 0}, 0, 0},
};

template <class Element>
Answer<Element> AttendAxes(const Kernels& kernels, const AxisCase& axes, bool sparsegen,
                           const Sequences<Element>& sequences, bool in_order = true) {
  std::vector<uint8_t> rows, columns;
  for (size_t b = 0; b + 1 < sequences.borders.size(); ++b) {
    for (int64_t i = 0; i < sequences.borders[b + 1] - sequences.borders[b]; ++i) {
      rows.push_back(axes.row_every > 0 && i % axes.row_every == 0);
      columns.push_back(axes.column_every > 0 && i % axes.column_every == 0);
    }
  }
  const AxisPlan plan(axes.fixed, sequences.borders, rows.data(), columns.data(),
                      {sequences.heads, sequences.head_size, kernels.query_block}, sparsegen);
  AxisPattern pattern = plan.Pattern();
  std::vector<float> partials =
      Scratch(static_cast<size_t>(plan.partials() * PartialFloats(sequences.head_size)));
  pattern.partials = partials.data();
  Answer<Element> answer;
  const PackedAttention<Element> tensors = TensorsOf(sequences, &answer);
  std::vector<float> scratch = Scratch(kernels.axis_attention_scratch(pattern.extent));
  const ElementKernels<Element>& typed = kernels;
  // Each in the smallest parts that it may be cut into.
  std::vector<QueryRange> parts, joined;
  for (const CostedRange& costed : plan.CostedRanges()) {
    QueryRange range = costed.range;
    for (range.head = 0; range.head < sequences.heads; range.head += range.heads) {
      range.heads = std::min(costed.range.heads, sequences.heads - range.head);
      if (pattern.sequences[range.sequence].chunk > 0) joined.push_back(range);
      for (int64_t done = 0; done < range.count; done += costed.step) {
        parts.push_back(range);
        parts.back().first += done;
        parts.back().count = std::min(costed.step, range.count - done);
      }
    }
  }
  if (!in_order) std::shuffle(parts.begin(), parts.end(), generator);
  for (size_t i = 0; i < parts.size(); ++i) {
    const QueryRange* next = i + 1 < parts.size() ? &parts[i + 1] : nullptr;
    typed.axis_attention(tensors, pattern, parts[i], next, scratch.data());
  }
  for (const QueryRange& range : joined) typed.axis_full_rows(tensors, pattern, range);
  return answer;
}

template <class Element>
void CompareAxisAttention() {
  for (const AxisCase& axes : kAxisCases) {
    for (const bool sparsegen : {false, true}) {
      const std::string name = std::string("axis attention ") + NameOf(Element{}) + ", " + axes.name +
                               (sparsegen ? ", sparsegen" : ", softmax");
      for (const int64_t head_size : {16, 13}) {
        const Sequences<Element> sequences = RandomSequences<Element>({1, 6, 97}, head_size, 1.0f);
        const Answer<Element> expected = AttendAxes(kKernelsGeneric, axes, sparsegen, sequences);
        const Answer<Element> found = AttendAxes(kOwn, axes, sparsegen, sequences);
        Expect(AreClose(found, expected), name);
        const Answer<Element> shuffled = AttendAxes(kOwn, axes, sparsegen, sequences, /*in_order=*/false);
        Expect(IsPart(shuffled.output, found.output, 0) && IsPart(shuffled.support, found.support, 0),
               name + ", ranges in another order");
        const Answer<Element> alone = AttendAxes(kOwn, axes, sparsegen, Alone(sequences, 2));
        Expect(IsPart(alone.output, found.output, 7 * 2 * head_size) &&
                   IsPart(alone.support, found.support, 7 * 2),
               name + ", a sequence alone");
      }
    }
  }
}

// ---- Sparsegen-lin

// Each call has as many rows, which are computed together.
template <class Element>
std::vector<Element> Project(const Kernels& kernels, const std::vector<Element>& scores, int64_t length,
                             int64_t inner, float divisor, int64_t rows_of_call) {
  std::vector<Element> weights = Unwritten<Element>(static_cast<int64_t>(scores.size()));
  const AxisRows<Element> rows{scores.data(), weights.data(), length, inner};
  const int64_t count = static_cast<int64_t>(scores.size()) / length;
  std::vector<float> scratch = Scratch(kernels.sparsegen_lin_scratch(length));
  for (int64_t first = 0; first < count; first += rows_of_call) {
    static_cast<const ElementKernels<Element>&>(kernels).sparsegen_lin(
        rows, divisor, first, std::min(rows_of_call, count - first), scratch.data());
  }
  return weights;
}

template <class Element>
void CompareProjection(const std::string& name, const std::vector<Element>& scores, int64_t length,
                       int64_t inner, float divisor) {
  const std::vector<Element> expected =
      Project(kKernelsGeneric, scores, length, inner, divisor, kKernelsGeneric.row_block);
  const std::vector<Element> found = Project(kOwn, scores, length, inner, divisor, kOwn.row_block);
  Expect(AreClose(found, expected), name);
  const std::vector<Element> alone = Project(kOwn, scores, length, inner, divisor, 1);
  Expect(IsPart(alone, found, 0), name + ", each row alone");
}

template <class Element>
void CompareSparsegenLinSizes() {
  const std::string op = std::string("sparsegen-lin ") + NameOf(Element{});
  for (const int64_t length : {1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 131}) {
    for (const int64_t inner : {1, 3}) {
      const std::string name = op + ", length " + std::to_string(length);
      const std::vector<Element> scores = Random<Element>(18 * inner * length, 1.0f);
      CompareProjection(name, scores, length, inner, 0.5f);
      CompareProjection(name, scores, length, inner, 50.0f);
    }
  }
}

template <class Element>
void CompareSparsegenLinOfSpecialNumbers() {
  const std::string op = std::string("sparsegen-lin ") + NameOf(Element{});
  for (const float special : kSpecial) {
    std::vector<Element> scores = Random<Element>(18 * 9, 1.0f);
    for (const size_t place : {5, 20, 21, 40}) FromFloat(special, &scores[place]);
    const std::string name = op + ", scores of " + Text(special);
    CompareProjection(name, scores, 9, 1, 1.0f);
    CompareProjection(name, scores, 9, 2, 1.0f);
  }
  std::vector<Element> scores(12);
  for (Element& each : scores) FromFloat(-kInfinity, &each);
  CompareProjection(op + ", scores of -infinity", scores, 3, 1, 1.0f);
  CompareProjection(op + ", a divisor near the largest float", Random<Element>(60, 1.0f), 10, 1, 3e38f);
}

// ---- Axis mask

template <class Element>
std::vector<uint8_t> Mask(const Kernels& kernels, const std::vector<Element>& hidden, int64_t width,
                          const std::vector<Element>& weight, const std::vector<Element>& bias) {
  const int64_t count = static_cast<int64_t>(hidden.size()) / width;
  std::vector<uint8_t> masks(static_cast<size_t>(2 * count), 2);
  static_cast<const ElementKernels<Element>&>(kernels).axis_mask(
      hidden.data(), count, width, weight.data(), bias.data(), masks.data(), masks.data() + count);
  return masks;
}

template <class Element>
void CompareAxisMask() {
  for (const int64_t width : {1, 2, 3, 4, 5, 15, 16, 17, 19, 31, 64, 131}) {
    std::vector<Element> hidden = Random<Element>(12 * width, 1.0f);
    const std::vector<Element> weight = Random<Element>(2 * width, 1.0f), bias = Random<Element>(2, 1.0f);
    FromFloat(kNan, &hidden[0]);
    FromFloat(kInfinity, &hidden[hidden.size() - 1]);
    Expect(Mask(kOwn, hidden, width, weight, bias) == Mask(kKernelsGeneric, hidden, width, weight, bias),
           std::string("axis mask ") + NameOf(Element{}) + ", width " + std::to_string(width));
  }
}

// ---- Quantization

struct Quantized {
  std::vector<uint8_t> numbers;
  std::vector<float> scale;
};

// A number that lies in the middle of two steps may be either.
bool AreClose(const Quantized& a, const Quantized& b) {
  return AreClose(a.scale, b.scale) && std::equal(a.numbers.begin(), a.numbers.end(), b.numbers.begin(),
                                                  [](uint8_t x, uint8_t y) { return std::abs(x - y) <= 1; });
}

Quantized Quantize(const Kernels& kernels, const std::vector<float>& values, int64_t columns) {
  const int64_t count = static_cast<int64_t>(values.size()) / columns;
  Quantized result{std::vector<uint8_t>(values.size()), Unwritten<float>(count)};
  kernels.quantize_rows(values.data(), count, columns, result.numbers.data(), result.scale.data());
  return result;
}

std::vector<float> Dequantize(const Kernels& kernels, const ProductRows& product, int64_t count) {
  std::vector<float> values = Unwritten<float>(count * product.columns);
  kernels.dequantize_rows(product, count, values.data());
  return values;
}

Quantized Requantize(const Kernels& kernels, const ProductRows& product, int64_t count) {
  Quantized result{std::vector<uint8_t>(static_cast<size_t>(count * product.columns)),
                   Unwritten<float>(count)};
  std::vector<float> scratch = Scratch(kernels.requantize_gelu_scratch(product.columns));
  kernels.requantize_gelu(product, count, result.numbers.data(), result.scale.data(), scratch.data());
  return result;
}

void CompareQuantization() {
  constexpr int64_t kRows = 9;
  for (const int64_t columns : {1, 2, 3, 4, 5, 7, 8, 9, 16, 67, 128}) {
    const std::string name = ", " + std::to_string(columns) + " columns";
    std::vector<float> values = Random<float>(kRows * columns, 3.0f);
    for (size_t i = 0; i < std::size(kSpecial); ++i) {
      values[i * static_cast<size_t>(columns)] = kSpecial[i];
    }
    Expect(AreClose(Quantize(kOwn, values, columns), Quantize(kKernelsGeneric, values, columns)),
           "quantize" + name);

    std::vector<int32_t> products;
    for (const float each : Random<float>(kRows * columns, 1e4f)) {
      products.push_back(static_cast<int32_t>(each));
    }
    std::vector<float> scale = Random<float>(kRows, 0.01f);
    scale[3] = kNan;
    const std::vector<float> column_scale = Random<float>(columns, 0.01f),
                             bias = Random<float>(columns, 1.0f);
    const ProductRows product{products.data(), scale.data(), column_scale.data(), bias.data(), columns};
    Expect(AreClose(Dequantize(kOwn, product, kRows), Dequantize(kKernelsGeneric, product, kRows)),
           "dequantize" + name);
    Expect(AreClose(Requantize(kOwn, product, kRows), Requantize(kKernelsGeneric, product, kRows)),
           "requantize" + name);
  }
}

// ---- Between the products of a layer

std::vector<float> Normalize(const Kernels& kernels, const SumRows& rows, int64_t count) {
  std::vector<float> output = Unwritten<float>(count * rows.columns);
  kernels.skip_layer_normalization(rows, count, output.data());
  return output;
}

std::vector<float> Activate(const Kernels& kernels, const std::vector<float>& input,
                            const std::vector<float>& bias) {
  const int64_t columns = static_cast<int64_t>(bias.size()), size = static_cast<int64_t>(input.size());
  std::vector<float> output = Unwritten<float>(size);
  kernels.bias_gelu(input.data(), size / columns, columns, bias.data(), output.data());
  return output;
}

void CompareFusedRows() {
  constexpr int64_t kRows = 9;
  for (const int64_t columns : {1, 2, 3, 4, 5, 7, 8, 9, 16, 67, 128}) {
    const std::string name = ", " + std::to_string(columns) + " columns";
    std::vector<float> input = Random<float>(kRows * columns, 3.0f);
    const std::vector<float> skip = Random<float>(kRows * columns, 3.0f), bias = Random<float>(columns, 1.0f),
                             gamma = Random<float>(columns, 1.0f), beta = Random<float>(columns, 1.0f);
    Expect(AreClose(Activate(kOwn, input, bias), Activate(kKernelsGeneric, input, bias)), "bias gelu" + name);
    for (size_t i = 0; i < std::size(kSpecial); ++i) input[i * static_cast<size_t>(columns)] = kSpecial[i];
    const SumRows rows{input.data(), skip.data(), bias.data(), gamma.data(), beta.data(), columns, 1e-5f};
    Expect(AreClose(Normalize(kOwn, rows, kRows), Normalize(kKernelsGeneric, rows, kRows)),
           "skip layer normalization" + name);
  }
}

template <class Element>
void CompareSizes() {
  CompareAttentionSizes<Element>();
  CompareAnyOrder<Element>();
  CompareAxisAttention<Element>();
  CompareSparsegenLinSizes<Element>();
  CompareAxisMask<Element>();
}

template <class Element>
void CompareSpecialNumbers() {
  CompareAttentionToSpecialNumbers<Element>();
  CompareSparsegenLinOfSpecialNumbers<Element>();
}

}  // namespace

int main() {
  CompareConversions();
  CompareMaximum();
  CompareSizes<float>();
  CompareSizes<Half>();
  CompareSizes<BFloat16>();
  for (const bool zero : {false, true}) {
    TreatSubnormalsAsZero(zero);
    CompareSpecialNumbers<float>();
    CompareSpecialNumbers<Half>();
    CompareSpecialNumbers<BFloat16>();
    CompareQuantization();
    CompareFusedRows();
  }
  std::printf("%d of %d comparisons failed\n", failed, held);
  return failed == 0 && held > 0 ? 0 : 1;
}
