#include "onnxruntime_backend/session.h"

#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "onnxruntime_backend/cores.h"
#include "onnxruntime_backend/errors.h"

namespace sparse_serve {
namespace {

constexpr char kLibrary[] = "libonnxruntime.so";

const OrtApi* LoadApi(const std::string& folder) {
  const std::string path = folder + "/" + kLibrary;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(std::string("ONNX Runtime cannot be loaded: ") + dlerror());
  }
  using GetApiBase = const OrtApiBase* (*)();
  const auto get_base = reinterpret_cast<GetApiBase>(dlsym(library, "OrtGetApiBase"));
  const OrtApi* api = get_base == nullptr ? nullptr : get_base()->GetApi(kOrtApiVersion);
  if (api == nullptr) {
    throw std::runtime_error(path + " is no ONNX Runtime of 1." + std::to_string(kOrtApiVersion) +
                             " or later");
  }
  return api;
}

void LogFromOnnxRuntime(void*, OrtLoggingLevel level, const char*, const char*, const char* location,
                        const char* message) {
  Log(level >= ORT_LOGGING_LEVEL_ERROR ? TRITONSERVER_LOG_ERROR : TRITONSERVER_LOG_WARN, location, 0,
      message);
}

std::vector<int64_t> ShapeOf(const OrtApi& api, const OrtTensorTypeAndShapeInfo* info) {
  size_t rank = 0;
  Check(api, api.GetDimensionsCount(info, &rank));
  std::vector<int64_t> shape(rank);
  Check(api, api.GetDimensions(info, shape.data(), rank));
  return shape;
}

std::string ToString(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + "]";
}

Owned<OrtSessionOptions> MakeOptions(const OrtApi& api, const Configuration& configuration) {
  OrtSessionOptions* made = nullptr;
  Check(api, api.CreateSessionOptions(&made));
  Owned<OrtSessionOptions> owned(made, api.ReleaseSessionOptions);
  Check(api, api.SetSessionGraphOptimizationLevel(made, configuration.graph_level));
  Check(api, api.SetSessionExecutionMode(made, configuration.execution_mode));
  // If left to choose, ONNX Runtime binds threads to cores, where they wait for whatever else runs there.
  const int threads = configuration.intra_op_threads;
  Check(api, api.SetIntraOpNumThreads(made, threads > 0 ? threads : UsableCores()));
  Check(api, api.SetInterOpNumThreads(made, configuration.inter_op_threads));
  if (configuration.has_arena) {
    Check(api, (*configuration.has_arena ? api.EnableCpuMemArena : api.DisableCpuMemArena)(made));
  }
  if (configuration.has_memory_pattern) {
    Check(api, (*configuration.has_memory_pattern ? api.EnableMemPattern : api.DisableMemPattern)(made));
  }
  for (const auto& [key, value] : configuration.session_entries) {
    Check(api, api.AddSessionConfigEntry(made, key.c_str(), value.c_str()));
  }
  for (const std::string& library : configuration.op_libraries) {
    Check(api, api.RegisterCustomOpsLibrary_V2(made, library.c_str()));
  }
  return owned;
}

}  // namespace

size_t ElementsOf(const std::vector<int64_t>& shape) {
  return static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
}

