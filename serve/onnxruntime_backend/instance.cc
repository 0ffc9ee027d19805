#include "onnxruntime_backend/instance.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "onnxruntime_backend/errors.h"

namespace sparse_serve {
namespace {

// Seconds after a short request during which others are expected.
constexpr double kShortExpectedSeconds = 0.25;
// Seconds for which long requests are computed at once where no short ones are expected: a short one that
// comes all the same waits for them.
constexpr double kAtOnceSeconds = 0.25;
// Niceness of the thread that computes long requests: beside another thread it gets a tenth of a core.
constexpr int kNiceness = 10;
// What that thread waits for where memory does not suffice to begin.
constexpr auto kMemoryExpected = std::chrono::milliseconds(100);

void LowerPriority() { setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNiceness); }

}  // namespace

Instance::Instance(TRITONBACKEND_ModelInstance* handle, const OnnxRuntime& runtime,
                   const Configuration& configuration, const std::string& graph, TextMeter* meter)
    : session_(runtime, configuration, graph),
      served_{handle, configuration, session_, meter},
      most_rows_(static_cast<size_t>(std::max<int64_t>(1, configuration.max_batch_size))),
      turns_(most_rows_),
      thread_([this] {
        LowerPriority();
        const auto work = [this] { turns_.Work([this](Run run) { Compute(std::move(run)); }); };
        while (!Succeeds("long requests could not be computed: ", Guarded(work))) {
          std::this_thread::sleep_for(kMemoryExpected);
        }
      }) {}

Instance::~Instance() {
  turns_.Close();
  thread_.join();
}

void Instance::Execute(TRITONBACKEND_Request** requests, uint32_t count) {
  Requests owned(count);
  Succeeds("requests could not be answered: ", Guarded([&] {
             for (uint32_t index = 0; index < count; ++index) {
               try {
                 owned[index] = std::make_shared<Request>(served_, requests[index]);
               } catch (const std::bad_alloc&) {
                 Request::RefuseUnread(requests[index]);
               }
             }
             Answer(owned);
           }));
}

// Some of `requests` may be null, or answered already.
void Instance::Answer(const Requests& requests) {
  Requests valid;
  std::copy_if(requests.begin(), requests.end(), std::back_inserter(valid),
               [](const auto& request) { return request != nullptr && !request->is_answered(); });
  const auto is_short = [](const auto& request) { return request->is_short(); };
  const bool has_short = std::any_of(valid.begin(), valid.end(), is_short);
  const double begun = SteadyClock()();
  const bool is_short_expected = has_short || begun < short_expected_until_;
  // Where no short ones are expected, long ones are computed here, unless others wait already.
  const bool defers_long = is_short_expected || !turns_.is_empty();
  std::deque<Slice> now;
  for (const std::shared_ptr<Request>& request : valid) {
    std::vector<Slice> slices = SlicesOf(request);
    if (defers_long && !request->is_short()) {
      turns_.Enqueue(std::move(slices));
    } else {
      std::move(slices.begin(), slices.end(), std::back_inserter(now));
    }
  }
  double ended = begun;
  while (!now.empty() && (defers_long || ended < begun + kAtOnceSeconds)) {
    Compute(TakeRun(&now, most_rows_));
    ended = SteadyClock()();
  }
  DeferAll(&now);
  if (has_short) {
    short_expected_until_ = ended + kShortExpectedSeconds;
    turns_.Turn(ended - begun, [this](Run run) { Compute(std::move(run)); });
  }
}

// Puts the slices into the queue: a short request may have come, which Triton hands over only after these.
void Instance::DeferAll(std::deque<Slice>* slices) {
  while (!slices->empty()) {
    std::vector<Slice> of_request;
    do {
      of_request.push_back(std::move(slices->front()));
      slices->pop_front();
    } while (!of_request.back().is_last);
    turns_.Enqueue(std::move(of_request));
  }
}

