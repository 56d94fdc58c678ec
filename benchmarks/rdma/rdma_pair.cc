// One of two processes that send frames to each other by RDMA, to be compared with perftest's programs.
//
//   rdma_pair listen DEVICE PORT
//   rdma_pair connect DEVICE IP:PORT bandwidth|latency BYTES ITERATIONS
//
// The connecting one measures and writes one line, {"seconds": ..., "cpu_s": ...}: bandwidth: BYTES from here to there
// ITERATIONS times, kWindow under way at a time, each kept in memory of the other end until that says so; latency:
// BYTES there and BYTES back ITERATIONS times. Before it, a tenth as many that do not count.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/event_flag.h"
#include "base/log.h"
#include "base/slab.h"
#include "transport/epoll_loop.h"
#include "transport/rdma/rdma_transport.h"
#include "transport/rdma/verbs_nic.h"

namespace byteps::transport {
namespace {

constexpr uint64_t kWindow = 16;
constexpr double kDeadlineS = 120;

double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

[[noreturn]] void give_up(const Status& why) {
  std::fprintf(stderr, "rdma_pair: %s\n", why.message().c_str());
  std::_Exit(1);
}

std::unique_ptr<Transport> open(const std::string& device) {
  auto nic = rdma::open_verbs_nic({.device = device, .port = 1}, {.timeout = 20});
  if (!nic) give_up(nic.status());
  std::vector<std::unique_ptr<rdma::Nic>> nics;
  nics.push_back(std::move(*nic));
  return make_rdma_transport(
      {.stream = {.credentials = {"a secret of the benchmark", "pair"}}, .spin_us = 20}, std::move(nics));
}

// Answers every frame: with its own bytes if it wants an answer of that size, else without any.
class Answerer final : public Receiver {
 public:
  Result<ReceiveBuffer> on_head(Connection&, const Arrival& arrival) override {
    if (!arrival.payload.empty()) return ReceiveBuffer::in_place();
    if (memory_.size() < arrival.payload_bytes) memory_.resize(arrival.payload_bytes);
    return ReceiveBuffer::at(MutableBytes(memory_).first(arrival.payload_bytes));
  }
  Status on_frame(Connection& connection, const Arrival& arrival, Bytes payload) override {
    const bool echoes = as_text(arrival.head) == "latency";
    connection.send(arrival.head,
                    {.data = echoes ? payload : Bytes(), .reply_space = {}, .returns_lease = arrival.lease},
                    nullptr);
    return Status::ok();
  }
  void on_closed(Connection&, const Status&) override { closed.set(); }
  EventFlag closed;

 private:
  std::vector<std::byte> memory_;
};

// Keeps a window of frames under way until all are answered.
class Asker final : public Receiver {
 public:
  Asker(std::string what, size_t bytes) : what_(std::move(what)), bytes_(bytes), slab_(kWindow * bytes) {
    std::memset(slab_.bytes().data(), 7, slab_.bytes().size());
  }
  void ask(Connection& connection, uint64_t count) {
    left_ = unanswered_ = count;
    const uint64_t window = what_ == "latency" ? 1 : std::min(kWindow, count);
    for (uint64_t i = 0; i < window; ++i) send(connection);
  }
  Result<ReceiveBuffer> on_head(Connection&, const Arrival& arrival) override {
    return ReceiveBuffer::at(slab_.bytes().first(arrival.payload_bytes));
  }
  Status on_frame(Connection& connection, const Arrival&, Bytes) override {
    if (--unanswered_ == 0) done.set();
    if (left_ > 0) send(connection);
    return Status::ok();
  }
  void on_closed(Connection&, const Status& why) override { give_up(why); }
  EventFlag done;

 private:
  // Answers come in order, so the place whose turn it is has been answered.
  void send(Connection& connection) {
    --left_;
    const uint64_t place = next_++ % kWindow;
    connection.send(
        as_bytes(what_),
        {.data = slab_.bytes().subspan(place * bytes_, bytes_), .reply_space = {}, .reuse_key = place + 1},
        nullptr);
  }
  const std::string what_;
  const size_t bytes_;
  Slab slab_;
  uint64_t left_ = 0;
  uint64_t unanswered_ = 0;
  uint64_t next_ = 0;
};

int listen(const std::string& device, uint16_t port) {
  auto loop = EpollLoop::create("listener");
  if (!loop) give_up(loop.status());
  auto transport = open(device);
  Answerer answerer;
  std::unique_ptr<Connection> connection;
  auto listener = transport->listen(**loop, {"0.0.0.0", port}, [&](std::unique_ptr<Connection> accepted) {
    connection = std::move(accepted);
    connection->start(&answerer);
  });
  if (!listener) give_up(listener.status());
  if (answerer.closed.wait(now_us() + seconds_to_us(kDeadlineS)) != EventFlag::Wake::kSet)
    give_up(unavailable("nobody came"));
  std::printf("{\"cpu_s\": %.6f}\n", cpu_s());
  (*loop)->stop();
  connection.reset();
  return 0;
}

int connect(const std::string& device, const std::string& address, const std::string& what, size_t bytes,
            uint64_t iterations) {
  auto loop = EpollLoop::create("asker");
  if (!loop) give_up(loop.status());
  auto transport = open(device);
  std::unique_ptr<Connection> connection;
  EventFlag connected;
  auto parsed = parse_address(address);
  if (!parsed) give_up(parsed.status());
  transport->connect(**loop, *parsed, now_us() + seconds_to_us(kDeadlineS),
                     [&](Result<std::unique_ptr<Connection>> result) {
                       if (!result) give_up(result.status());
                       connection = std::move(*result);
                       connected.set();
                     });
  connected.wait(kNever);
  Asker warm(what, bytes);
  Asker asker(what, bytes);
  class Both final : public Receiver {
   public:
    Receiver* now = nullptr;
    Result<ReceiveBuffer> on_head(Connection& c, const Arrival& a) override { return now->on_head(c, a); }
    Status on_frame(Connection& c, const Arrival& a, Bytes p) override { return now->on_frame(c, a, p); }
    void on_closed(Connection& c, const Status& why) override { now->on_closed(c, why); }
  } both;
  (*loop)->post([&] {
    both.now = &warm;
    connection->start(&both);
    warm.ask(*connection, std::max<uint64_t>(iterations / 10, kWindow));
  });
  warm.done.wait(kNever);
  const double cpu_before_s = cpu_s();
  const TimeUs before_us = now_us();
  (*loop)->post([&] {
    both.now = &asker;
    asker.ask(*connection, iterations);
  });
  asker.done.wait(kNever);
  std::printf("{\"seconds\": %.6f, \"cpu_s\": %.6f}\n", static_cast<double>(now_us() - before_us) * 1e-6,
              cpu_s() - cpu_before_s);
  (*loop)->stop();
  connection.reset();
  return 0;
}

}  // namespace
}  // namespace byteps::transport

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "listen") {
    return byteps::transport::listen(words[1], static_cast<uint16_t>(std::stoi(words[2])));
  }
  if (words.size() == 6 && words[0] == "connect") {
    return byteps::transport::connect(words[1], words[2], words[3], std::stoul(words[4]),
                                      std::stoul(words[5]));
  }
  std::fprintf(
      stderr,
      "usage: rdma_pair listen DEVICE PORT | connect DEVICE IP:PORT bandwidth|latency BYTES ITERATIONS\n");
  return 2;
}
