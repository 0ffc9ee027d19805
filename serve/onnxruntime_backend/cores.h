// The processor's cores, as far as this process may use them.
#pragma once

#include <string>

namespace sparse_serve {

// How many threads can compute at a time: one for each core that the process may run on, as two threads that
// multiply matrices on one are no faster, and no more than its control group has time for, as a container's
// that may use two of the many cores that it sees. `control_group` is where Linux tells of that.
int UsableCores(const std::string& control_group = "/sys/fs/cgroup");

}  // namespace sparse_serve
