// Own declarations of the part of the ONNX Runtime C ABI that is needed by a custom-op library and by a
// program that opens sessions.
//
// OrtApi is a table of function pointers that only ever grows at its end; a member's position is its
// contract. The members that are used stand at their slots (checked below); between them are arrays of unused
// ones. All of them exist since API version 17, so one binary serves ONNX Runtime 1.17 and everything newer.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtAllocator;
struct OrtCustomOpDomain;
struct OrtEnv;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtMemoryInfo;
struct OrtOpAttr;
struct OrtRunOptions;
struct OrtSession;
struct OrtSessionOptions;
struct OrtShapeInferContext;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtTypeInfo;
struct OrtValue;
struct OrtCustomOp;

enum OrtErrorCode : int {
  ORT_FAIL = 1,
  ORT_INVALID_ARGUMENT = 2,
};

enum ONNXTensorElementDataType : int {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 = 4,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING = 8,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 = 12,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 = 13,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 = 16,
};

enum OrtOpAttrType : int { ORT_OP_ATTR_INT = 1 };
enum OrtAllocatorType : int { OrtArenaAllocator = 1 };
enum OrtMemType : int { OrtMemTypeDefault = 0 };
enum OrtCustomOpInputOutputCharacteristic : int { INPUT_OUTPUT_REQUIRED = 0, INPUT_OUTPUT_OPTIONAL = 1 };

enum ExecutionMode : int { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 };
enum GraphOptimizationLevel : int {
  ORT_DISABLE_ALL = 0,
  ORT_ENABLE_BASIC = 1,
  ORT_ENABLE_EXTENDED = 2,
  ORT_ENABLE_ALL = 99,
};
enum OrtLoggingLevel : int {
  ORT_LOGGING_LEVEL_VERBOSE = 0,
  ORT_LOGGING_LEVEL_INFO = 1,
  ORT_LOGGING_LEVEL_WARNING = 2,
  ORT_LOGGING_LEVEL_ERROR = 3,
  ORT_LOGGING_LEVEL_FATAL = 4,
};

using OrtLoggingFunction = void (*)(void* data, OrtLoggingLevel level, const char* category, const char* id,
                                    const char* location, const char* message);
using OrtUnusedSlot = void (*)();

struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode code, const char* message);
  OrtErrorCode (*GetErrorCode)(const OrtStatus* status);
  const char* (*GetErrorMessage)(const OrtStatus* status);
  OrtUnusedSlot unused_3[1];
  OrtStatus* (*CreateEnvWithCustomLogger)(OrtLoggingFunction log, void* log_data, OrtLoggingLevel level,
                                          const char* id, OrtEnv** out);
  OrtUnusedSlot unused_5[2];
  OrtStatus* (*CreateSession)(const OrtEnv* env, const char* path, const OrtSessionOptions* options,
                              OrtSession** out);
  OrtUnusedSlot unused_8[1];
  OrtStatus* (*Run)(OrtSession* session, const OrtRunOptions* options, const char* const* input_names,
                    const OrtValue* const* inputs, size_t input_count, const char* const* output_names,
                    size_t output_count, OrtValue** outputs);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions** out);
  OrtUnusedSlot unused_11[2];
  OrtStatus* (*SetSessionExecutionMode)(OrtSessionOptions* options, ExecutionMode mode);
  OrtUnusedSlot unused_14[2];
  OrtStatus* (*EnableMemPattern)(OrtSessionOptions* options);
  OrtStatus* (*DisableMemPattern)(OrtSessionOptions* options);
  OrtStatus* (*EnableCpuMemArena)(OrtSessionOptions* options);
  OrtStatus* (*DisableCpuMemArena)(OrtSessionOptions* options);
  OrtUnusedSlot unused_20[3];
  OrtStatus* (*SetSessionGraphOptimizationLevel)(OrtSessionOptions* options, GraphOptimizationLevel level);
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions* options, int threads);
  OrtStatus* (*SetInterOpNumThreads)(OrtSessionOptions* options, int threads);
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  OrtUnusedSlot unused_29[1];
  OrtStatus* (*SessionGetInputCount)(const OrtSession* session, size_t* out);
  OrtStatus* (*SessionGetOutputCount)(const OrtSession* session, size_t* out);
  OrtUnusedSlot unused_32[1];
  OrtStatus* (*SessionGetInputTypeInfo)(const OrtSession* session, size_t index, OrtTypeInfo** out);
  OrtStatus* (*SessionGetOutputTypeInfo)(const OrtSession* session, size_t index, OrtTypeInfo** out);
  OrtUnusedSlot unused_35[1];
  OrtStatus* (*SessionGetInputName)(const OrtSession* session, size_t index, OrtAllocator* allocator,
                                    char** out);
  OrtStatus* (*SessionGetOutputName)(const OrtSession* session, size_t index, OrtAllocator* allocator,
                                     char** out);
  OrtUnusedSlot unused_38[1];
  OrtStatus* (*CreateRunOptions)(OrtRunOptions** out);
  OrtUnusedSlot unused_40[8];
  OrtStatus* (*CreateTensorAsOrtValue)(OrtAllocator* allocator, const int64_t* shape, size_t rank,
                                       ONNXTensorElementDataType type, OrtValue** out);
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo* info, void* data, size_t bytes,
                                               const int64_t* shape, size_t rank,
                                               ONNXTensorElementDataType type, OrtValue** out);
  OrtUnusedSlot unused_50[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);
  OrtUnusedSlot unused_52[1];
  OrtStatus* (*GetStringTensorDataLength)(const OrtValue* value, size_t* bytes);
  OrtStatus* (*GetStringTensorContent)(const OrtValue* value, void* data, size_t bytes, size_t* offsets,
                                       size_t count);
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo* info, const OrtTensorTypeAndShapeInfo** out);
  OrtUnusedSlot unused_56[1];
  OrtStatus* (*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo** out);
  OrtStatus* (*SetTensorElementType)(OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType type);
  OrtStatus* (*SetDimensions)(OrtTensorTypeAndShapeInfo* info, const int64_t* dimensions, size_t count);
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dimensions, size_t count);
  OrtStatus* (*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo* info, const char** names,
                                      size_t count);
  OrtUnusedSlot unused_64[1];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  OrtUnusedSlot unused_66[3];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType type, OrtMemType memory, OrtMemoryInfo** out);
  OrtUnusedSlot unused_70[5];
  OrtStatus* (*AllocatorAlloc)(OrtAllocator* allocator, size_t bytes, void** out);
  OrtStatus* (*AllocatorFree)(OrtAllocator* allocator, void* memory);
  OrtUnusedSlot unused_77[1];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator** out);
  OrtUnusedSlot unused_79[6];
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name, float* out);
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name, char* out,
                                              size_t* size);
  OrtUnusedSlot unused_88[2];
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index, const OrtValue** out);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index, const int64_t* dimensions,
                                        size_t count, OrtValue** out);
  void (*ReleaseEnv)(OrtEnv* env);
  void (*ReleaseStatus)(OrtStatus* status);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo* info);
  void (*ReleaseSession)(OrtSession* session);
  void (*ReleaseValue)(OrtValue* value);
  void (*ReleaseRunOptions)(OrtRunOptions* options);
  void (*ReleaseTypeInfo)(OrtTypeInfo* info);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);
  void (*ReleaseSessionOptions)(OrtSessionOptions* options);
  OrtUnusedSlot unused_101[29];
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions* options, const char* key, const char* value);
  OrtUnusedSlot unused_131[1];
  void (*ReleaseAllocator)(OrtAllocator* allocator);
  OrtUnusedSlot unused_133[29];
  OrtStatus* (*KernelInfoGetAttributeArray_float)(const OrtKernelInfo* info, const char* name, float* out,
                                                  size_t* size);
  OrtStatus* (*KernelInfoGetAttributeArray_int64)(const OrtKernelInfo* info, const char* name, int64_t* out,
                                                  size_t* size);
  OrtUnusedSlot unused_164[1];
  OrtStatus* (*AddRunConfigEntry)(OrtRunOptions* options, const char* key, const char* value);
  OrtUnusedSlot unused_166[27];
  OrtStatus* (*KernelContext_GetGPUComputeStream)(const OrtKernelContext* context, void** out);
  OrtUnusedSlot unused_194[34];
  OrtStatus* (*RegisterCustomOpsLibrary_V2)(OrtSessionOptions* options, const char* path);
  OrtUnusedSlot unused_229[2];
  OrtStatus* (*KernelInfo_GetOutputCount)(const OrtKernelInfo* info, size_t* out);
  OrtUnusedSlot unused_232[1];
  OrtStatus* (*KernelInfo_GetOutputName)(const OrtKernelInfo* info, size_t index, char* out, size_t* size);
  OrtUnusedSlot unused_234[15];
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo* info, size_t index, int* is_constant,
                                                  const OrtValue** out);
  OrtUnusedSlot unused_250[2];
  OrtStatus* (*GetResizedStringTensorElementBuffer)(OrtValue* value, size_t index, size_t bytes, char** out);
  OrtStatus* (*KernelContext_GetAllocator)(const OrtKernelContext* context, const OrtMemoryInfo* info,
                                           OrtAllocator** out);
  OrtUnusedSlot unused_254[14];
  OrtStatus* (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context, size_t index,
                                                    OrtTensorTypeAndShapeInfo** out);
  OrtStatus* (*ShapeInferContext_GetAttribute)(const OrtShapeInferContext* context, const char* name,
                                               const OrtOpAttr** out);
  OrtStatus* (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext* context, size_t index,
                                                     const OrtTensorTypeAndShapeInfo* info);
  OrtStatus* (*SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo* info, const char** names, size_t count);
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr* attribute, OrtOpAttrType type, void* data, size_t size,
                           size_t* out);
  OrtUnusedSlot unused_273[1];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context, void (*task)(void*, size_t),
                                          size_t total, size_t batches, void* data);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version) noexcept;
  const char* (*GetVersionString)() noexcept;
};

