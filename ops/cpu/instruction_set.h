#pragma once

#include "cpu/kernels.h"

namespace sparse_ops {

// The kernels for this processor, chosen once: the widest it runs, or the set that the environment variable
// SPARSE_OPS_INSTRUCTION_SET names. Throws InvalidArgument where that is unknown or the processor lacks it.
const Kernels& ChosenKernels();

}  // namespace sparse_ops
