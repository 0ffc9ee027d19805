// One ONNX Runtime session behind one Triton model instance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "onnxruntime_backend/configuration.h"
#include "onnxruntime_backend/request.h"
#include "onnxruntime_backend/session.h"
#include "onnxruntime_backend/text_meter.h"
#include "onnxruntime_backend/triton_abi.h"
#include "onnxruntime_backend/turns.h"

namespace sparse_serve {

// Requests that arrive together are computed together, in runs of up to 1,024 tokens (`kRunTokens`). While
// short requests come, long ones are answered by a thread of their own, so that the short ones do not wait
// for them; where many long ones wait, they take turns with the short ones. Where no short ones are expected,
// long ones are computed at once, but not for longer than a short one that comes after a pause may wait.
class Instance {
 public:
  // `meter` may be null. All arguments must outlive the instance.
  Instance(TRITONBACKEND_ModelInstance* handle, const OnnxRuntime& runtime,
           const Configuration& configuration, const std::string& graph, TextMeter* meter);
  // Answers the requests that still wait.
  ~Instance();

  // Answers requests, or has them answered soon. Only a request that is itself at fault gets an error. Throws
  // std::bad_alloc where memory does not suffice for them: then none of them is taken over.
  void Execute(TRITONBACKEND_Request** requests, uint32_t count);

 private:
  using Run = std::vector<Slice>;
  using Requests = std::vector<std::shared_ptr<Request>>;

  void Answer(const Requests& requests);
  void DeferAll(std::deque<Slice>* slices);
  void Compute(Run run) noexcept;
  void ComputeValidated(const Run& run);
  RunOutputs RunGraph(const std::vector<Owned<OrtValue>>& inputs, std::vector<size_t> wanted) const;
  std::vector<size_t> WantedOutputs(const Run& run) const;
  void CheckRows(const RunOutputs& outputs, size_t rows) const;
  std::vector<std::string_view> TasksOf(const Run& run) const;

  Session session_;
  Served served_;
  const size_t most_rows_;  // of a run
  Turns<Slice> turns_;
  double short_expected_until_ = 0;
  std::thread thread_;  // computes the requests that wait in turns_
};

}  // namespace sparse_serve