// As of API version 17. A null CreateKernel and KernelCompute say that the V2 forms, which report a status,
// are used.
struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void* kernel, OrtKernelContext*);
  void (*KernelDestroy)(void* kernel);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, size_t index);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, size_t index);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
};

}  // extern "C"

constexpr uint32_t kOrtApiVersion = 17;

#define SPARSE_OPS_CHECK_SLOT(member, slot) \
  static_assert(offsetof(OrtApi, member) == (slot) * sizeof(void*), "OrtApi::" #member " left its slot")
SPARSE_OPS_CHECK_SLOT(CreateStatus, 0);
SPARSE_OPS_CHECK_SLOT(GetErrorCode, 1);
SPARSE_OPS_CHECK_SLOT(GetErrorMessage, 2);
SPARSE_OPS_CHECK_SLOT(CreateEnvWithCustomLogger, 4);
SPARSE_OPS_CHECK_SLOT(CreateSession, 7);
SPARSE_OPS_CHECK_SLOT(Run, 9);
SPARSE_OPS_CHECK_SLOT(CreateSessionOptions, 10);
SPARSE_OPS_CHECK_SLOT(SetSessionExecutionMode, 13);
SPARSE_OPS_CHECK_SLOT(EnableMemPattern, 16);
SPARSE_OPS_CHECK_SLOT(DisableMemPattern, 17);
SPARSE_OPS_CHECK_SLOT(EnableCpuMemArena, 18);
SPARSE_OPS_CHECK_SLOT(DisableCpuMemArena, 19);
SPARSE_OPS_CHECK_SLOT(SetSessionGraphOptimizationLevel, 23);
SPARSE_OPS_CHECK_SLOT(SetIntraOpNumThreads, 24);
SPARSE_OPS_CHECK_SLOT(SetInterOpNumThreads, 25);
SPARSE_OPS_CHECK_SLOT(CreateCustomOpDomain, 26);
SPARSE_OPS_CHECK_SLOT(CustomOpDomain_Add, 27);
SPARSE_OPS_CHECK_SLOT(AddCustomOpDomain, 28);
SPARSE_OPS_CHECK_SLOT(SessionGetInputCount, 30);
SPARSE_OPS_CHECK_SLOT(SessionGetOutputCount, 31);
SPARSE_OPS_CHECK_SLOT(SessionGetInputTypeInfo, 33);
SPARSE_OPS_CHECK_SLOT(SessionGetOutputTypeInfo, 34);
SPARSE_OPS_CHECK_SLOT(SessionGetInputName, 36);
SPARSE_OPS_CHECK_SLOT(SessionGetOutputName, 37);
SPARSE_OPS_CHECK_SLOT(CreateRunOptions, 39);
SPARSE_OPS_CHECK_SLOT(CreateTensorAsOrtValue, 48);
SPARSE_OPS_CHECK_SLOT(CreateTensorWithDataAsOrtValue, 49);
SPARSE_OPS_CHECK_SLOT(GetTensorMutableData, 51);
SPARSE_OPS_CHECK_SLOT(GetStringTensorDataLength, 53);
SPARSE_OPS_CHECK_SLOT(GetStringTensorContent, 54);
SPARSE_OPS_CHECK_SLOT(CastTypeInfoToTensorInfo, 55);
SPARSE_OPS_CHECK_SLOT(CreateTensorTypeAndShapeInfo, 57);
SPARSE_OPS_CHECK_SLOT(SetTensorElementType, 58);
SPARSE_OPS_CHECK_SLOT(SetDimensions, 59);
SPARSE_OPS_CHECK_SLOT(GetTensorElementType, 60);
SPARSE_OPS_CHECK_SLOT(GetDimensionsCount, 61);
SPARSE_OPS_CHECK_SLOT(GetDimensions, 62);
SPARSE_OPS_CHECK_SLOT(GetSymbolicDimensions, 63);
SPARSE_OPS_CHECK_SLOT(GetTensorTypeAndShape, 65);
SPARSE_OPS_CHECK_SLOT(CreateCpuMemoryInfo, 69);
SPARSE_OPS_CHECK_SLOT(AllocatorAlloc, 75);
SPARSE_OPS_CHECK_SLOT(AllocatorFree, 76);
SPARSE_OPS_CHECK_SLOT(GetAllocatorWithDefaultOptions, 78);
SPARSE_OPS_CHECK_SLOT(KernelInfoGetAttribute_float, 85);
SPARSE_OPS_CHECK_SLOT(KernelInfoGetAttribute_int64, 86);
SPARSE_OPS_CHECK_SLOT(KernelInfoGetAttribute_string, 87);
SPARSE_OPS_CHECK_SLOT(KernelContext_GetInput, 90);
SPARSE_OPS_CHECK_SLOT(KernelContext_GetOutput, 91);
SPARSE_OPS_CHECK_SLOT(ReleaseEnv, 92);
SPARSE_OPS_CHECK_SLOT(ReleaseStatus, 93);
SPARSE_OPS_CHECK_SLOT(ReleaseMemoryInfo, 94);
SPARSE_OPS_CHECK_SLOT(ReleaseSession, 95);
SPARSE_OPS_CHECK_SLOT(ReleaseValue, 96);
SPARSE_OPS_CHECK_SLOT(ReleaseRunOptions, 97);
SPARSE_OPS_CHECK_SLOT(ReleaseTypeInfo, 98);
SPARSE_OPS_CHECK_SLOT(ReleaseTensorTypeAndShapeInfo, 99);
SPARSE_OPS_CHECK_SLOT(ReleaseSessionOptions, 100);
SPARSE_OPS_CHECK_SLOT(AddSessionConfigEntry, 130);
SPARSE_OPS_CHECK_SLOT(ReleaseAllocator, 132);
SPARSE_OPS_CHECK_SLOT(KernelInfoGetAttributeArray_float, 162);
SPARSE_OPS_CHECK_SLOT(KernelInfoGetAttributeArray_int64, 163);
SPARSE_OPS_CHECK_SLOT(AddRunConfigEntry, 165);
SPARSE_OPS_CHECK_SLOT(KernelContext_GetGPUComputeStream, 193);
SPARSE_OPS_CHECK_SLOT(RegisterCustomOpsLibrary_V2, 228);
SPARSE_OPS_CHECK_SLOT(KernelInfo_GetOutputCount, 231);
SPARSE_OPS_CHECK_SLOT(KernelInfo_GetOutputName, 233);
SPARSE_OPS_CHECK_SLOT(KernelInfoGetConstantInput_tensor, 249);
SPARSE_OPS_CHECK_SLOT(GetResizedStringTensorElementBuffer, 252);
SPARSE_OPS_CHECK_SLOT(KernelContext_GetAllocator, 253);
SPARSE_OPS_CHECK_SLOT(ShapeInferContext_GetInputTypeShape, 268);
SPARSE_OPS_CHECK_SLOT(ShapeInferContext_GetAttribute, 269);
SPARSE_OPS_CHECK_SLOT(ShapeInferContext_SetOutputTypeShape, 270);
SPARSE_OPS_CHECK_SLOT(SetSymbolicDimensions, 271);
SPARSE_OPS_CHECK_SLOT(ReadOpAttr, 272);
SPARSE_OPS_CHECK_SLOT(KernelContext_ParallelFor, 274);
#undef SPARSE_OPS_CHECK_SLOT
static_assert(offsetof(OrtCustomOp, CreateKernelV2) == 17 * sizeof(void*),
              "OrtCustomOp::CreateKernelV2 is word 17");
static_assert(offsetof(OrtCustomOp, GetEndVersion) == 21 * sizeof(void*),
              "OrtCustomOp::GetEndVersion is word 21");
