// Helpers of the transport tests: waits with deadlines, a recording receiver, connected pairs.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/event_flag.h"
#include "transport/epoll_loop.h"
#include "transport/inproc.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::transport {

inline constexpr auto kTestDeadline = std::chrono::seconds(20);

inline std::unique_ptr<EpollLoop> make_loop() {
  auto loop = EpollLoop::create("test loop");
  BPS_CHECK(loop.is_ok()) << loop.status();
  return std::move(*loop);
}

// Runs `work` on the loop and returns its result.
template <typename F>
auto on_loop(EventLoop& loop, F work) {
  std::optional<decltype(work())> result;
  BPS_CHECK(loop.run_and_wait([&] { result.emplace(work()); }));
  return std::move(*result);
}
inline void run_on(EventLoop& loop, const std::function<void()>& work) { BPS_CHECK(loop.run_and_wait(work)); }

// Blocks a loop during its lifetime, as in a stopped process.
class StoppedLoop {
 public:
  explicit StoppedLoop(EventLoop& loop) {
    EventFlag stands;
    loop.post([this, &stands] {
      stands.set();
      go_on_.wait(kNever);
      gone_on_.set();
    });
    stands.wait(kNever);
  }
  ~StoppedLoop() {
    go_on_.set();
    gone_on_.wait(kNever);
  }

 private:
  EventFlag go_on_;
  EventFlag gone_on_;
};

// A value that tests wait for. Thread-safe.
template <typename T>
class Watched {
 public:
  void update(const std::function<void(T&)>& change) {
    std::lock_guard lock(mutex_);
    change(value_);
    changed_.notify_all();
  }
  T get() const {
    std::lock_guard lock(mutex_);
    return value_;
  }
  // Returns false if the condition has not become true by the deadline.
  bool wait(const std::function<bool(const T&)>& is_true) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kTestDeadline, [&] { return is_true(value_); });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  T value_{};
};

struct Received {
  std::string head;
  std::string payload;
};

struct Seen {
  std::vector<Received> frames;
  size_t heads = 0;
  int interruptions = 0;
  std::vector<Status> closed;
  bool after_close = false;  // a callback was called after on_closed
};

// Records every frame and keeps no lease. Tests may replace the callbacks. A frame is recorded
// after its callback has returned, so a test that has waited for the last frame may destroy what
// the callbacks refer to.
class Recorder : public Receiver {
 public:
  // Default: a buffer of the recorder.
  std::function<Result<ReceiveBuffer>(Connection&, const Arrival&)> head;
  std::function<Status(Connection&, const Arrival&, Bytes)> frame;  // default: does nothing
  bool keeps_leases = false;                                        // `frame` returns the leases
  Watched<Seen> seen;

  bool wait_for_frames(size_t count) {
    return seen.wait([&](const Seen& s) { return s.frames.size() >= count; });
  }
  bool wait_until_closed() {
    return seen.wait([](const Seen& s) { return !s.closed.empty(); });
  }
  Status why_closed() {
    if (!wait_until_closed()) return internal("not closed in time");
    const Seen now = seen.get();
    EXPECT_EQ(now.closed.size(), 1u);
    EXPECT_FALSE(now.after_close);
    return now.closed.front();
  }

  Result<ReceiveBuffer> on_head(Connection& connection, const Arrival& arrival) override {
    seen.update([](Seen& s) {
      ++s.heads;
      s.after_close |= !s.closed.empty();
    });
    if (head) return head(connection, arrival);
    memory_.resize(arrival.payload_bytes);
    // Either way, the receiver gets the same bytes.
    return memory_.size() % 2 == 0 ? ReceiveBuffer::at(memory_) : ReceiveBuffer::at_cold(memory_);
  }
  Status on_frame(Connection& connection, const Arrival& arrival, Bytes payload) override {
    Received received{std::string(as_text(arrival.head)), std::string(as_text(payload))};
    seen.update([](Seen& s) { s.after_close |= !s.closed.empty(); });
    Status status = frame ? frame(connection, arrival, payload) : Status::ok();
    if (!keeps_leases) connection.return_lease(arrival.lease);
    seen.update([&](Seen& s) { s.frames.push_back(std::move(received)); });
    return status;
  }
  void on_interrupted(Connection&) override {
    seen.update([](Seen& s) { ++s.interruptions; });
  }
  void on_closed(Connection&, const Status& why) override {
    seen.update([&](Seen& s) { s.closed.push_back(why); });
  }

