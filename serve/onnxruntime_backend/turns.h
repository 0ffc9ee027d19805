// When long requests are computed, and when the short ones beside them.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <iterator>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

namespace sparse_serve {

// Most tokens of one run: from a few hundred on a token costs the same, and far more of them leave the
// caches.
constexpr size_t kRunTokens = 1024;
// Number of waiting long requests from which they take turns with short ones. It is more than eight clients
// leave waiting, requests whose client has gone included.
constexpr size_t kTurnThreshold = 12;
// With this many requests waiting, turns take as long as short ones do; with more, proportionally longer.
constexpr double kWaitingPerEqualShare = 4;
// More waiting requests than this do not make turns any longer, or a client that lets many wait would keep
// all others waiting.
constexpr size_t kMaxWaitingCounted = 64;
// For how long after a turn another is expected, so that `Work` holds back: so many times as long as the turn
// took, but at least and at most these seconds. What comes back to back comes within that time; beside what
// comes rarely, most of the time is left to `Work`.
constexpr double kExpectedPerTurn = 3;
constexpr double kLeastTurnExpectedSeconds = 0.01;
constexpr double kMostTurnExpectedSeconds = 0.25;

constexpr double kAllSeconds = std::numeric_limits<double>::infinity();

struct SteadyClock {
  double operator()() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

// Takes the first waiting parts, as many as make a run: at most `kRunTokens` tokens and `most_rows` rows, or
// one part. Throws std::bad_alloc where memory does not suffice, and has taken none then.
template <class Part>
std::vector<Part> TakeRun(std::deque<Part>* waiting, size_t most_rows) {
  size_t tokens = 0, rows = 0;
  const auto end = std::find_if(waiting->begin(), waiting->end(), [&](const Part& part) {
    tokens += part.tokens;
    rows += part.rows;
    return &part != &waiting->front() &&
           (tokens > kRunTokens || rows > most_rows || !part.FitsBeside(waiting->front()));
  });
  std::vector<Part> run(std::make_move_iterator(waiting->begin()), std::make_move_iterator(end));
  waiting->erase(waiting->begin(), end);
  return run;
}

// Long requests, first come, first served. Two runs of them are never computed at the same time.
//
// A thread of low priority computes them as they come (`Work`). While few wait, that hurts short ones least.
// But where many clients ask, each again after its answer, everybody loses: short requests are answered at
// once, few at a time, until nearly all clients wait for long ones; and two runs at the same time on the same
// cores take longer than one after the other. So from `kTurnThreshold` waiting requests on, the thread that
// answers the short ones computes the long ones too, in a `Turn` after each batch of short ones.
//
// A Part is a request, or those rows of a larger one that are computed at a time. It has `rows`; `tokens`,
// about how many tokens they have; `is_last`, whether it is the last part of its request; and
// FitsBeside(other), whether one run can have both. A Clock returns seconds.
template <class Part, class Clock = SteadyClock>
class Turns {
 public:
  // A run has at most `most_rows` rows.
  explicit Turns(size_t most_rows, Clock clock = Clock())
      : most_rows_(most_rows), clock_(std::move(clock)), turn_expected_until_(clock_()) {}

  // Whether nothing waits or is computed.
  bool is_empty() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_.empty() && !is_running_;
  }

  // Adds a request to those that wait, in parts that each fit a run.
  void Enqueue(std::vector<Part> parts) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Part& part : parts) {
      waiting_.push_back(std::move(part));
    }
    ++requests_;
    changed_.notify_all();
  }

  // Has `Work` return once it has computed what waits now.
  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }

  // Computes the runs whose turn it is after short requests were computed for `seconds`.
  //
  // Long requests get `seconds` for every `kWaitingPerEqualShare` of them that wait: the more wait, the
  // larger is their share. Time that a run takes beyond its share is taken off the next turns. While `Work`
  // computes a run no turn is taken; `Work` begins no other run as long as turns are expected.
  template <class Compute>
  void Turn(double seconds, Compute compute) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (requests_ < kTurnThreshold) {
      return;
    }
    owed_ += seconds * static_cast<double>(std::min(requests_, kMaxWaitingCounted)) / kWaitingPerEqualShare;
    const double begun = clock_();
    double ended = begun;
    while (owed_ > 0 && !is_running_ && !waiting_.empty()) {
      const double run_begun = ended;
      ComputeRun(&lock, compute);
      ended = clock_();
      owed_ -= ended - run_begun;
    }
    owed_ = std::min(owed_, 0.0);
    turn_expected_until_ = ended + std::clamp(kExpectedPerTurn * (seconds + ended - begun),
                                              kLeastTurnExpectedSeconds, kMostTurnExpectedSeconds);
  }

  // Computes runs whenever no turns are expected, and waits for the next one, until closed. What a run throws
  // as it begins, for want of memory, leaves all as it was: it may be called again.
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
  // Seconds until `Work` may begin a run, or end; infinite where it is to wait until notified.
  double SecondsToWait() const {
    if (waiting_.empty()) {
      return is_closed_ ? 0.0 : kAllSeconds;
    }
    if (is_running_) {
      return kAllSeconds;
    }
    // The clock is read once: the moment could pass between two readings, and would then be waited for
    // without end.
    return is_closed_ ? 0.0 : turn_expected_until_ - clock_();
  }

  template <class Compute>
  void ComputeRun(std::unique_lock<std::mutex>* lock, Compute& compute) {
    std::vector<Part> run = TakeRun(&waiting_, most_rows_);
    requests_ -= static_cast<size_t>(
        std::count_if(run.begin(), run.end(), [](const Part& part) { return part.is_last; }));
    is_running_ = true;
    lock->unlock();
    compute(std::move(run));
    lock->lock();
    is_running_ = false;
    changed_.notify_all();
  }

  const size_t most_rows_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Clock clock_;
  std::deque<Part> waiting_;
  size_t requests_ = 0;
  bool is_running_ = false;
  bool is_closed_ = false;
  double owed_ = 0;
  double turn_expected_until_;
};

}  // namespace sparse_serve
