// The library's public functions, which exports.map lists.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "axis_attention/axis_attention.h"
#include "axis_mask/axis_mask.h"
#include "bias_gelu/bias_gelu.h"
#include "cpu/instruction_set.h"
#include "quantization/quantization.h"
#include "runtime/custom_op.h"
#include "skip_layer_normalization/skip_layer_normalization.h"
#include "softmax_attention/softmax_attention.h"
#include "sparsegen_attention/sparsegen_attention.h"
#include "sparsegen_lin/sparsegen_lin.h"
#include "tokenizer/tokenize.h"

namespace sparse_ops {
namespace {

constexpr const char* kDomain = "ai.sparse_serve";

// The kernels of one provider for tensors of one element type. ONNX Runtime merges several ops of one name
// into one op of several types and providers.
template <class Element, class Provider>
struct ElementOps {
  explicit ElementOps(const OrtApi& api)
      : lin(api),
        sparsegen(api),
        sparsegen_cross(api),
        softmax(api),
        softmax_cross(api),
        axis_mask(api),
        axis(api),
        axis_cross(api) {}

  void AddTo(const OrtApi& api, OrtCustomOpDomain* domain) const {
    Check(api, api.CustomOpDomain_Add(domain, &lin));
    Check(api, api.CustomOpDomain_Add(domain, &sparsegen));
    Check(api, api.CustomOpDomain_Add(domain, &sparsegen_cross));
    Check(api, api.CustomOpDomain_Add(domain, &softmax));
    Check(api, api.CustomOpDomain_Add(domain, &softmax_cross));
    Check(api, api.CustomOpDomain_Add(domain, &axis_mask));
    Check(api, api.CustomOpDomain_Add(domain, &axis));
    Check(api, api.CustomOpDomain_Add(domain, &axis_cross));
  }

  template <class Op>
  using Custom = CustomOp<ProviderKernel<Op, Provider>>;

  Custom<SparsegenLin<Element>> lin;
  Custom<SparsegenAttention<Element>> sparsegen;
  Custom<SparsegenCrossAttention<Element>> sparsegen_cross;
  Custom<SoftmaxAttention<Element>> softmax;
  Custom<SoftmaxCrossAttention<Element>> softmax_cross;
  Custom<AxisMask<Element>> axis_mask;
  Custom<AxisAttention<Element>> axis;
  Custom<AxisCrossAttention<Element>> axis_cross;
};

template <class Provider>
struct EveryElement {
  explicit EveryElement(const OrtApi& api) : float32(api), float16(api), bfloat16(api) {}

  void AddTo(const OrtApi& api, OrtCustomOpDomain* domain) const {
    float32.AddTo(api, domain);
    float16.AddTo(api, domain);
    bfloat16.AddTo(api, domain);
  }

  ElementOps<float, Provider> float32;
  ElementOps<Half, Provider> float16;
  ElementOps<BFloat16, Provider> bfloat16;
};

// The ops of one ONNX Runtime. Sessions point into it for as long as they live, so it is never destroyed.
struct Registration {
  explicit Registration(const OrtApi& api)
      : cpu(api),
#if defined(SPARSE_OPS_CUDA)
        cuda(api),
#endif
        quantize(api),
        dequantize(api),
        requantize_gelu(api),
        bias_gelu(api),
        skip_layer_normalization(api),
        word_piece(api),
        byte_level_bpe(api) {
    Check(api, api.CreateCustomOpDomain(kDomain, &domain));
    cpu.AddTo(api, domain);
#if defined(SPARSE_OPS_CUDA)
    cuda.AddTo(api, domain);
#endif
    Check(api, api.CustomOpDomain_Add(domain, &quantize));
    Check(api, api.CustomOpDomain_Add(domain, &dequantize));
    Check(api, api.CustomOpDomain_Add(domain, &requantize_gelu));
    Check(api, api.CustomOpDomain_Add(domain, &bias_gelu));
    Check(api, api.CustomOpDomain_Add(domain, &skip_layer_normalization));
    Check(api, api.CustomOpDomain_Add(domain, &word_piece));
    Check(api, api.CustomOpDomain_Add(domain, &byte_level_bpe));
  }

  EveryElement<CpuProvider> cpu;
#if defined(SPARSE_OPS_CUDA)
  EveryElement<CudaProvider> cuda;
#endif
  CustomOp<QuantizeRows> quantize;
  CustomOp<DequantizeRows> dequantize;
  CustomOp<RequantizeGelu> requantize_gelu;
  CustomOp<BiasGelu> bias_gelu;
  CustomOp<SkipLayerNormalization> skip_layer_normalization;
  CustomOp<WordPieceTokenize> word_piece;
  CustomOp<ByteLevelBpeTokenize> byte_level_bpe;
  OrtCustomOpDomain* domain = nullptr;
};

// One domain for each ONNX Runtime in this process, however many sessions register it.
OrtCustomOpDomain* DomainOf(const OrtApi& api) {
  static std::mutex mutex;
  static auto& registrations = *new std::map<const OrtApi*, std::unique_ptr<Registration>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Registration>& registration = registrations[&api];
  if (registration == nullptr) registration = std::make_unique<Registration>(api);
  return registration->domain;
}

// A status made by an ONNX Runtime that lacks our API version: CreateStatus has been at its slot since
// version 1. Where even that table is missing, nothing can carry the refusal: null would report success and
// let models fall back to their functions unnoticed, and any other pointer would be read and freed by ONNX
// Runtime as a status of its own. Aborting is the only safe choice left.
OrtStatus* UnsupportedRuntime(const OrtApiBase& base) noexcept {
  char message[128];
  std::snprintf(message, sizeof(message),
                "libsparse_ops.so needs ONNX Runtime 1.%u or newer; this is ONNX Runtime %s",
                static_cast<unsigned>(kOrtApiVersion), base.GetVersionString());
  const OrtApi* oldest = base.GetApi(1);
  if (oldest != nullptr) return oldest->CreateStatus(ORT_FAIL, message);
  std::fprintf(stderr, "%s\n", message);
  std::abort();
}

}  // namespace
}  // namespace sparse_ops

#define SPARSE_OPS_EXPORT extern "C" __attribute__((visibility("default")))

SPARSE_OPS_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) noexcept {
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (api == nullptr) return sparse_ops::UnsupportedRuntime(*base);
  return sparse_ops::StatusOf(*api, [&] {
    sparse_ops::ChosenKernels();
    sparse_ops::Check(*api, api->AddCustomOpDomain(options, sparse_ops::DomainOf(*api)));
  });
}

SPARSE_OPS_EXPORT int SparseOpsVersion(void) noexcept { return sparse_ops::kDomainVersion; }

SPARSE_OPS_EXPORT const char* SparseOpsInstructionSet(void) noexcept {
  try {
    return sparse_ops::ChosenKernels().instruction_set;
  } catch (const std::exception&) {
    return "unavailable";
  }
}
