// What becomes of the texts that a graph reads, as counters on Triton's metrics port (docs/metrics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxruntime_backend/configuration.h"
#include "onnxruntime_backend/session.h"
#include "onnxruntime_backend/triton_abi.h"

namespace sparse_serve {

// Counters of one name; what has its labels elsewhere counts with it.
class CounterFamily {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  CounterFamily(const char* name, const char* description);

  // Begins another counter, at 0. Returns its place.
  size_t Begin(const Labels& labels);
  void Add(size_t counter, double value);

 private:
  using Metric = std::unique_ptr<TRITONSERVER_Metric, void (*)(TRITONSERVER_Metric*)>;

  std::unique_ptr<TRITONSERVER_MetricFamily, void (*)(TRITONSERVER_MetricFamily*)> family_;
  std::vector<Metric> counters_;  // which the family outlives
};

// Instances of a model share one. Any thread may count.
class TextMeter {
 public:
  // Begins to publish the counters of a model whose graph says of each text how many tokens it has, whether
  // it was cut, and where it is no text. Returns null for other graphs.
  static std::unique_ptr<TextMeter> Of(const Configuration& configuration, uint64_t version);

  // The outputs that say so, by their places in the configuration: every run needs them.
  const std::vector<size_t>& read() const { return read_; }

  // The place of the input that says what task a text is for; kNone where the model has one.
  size_t task_input() const { return task_input_; }

  // Counts the texts of a run, those that are answered and those that are marked. `tasks` are what they are
  // for, where the model has several.
  void Count(const RunOutputs& outputs, const std::vector<std::string_view>& tasks, double seconds);

  // Counts so many texts as refused.
  void Refuse(const std::exception& error, size_t texts);

  static constexpr size_t kNone = static_cast<size_t>(-1);

 private:
  enum Reason : size_t { kTooLarge, kNotUtf8, kTooLong, kNoTask, kMalformed, kGraph, kFault };

  TextMeter(const Configuration& configuration, std::vector<size_t> read, uint64_t version);

  const std::vector<size_t> read_;  // token_count, truncated, invalid_at
  const std::vector<std::string> tasks_;
  const bool refuses_long_;
  size_t task_input_ = kNone;
  CounterFamily texts_, tokens_, truncated_, refused_, padding_, seconds_;
};

}  // namespace sparse_serve
