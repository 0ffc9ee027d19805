#include "onnxruntime_backend/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <thread>

namespace sparse_serve {
namespace {

// Identifies a processor's physical core: the list of all processors on it.
std::string SiblingsOf(int processor) {
  const std::string number = std::to_string(processor);
  std::ifstream file("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
  std::string siblings;
  return std::getline(file, siblings) ? siblings : number;
}

int PhysicalCores() {
  // The kernel's own mask may be wider than what cpu_set_t holds.
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
    cpu_set_t* const allowed = CPU_ALLOC(static_cast<size_t>(most));
    if (allowed == nullptr) {
      break;
    }
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

// How many cores' worth of time a control group may use, perhaps a fraction; infinite where it is not
// limited.
double QuotaOf(const std::string& control_group) {
  double quota = 0, period = 0;
  std::ifstream second(control_group + "/cpu.max");  // "200000 100000" or "max 100000"
  if (second >> quota >> period && period > 0) {
    return quota / period;
  }
  std::ifstream first(control_group + "/cpu/cpu.cfs_quota_us"),
      first_period(control_group + "/cpu/cpu.cfs_period_us");
  if (first >> quota && first_period >> period && quota > 0 && period > 0) {
    return quota / period;
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace

int UsableCores(const std::string& control_group) {
  return static_cast<int>(std::min<double>(PhysicalCores(), std::ceil(QuotaOf(control_group))));
}

}  // namespace sparse_serve
