// Triton's `onnxruntime` backend, for servers without the one that Triton's container images have.
//
// It serves `backend: "onnxruntime"` repositories on processors and gives the configuration the meaning that
// triton-inference-server/onnxruntime_backend gives it. It refuses to load a model that asks for what it does
// not have.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "onnxruntime_backend/configuration.h"
#include "onnxruntime_backend/errors.h"
#include "onnxruntime_backend/instance.h"
#include "onnxruntime_backend/session.h"
#include "onnxruntime_backend/text_meter.h"
#include "onnxruntime_backend/triton_abi.h"

namespace sparse_serve {
namespace {

constexpr uint32_t kApiVersion = 1;

struct Model {
  Configuration configuration;
  std::string graph;  // path of its file
  std::unique_ptr<TextMeter> meter;
};

Json ReadConfiguration(TRITONBACKEND_Model* handle) {
  TRITONSERVER_Message* made = nullptr;
  Check(TRITONBACKEND_ModelConfig(handle, 1, &made));
  const std::unique_ptr<TRITONSERVER_Message, void (*)(TRITONSERVER_Message*)> message(
      made, [](TRITONSERVER_Message* owned) { TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(owned)); });
  const char* text = nullptr;
  size_t bytes = 0;
  Check(TRITONSERVER_MessageSerializeToJson(made, &text, &bytes));
  return Json::Parse({text, bytes});
}

std::unique_ptr<Model> MakeModel(TRITONBACKEND_Model* handle) {
  const char* name = nullptr;
  uint64_t version = 0;
  const char* folder = nullptr;
  TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  Check(TRITONBACKEND_ModelName(handle, &name));
  Check(TRITONBACKEND_ModelVersion(handle, &version));
  Check(TRITONBACKEND_ModelRepository(handle, &type, &folder));
  Configuration configuration(name, ReadConfiguration(handle));
  std::string graph = std::string(folder) + "/" + std::to_string(version) + "/" + configuration.filename;
  if (std::filesystem::is_directory(graph)) {
    graph += "/model.onnx";
  }
  std::unique_ptr<TextMeter> meter = TextMeter::Of(configuration, version);
  return std::make_unique<Model>(Model{std::move(configuration), std::move(graph), std::move(meter)});
}

template <class State, class Handle>
State* StateOf(Handle* handle, TRITONSERVER_Error* (*get)(Handle*, void**)) {
  void* state = nullptr;
  Check(get(handle, &state));
  return static_cast<State*>(state);
}

}  // namespace
}  // namespace sparse_serve

using namespace sparse_serve;

TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return Guarded([&] {
    uint32_t major = 0, minor = 0;
    Check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != kApiVersion) {
      throw std::runtime_error("this backend needs version 1 of Triton's backend API, the server has " +
                               std::to_string(major) + "." + std::to_string(minor));
    }
    TRITONBACKEND_ArtifactType type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
    const char* folder = nullptr;
    Check(TRITONBACKEND_BackendArtifacts(backend, &type, &folder));
    auto runtime = std::make_unique<OnnxRuntime>(folder);
    Check(TRITONBACKEND_BackendSetState(backend, runtime.get()));
    runtime.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return Guarded([&] { delete StateOf<OnnxRuntime>(backend, TRITONBACKEND_BackendState); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return Guarded([&] {
    auto made = MakeModel(model);
    Check(TRITONBACKEND_ModelSetState(model, made.get()));
    made.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  return Guarded([&] { delete StateOf<Model>(model, TRITONBACKEND_ModelState); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] {
    TRITONBACKEND_Model* handle = nullptr;
    TRITONBACKEND_Backend* backend = nullptr;
    Check(TRITONBACKEND_ModelInstanceModel(instance, &handle));
    Check(TRITONBACKEND_ModelBackend(handle, &backend));
    const auto& model = *StateOf<Model>(handle, TRITONBACKEND_ModelState);
    const auto& runtime = *StateOf<OnnxRuntime>(backend, TRITONBACKEND_BackendState);
    TRITONSERVER_InstanceGroupKind kind;
    Check(TRITONBACKEND_ModelInstanceKind(instance, &kind));
    if (kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) {
      throw std::runtime_error("model '" + model.configuration.model +
                               "' asks for KIND_GPU, which this package's onnxruntime backend does not have; "
                               "serve it with the tritonserver container");
    }
    auto made =
        std::make_unique<Instance>(instance, runtime, model.configuration, model.graph, model.meter.get());
    Check(TRITONBACKEND_ModelInstanceSetState(instance, made.get()));
    made.release();
  });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance* instance) {
  return Guarded([&] { delete StateOf<Instance>(instance, TRITONBACKEND_ModelInstanceState); });
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance* instance,
                                                       TRITONBACKEND_Request** requests, uint32_t count) {
  // An error leaves all requests to the server.
  return Guarded(
      [&] { StateOf<Instance>(instance, TRITONBACKEND_ModelInstanceState)->Execute(requests, count); });
}
