// The wall clock of one family of processes, which whoever started it may set while it runs.
//
// Preloaded (LD_PRELOAD). WALL_CLOCK names a file of eight bytes: nanoseconds that are added to the clock,
// int64. The monotonic clocks are left alone, as by clock_settime. What waits until a time of the wall clock
// sees within 20 ms that the clock was set, as the kernel sees it at once.

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr std::int64_t kSlice = 20'000'000;
// A deadline of the wall clock is later than this, one of the monotonic clocks earlier: 2001, and 31 years
// after the start of the machine.
constexpr std::int64_t kWallClock = 1'000'000'000 * kSecond;

const std::atomic<std::int64_t>* Map() {
  const char* path = std::getenv("WALL_CLOCK");
  const int file = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  return mapped == MAP_FAILED ? nullptr : static_cast<const std::atomic<std::int64_t>*>(mapped);
}

std::int64_t Offset() {
  static const std::atomic<std::int64_t>* const offset = Map();
  return offset == nullptr ? 0 : offset->load(std::memory_order_relaxed);
}

std::int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }

timespec Time(std::int64_t nanoseconds) { return {nanoseconds / kSecond, nanoseconds % kSecond}; }

// As the kernel has it.
std::int64_t Real() {
  timespec now;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  return Nanoseconds(now);
}

// Waits until `deadline` by `wait`, which takes one of the kernel's clock, a little at a time. Where a wait
// may end without a cause it does so after each.
template <typename Wait>
int WaitUntil(const timespec& deadline, bool is_spurious_allowed, Wait wait) {
  if (Nanoseconds(deadline) < kWallClock) return wait(&deadline);
  while (true) {
    const std::int64_t now = Real(), left = Nanoseconds(deadline) - (now + Offset());
    const timespec slice = Time(now + std::clamp(left, std::int64_t{0}, kSlice));
    const int status = wait(&slice);
    const bool is_timeout = status == ETIMEDOUT || (status == -1 && errno == ETIMEDOUT);
    if (!is_timeout || Nanoseconds(deadline) <= Real() + Offset()) return status;
    if (is_spurious_allowed) return 0;
  }
}

template <typename Function>
Function* Next(const char* name, const char* version) {
  return reinterpret_cast<Function*>(version == nullptr ? dlsym(RTLD_NEXT, name)
                                                        : dlvsym(RTLD_NEXT, name, version));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) *now = Time(Nanoseconds(*now) + Offset());
  return 0;
}

int gettimeofday(timeval* now, void*) noexcept {
  const std::int64_t time = Real() + Offset();
  *now = {time / kSecond, time % kSecond / 1000};
  return 0;
}

time_t time(time_t* now) noexcept {
  const time_t seconds = (Real() + Offset()) / kSecond;
  if (now != nullptr) *now = seconds;
  return seconds;
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  // Of x86-64; other processors have had one version of it from the start.
#ifdef __x86_64__
  constexpr const char* kVersion = "GLIBC_2.3.2";
#else
  constexpr const char* kVersion = nullptr;
#endif
  static auto* const next =
      Next<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait", kVersion);
  return WaitUntil(*deadline, true, [&](const timespec* until) { return next(condition, mutex, until); });
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* deadline) noexcept {
  static auto* const next = Next<int(pthread_mutex_t*, const timespec*)>("pthread_mutex_timedlock", nullptr);
  return WaitUntil(*deadline, false, [&](const timespec* until) { return next(mutex, until); });
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  static auto* const next = Next<int(sem_t*, const timespec*)>("sem_timedwait", nullptr);
  return WaitUntil(*deadline, false, [&](const timespec* until) { return next(semaphore, until); });
}

}  // extern "C"