// Computes a run, and answers the requests that end with it or were cancelled.
void Instance::Compute(Run run) noexcept {
  run.erase(
      std::remove_if(run.begin(), run.end(), [](const Slice& slice) { return slice.request->IsOver(); }),
      run.end());
  if (run.empty()) {
    return;
  }
  try {
    ComputeValidated(run);
  } catch (const std::exception& error) {
    if (run.size() == 1) {
      run[0].request->Refuse(error);
      return;
    }
    // At least one of the requests is at fault: each slice is computed alone.
    for (const Slice& slice : run) {
      try {
        Compute({slice});
      } catch (const std::bad_alloc& out_of_memory) {
        if (!slice.request->is_answered()) {
          slice.request->Refuse(out_of_memory);
        }
      }
    }
  }
}

// The outputs that any of the run's requests, or the meter, asks for.
std::vector<size_t> Instance::WantedOutputs(const Run& run) const {
  std::vector<bool> is_wanted(session_.outputs().size());
  for (const Slice& slice : run) {
    for (size_t output = 0; output < is_wanted.size(); ++output) {
      is_wanted[output] = is_wanted[output] || slice.request->wanted()[output];
    }
  }
  if (served_.meter != nullptr) {
    for (const size_t output : served_.meter->read()) {
      is_wanted[output] = true;
    }
  }
  std::vector<size_t> wanted;
  for (size_t output = 0; output < is_wanted.size(); ++output) {
    if (is_wanted[output]) {
      wanted.push_back(output);
    }
  }
  return wanted;
}

void Instance::CheckRows(const RunOutputs& outputs, size_t rows) const {
  for (const size_t output : outputs.places()) {
    if (served_.configuration.is_batched() && outputs[output].rows() != rows) {
      throw std::runtime_error("output '" + session_.outputs()[output].name + "' has " +
                               std::to_string(outputs[output].rows()) + " rows for " + std::to_string(rows) +
                               " rows of input");
    }
  }
}

// The task of each of the run's texts, where the model has several tasks; else nothing.
std::vector<std::string_view> Instance::TasksOf(const Run& run) const {
  const size_t input = served_.meter->task_input();
  std::vector<std::string_view> tasks;
  for (const Slice& slice : run) {
    if (input != TextMeter::kNone) {
      const std::vector<std::string_view>& texts = slice.request->inputs()[input].texts;
      const auto first = texts.begin() + static_cast<std::ptrdiff_t>(slice.begin);
      tasks.insert(tasks.end(), first, first + static_cast<std::ptrdiff_t>(slice.rows));
    }
  }
  return tasks;
}

// What the graph computes. If one that reads texts fails, no client is at fault: it reads any bytes.
RunOutputs Instance::RunGraph(const std::vector<Owned<OrtValue>>& inputs, std::vector<size_t> wanted) const {
  try {
    return session_.Run(inputs, std::move(wanted));
  } catch (const InvalidArgument& error) {
    if (served_.meter == nullptr) {
      throw;
    }
    throw std::runtime_error(error.what());
  }
}

// Computes a run of requests that were read without an error and are not answered yet. Throws where one of
// them is at fault all the same.
void Instance::ComputeValidated(const Run& run) {
  RunTimes times{};
  times.begin_ns = Now();
  std::vector<Owned<OrtValue>> inputs;
  for (size_t input = 0; input < session_.inputs().size(); ++input) {
    inputs.push_back(JoinInput(served_, run, input));
  }
  std::vector<size_t> wanted = WantedOutputs(run);
  times.compute_begin_ns = Now();
  const auto outputs = std::make_shared<const RunOutputs>(RunGraph(inputs, std::move(wanted)));
  times.compute_end_ns = Now();
  size_t rows = 0;
  for (const Slice& slice : run) {
    rows += slice.rows;
  }
  CheckRows(*outputs, rows);
  if (served_.meter != nullptr) {
    served_.meter->Count(*outputs, TasksOf(run),
                         static_cast<double>(times.compute_end_ns - times.compute_begin_ns) / 1e9);
  }
  size_t begin = 0;
  for (const Slice& slice : run) {
    slice.request->Take(outputs, begin, slice.rows, times);
    begin += slice.rows;
  }
  TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelInstanceReportBatchStatistics(
      served_.instance, rows, times.begin_ns, times.compute_begin_ns, times.compute_end_ns, Now()));
}

}  // namespace sparse_serve
