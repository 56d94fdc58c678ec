// Latency and throughput of the transports: one side sends requests, the other answers each with as
// many bytes.
//
// Times are per 200 round trips (ping_pong), per 64 MiB in each direction (stream) and per 200
// requests with answers (burst); bytes_per_second counts both directions. As in workers, requests
// are sent from the requester's own memory and answers are written there. The answering side does
// not read the data. The two sides are event loops of one process, or of two processes in
// *_processes.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "transport/epoll_loop.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::transport {
namespace {

enum class Kind { kShm, kTcp };

constexpr std::string_view kHead = "a head of the usual size, which has 48 bytes: so";

std::unique_ptr<EventLoop> make_loop() { return std::move(*EpollLoop::create("bench")); }

std::unique_ptr<Transport> make_transport(Kind kind) {
  const Credentials credentials{"secret", "bench"};
  if (kind == Kind::kTcp) return make_tcp_transport({.credentials = credentials});
  return make_shm_transport({.stream = {.credentials = credentials}});
}

// The answering side. Answers by reference where possible.
class Answerer final : public Receiver {
 public:
  Answerer(EventLoop& loop, size_t bytes) : loop_(loop), receive_buffer_(bytes) {}
  ~Answerer() override {
    loop_.run_and_wait([this] { connection_.reset(); });
  }
  // Call on the loop.
  void start(std::unique_ptr<Connection> connection) {
    connection_ = std::move(connection);
    connection_->start(this);
  }
  void wait_until_closed() { closed_.get_future().wait(); }

 private:
  Result<ReceiveBuffer> on_head(Connection&, const Arrival& arrival) override {
    if (!arrival.payload.empty()) return ReceiveBuffer::in_place();
    return ReceiveBuffer::at(MutableBytes(receive_buffer_).first(arrival.payload_bytes));
  }
  Status on_frame(Connection& connection, const Arrival& arrival, Bytes payload) override {
    const Bytes answer = arrival.reply_space.empty() ? payload : Bytes(arrival.reply_space);
    connection.send(as_bytes(kHead), {answer, {}, arrival.lease}, {});
    return Status::ok();
  }
  void on_closed(Connection&, const Status&) override { closed_.set_value(); }

  EventLoop& loop_;
  std::vector<std::byte> receive_buffer_;
  std::unique_ptr<Connection> connection_;
  std::promise<void> closed_;
};

// Listens, accepts one connection and answers on it until it is closed.
void answer_one(Kind kind, EventLoop& loop, Answerer& answerer,
                UniqueFunction<void(const Address&)> on_address) {
  const auto transport = make_transport(kind);
  std::promise<void> accepted;
  auto listener = transport->listen(loop, {kind == Kind::kTcp ? "127.0.0.1" : "@", 0},
                                    [&](std::unique_ptr<Connection> connection) {
                                      answerer.start(std::move(connection));
                                      accepted.set_value();
                                    });
  on_address((*listener)->address());
  accepted.get_future().wait();
  loop.run_and_wait([&] { listener->reset(); });
}

std::unique_ptr<Connection> connect(Kind kind, EventLoop& loop, const Address& address) {
  std::promise<std::unique_ptr<Connection>> connected;
  const auto transport = make_transport(kind);
  transport->connect(
      loop, address, now_us() + seconds_to_us(5),
      [&](Result<std::unique_ptr<Connection>> result) { connected.set_value(std::move(result.value())); });
  return connected.get_future().get();
}

// The answering side, in this process or another one. Create it while this process has one thread
// only.
class OtherSide {
 public:
  virtual ~OtherSide() = default;
  virtual std::unique_ptr<Connection> connect_from(EventLoop& loop) = 0;
};

class OtherLoop final : public OtherSide {
 public:
  OtherLoop(Kind kind, size_t bytes) : kind_(kind), loop_(make_loop()), answerer_(*loop_, bytes) {}
  std::unique_ptr<Connection> connect_from(EventLoop& loop) override {
    std::unique_ptr<Connection> connection;
    answer_one(kind_, *loop_, answerer_,
               [&](const Address& address) { connection = connect(kind_, loop, address); });
    return connection;
  }

 private:
  const Kind kind_;
  const std::unique_ptr<EventLoop> loop_;
  Answerer answerer_;
};

class OtherProcess final : public OtherSide {
 public:
  OtherProcess(Kind kind, size_t bytes) : kind_(kind) {
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      serve(bytes, ends[1]);
      _exit(0);
    }
    char text[128] = {};
    const ssize_t got = read(ends[0], text, sizeof text - 1);
    address_ = parse_address(std::string(text, static_cast<size_t>(std::max<ssize_t>(got, 0)))).value();
    close(ends[0]);
    close(ends[1]);
  }
  ~OtherProcess() override { waitpid(pid_, nullptr, 0); }  // it exits when its connection closes
  std::unique_ptr<Connection> connect_from(EventLoop& loop) override {
    return connect(kind_, loop, address_);
  }

