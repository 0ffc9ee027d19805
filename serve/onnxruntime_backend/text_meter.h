// What becomes of the texts that a graph reads, as counters on Triton's metrics port (docs/metrics.md).
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

// Counters of one name, by their labels. They stay as long as the process runs, as a model that is loaded
// again goes on with them: where Triton deletes a counter, one of the same labels is of no use any more.
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

// Instances of a model share one. Any thread may count.
class TextMeter {
 public:
  // Begins to publish the counters of a model whose graph says of each text how many tokens it has, whether
  // it was cut, and where it is no text. Returns null for other graphs.
  static std::unique_ptr<TextMeter> Of(const Configuration& configuration, uint64_t version);

  // The outputs that say so, by their places in the configuration: every run needs them.
  const std::vector<size_t>& read() const { return read_; }

  // The place of the input that says what task a text is for; kNone where the model has one task.
  size_t task_input() const { return task_input_; }

  // Counts the texts of a run, those that are answered and those that are marked. `tasks` are what they are
  // for, where the model has several.
  void Count(const RunOutputs& outputs, const std::vector<std::string_view>& tasks, double seconds);

  // Counts so many texts as refused.
  void Refuse(const std::exception& error, size_t texts);

  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  enum Reason : size_t { kTooLarge, kNotUtf8, kTooLong, kNoTask, kMalformed, kCancelled, kFault };

  TextMeter(const Configuration& configuration, std::vector<size_t> read, uint64_t version);

  const std::vector<size_t> read_;  // token_count, truncated, invalid_at
  const bool refuses_long_;
  std::vector<std::string> tasks_;  // in order
  size_t task_input_ = kNone;
  std::vector<TRITONSERVER_Metric*> texts_;    // by task; one where there is one
  std::vector<TRITONSERVER_Metric*> refused_;  // by reason
  TRITONSERVER_Metric *tokens_, *truncated_, *padding_, *seconds_;
};

}  // namespace sparse_serve
