#include "onnxruntime_backend/text_meter.h"

#include <algorithm>
#include <stdexcept>

#include "onnxruntime_backend/errors.h"

namespace sparse_serve {
namespace {

constexpr const char* kReasons[] = {"too_large", "not_utf8",  "too_long", "no_task",
                                    "malformed", "cancelled", "fault"};

// The indices of the tensors of one column with these names and types; empty where one of them is missing.
std::vector<size_t> PlacesOf(const std::vector<std::pair<const char*, const char*>>& wanted,
                             const std::vector<ConfiguredTensor>& tensors) {
  std::vector<size_t> places;
  for (const auto& [name, type] : wanted) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [name = name, type = type](const auto& tensor) {
          return tensor.name == name && tensor.type == type && tensor.dims == std::vector<int64_t>{1};
        });
    if (found == tensors.end()) {
      return {};
    }
    places.push_back(static_cast<size_t>(found - tensors.begin()));
  }
  return places;
}

std::vector<std::string> ReadTasks(const Configuration& configuration) {
  std::vector<std::string> tasks;
  try {
    const Json numbers = Json::Parse(configuration.tasks.empty() ? "{}" : configuration.tasks);
    for (const auto& [task, number] : numbers.members()) {
      tasks.push_back(task);
    }
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("model '" + configuration.model + "': the parameter tasks is " + error.what());
  }
  return tasks;
}

struct Families {
  CounterFamily texts{"sparse_serve_texts_total", "Texts answered"};
  CounterFamily tokens{"sparse_serve_tokens_total", "Tokens of texts answered, special ones included"};
  CounterFamily truncated{"sparse_serve_truncated_total", "Texts answered of which tokens were left out"};
  CounterFamily refused{"sparse_serve_refused_total", "Texts refused"};
  CounterFamily padding{"sparse_serve_padding_saved_total",
                        "Tokens that padding would have added to what was computed"};
  CounterFamily seconds{"sparse_serve_stage_seconds_total", "Seconds spent on texts"};
};

Families& TheFamilies() {
  static auto* const families = new Families;  // never deleted
  return *families;
}

void Add(TRITONSERVER_Metric* counter, double value) {
  if (value > 0) {
    // An answer does not fail because of a counter.
    TRITONSERVER_ErrorDelete(TRITONSERVER_MetricIncrement(counter, value));
  }
}

}  // namespace

CounterFamily::CounterFamily(const char* name, const char* description) {
  Check(TRITONSERVER_MetricFamilyNew(&family_, TRITONSERVER_METRIC_KIND_COUNTER, name, description));
}

TRITONSERVER_Metric* CounterFamily::Counter(const Labels& labels) {
  const std::lock_guard<std::mutex> lock(mutex_);
  TRITONSERVER_Metric*& counter = counters_[labels];
  if (counter == nullptr) {
    using Parameter = std::unique_ptr<TRITONSERVER_Parameter, void (*)(TRITONSERVER_Parameter*)>;
    std::vector<Parameter> owned;
    std::vector<const TRITONSERVER_Parameter*> parameters;
    for (const auto& [name, value] : labels) {
      owned.emplace_back(
          TRITONSERVER_ParameterNew(name.c_str(), TRITONSERVER_PARAMETER_STRING, value.c_str()),
          TRITONSERVER_ParameterDelete);
      parameters.push_back(owned.back().get());
    }
    Check(TRITONSERVER_MetricNew(&counter, family_, parameters.data(), parameters.size()));
  }
  return counter;
}

std::unique_ptr<TextMeter> TextMeter::Of(const Configuration& configuration, uint64_t version) {
  std::vector<size_t> read =
      PlacesOf({{"token_count", "TYPE_INT32"}, {"truncated", "TYPE_BOOL"}, {"invalid_at", "TYPE_INT32"}},
               configuration.outputs);
  if (read.empty() || !configuration.is_batched()) {
    return nullptr;
  }
  return std::unique_ptr<TextMeter>(new TextMeter(configuration, std::move(read), version));
}

TextMeter::TextMeter(const Configuration& configuration, std::vector<size_t> read, uint64_t version)
    : read_(std::move(read)), refuses_long_(configuration.refuses_long), tasks_(ReadTasks(configuration)) {
  Families& families = TheFamilies();
  const CounterFamily::Labels labels = {{"model", configuration.model}, {"version", std::to_string(version)}};
  const auto with = [&labels](const char* name, const std::string& value) {
    CounterFamily::Labels more = labels;
    more.emplace_back(name, value);
    return more;
  };
  const std::vector<size_t> task = PlacesOf({{"TASK", "TYPE_STRING"}}, configuration.inputs);
  if (tasks_.size() > 1 && !task.empty()) {
    task_input_ = task[0];
    for (const std::string& each : tasks_) {
      texts_.push_back(families.texts.Counter(with("task", each)));
    }
  } else {
    texts_.push_back(families.texts.Counter(labels));
  }
  for (const char* reason : kReasons) {
    refused_.push_back(families.refused.Counter(with("reason", reason)));
  }
  tokens_ = families.tokens.Counter(labels);
  truncated_ = families.truncated.Counter(labels);
  padding_ = families.padding.Counter(labels);
  seconds_ = families.seconds.Counter(with("stage", "graph"));
}

void TextMeter::Count(const RunOutputs& outputs, const std::vector<std::string_view>& tasks, double seconds) {
  const OutputTensor& counted = outputs[read_[0]];
  const size_t rows = counted.rows();
  const int32_t* counts = counted.data<int32_t>();
  const bool* truncated = outputs[read_[1]].data<bool>();
  const int32_t* invalid_at = outputs[read_[2]].data<int32_t>();
  std::vector<size_t> texts(texts_.size());
  size_t not_utf8 = 0, too_long = 0, no_task = 0, cut = 0;
  int64_t tokens = 0, computed = 0, longest = 0;
  for (size_t row = 0; row < rows; ++row) {
    computed += counts[row];
    longest = std::max<int64_t>(longest, counts[row]);
    const size_t task =
        tasks.empty()
            ? 0
            : static_cast<size_t>(std::find(tasks_.begin(), tasks_.end(), tasks[row]) - tasks_.begin());
    if (invalid_at[row] >= 0) {
      ++not_utf8;
    } else if (refuses_long_ && truncated[row]) {
      ++too_long;
    } else if (task == texts.size()) {
      ++no_task;
    } else {
      ++texts[task];
      tokens += counts[row];
      cut += truncated[row] ? 1 : 0;
    }
  }
  const auto add = [](TRITONSERVER_Metric* counter, auto value) { Add(counter, static_cast<double>(value)); };
  for (size_t task = 0; task < texts.size(); ++task) {
    add(texts_[task], texts[task]);
  }
  add(tokens_, tokens);
  add(truncated_, cut);
  add(padding_, static_cast<int64_t>(rows) * longest - computed);
  add(seconds_, seconds);
  add(refused_[kNotUtf8], not_utf8);
  add(refused_[kTooLong], too_long);
  add(refused_[kNoTask], no_task);
}

void TextMeter::Refuse(const std::exception& error, size_t texts) {
  Reason reason = kFault;
  if (dynamic_cast<const Oversize*>(&error) != nullptr) {
    reason = kTooLarge;
  } else if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) {
    reason = kMalformed;
  } else if (dynamic_cast<const Cancelled*>(&error) != nullptr) {
    reason = kCancelled;
  }
  Add(refused_[reason], static_cast<double>(texts));
}

}  // namespace sparse_serve
