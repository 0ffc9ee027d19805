// A model's configuration, as far as the backend reads it: config.pbtxt, with the meaning that
// triton-inference-server/onnxruntime_backend gives it (src/onnxruntime.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "onnxruntime_backend/json.h"
#include "runtime/ort_abi.h"

namespace sparse_serve {

// An input or output: its name, its type (TYPE_…), and its dimensions but for the batch, -1 for any size.
struct ConfiguredTensor {
  std::string name;
  std::string type;
  std::vector<int64_t> dims;
};

// The most bytes that a text, and all texts of a request, may have.
struct TextLimits {
  size_t text_bytes;
  size_t request_bytes;
};

class Configuration {
 public:
  // Throws std::runtime_error where the configuration asks for what the backend does not have, or a parameter
  // has an invalid value.
  Configuration(std::string model, const Json& json);

  bool is_batched() const { return max_batch_size > 0; }

  std::string model;
  int64_t max_batch_size = 0;
  std::string filename;
  std::vector<ConfiguredTensor> inputs;
  std::vector<ConfiguredTensor> outputs;
  std::vector<std::string> op_libraries;
  std::string tasks;  // the parameter `tasks`, JSON; "" where the configuration lacks it
  TextLimits limits{};
  size_t max_length = 0;      // of a text, in tokens
  bool refuses_long = false;  // texts beyond max_length, instead of cutting them

  // Options of the session; 0 or nothing where ONNX Runtime chooses.
  GraphOptimizationLevel graph_level = ORT_ENABLE_ALL;
  ExecutionMode execution_mode = ORT_SEQUENTIAL;
  int intra_op_threads = 0;
  int inter_op_threads = 0;
  std::optional<bool> has_arena;
  std::optional<bool> has_memory_pattern;
  std::map<std::string, std::string> session_entries;
  std::map<std::string, std::string> run_entries;

 private:
  void RefuseUnsupported(const Json& json) const;
  void ReadParameters(const Json& parameters);
};

}  // namespace sparse_serve
