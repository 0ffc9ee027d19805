// The cores that this process may compute on.
#pragma once

namespace sparse_serve {

// How many they are: two threads that multiply matrices on one core are no faster than one. Processors that
// Linux tells nothing of are taken for a core each.
int PhysicalCores();

}  // namespace sparse_serve
