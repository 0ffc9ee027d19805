#include "onnxruntime_backend/text_meter.h"

#include <algorithm>

#include "onnxruntime_backend/errors.h"

namespace sparse_serve {
namespace {

constexpr const char* kReasons[] = {"too_large", "not_utf8", "too_long", "no_task",
                                    "malformed", "graph",    "fault"};

// The places of tensors of these names and types; nothing where one of them is not there.
std::vector<size_t> PlacesOf(const std::vector<std::pair<const char*, const char*>>& wanted,
                             const std::vector<ConfiguredTensor>& tensors) {
  std::vector<size_t> places;
  for (const auto& [name, type] : wanted) {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [name = name, type = type](const auto& tensor) {
          return tensor.name == name && tensor.type == type;
        });
    if (found == tensors.end()) {
      return {};
    }
    places.push_back(static_cast<size_t>(found - tensors.begin()));
  }
  return places;
}

TRITONSERVER_MetricFamily* NewFamily(const char* name, const char* description) {
  TRITONSERVER_MetricFamily* family = nullptr;
  Check(TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_COUNTER, name, description));
  return family;
}

}  // namespace

CounterFamily::CounterFamily(const char* name, const char* description)
    : family_(NewFamily(name, description), [](TRITONSERVER_MetricFamily* family) {
        TRITONSERVER_ErrorDelete(TRITONSERVER_MetricFamilyDelete(family));
      }) {}

size_t CounterFamily::Begin(const Labels& labels) {
  using Parameter = std::unique_ptr<TRITONSERVER_Parameter, void (*)(TRITONSERVER_Parameter*)>;
  std::vector<Parameter> owned;
  std::vector<const TRITONSERVER_Parameter*> parameters;
  for (const auto& [name, value] : labels) {
    owned.emplace_back(TRITONSERVER_ParameterNew(name.c_str(), TRITONSERVER_PARAMETER_STRING, value.c_str()),
                       TRITONSERVER_ParameterDelete);
    parameters.push_back(owned.back().get());
  }
  TRITONSERVER_Metric* counter = nullptr;
  Check(TRITONSERVER_MetricNew(&counter, family_.get(), parameters.data(), parameters.size()));
  counters_.emplace_back(counter, [](TRITONSERVER_Metric* metric) {
    TRITONSERVER_ErrorDelete(TRITONSERVER_MetricDelete(metric));
  });
  return counters_.size() - 1;
}

void CounterFamily::Add(size_t counter, double value) {
  if (value > 0) {
    // No answer waits for a counter.
    TRITONSERVER_ErrorDelete(TRITONSERVER_MetricIncrement(counters_[counter].get(), value));
  }
}

std::unique_ptr<TextMeter> TextMeter::Of(const Configuration& configuration, uint64_t version) {
  std::vector<size_t> read =
      PlacesOf({{"token_count", "TYPE_INT32"}, {"truncated", "TYPE_BOOL"}, {"invalid_at", "TYPE_INT32"}},
               configuration.outputs);
  if (read.empty() || !configuration.is_batched) {
    return nullptr;
  }
  return std::unique_ptr<TextMeter>(new TextMeter(configuration, std::move(read), version));
}

TextMeter::TextMeter(const Configuration& configuration, std::vector<size_t> read, uint64_t version)
    : read_(std::move(read)),
      tasks_(configuration.tasks),
      refuses_long_(configuration.refuses_long),
      texts_("sparse_serve_texts_total", "Texts answered"),
      tokens_("sparse_serve_tokens_total", "Tokens of texts answered, special ones included"),
      truncated_("sparse_serve_truncated_total", "Texts answered of which tokens were left out"),
      refused_("sparse_serve_refused_total", "Texts refused"),
      padding_("sparse_serve_padding_saved_total",
               "Tokens that padding would have added to what was computed"),
      seconds_("sparse_serve_stage_seconds_total", "Seconds spent on texts") {
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
      texts_.Begin(with("task", each));
    }
  } else {
    texts_.Begin(labels);
  }
  for (CounterFamily* family : {&tokens_, &truncated_, &padding_}) {
    family->Begin(labels);
  }
  for (const char* reason : kReasons) {
    refused_.Begin(with("reason", reason));
  }
  seconds_.Begin(with("stage", "graph"));
}

void TextMeter::Count(const RunOutputs& outputs, const std::vector<std::string_view>& tasks, double seconds) {
  const OutputTensor& counted = outputs[read_[0]];
  const size_t rows = counted.rows();
  const int32_t* counts = counted.data<int32_t>();
  const bool* truncated = outputs[read_[1]].data<bool>();
  const int32_t* invalid_at = outputs[read_[2]].data<int32_t>();
  std::vector<size_t> texts(std::max<size_t>(1, tasks_.size()));
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
  const auto add = [](CounterFamily* family, auto value, size_t counter = 0) {
    family->Add(counter, static_cast<double>(value));
  };
  if (tasks.empty()) {
    add(&texts_, texts[0]);
  }
  for (size_t task = 0; !tasks.empty() && task < texts.size(); ++task) {
    add(&texts_, texts[task], task);
  }
  add(&tokens_, tokens);
  add(&truncated_, cut);
  add(&padding_, static_cast<int64_t>(rows) * longest - computed);
  add(&seconds_, seconds);
  add(&refused_, not_utf8, kNotUtf8);
  add(&refused_, too_long, kTooLong);
  add(&refused_, no_task, kNoTask);
}

void TextMeter::Refuse(const std::exception& error, size_t texts) {
  Reason reason = kFault;
  if (dynamic_cast<const Oversize*>(&error) != nullptr) {
    reason = kTooLarge;
  } else if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) {
    reason = kMalformed;
  }
  refused_.Add(reason, static_cast<double>(texts));
}

}  // namespace sparse_serve
