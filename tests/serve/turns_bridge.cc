// `Turns` of parts that have a name, as `test_turns.py` calls them.

#include <cstddef>
#include <vector>

#include "onnxruntime_backend/turns.h"

namespace {

struct Part {
  int name;
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

size_t crowd() { return sparse_serve::kCrowd; }

size_t most_counted() { return sparse_serve::kMostCounted; }

double equals() { return sparse_serve::kEquals; }

double away_seconds() { return sparse_serve::kAwaySeconds; }

// `clock` is called under the lock of the turns: it may not call them.
Turns* make_turns(Clock clock) { return new Turns(clock); }

void delete_turns(Turns* turns) { delete turns; }

void put(Turns* turns, const Part* parts, int count) { turns->Put({parts, parts + count}); }

bool is_empty(const Turns* turns) { return turns->is_empty(); }

void close_turns(Turns* turns) { turns->Close(); }

void turn(Turns* turns, double seconds, Compute compute) { turns->Turn(seconds, ByNames(compute)); }

void work(Turns* turns, Compute compute) { turns->Work(ByNames(compute)); }

}  // extern "C"
