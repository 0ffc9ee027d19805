// ONNX Runtime: the library, which lies beside the backend, and the sessions that it runs graphs in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxruntime_backend/configuration.h"
#include "onnxruntime_backend/element_types.h"
#include "runtime/ort_abi.h"

namespace sparse_serve {

template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

// The library, with what all sessions share. It stays loaded as long as the process runs.
class OnnxRuntime {
 public:
  // Throws std::runtime_error where `folder` has no libonnxruntime.so, or one before 1.17.
  explicit OnnxRuntime(const std::string& folder);

  const OrtApi& api() const { return *api_; }
  const OrtMemoryInfo* memory() const { return memory_.get(); }
  OrtAllocator* allocator() const { return allocator_; }

  // Opens a graph, one at a time: where two graphs register the same domain of custom ops at the same moment,
  // before ONNX Runtime knows it, opening one of them may fail.
  Owned<OrtSession> Open(const std::string& path, const OrtSessionOptions& options) const;

 private:
  const OrtApi* api_;
  Owned<OrtEnv> env_;
  Owned<OrtMemoryInfo> memory_;
  OrtAllocator* allocator_ = nullptr;  // ONNX Runtime's default one
  mutable std::mutex opening_;
};

// How many elements a tensor has whose shape comes from ONNX Runtime.
size_t ElementsOf(const std::vector<int64_t>& shape);

// An input or output of a graph.
struct GraphTensor {
  std::string name;
  const ElementType* type;           // null where a configuration has no name for it
  std::vector<int64_t> shape;        // -1: any size
  std::vector<std::string> symbols;  // the name of each dimension of any size, "" where it has none
};

// One output of a run.
class OutputTensor {
 public:
  OutputTensor(const OnnxRuntime& runtime, Owned<OrtValue> value, const ElementType& type);

  const std::vector<int64_t>& shape() const { return shape_; }
  size_t rows() const { return shape_.empty() ? 0 : static_cast<size_t>(shape_[0]); }

  // The elements of a tensor of numbers.
  template <class T>
  const T* data() const {
    return static_cast<const T*>(data_);
  }
  std::string_view Text(size_t element) const;

 private:
  Owned<OrtValue> value_;
  std::vector<int64_t> shape_;
  const void* data_ = nullptr;
  std::string texts_;
  std::vector<size_t> offsets_;
};

// The outputs of a run.
class RunOutputs {
 public:
  // `places` are the tensors' indices among the outputs of their session.
  RunOutputs(std::vector<OutputTensor> tensors, std::vector<size_t> places)
      : tensors_(std::move(tensors)), places_(std::move(places)) {}

  // The session's output at index `place`, which must be one of `places()`.
  const OutputTensor& operator[](size_t place) const {
    return tensors_[static_cast<size_t>(std::find(places_.begin(), places_.end(), place) - places_.begin())];
  }
  const std::vector<size_t>& places() const { return places_; }

 private:
  std::vector<OutputTensor> tensors_;
  std::vector<size_t> places_;
};

class Session {
 public:
  // Opens the graph at `path`. Throws std::runtime_error where ONNX Runtime cannot, or where the
  // configuration names inputs or outputs that the graph does not have.
  Session(const OnnxRuntime& runtime, const Configuration& configuration, const std::string& path);

  const OnnxRuntime& runtime() const { return runtime_; }
  const std::vector<GraphTensor>& inputs() const { return inputs_; }    // in the configuration's order
  const std::vector<GraphTensor>& outputs() const { return outputs_; }  // likewise

  // Runs the graph on all inputs. Returns the outputs at the indices `places` of `outputs()`.
  RunOutputs Run(const std::vector<Owned<OrtValue>>& inputs, std::vector<size_t> places) const;

 private:
  std::vector<GraphTensor> ReadTensors(bool are_inputs) const;
  void Select(const Configuration& configuration, bool are_inputs);

  const OnnxRuntime& runtime_;
  Owned<OrtSession> session_;
  Owned<OrtRunOptions> run_options_;
  std::vector<GraphTensor> inputs_;
  std::vector<GraphTensor> outputs_;
};

}  // namespace sparse_serve