OnnxRuntime::OnnxRuntime(const std::string& folder)
    : api_(LoadApi(folder)), env_(nullptr, api_->ReleaseEnv), memory_(nullptr, api_->ReleaseMemoryInfo) {
  OrtEnv* env = nullptr;
  Check(*api_, api_->CreateEnvWithCustomLogger(LogFromOnnxRuntime, nullptr, ORT_LOGGING_LEVEL_WARNING,
                                               "onnxruntime", &env));
  env_.reset(env);
  OrtMemoryInfo* memory = nullptr;
  Check(*api_, api_->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  memory_.reset(memory);
  Check(*api_, api_->GetAllocatorWithDefaultOptions(&allocator_));
}

Owned<OrtSession> OnnxRuntime::Open(const std::string& path, const OrtSessionOptions& options) const {
  const std::lock_guard<std::mutex> lock(opening_);
  OrtSession* session = nullptr;
  Check(*api_, api_->CreateSession(env_.get(), path.c_str(), &options, &session));
  return {session, api_->ReleaseSession};
}

OutputTensor::OutputTensor(const OnnxRuntime& runtime, Owned<OrtValue> owned, const ElementType& type)
    : value_(std::move(owned)) {
  OrtValue* value = value_.get();
  const OrtApi& api = runtime.api();
  OrtTensorTypeAndShapeInfo* made = nullptr;
  Check(api, api.GetTensorTypeAndShape(value, &made));
  const Owned<OrtTensorTypeAndShapeInfo> info(made, api.ReleaseTensorTypeAndShapeInfo);
  shape_ = ShapeOf(api, made);
  if (type.bytes > 0) {
    void* data = nullptr;
    Check(api, api.GetTensorMutableData(value, &data));
    data_ = data;
    return;
  }
  size_t bytes = 0;
  Check(api, api.GetStringTensorDataLength(value, &bytes));
  texts_.resize(bytes);
  offsets_.resize(ElementsOf(shape_));
  Check(api, api.GetStringTensorContent(value, texts_.data(), bytes, offsets_.data(), offsets_.size()));
  offsets_.push_back(bytes);
}

std::string_view OutputTensor::Text(size_t element) const {
  return std::string_view(texts_).substr(offsets_[element], offsets_[element + 1] - offsets_[element]);
}

Session::Session(const OnnxRuntime& runtime, const Configuration& configuration, const std::string& path)
    : runtime_(runtime),
      session_(runtime.Open(path, *MakeOptions(runtime.api(), configuration))),
      run_options_(nullptr, runtime.api().ReleaseRunOptions) {
  const OrtApi& api = runtime.api();
  OrtRunOptions* run_options = nullptr;
  Check(api, api.CreateRunOptions(&run_options));
  run_options_.reset(run_options);
  for (const auto& [key, value] : configuration.run_entries) {
    Check(api, api.AddRunConfigEntry(run_options, key.c_str(), value.c_str()));
  }
  Select(configuration, true);
  Select(configuration, false);
}

std::vector<GraphTensor> Session::ReadTensors(bool are_inputs) const {
  const OrtApi& api = runtime_.api();
  const auto get_count = are_inputs ? api.SessionGetInputCount : api.SessionGetOutputCount;
  const auto get_name = are_inputs ? api.SessionGetInputName : api.SessionGetOutputName;
  const auto get_type = are_inputs ? api.SessionGetInputTypeInfo : api.SessionGetOutputTypeInfo;
  size_t count = 0;
  Check(api, get_count(session_.get(), &count));
  std::vector<GraphTensor> tensors(count);
  for (size_t index = 0; index < count; ++index) {
    GraphTensor& tensor = tensors[index];
    char* name = nullptr;
    Check(api, get_name(session_.get(), index, runtime_.allocator(), &name));
    tensor.name = name;
    Check(api, api.AllocatorFree(runtime_.allocator(), name));
    OrtTypeInfo* made = nullptr;
    Check(api, get_type(session_.get(), index, &made));
    const Owned<OrtTypeInfo> type(made, api.ReleaseTypeInfo);
    const OrtTensorTypeAndShapeInfo* info = nullptr;
    Check(api, api.CastTypeInfoToTensorInfo(made, &info));
    tensor.type = nullptr;
    if (info == nullptr) {
      continue;  // not a tensor
    }
    ONNXTensorElementDataType element;
    Check(api, api.GetTensorElementType(info, &element));
    tensor.type = FindElementType(element);
    tensor.shape = ShapeOf(api, info);
    std::vector<const char*> symbols(tensor.shape.size());
    Check(api, api.GetSymbolicDimensions(info, symbols.data(), symbols.size()));
    tensor.symbols.assign(symbols.begin(), symbols.end());
  }
  return tensors;
}

// Keeps the inputs or outputs that the configuration names, in its order.
void Session::Select(const Configuration& configuration, bool are_inputs) {
  const std::vector<GraphTensor> found = ReadTensors(are_inputs);
  const std::vector<ConfiguredTensor>& configured = are_inputs ? configuration.inputs : configuration.outputs;
  const std::string kind = are_inputs ? "input" : "output";
  const std::string prefix = "unable to load model '" + configuration.model + "', ";
  if (are_inputs && configured.size() != found.size()) {
    throw std::runtime_error(prefix + "configuration expects " + std::to_string(configured.size()) +
                             " inputs, model provides " + std::to_string(found.size()));
  }
  for (const ConfiguredTensor& each : configured) {
    const auto place = std::find_if(found.begin(), found.end(),
                                    [&each](const GraphTensor& tensor) { return tensor.name == each.name; });
    if (place == found.end()) {
      std::vector<std::string> names;
      for (const GraphTensor& tensor : found) {
        names.push_back(tensor.name);
      }
      std::sort(names.begin(), names.end());
      std::string allowed;
      for (const std::string& name : names) {
        allowed += (allowed.empty() ? "" : ", ") + name;
      }
      throw std::runtime_error("unexpected inference " + kind + " '" + each.name + "', allowed " + kind +
                               "s are: " + allowed);
    }
    if (place->type == nullptr || each.type != place->type->configured) {
      throw std::runtime_error(prefix + "configuration expects datatype " + each.type + " for " + kind +
                               " '" + each.name + "', model provides " +
                               (place->type == nullptr ? "another" : place->type->onnx_name));
    }
    std::vector<int64_t> dims = each.dims;
    if (configuration.is_batched()) {
      dims.insert(dims.begin(), -1);
    }
    const auto fits = [](int64_t own, int64_t graphs) { return graphs == -1 || graphs == own; };
    if (!std::equal(dims.begin(), dims.end(), place->shape.begin(), place->shape.end(), fits)) {
      throw std::runtime_error(prefix + "tensor '" + each.name + "': the model expects shape " +
                               ToString(place->shape) + " but the configuration specifies " + ToString(dims));
    }
    (are_inputs ? inputs_ : outputs_).push_back(*place);
  }
}

RunOutputs Session::Run(const std::vector<Owned<OrtValue>>& inputs, std::vector<size_t> places) const {
  const OrtApi& api = runtime_.api();
  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> values;
  for (size_t index = 0; index < inputs.size(); ++index) {
    input_names.push_back(inputs_[index].name.c_str());
    values.push_back(inputs[index].get());
  }
  for (const size_t place : places) {
    output_names.push_back(outputs_[place].name.c_str());
  }
  std::vector<OrtValue*> results(places.size());
  std::vector<Owned<OrtValue>> owned;
  owned.reserve(results.size());
  Check(api, api.Run(session_.get(), run_options_.get(), input_names.data(), values.data(), values.size(),
                     output_names.data(), output_names.size(), results.data()));
  for (OrtValue* result : results) {
    owned.emplace_back(result, api.ReleaseValue);
  }
  std::vector<OutputTensor> tensors;
  for (size_t index = 0; index < places.size(); ++index) {
    tensors.emplace_back(runtime_, std::move(owned[index]), *outputs_[places[index]].type);
  }
  return {std::move(tensors), std::move(places)};
}

}  // namespace sparse_serve