 private:
  std::vector<std::byte> memory_;
};

// Counts on_sent of many frames; each must be called exactly once.
class SentLog {
 public:
  UniqueFunction<void(const Status&)> expect_one() {
    const size_t index = expected_++;
    log_.update([&](auto& log) { log.resize(expected_); });
    return [this, index](const Status& status) {
      log_.update([&](auto& log) { log[index].push_back(status); });
    };
  }
  bool wait_for_all() {
    return log_.wait([](const auto& log) {
      for (const auto& each : log) {
        if (each.empty()) return false;
      }
      return true;
    });
  }
  size_t done() const {
    size_t count = 0;
    for (const auto& each : log_.get()) count += !each.empty();
    return count;
  }
  std::vector<Status> all() {
    EXPECT_TRUE(wait_for_all());
    std::vector<Status> result;
    for (const auto& each : log_.get()) {
      EXPECT_EQ(each.size(), 1u);
      if (!each.empty()) result.push_back(each.front());
    }
    return result;
  }

 private:
  size_t expected_ = 0;
  Watched<std::vector<std::vector<Status>>> log_;
};

inline std::string pattern(size_t bytes, uint32_t seed) {
  std::string text(bytes, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& c : text) {
    state = state * 1664525u + 1013904223u;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

inline TimeUs soon_us(double seconds = 15) { return now_us() + seconds_to_us(seconds); }

// Waits until the condition is true, by polling.
inline bool eventually(const std::function<bool()>& is_true) {
  const TimeUs deadline_us = soon_us();
  while (!is_true()) {
    if (now_us() > deadline_us) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Number of descriptors of this process.
inline size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}
// Bytes of this process's memory that NICs have registered.
inline size_t pinned_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmPin:")) return std::stoul(line.substr(6)) * 1024;
  }
  return 0;
}

inline Payload payload_of(std::string_view text) { return {as_bytes(text), {}}; }

inline Credentials test_credentials() { return {"a secret of the test", "job 7"}; }

// Connects to `address` and waits for the outcome.
inline Result<std::unique_ptr<Connection>> connect_and_wait(Transport& transport, EventLoop& loop,
                                                            const Address& address, ConnectLimits limits) {
  struct Outcome {
    std::unique_ptr<Connection> connection;
    std::optional<Status> status;
  };
  std::mutex mutex;
  std::condition_variable changed;
  Outcome outcome;
  transport.connect(loop, address, limits, [&](Result<std::unique_ptr<Connection>> result) {
    std::lock_guard lock(mutex);
    outcome.status = result.status();
    if (result) outcome.connection = std::move(*result);
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  if (!changed.wait_for(lock, kTestDeadline * 2, [&] { return outcome.status.has_value(); })) {
    ADD_FAILURE() << "connect() gave no answer";
    std::abort();  // the callback refers to this stack frame
  }
  if (!outcome.status->is_ok()) return *outcome.status;
  return std::move(outcome.connection);
}

// A listener that keeps accepted connections until the test takes them.
class Acceptor {
 public:
  Acceptor(Transport& transport, EventLoop& loop, const Address& address) : loop_(loop) {
    auto listener = transport.listen(loop, address, callback());
    BPS_CHECK(listener.is_ok()) << listener.status();
    listener_ = std::move(*listener);
  }
  Acceptor(Transport& transport, EventLoop& loop, int fd) : loop_(loop) {
    auto listener = transport.listen_on(loop, UniqueFd(fd), callback());
    BPS_CHECK(listener.is_ok()) << listener.status();
    listener_ = std::move(*listener);
  }
  ~Acceptor() {
    run_on(loop_, [&] {
      listener_.reset();
      accepted_.clear();
    });
  }
  const Address& address() const { return listener_->address(); }
  std::unique_ptr<Connection> take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kTestDeadline, [&] { return !accepted_.empty(); })) return nullptr;
    auto first = std::move(accepted_.front());
    accepted_.pop_front();
    return first;
  }
  size_t waiting() {
    std::lock_guard lock(mutex_);
    return accepted_.size();
  }

 private:
  AcceptCallback callback() {
    return [this](std::unique_ptr<Connection> connection) {
      std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(connection));
      changed_.notify_all();
    };
  }
  EventLoop& loop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Connection>> accepted_;
  std::unique_ptr<Listener> listener_;
};

}  // namespace byteps::transport
