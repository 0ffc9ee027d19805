// Writes argv[1] floats to the first of two pieces of scratch memory, which have 40 each.
#include <cstdlib>
#include <vector>

#include "cpu/scratch_layout.h"

int main(int, char** arguments) {
  using sparse_ops::SPARSE_OPS_TARGET::ScratchLayout;
  ScratchLayout counted(nullptr);
  counted.Take(40);
  counted.Take(40);
  std::vector<float> memory(static_cast<size_t>(counted.used()));
  ScratchLayout layout(memory.data());
  volatile float* first = layout.Take(40);
  float* second = layout.Take(40);
  for (int i = 0; i < std::atoi(arguments[1]); ++i) first[i] = 1.0f;
  return second[0] == 0.0f && second[39] == 0.0f ? 0 : 1;
}
