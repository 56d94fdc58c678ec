// Latency and throughput of the transports between two loops of one process; TCP runs over the loopback.
//
// Times are per round trip or per burst as the name says; bytes_per_second counts both directions. The asking side
// always sends from its own memory and wants the answer there; the answering side reads nothing.
#include <benchmark/benchmark.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "transport/inproc.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::transport {
namespace {

enum class Kind { kInproc, kShm, kTcp };

constexpr std::string_view kHead = "a head of the usual size, which has 48 bytes: so";

std::unique_ptr<Transport> make_transport(Kind kind) {
  const Credentials credentials{"secret", "bench"};
  if (kind == Kind::kTcp) return make_tcp_transport({.credentials = credentials});
  return make_shm_transport({.stream = {.credentials = credentials}});
}

// Two connected ends. `on_frame(side, arrival, payload)` runs on that side's loop.
class Pair {
 public:
  using OnFrame = UniqueFunction<void(int, const Arrival&, Bytes)>;

  Pair(Kind kind, size_t landing_bytes) : receivers_{Side(*this, 0, 0), Side(*this, 1, landing_bytes)} {
    for (auto& loop : loops_) loop = std::move(*EventLoop::create("bench"));
    if (kind == Kind::kInproc) {
      std::tie(ends_[0], ends_[1]) = make_inproc_pair(*loops_[0], *loops_[1]);
    } else {
      connect(*make_transport(kind), {kind == Kind::kTcp ? "127.0.0.1" : "@", 0});
    }
    for (int side : {0, 1}) {
      run(side, [&] { ends_[side]->start(&receivers_[side]); });
    }
  }
  ~Pair() {
    for (int side : {0, 1}) run(side, [&] { ends_[side].reset(); });
  }

  template <typename F>
  void run(int side, F work) {
    loops_[side]->run_and_wait(std::move(work));
  }
  // On that side's loop.
  void send(int side, const Payload& payload) { ends_[side]->send(as_bytes(kHead), payload, {}); }
  // By reference where that is possible.
  void answer(const Arrival& arrival, Bytes payload) {
    send(1, {arrival.reply_space.empty() ? payload : Bytes(arrival.reply_space), {}, arrival.loan});
  }
  void on_frame(OnFrame handler) { on_frame_ = std::move(handler); }
  // Where side 0 wants its next answer; answers come in the order of requests.
  UniqueFunction<MutableBytes()> answer_space;

 private:
  class Side final : public Receiver {
   public:
    Side(Pair& pair, int side, size_t bytes) : pair_(pair), side_(side), landing_(bytes) {}
    Result<Landing> on_head(Connection&, const Arrival& arrival) override {
      if (side_ == 0) return Landing::into(pair_.answer_space());
      if (!arrival.lent.empty()) return Landing::borrow();
      return Landing::into(MutableBytes(landing_).first(arrival.payload_bytes));
    }
    Status on_frame(Connection&, const Arrival& arrival, Bytes payload) override {
      pair_.on_frame_(side_, arrival, payload);
      return Status::ok();
    }
    void on_closed(Connection&, const Status&) override {}  // the pair goes

   private:
    Pair& pair_;
    int side_;
    std::vector<std::byte> landing_;
  };

  void connect(Transport& transport, const Address& address) {
    std::promise<void> accepted;
    std::promise<void> connected;
    auto listener = transport.listen(*loops_[1], address, [&](std::unique_ptr<Connection> connection) {
      ends_[1] = std::move(connection);
      accepted.set_value();
    });
    const TimeUs deadline_us = now_us() + seconds_to_us(5);
    transport.connect(*loops_[0], (*listener)->address(), deadline_us,
                      [&](Result<std::unique_ptr<Connection>> result) {
                        ends_[0] = std::move(result.value());
                        connected.set_value();
                      });
    accepted.get_future().wait();
    connected.get_future().wait();
    run(1, [&] { listener->reset(); });
  }

  std::array<std::unique_ptr<EventLoop>, 2> loops_;
  std::array<Side, 2> receivers_;
  std::array<std::unique_ptr<Connection>, 2> ends_;
  OnFrame on_frame_;
};

// `count` requests per step, of which `in_flight` at most wait for their answer at a time. Each has memory of its own,
// as partitions have.
void ask(benchmark::State& state, Kind kind, int count, int in_flight) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<std::byte> memory(bytes * static_cast<size_t>(count));
  Pair pair(kind, bytes);
  int asked = 0;
  int left = 0;
  std::promise<void> done;
  const auto memory_of = [&](int request) {
    return MutableBytes(memory).subspan(bytes * static_cast<size_t>(request), bytes);
  };
  const auto ask_next = [&] {
    const MutableBytes own = memory_of(asked++);
    pair.send(0, {own, own});
  };
  pair.answer_space = [&] { return memory_of(count - left); };
  pair.on_frame([&](int side, const Arrival& arrival, Bytes payload) {
    if (side == 1) return pair.answer(arrival, payload);
    if (--left == 0) return done.set_value();
    if (asked < count) ask_next();
  });
  for (auto _ : state) {
    done = {};
    pair.run(0, [&] {
      asked = 0;
      left = count;
      while (asked < std::min(in_flight, count)) ask_next();
    });
    done.get_future().wait();
  }
  state.SetItemsProcessed(state.iterations() * count);
  state.SetBytesProcessed(state.iterations() * 2 * count * static_cast<int64_t>(bytes));
}

// One request after the other.
void ping_pong(benchmark::State& state, Kind kind) { ask(state, kind, 200, 1); }
// A tensor of 64 MiB in requests of this size, 4 MiB of them in flight.
void stream(benchmark::State& state, Kind kind) {
  ask(state, kind, static_cast<int>((64 << 20) / state.range(0)),
      static_cast<int>((4 << 20) / state.range(0)));
}
// Many small tensors at once.
void burst(benchmark::State& state, Kind kind) { ask(state, kind, 200, 200); }

void set_up(benchmark::internal::Benchmark* benchmark) {
  benchmark->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(ping_pong, inproc, Kind::kInproc)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(ping_pong, shm, Kind::kShm)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(ping_pong, tcp, Kind::kTcp)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(stream, shm, Kind::kShm)->Arg(64 << 10)->Arg(256 << 10)->Arg(1 << 20)->Apply(set_up);
BENCHMARK_CAPTURE(stream, tcp, Kind::kTcp)->Arg(64 << 10)->Arg(256 << 10)->Arg(1 << 20)->Apply(set_up);
BENCHMARK_CAPTURE(burst, inproc, Kind::kInproc)->Arg(256)->Arg(16 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(burst, shm, Kind::kShm)->Arg(256)->Arg(16 << 10)->Apply(set_up);
BENCHMARK_CAPTURE(burst, tcp, Kind::kTcp)->Arg(256)->Arg(16 << 10)->Apply(set_up);

}  // namespace
}  // namespace byteps::transport
