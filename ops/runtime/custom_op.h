// An OrtCustomOp made of a kernel class:
//
//   struct Kernel {
//     using Signature = ...;          // see signature.h
//     using Provider = CpuProvider;   // where it runs, where its inputs lie, what it sees of a call
//     static void InferShapes(ShapeContext& context);
//     explicit Kernel(const KernelInfo& info);   // reads attributes and constants; throws InvalidArgument
//     void Compute(Provider::Context& context) const;   // const: one kernel serves concurrent runs
//   };
//
// An op with kernels for several providers has one class of what they share. Its Compute checks a call, which
// gives a problem, and launches that (ProviderKernel):
//
//   struct Op {
//     using Signature, InferShapes, Op(const KernelInfo&);   // as above
//     Problem<...> Check(KernelContext& context) const;      // checks shapes, has the outputs made; reads no
//   };                                                       // element of a tensor
//   void Launch(CpuContext& context, const Problem<...>& problem);
//   void Launch(CudaContext& context, const Problem<...>& problem);
#pragma once

#include <climits>

#include "runtime/cpu_context.h"
#include "runtime/cuda_context.h"
#include "runtime/ort_abi.h"
#include "runtime/signature.h"
#include "runtime/status.h"

namespace sparse_ops {

constexpr int kDomainVersion = 1;

template <class Op, class OpProvider>
class ProviderKernel : public Op {
 public:
  using Provider = OpProvider;

  using Op::Op;
  void Compute(typename Provider::Context& context) const { Launch(context, this->Check(context)); }
};

template <class Kernel>
class CustomOp : public OrtCustomOp {
  using Signature = typename Kernel::Signature;
  using Provider = typename Kernel::Provider;

 public:
  explicit CustomOp(const OrtApi& api) : OrtCustomOp{}, api_(api) {
    version = kOrtApiVersion;
    GetName = [](const OrtCustomOp*) { return Signature::kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) { return Provider::kName; };
    GetInputType = [](const OrtCustomOp*, size_t i) { return Signature::inputs[i].type; };
    GetInputTypeCount = [](const OrtCustomOp*) { return Signature::inputs.size(); };
    GetOutputType = [](const OrtCustomOp*, size_t i) { return Signature::outputs[i].type; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return Signature::outputs.size(); };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t i) {
      return CharacteristicOf(Signature::inputs[i]);
    };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t i) {
      return CharacteristicOf(Signature::outputs[i]);
    };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return Provider::kInputMemory; };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetStartVersion = [](const OrtCustomOp*) { return kDomainVersion; };
    GetEndVersion = [](const OrtCustomOp*) { return INT_MAX; };
    CreateKernelV2 = Create;
    KernelComputeV2 = Compute;
    KernelDestroy = [](void* self) { delete static_cast<Instance*>(self); };
    InferOutputShapeFn = InferShapes;
  }

 private:
  struct Instance {
    const OrtApi& api;
    Kernel kernel;
  };

  static OrtCustomOpInputOutputCharacteristic CharacteristicOf(const OperandType& operand) {
    return operand.presence == kRequired ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
  }

  static OrtStatus* Create(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                           void** out) noexcept {
    return StatusOf(*api,
                    [&] { *out = new Instance{*api, Kernel(KernelInfo(*api, info, Signature::kName))}; });
  }

  static OrtStatus* Compute(void* self, OrtKernelContext* context) noexcept {
    const auto& instance = *static_cast<const Instance*>(self);
    return StatusOf(instance.api, [&] {
      typename Provider::Context kernel_context(instance.api, context);
      instance.kernel.Compute(kernel_context);
    });
  }

  static OrtStatus* InferShapes(const OrtCustomOp* self, OrtShapeInferContext* context) noexcept {
    const OrtApi& api = static_cast<const CustomOp*>(self)->api_;
    return StatusOf(api, [&] {
      ShapeContext shape_context(api, context);
      Kernel::InferShapes(shape_context);
    });
  }

  const OrtApi& api_;
};

}  // namespace sparse_ops
