#include "sim/virtual_time.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/scoped_flag.h"

namespace byteps::sim {
namespace {

constexpr double kPreemptionChance = 0.03;

thread_local VirtualLoop* t_current_loop = nullptr;

using Lock = std::lock_guard<VirtualTime::Mutex>;

}  // namespace

VirtualTime::~VirtualTime() { BPS_CHECK(loops_.empty()) << "a loop outlives its time"; }

TimeUs VirtualTime::now_us() const {
  const Lock lock(mutex_);
  return driven_ ? byteps::now_us() : now_us_;
}

std::unique_ptr<VirtualLoop> VirtualTime::make_loop(std::string name) {
  const Lock lock(mutex_);
  std::unique_ptr<VirtualLoop> loop(new VirtualLoop(*this, std::move(name)));
  loops_.push_back(loop.get());
  return loop;
}

TimeUs VirtualTime::earliest_us() const {
  if (!ready_.empty()) return 0;
  TimeUs first_us = kNever;
  for (const VirtualLoop* const loop : loops_) first_us = std::min(first_us, loop->ready_us());
  return first_us;
}

TimeUs VirtualTime::next_us() {
  if (!ready_.empty()) return now_us();
  const TimeUs first_us = earliest_us();
  if (first_us == kNever) return kNever;
  for (VirtualLoop* const loop : loops_) {
    if (loop->ready_us() <= std::max(first_us, now_us())) loop->get_ready();
  }
  return std::max(first_us, now_us());
}

void VirtualTime::make_pass() {
  const size_t index = random_.below(ready_.size());
  VirtualLoop* const loop = std::exchange(ready_[index], ready_.back());
  ready_.pop_back();
  loop->is_ready_ = false;
  if (loop->ready_us() > now_us()) return;  // it was paused or stopped meanwhile
  ++num_passes_;
  fingerprint_ = mix(fingerprint_ ^ loop->name_hash_ ^ mix(static_cast<uint64_t>(now_us_)));
  if (loop->longest_preemption_us_ > 0 && random_.chance(kPreemptionChance))
    loop->resumes_us_ = now_us() + random_.between(1, loop->longest_preemption_us_);
  loop->make_pass();
}

bool VirtualTime::run_until(TimeUs deadline_us, const std::function<bool()>& is_over) {
  while (!is_over()) {
    const TimeUs at_us = next_us();
    if (at_us == kNever) return false;
    if (at_us > deadline_us) {
      now_us_ = std::max(now_us_, deadline_us);
      ready_.clear();
      for (VirtualLoop* const loop : loops_) loop->is_ready_ = false;
      return false;
    }
    now_us_ = at_us;
    make_pass();
  }
  return true;
}

void VirtualTime::wake() {
  if (driven_) changed_.notify_all();
}

void VirtualTime::drive() {
  std::unique_lock lock(mutex_);
  while (!driver_ends_) {
    const TimeUs first_us = earliest_us();
    const TimeUs wait_us = first_us == kNever ? kNever : first_us - now_us();
    if (wait_us <= 0) {
      next_us();
      make_pass();
      lock.unlock();  // lets other threads lock the mutex
      lock.lock();
    } else if (wait_us == kNever) {
      changed_.wait(lock);
    } else {
      changed_.wait_for(lock, std::chrono::microseconds(wait_us));
    }
  }
}

VirtualTime::Driver::Driver(VirtualTime& time) : time_(time) {
  time_.mutex_.is_shared_ = true;
  const Lock lock(time_.mutex_);
  time_.driven_ = true;
  time_.driver_ends_ = false;
  thread_ = std::thread([this] { time_.drive(); });
}

VirtualTime::Driver::~Driver() {
  {
    const Lock lock(time_.mutex_);
    time_.driver_ends_ = true;
    time_.changed_.notify_all();
  }
  thread_.join();
  time_.driven_ = false;
  time_.mutex_.is_shared_ = false;
}

VirtualLoop::VirtualLoop(VirtualTime& time, std::string name)
    : time_(time), name_(std::move(name)), name_hash_([this] {
        uint64_t hash = 0;
        for (const char each : name_) hash = mix(hash ^ static_cast<uint64_t>(each));
        return hash;
      }()) {}

VirtualLoop::~VirtualLoop() {
  stop();
  if (on_destroyed_) on_destroyed_();
  const Lock lock(time_.mutex_);
  std::erase(time_.loops_, this);
  std::erase(time_.ready_, this);
}

void VirtualLoop::post(Task task) {
  const Lock lock(time_.mutex_);
  // A task that a stopped loop posts to itself may own the caller, so it is kept until the loop has
  // returned.
  if (stopped_ && !in_loop()) return;
  posted_.push_back(std::move(task));
  get_ready();
  time_.wake();
}

void VirtualLoop::schedule(TimeUs at_us, Task task) {
  const Lock lock(time_.mutex_);
  if (stopped_) return;
  add_timer(at_us, std::move(task));
  time_.wake();
}

VirtualLoop::TimerId VirtualLoop::add_timer(TimeUs at_us, Task task) {
  const TimerId id = timers_.add(at_us, std::move(task));
  if (at_us <= now_us()) get_ready();
  return id;
}

void VirtualLoop::get_ready() {
  if (is_ready_) return;
  is_ready_ = true;
  time_.ready_.push_back(this);
}

bool VirtualLoop::run_and_wait(Task task) {
  BPS_CHECK(!in_loop()) << "the loop would wait for itself";
  std::unique_lock lock(time_.mutex_);
  if (stopped_) return false;
  if (!time_.driven_ || t_current_loop != nullptr) {  // no other thread could run it
    const ScopedValue running(t_current_loop, this);
    run_tasks();
    task();
    return true;
  }
  lock.unlock();
  return EventLoop::run_and_wait(std::move(task));
}

bool VirtualLoop::in_loop() const { return t_current_loop == this; }

void VirtualLoop::stop() {
  BPS_CHECK(!in_loop()) << "a loop cannot stop itself";
  const Lock lock(time_.mutex_);
  if (std::exchange(stopped_, true)) return;
  if (!killed_) {
    const ScopedValue running(t_current_loop, this);
    run_tasks();
    run_turns();
  }
  const std::vector<Task> unrun = std::exchange(posted_, {});
  timers_.clear();
}

void VirtualLoop::check_thread() const {
  BPS_CHECK(in_loop() || stopped_) << "not on the event loop " << name_;
}

VirtualLoop::TimerId VirtualLoop::run_at(TimeUs at_us, Task task) {
  check_thread();
  const Lock lock(time_.mutex_);
  return add_timer(at_us, std::move(task));
}

void VirtualLoop::cancel(TimerId timer) {
  check_thread();
  const Lock lock(time_.mutex_);
  timers_.cancel(timer);
}

void VirtualLoop::request_turn(transport::TurnHandler* handler) {
  check_thread();
  turns_.request(handler);
  get_ready();
}

void VirtualLoop::cancel_turn(transport::TurnHandler* handler) {
  check_thread();
  turns_.cancel(handler);
}

void VirtualLoop::pause(bool paused) {
  const Lock lock(time_.mutex_);
  paused_ = paused;
  get_ready();
  time_.wake();
}

TimeUs VirtualLoop::ready_us() const {
  if (paused_ || killed_ || stopped_) return kNever;
  const bool is_due = !posted_.empty() || !turns_.empty();
  return std::max(resumes_us_, is_due ? 0 : timers_.next_us());
}

void VirtualLoop::make_pass() {
  const ScopedValue running(t_current_loop, this);
  run_tasks();
  timers_.run(now_us(), [this] { return !killed_; });
  run_turns();
  if (ready_us() <= now_us()) get_ready();
}

void VirtualLoop::run_tasks() {
  std::vector<Task> batch = std::exchange(posted_, {});
  for (Task& task : batch) {
    if (killed_) return;
    Task running = std::move(task);  // destroyed after it has run, not with the batch
    running();
  }
}

void VirtualLoop::run_turns() {
  turns_.run([this] { return !killed_; });
}

}  // namespace byteps::sim
