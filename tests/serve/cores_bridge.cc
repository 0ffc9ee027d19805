// `UsableCores`, as `test_environment.py` calls it.

#include "onnxruntime_backend/cores.h"

extern "C" int usable_cores(const char* control_group) { return sparse_serve::UsableCores(control_group); }
