// Who computes when, of requests that take long and short ones beside them.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace sparse_serve {

// Of one run: from some hundred on a token costs the same, and far more of them leave the caches.
constexpr size_t kRunTokens = 1024;
// So many requests that wait have turns. More than eight clients have, some of whom went away.
constexpr size_t kCrowd = 12;
// For so many requests that wait, turns take as long as short ones do.
constexpr double kEquals = 4;
// More do not make turns any longer, or whoever lets many wait would keep all others waiting.
constexpr size_t kMostCounted = 64;
// So long after a turn others are expected.
constexpr double kAwaySeconds = 0.25;

constexpr double kAllSeconds = std::numeric_limits<double>::infinity();

struct SteadyClock {
  double operator()() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

// Takes the first parts that wait, as many as make a run: of `kRunTokens` tokens at most, or one part.
template <class Part>
std::vector<Part> TakeRun(std::deque<Part>* waiting) {
  std::vector<Part> run;
  size_t tokens = 0;
  while (!waiting->empty()) {
    Part& part = waiting->front();
    tokens += part.tokens;
    if (!run.empty() && (tokens > kRunTokens || !part.FitsBeside(run.front()))) {
      break;
    }
    run.push_back(std::move(part));
    waiting->pop_front();
  }
  return run;
}

// Requests that take long, first come, first served; never are two runs of them computed at a time.
//
// A thread that gives way has them computed as they come (`Work`). While few wait, that hurts short ones
// least. But where many ask, each again after its answer, it costs all: short ones are answered at once, few
// at a time, until nearly all who ask wait for long ones; and two runs on the same cores take longer than one
// after the other. So a crowd is left to the thread that answers the short ones, for a `Turn` after each
// batch of those.
//
// A Part is a request, or of a larger one so many rows as are computed at a time: `tokens`, about how many
// there are, `is_last` of its request, and FitsBeside(other), whether one run can have both. A Clock tells
// seconds.
template <class Part, class Clock = SteadyClock>
class Turns {
 public:
  explicit Turns(Clock clock = Clock()) : clock_(std::move(clock)), held_until_(clock_()) {}

  // Whether nothing waits or is computed.
  bool is_empty() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.empty() && !is_running_;
  }

  // Lets a request wait, in parts that each fit a run.
  void Put(std::vector<Part> parts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Part& part : parts) {
      waiting_.push_back(std::move(part));
    }
    ++requests_;
    changed_.notify_all();
  }

  // Lets `Work` end with what waits now.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }

  // Computes the runs whose turn it is after short ones were computed for so long.
  //
  // A crowd gets `seconds` for every `kEquals` of it: the more wait, the larger is their share. What a run
  // takes more is taken off the next turns. There are none while `Work` is at a run; it begins no other as
  // long as turns are expected.
  template <class Compute>
  void Turn(double seconds, Compute compute) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (requests_ < kCrowd) {
      return;
    }
    owed_ += seconds * static_cast<double>(std::min(requests_, kMostCounted)) / kEquals;
    Hold();
    while (owed_ > 0 && !is_running_ && !waiting_.empty()) {
      const double begun = clock_();
      ComputeRun(&lock, compute);
      Hold();
      owed_ -= clock_() - begun;
    }
    owed_ = std::min(owed_, 0.0);
  }

  // Computes runs whenever no turns are expected, and waits for the next one, until closed.
  template <class Compute>
  void Work(Compute compute) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      for (double seconds = SecondsToWait(); seconds > 0; seconds = SecondsToWait()) {
        if (seconds < kAllSeconds) {
          changed_.wait_for(lock, std::chrono::duration<double>(seconds));
        } else {
          changed_.wait(lock);
        }
      }
      if (waiting_.empty()) {
        return;
      }
      ComputeRun(&lock, compute);
    }
  }

 private:
  // Has the thread wait: turns are expected.
  void Hold() { held_until_ = clock_() + kAwaySeconds; }

  // Until `Work` may begin a run, or end; infinite where others say when.
  double SecondsToWait() const {
    if (waiting_.empty()) {
      return is_closed_ ? 0.0 : kAllSeconds;
    }
    if (is_running_) {
      return kAllSeconds;
    }
    // Read once: the moment could come between two looks at the clock, and be waited for without end.
    return is_closed_ ? 0.0 : held_until_ - clock_();
  }

  template <class Compute>
  void ComputeRun(std::unique_lock<std::mutex>* lock, Compute& compute) {
    std::vector<Part> run = TakeRun(&waiting_);
    requests_ -= static_cast<size_t>(
        std::count_if(run.begin(), run.end(), [](const Part& part) { return part.is_last; }));
    is_running_ = true;
    lock->unlock();
    compute(std::move(run));
    lock->lock();
    is_running_ = false;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Clock clock_;
  std::deque<Part> waiting_;
  size_t requests_ = 0;
  bool is_running_ = false;
  bool is_closed_ = false;
  double owed_ = 0;
  double held_until_;
};

}  // namespace sparse_serve