 private:
  void serve(size_t bytes, int address_fd) const {
    const auto loop = make_loop();
    Answerer answerer(*loop, bytes);
    answer_one(kind_, *loop, answerer, [address_fd](const Address& address) {
      const std::string text = address.to_string();
      if (write(address_fd, text.data(), text.size()) < 0) std::abort();
    });
    answerer.wait_until_closed();
  }
  const Kind kind_;
  pid_t pid_ = 0;
  Address address_;
};

// The requesting side: `count` requests per step, at most `in_flight` of them unanswered. Each has
// its own memory, as partitions have; answers come in the order of the requests.
class Asker final : public Receiver {
 public:
  Asker(EventLoop& loop, std::unique_ptr<Connection> connection, size_t bytes, int count, int in_flight)
      : loop_(loop),
        connection_(std::move(connection)),
        bytes_(bytes),
        count_(count),
        in_flight_(in_flight),
        memory_(bytes * static_cast<size_t>(count)) {
    loop_.run_and_wait([this] { connection_->start(this); });
  }
  ~Asker() override {
    loop_.run_and_wait([this] { connection_.reset(); });
  }
  void step() {
    done_ = {};
    loop_.run_and_wait([this] {
      asked_ = answered_ = 0;
      while (asked_ < std::min(in_flight_, count_)) ask();
    });
    done_.get_future().wait();
  }

 private:
  MutableBytes memory_of(int request) {
    return MutableBytes(memory_).subspan(bytes_ * static_cast<size_t>(request), bytes_);
  }
  void ask() {
    const MutableBytes own = memory_of(asked_++);
    connection_->send(as_bytes(kHead), {own, own}, {});
  }
  Result<ReceiveBuffer> on_head(Connection&, const Arrival&) override {
    return ReceiveBuffer::at(memory_of(answered_));
  }
  Status on_frame(Connection&, const Arrival&, Bytes) override {
    if (++answered_ == count_) done_.set_value();
    if (asked_ < count_) ask();
    return Status::ok();
  }
  void on_closed(Connection&, const Status&) override {}

  EventLoop& loop_;
  std::unique_ptr<Connection> connection_;
  const size_t bytes_;
  const int count_;
  const int in_flight_;
  std::vector<std::byte> memory_;
  int asked_ = 0;
  int answered_ = 0;
  std::promise<void> done_;
};

template <typename Other>
void ask(benchmark::State& state, Kind kind, int count, int in_flight) {
  const auto bytes = static_cast<size_t>(state.range(0));
  // Created after the other process, which has to be forked before any thread exists.
  std::unique_ptr<EventLoop> loop;
  Other other(kind, bytes);
  loop = make_loop();
  Asker asker(*loop, other.connect_from(*loop), bytes, count, in_flight);
  for (auto _ : state) asker.step();
  state.SetItemsProcessed(state.iterations() * count);
  state.SetBytesProcessed(state.iterations() * 2 * count * static_cast<int64_t>(bytes));
}

void ping_pong(benchmark::State& state, Kind kind) { ask<OtherLoop>(state, kind, 200, 1); }
void ping_pong_processes(benchmark::State& state, Kind kind) { ask<OtherProcess>(state, kind, 200, 1); }

// Keeps 4 MiB of a large tensor in flight.
template <typename Other>
void stream_to(benchmark::State& state, Kind kind) {
  const auto bytes = static_cast<int>(state.range(0));
  ask<Other>(state, kind, (64 << 20) / bytes, (4 << 20) / bytes);
}
void stream(benchmark::State& state, Kind kind) { stream_to<OtherLoop>(state, kind); }
void stream_processes(benchmark::State& state, Kind kind) { stream_to<OtherProcess>(state, kind); }

// Many small tensors at once.
void burst(benchmark::State& state, Kind kind) { ask<OtherLoop>(state, kind, 200, 200); }

void set_up(benchmark::internal::Benchmark* benchmark) {
  benchmark->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(ping_pong, shm, Kind::kShm)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(ping_pong, tcp, Kind::kTcp)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(ping_pong_processes, shm, Kind::kShm)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(ping_pong_processes, tcp, Kind::kTcp)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(stream, shm, Kind::kShm)->Arg(64 << 10)->Arg(256 << 10)->Arg(1 << 20)->Apply(set_up);
BENCHMARK_CAPTURE(stream, tcp, Kind::kTcp)->Arg(64 << 10)->Arg(256 << 10)->Arg(1 << 20)->Apply(set_up);
BENCHMARK_CAPTURE(stream_processes, shm, Kind::kShm)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(stream_processes, tcp, Kind::kTcp)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(burst, shm, Kind::kShm)->Arg(256)->Arg(16 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(burst, tcp, Kind::kTcp)->Arg(256)->Arg(16 << 10)->Apply(set_up);

}  // namespace
}  // namespace byteps::transport
