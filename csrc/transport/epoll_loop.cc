#include "transport/epoll_loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include "base/annotations.h"
#include "base/check.h"
#include "base/unique_fd.h"
#include "transport/loop_queues.h"

namespace byteps::transport {
namespace {

constexpr int kEventsPerWait = 64;

// Memory that is freed when the process runs out of memory, so that the callback can report it. It
// is never written to, so it costs address space only.
constexpr size_t kReserveBytes = 1 << 20;

// Passes that a borrower makes: its task, the turns that it requests, and what follows from them in
// this process. The loop's own thread does the rest.
constexpr int kBorrowedPasses = 4;

thread_local const void* t_current_loop = nullptr;

// Allocates what the C++ runtime keeps for each thread that throws: the process ends if there is no
// memory for it at the first throw. The check is always true. It uses the result, because the
// compiler leaves out calls of this function, which is declared pure, if nobody does.
void prepare_to_throw() { BPS_CHECK(std::uncaught_exceptions() >= 0) << "a negative number of exceptions"; }

// Each event carries the number of its registration. If a descriptor number is reused after
// unwatch(), events fetched before are not delivered to the new handler.
uint64_t pack(int fd, uint32_t registration) {
  return uint64_t{registration} << 32 | static_cast<uint32_t>(fd);
}

// Starts `thread` with all signals blocked, as signals are for the program's own threads (Python's
// main thread).
Status start_thread(std::thread& thread, const std::string& name, UniqueFunction<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    thread = std::thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  } catch (const std::system_error& error) {
    status = from_errno("event loop " + name + ": cannot start a thread", error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

}  // namespace

struct EpollLoop::State {
  struct Watch {
    FdHandler* handler = nullptr;
    uint32_t registration = 0;
  };

  std::string name;
  UniqueFunction<void(const Status&)> on_out_of_memory;
  std::unique_ptr<std::byte[]> reserve;
  UniqueFd epoll_fd;
  UniqueFd wake_fd;
  std::thread thread;
  std::atomic<bool> joined{false};

  Mutex mutex;
  std::vector<Task> posted BPS_GUARDED_BY(mutex);
  // The thread sleeps in epoll(7), and nobody has woken it or borrowed the loop.
  bool asleep BPS_GUARDED_BY(mutex) = false;
  bool stopping BPS_GUARDED_BY(mutex) = false;
  bool borrowed BPS_GUARDED_BY(mutex) = false;  // another thread runs the loop (run_soon)
  bool waits_for_borrower BPS_GUARDED_BY(mutex) = false;
  std::condition_variable_any given_back;

  // Used on the loop's thread only, or by the borrower while that thread sleeps.
  std::vector<Task> batch;
  size_t begun = 0;  // number of tasks of the batch that were started
  // Whether descriptors and turns are served; false after running out of memory.
  bool serves = true;
  std::vector<Watch> watches;  // indexed by descriptor
  uint32_t registrations = 0;
  TimerQueue timers;
  TurnQueue turns;
  TimeUs wakes_at_us = kNever;  // when the thread that sleeps wakes up by itself
  bool have_pwait2 = true;

  Status open();
  void wake() const;
  void run();
  void run_passes();
  void stop_serving();
  bool run_tasks();
  void run_turns() {
    turns.run([this] { return serves; });
  }
  std::span<epoll_event> wait(std::span<epoll_event> events);
  int sleep(std::span<epoll_event> events, TimeUs next_us);
  void end_sleep();
  bool borrow();
  void run_borrowed(Task task) noexcept;  // exceptions end the process, as on the own thread
  bool is_idle();
  void give_back();
  void dispatch(std::span<const epoll_event> events);
  void check_thread() const {
    BPS_CHECK(t_current_loop == this || joined.load()) << "not on the event loop's thread";
  }
};

Status EpollLoop::State::open() {
  epoll_fd.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_fd.valid()) return from_errno("event loop: epoll_create1", errno);
  wake_fd.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd.valid()) return from_errno("event loop: eventfd", errno);
  // Edge-triggered: every write wakes the loop once, and nobody has to read the counter, which
  // lasts for 2^64 writes.
  epoll_event event{EPOLLIN | EPOLLET, {.u64 = pack(wake_fd.get(), 0)}};
  if (epoll_ctl(epoll_fd.get(), EPOLL_CTL_ADD, wake_fd.get(), &event) != 0) {
    return from_errno("event loop: epoll_ctl", errno);
  }
  return Status::ok();
}

void EpollLoop::State::wake() const {
  const uint64_t one = 1;
  while (write(wake_fd.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void EpollLoop::State::run() {
  t_current_loop = this;
  prepare_to_throw();
  while (true) {
    try {
      return run_passes();
    } catch (const std::bad_alloc& error) {
      if (!on_out_of_memory) throw;
      reserve.reset();
      if (serves) on_out_of_memory(unavailable("its thread " + name + " is out of memory: " + error.what()));
      stop_serving();
    }
  }
}

void EpollLoop::State::stop_serving() {
  serves = false;
  for (size_t fd = 0; fd < watches.size(); ++fd) {
    if (watches[fd].handler) epoll_ctl(epoll_fd.get(), EPOLL_CTL_DEL, static_cast<int>(fd), nullptr);
    watches[fd] = {};
  }
}

void EpollLoop::State::run_passes() {
  std::array<epoll_event, kEventsPerWait> events;
  while (run_tasks()) {
    timers.run(byteps::now_us(), [] { return true; });
    run_turns();
    dispatch(wait(events));
  }
  run_turns();  // sends what the last tasks queued; delivers it within the process
}

// Returns false after running the tasks that were posted before stop().
bool EpollLoop::State::run_tasks() {
  bool last = false;
  // The batch is not finished if a task of it ran out of memory.
  if (begun == batch.size()) {
    batch.clear();
    begun = 0;
    MutexLock lock(mutex);
    batch.swap(posted);
    last = stopping;
  }
  while (begun < batch.size()) {
    // Moved, so that its captures are destroyed right after it has run.
    Task task = std::move(batch[begun++]);
    task();
  }
  return !last;
}

std::span<epoll_event> EpollLoop::State::wait(std::span<epoll_event> events) {
  const TimeUs next_us = timers.next_us();
  bool may_sleep = false;
  {
    MutexLock lock(mutex);
    may_sleep = posted.empty() && turns.empty() && !stopping;
    asleep = may_sleep;
    wakes_at_us = next_us;
  }
  const int count = may_sleep ? sleep(events, next_us)
                              : epoll_wait(epoll_fd.get(), events.data(), static_cast<int>(events.size()), 0);
  BPS_CHECK(count >= 0 || errno == EINTR) << "epoll_wait: errno " << errno;
  if (may_sleep) end_sleep();
  return events.first(static_cast<size_t>(std::max(count, 0)));
}

void EpollLoop::State::end_sleep() {
  MutexLock lock(mutex);
  waits_for_borrower = borrowed;
  while (borrowed) given_back.wait(mutex);
  waits_for_borrower = false;
  asleep = false;
}

bool EpollLoop::State::borrow() {
  if (t_current_loop == this) return false;
  MutexLock lock(mutex);
  // Tasks that post_within() has left come first.
  if (!asleep || !posted.empty() || stopping || !serves) return false;
  asleep = false;
  borrowed = true;
  return true;
}

void EpollLoop::State::run_borrowed(Task task) noexcept {
  const void* const before = std::exchange(t_current_loop, this);
  prepare_to_throw();
  try {
    std::exchange(task, nullptr)();
    for (int pass = 0; pass < kBorrowedPasses && !is_idle(); ++pass) {
      run_tasks();
      run_turns();
    }
  } catch (const std::bad_alloc&) {
    if (!on_out_of_memory) std::terminate();
    reserve.reset();
    MutexLock lock(mutex);
    // The loop's thread handles it.
    posted.emplace_back([error = std::current_exception()] { std::rethrow_exception(error); });
  }
  t_current_loop = before;
  give_back();
}

bool EpollLoop::State::is_idle() {
  MutexLock lock(mutex);
  return posted.empty() && turns.empty();
}

// The thread sleeps on, unless the borrower has left it something to do.
void EpollLoop::State::give_back() {
  const TimeUs next_us = timers.next_us();
  {
    MutexLock lock(mutex);
    borrowed = false;
    if (waits_for_borrower) return given_back.notify_one();
    asleep = posted.empty() && turns.empty() && next_us >= wakes_at_us && !stopping;
    if (asleep) return;
  }
  wake();
}

// Sleeps until a descriptor is ready or the next timer is due.
int EpollLoop::State::sleep(std::span<epoll_event> events, TimeUs next_us) {
  const int capacity = static_cast<int>(events.size());
  if (next_us == kNever) return epoll_wait(epoll_fd.get(), events.data(), capacity, -1);
  const TimeUs left_us = std::max<TimeUs>(next_us - byteps::now_us(), 0);
#ifdef SYS_epoll_pwait2
  if (have_pwait2) {
    const timespec timeout{left_us / 1'000'000, (left_us % 1'000'000) * 1000};
    const long count =
        syscall(SYS_epoll_pwait2, epoll_fd.get(), events.data(), capacity, &timeout, nullptr, 0);
    // Kernels before 5.11 do not have this call, and container runtimes of that time forbid unknown
    // calls.
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(count);
    have_pwait2 = false;
  }
#endif
  const int left_ms = static_cast<int>(std::min<TimeUs>((left_us + 999) / 1000, 1'000'000));
  return epoll_wait(epoll_fd.get(), events.data(), capacity, left_ms);
}

void EpollLoop::State::dispatch(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    const size_t fd = static_cast<uint32_t>(event.data.u64);
    const auto registration = static_cast<uint32_t>(event.data.u64 >> 32);
    if (fd >= watches.size()) continue;  // also skips the wake-up descriptor
    const Watch watch = watches[fd];
    if (watch.handler && watch.registration == registration) watch.handler->on_ready(event.events);
  }
}

EpollLoop::EpollLoop() : state_(std::make_unique<State>()) {}

EpollLoop& EpollLoop::from(EventLoop& loop) {
  auto* const epoll_loop = dynamic_cast<EpollLoop*>(&loop);
  BPS_CHECK(epoll_loop != nullptr) << "descriptors need an EpollLoop";
  return *epoll_loop;
}

EpollLoop::~EpollLoop() { EpollLoop::stop(); }

Result<std::unique_ptr<EpollLoop>> EpollLoop::create(const std::string& name,
                                                     UniqueFunction<void(const Status&)> on_out_of_memory) {
  std::unique_ptr<EpollLoop> loop(new EpollLoop);
  State* state = loop->state_.get();
  state->name = name;
  state->on_out_of_memory = std::move(on_out_of_memory);
  if (state->on_out_of_memory) state->reserve = std::make_unique_for_overwrite<std::byte[]>(kReserveBytes);
  BPS_RETURN_IF_ERROR(state->open());
  BPS_RETURN_IF_ERROR(start_thread(state->thread, name, [state] { state->run(); }));
  return loop;
}

void EpollLoop::post(Task task) { post_within(0, std::move(task)); }

void EpollLoop::post_within(TimeUs delay_us, Task task) {
  const TimeUs latest_us = delay_us > 0 ? byteps::now_us() + delay_us : 0;
  bool wake = false;
  {
    MutexLock lock(state_->mutex);
    // Tasks posted by the loop itself may own the caller, so they are kept until the thread has
    // ended.
    if (state_->stopping && !in_loop()) return;
    state_->posted.push_back(std::move(task));
    if (state_->asleep && state_->wakes_at_us <= latest_us) return;
    wake = std::exchange(state_->asleep, false);
  }
  if (wake) state_->wake();
}

void EpollLoop::run_soon(Task task) {
  if (!state_->borrow()) return post(std::move(task));
  state_->run_borrowed(std::move(task));
}

bool EpollLoop::in_loop() const { return t_current_loop == state_.get(); }

void EpollLoop::stop() {
  if (!state_->thread.joinable()) return;
  BPS_CHECK(!in_loop()) << "a loop cannot stop itself";
  {
    MutexLock lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake();
  state_->thread.join();
  state_->joined.store(true);
  std::vector<Task> unrun;
  {
    MutexLock lock(state_->mutex);
    unrun.swap(state_->posted);
  }
  state_->timers.clear();
}

Status EpollLoop::watch(int fd, uint32_t epoll_events, FdHandler* handler) {
  state_->check_thread();
  if (!state_->serves) return unavailable("event loop: " + state_->name + " is out of memory");
  const auto index = static_cast<size_t>(fd);
  if (index >= state_->watches.size()) state_->watches.resize(index + 1);
  const State::Watch watch{handler, ++state_->registrations};
  epoll_event event{epoll_events, {.u64 = pack(fd, watch.registration)}};
  if (epoll_ctl(state_->epoll_fd.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return from_errno("event loop: epoll_ctl", errno);
  }
  state_->watches[index] = watch;
  return Status::ok();
}

Status EpollLoop::modify(int fd, uint32_t epoll_events) {
  state_->check_thread();
  const State::Watch& watch = state_->watches.at(static_cast<size_t>(fd));
  epoll_event event{epoll_events, {.u64 = pack(fd, watch.registration)}};
  if (epoll_ctl(state_->epoll_fd.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    return from_errno("event loop: epoll_ctl", errno);
  }
  return Status::ok();
}

void EpollLoop::unwatch(int fd) {
  state_->check_thread();
  epoll_ctl(state_->epoll_fd.get(), EPOLL_CTL_DEL, fd, nullptr);
  state_->watches.at(static_cast<size_t>(fd)) = {};
}

EventLoop::TimerId EpollLoop::run_at(TimeUs at_us, Task task) {
  state_->check_thread();
  return state_->timers.add(at_us, std::move(task));
}

void EpollLoop::cancel(TimerId timer) {
  state_->check_thread();
  state_->timers.cancel(timer);
}

void EpollLoop::request_turn(TurnHandler* handler) {
  state_->check_thread();
  state_->turns.request(handler);
}

void EpollLoop::cancel_turn(TurnHandler* handler) {
  state_->check_thread();
  state_->turns.cancel(handler);
}

}  // namespace byteps::transport
