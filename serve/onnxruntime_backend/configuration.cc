#include "onnxruntime_backend/configuration.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <stdexcept>
#include <utility>

namespace sparse_serve {
namespace {

// The same numbers as in `sparse_serve.repository.tunable`.
constexpr int64_t kDefaultTextBytes = 1 << 20;
constexpr int64_t kDefaultRequestBytes = 4 << 20;
constexpr int64_t kMostBytes = 1 << 30;

constexpr char kDeviceInitializers[] = "session.use_device_allocator_for_initializers";
constexpr char kArenaShrinkage[] = "memory.enable_memory_arena_shrinkage";

std::optional<int64_t> AsNumber(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// The text of a parameter; null where the configuration lacks it.
const std::string* Find(const Json& parameters, const char* key) {
  const Json& value = parameters[key]["string_value"];
  return parameters[key].members().empty() ? nullptr : &value.text();
}

int ReadInteger(const Json& parameters, const char* key) {
  const std::string* text = Find(parameters, key);
  if (text == nullptr) {
    return 0;
  }
  const std::optional<int64_t> number = AsNumber(*text);
  if (!number || *number < INT_MIN || *number > INT_MAX) {
    throw std::runtime_error(std::string("failed to convert ") + key + " '" + *text + "' to integral number");
  }
  return static_cast<int>(*number);
}

std::optional<bool> ReadBoolean(const Json& parameters, const char* key) {
  const std::string* text = Find(parameters, key);
  if (text == nullptr) {
    return std::nullopt;
  }
  std::string lower = *text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  if (lower == "true" || lower == "on" || lower == "1") {
    return true;
  }
  if (lower == "false" || lower == "off" || lower == "0") {
    return false;
  }
  throw std::runtime_error(std::string("failed to convert ") + key + " '" + *text + "' to boolean value");
}

size_t ReadLimit(const Json& parameters, const char* key, int64_t absent, const std::string& model) {
  const std::string* text = Find(parameters, key);
  const std::optional<int64_t> bytes = text == nullptr ? absent : AsNumber(*text);
  if (!bytes || *bytes < 1 || *bytes > kMostBytes) {
    throw std::runtime_error("model '" + model + "': " + key + " is '" + text->substr(0, 80) +
                             "': give a number of bytes from 1 to " + std::to_string(kMostBytes));
  }
  return static_cast<size_t>(*bytes);
}

std::vector<ConfiguredTensor> ReadTensors(const Json& tensors) {
  std::vector<ConfiguredTensor> read;
  for (const Json& each : tensors.items()) {
    read.push_back({each["name"].text(), each["data_type"].text(), {}});
    for (const Json& dim : each["dims"].items()) {
      read.back().dims.push_back(dim.Integer());
    }
  }
  return read;
}

GraphOptimizationLevel ReadGraphLevel(const Json& graph) {
  switch (graph["level"].Integer()) {
    case -1:
      return ORT_ENABLE_BASIC;
    case 1:
      return ORT_ENABLE_EXTENDED;
    case 2:
      return ORT_DISABLE_ALL;
    default:
      return ORT_ENABLE_ALL;
  }
}

}  // namespace

Configuration::Configuration(std::string name, const Json& json)
    : model(std::move(name)),
      max_batch_size(json["max_batch_size"].Integer()),
      filename(json["default_model_filename"].text()),
      inputs(ReadTensors(json["input"])),
      outputs(ReadTensors(json["output"])),
      graph_level(ReadGraphLevel(json["optimization"]["graph"])) {
  if (filename.empty()) {
    filename = "model.onnx";
  }
  for (const Json& library : json["model_operations"]["op_library_filename"].items()) {
    op_libraries.push_back(library.text());
  }
  RefuseUnsupported(json);
  ReadParameters(json["parameters"]);
}

void Configuration::RefuseUnsupported(const Json& json) const {
  std::string unsupported;
  const auto add = [&unsupported](bool is_asked, const char* what) {
    if (is_asked) {
      unsupported += (unsupported.empty() ? "" : ", ") + std::string(what);
    }
  };
  const auto any = [](const Json& tensors, auto is_set) {
    return std::any_of(tensors.items().begin(), tensors.items().end(), is_set);
  };
  const auto is_reshaped = [](const Json& tensor) { return tensor["reshape"]["shape"].is_set(); };
  const auto is_ragged = [](const Json& tensor) { return tensor["allow_ragged_batch"].is_set(); };
  for (const char* key : {"batch_input", "batch_output", "sequence_batching"}) {
    add(json[key].is_set(), key);
  }
  add(any(json["input"], is_ragged), "allow_ragged_batch");
  add(any(json["input"], is_reshaped) || any(json["output"], is_reshaped), "reshape");
  for (const auto& [key, accelerators] : json["optimization"]["execution_accelerators"].members()) {
    if (accelerators.is_set()) {
      add(true, "execution_accelerators");
      break;
    }
  }
  if (!unsupported.empty()) {
    throw std::runtime_error("model '" + model + "' asks for " + unsupported +
                             ", which this package's onnxruntime backend does not have; serve it with the "
                             "tritonserver container");
  }
}

void Configuration::ReadParameters(const Json& parameters) {
  const int mode = ReadInteger(parameters, "execution_mode");
  if (mode != ORT_SEQUENTIAL && mode != ORT_PARALLEL) {
    throw std::runtime_error(
        "Invalid configuration value provided. Expected values for execution_mode are 0 or 1 but got " +
        std::to_string(mode));
  }
  execution_mode = static_cast<ExecutionMode>(mode);
  intra_op_threads = std::max(0, ReadInteger(parameters, "intra_op_thread_count"));
  inter_op_threads = std::max(0, ReadInteger(parameters, "inter_op_thread_count"));
  has_arena = ReadBoolean(parameters, "enable_mem_arena");
  has_memory_pattern = ReadBoolean(parameters, "enable_mem_pattern");
  if (const std::string* value = Find(parameters, kDeviceInitializers)) {
    session_entries[kDeviceInitializers] = *value;
  }
  if (const std::string* value = Find(parameters, kArenaShrinkage)) {
    run_entries[kArenaShrinkage] = *value;
  }
  limits = {ReadLimit(parameters, "max_text_bytes", kDefaultTextBytes, model),
            ReadLimit(parameters, "max_request_bytes", kDefaultRequestBytes, model)};
  const std::string* length = Find(parameters, "max_length");
  const int most = length == nullptr ? INT_MAX : ReadInteger(parameters, "max_length");
  if (most < 1) {
    throw std::runtime_error("model '" + model + "': max_length is '" + *length +
                             "': give a number of tokens");
  }
  max_length = static_cast<size_t>(most);
  const std::string* truncation = Find(parameters, "truncation");
  refuses_long = truncation != nullptr && *truncation == "error";
  if (const std::string* named = Find(parameters, "tasks")) {
    tasks = *named;
  }
}

}  // namespace sparse_serve
