// Counts what becomes of the texts that a graph reads, for Triton's metrics port (docs/metrics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxruntime_backend/configuration.h"
#include "onnxruntime_backend/session.h"
#include "onnxruntime_backend/triton_abi.h"

namespace sparse_serve {

// Counters of one name, by their labels. They stay as long as the process runs, so that a model that is
// loaded again goes on with them: once Triton has deleted a counter, another of the same labels does not
// work.
class CounterFamily {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  CounterFamily(const char* name, const char* description);

  // The counter of these labels, which begins at 0.
  TRITONSERVER_Metric* Counter(const Labels& labels);

 private:
  TRITONSERVER_MetricFamily* family_ = nullptr;
  std::mutex mutex_;
  std::map<Labels, TRITONSERVER_Metric*> counters_;
};

// The counters of one model, which all its instances share. Any thread may count.
class TextMeter {
 public:
  // Begins to publish the counters of a model whose graph outputs of each text how many tokens it has,
  // whether it was cut, and where it is not UTF-8. Returns null for other graphs.
  static std::unique_ptr<TextMeter> Of(const Configuration& configuration, uint64_t version);

  // The indices of those outputs in the configuration: every run must compute them.
  const std::vector<size_t>& read() const { return read_; }

  // The index of the input that says what task a text is for; kNone where the model has one task.
  size_t task_input() const { return task_input_; }

  // Counts the texts of a run: those that are answered, and those that the outputs mark as refused. `tasks`
  // has the task of each text where the model has several tasks, and is empty otherwise.
  void Count(const RunOutputs& outputs, const std::vector<std::string_view>& tasks, double seconds);

  // Counts `texts` texts as refused because of `error`.
  void Refuse(const std::exception& error, size_t texts);

  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  enum Reason : size_t { kTooLarge, kNotUtf8, kTooLong, kNoTask, kMalformed, kCancelled, kFault };

  TextMeter(const Configuration& configuration, std::vector<size_t> read, uint64_t version);

  const std::vector<size_t> read_;  // token_count, truncated, invalid_at
  const bool refuses_long_;
  std::vector<std::string> tasks_;  // in order
  size_t task_input_ = kNone;
  std::vector<TRITONSERVER_Metric*> texts_;    // by task; one counter where the model has one task
  std::vector<TRITONSERVER_Metric*> refused_;  // by reason
  TRITONSERVER_Metric *tokens_, *truncated_, *padding_, *seconds_;
};

}  // namespace sparse_serve
