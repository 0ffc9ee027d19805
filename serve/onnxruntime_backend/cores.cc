#include "onnxruntime_backend/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace sparse_serve {
namespace {

// What names a processor's core: all the processors that are of it.
std::string SiblingsOf(int processor) {
  const std::string number = std::to_string(processor);
  std::ifstream file("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
  std::string siblings;
  return std::getline(file, siblings) ? siblings : number;
}

}  // namespace

int PhysicalCores() {
  // The kernel's own mask may be wider than what cpu_set_t holds.
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
    cpu_set_t* allowed = CPU_ALLOC(static_cast<size_t>(most));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    std::set<std::string> cores;
    const bool is_told = sched_getaffinity(0, bytes, allowed) == 0;
    for (int processor = 0; is_told && processor < most; ++processor) {
      if (CPU_ISSET_S(static_cast<size_t>(processor), bytes, allowed)) {
        cores.insert(SiblingsOf(processor));
      }
    }
    CPU_FREE(allowed);
    if (is_told) {
      return static_cast<int>(cores.size());
    }
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace sparse_serve
