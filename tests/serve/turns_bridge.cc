// `Turns` of parts that have a name, as `test_turns.py` calls them.

#include <cstddef>
#include <vector>

#include "onnxruntime_backend/turns.h"

namespace {

struct Part {
  int name;
  size_t rows;
  size_t tokens;
  bool is_last;
  int kind;

  bool FitsBeside(const Part& other) const { return kind == other.kind; }
};

using Clock = double (*)();
using Compute = void (*)(const int* names, int count);
using Turns = sparse_serve::Turns<Part, Clock>;

auto ByNames(Compute compute) {
  return [compute](const std::vector<Part>& run) {
    std::vector<int> names;
    for (const Part& part : run) names.push_back(part.name);
    compute(names.data(), static_cast<int>(names.size()));
  };
}

}  // namespace

extern "C" {

size_t run_tokens() { return sparse_serve::kRunTokens; }

size_t turn_threshold() { return sparse_serve::kTurnThreshold; }

size_t max_waiting_counted() { return sparse_serve::kMaxWaitingCounted; }

double waiting_per_equal_share() { return sparse_serve::kWaitingPerEqualShare; }

double expected_per_turn() { return sparse_serve::kExpectedPerTurn; }

double least_turn_expected_seconds() { return sparse_serve::kLeastTurnExpectedSeconds; }

double most_turn_expected_seconds() { return sparse_serve::kMostTurnExpectedSeconds; }

// `clock` is called under the lock of the turns: it may not call them.
Turns* make_turns(size_t most_rows, Clock clock) { return new Turns(most_rows, clock); }

void delete_turns(Turns* turns) { delete turns; }

void enqueue(Turns* turns, const Part* parts, int count) { turns->Enqueue({parts, parts + count}); }

bool is_empty(const Turns* turns) { return turns->is_empty(); }

void close_turns(Turns* turns) { turns->Close(); }

void turn(Turns* turns, double seconds, Compute compute) { turns->Turn(seconds, ByNames(compute)); }

void work(Turns* turns, Compute compute) { turns->Work(ByNames(compute)); }

}  // extern "C"
