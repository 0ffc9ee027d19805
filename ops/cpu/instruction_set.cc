#include "cpu/instruction_set.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#if defined(SPARSE_OPS_X86)
#include <cpuid.h>
#endif

#include "runtime/status.h"

namespace sparse_ops {
namespace {

#if defined(SPARSE_OPS_X86)
// Asked of the processor itself: __builtin_cpu_supports knows "f16c" only in newer compilers.
bool SupportsF16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

// Widest first.
std::vector<const Kernels*> SupportedKernels() {
  std::vector<const Kernels*> supported;
#if defined(SPARSE_OPS_X86)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && SupportsF16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512vnni")) supported.push_back(&kKernelsAvx512Vnni);
  if (avx512) supported.push_back(&kKernelsAvx512);
  if (avx2) supported.push_back(&kKernelsAvx2);
#elif defined(SPARSE_OPS_AARCH64)
  supported.push_back(&kKernelsNeon);  // every aarch64 processor has it
#endif
  supported.push_back(&kKernelsGeneric);
  return supported;
}

const Kernels& ChooseKernels() {
  const std::vector<const Kernels*> supported = SupportedKernels();
  const char* wanted = std::getenv("SPARSE_OPS_INSTRUCTION_SET");
  if (wanted == nullptr || *wanted == '\0') return *supported.front();
  std::string names;
  for (const Kernels* kernels : supported) {
    if (std::strcmp(kernels->instruction_set, wanted) == 0) return *kernels;
    names += (names.empty() ? "" : ", ") + std::string(kernels->instruction_set);
  }
  throw InvalidArgument(
      Message("SPARSE_OPS_INSTRUCTION_SET is \"", wanted, "\"; this processor runs: ", names));
}

}  // namespace

const Kernels& ChosenKernels() {
  static const Kernels& kernels = ChooseKernels();
  return kernels;
}

}  // namespace sparse_ops
