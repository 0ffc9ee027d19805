// The processor cores that this process may use.
#pragma once

#include <string>

namespace sparse_serve {

// How many threads should compute at a time: one for each physical core that the process may run on, as two
// threads that multiply matrices on one core are no faster than one; and no more than the CPU quota of its
// control group, as a container may see many cores but may use the time of two. `control_group` is where
// Linux mounts control groups.
int UsableCores(const std::string& control_group = "/sys/fs/cgroup");

}  // namespace sparse_serve
