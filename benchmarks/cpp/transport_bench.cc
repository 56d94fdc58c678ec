// Latency and throughput of the transports between two loops of one process; TCP runs over the loopback.
//
// Times are per round trip, per frame or per burst as the name says; bytes_per_second counts both directions.
#include <benchmark/benchmark.h>

#include <array>
#include <future>
#include <memory>
#include <vector>

#include "transport/inproc.h"
#include "transport/tcp/tcp_transport.h"

namespace byteps::transport {
namespace {

// Two connected ends. `on_frame(side, payload bytes)` runs on that side's loop.
class Pair {
 public:
  using OnFrame = UniqueFunction<void(int, size_t)>;

  Pair(bool tcp, size_t landing_bytes)
      : receivers_{Side(*this, 0, landing_bytes), Side(*this, 1, landing_bytes)} {
    for (auto& loop : loops_) loop = std::move(*EventLoop::create("bench"));
    if (tcp) {
      connect_tcp();
    } else {
      std::tie(ends_[0], ends_[1]) = make_inproc_pair(*loops_[0], *loops_[1]);
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
  void send(int side, Bytes payload) {
    ends_[side]->send(as_bytes("a head of the usual size, ~48 B."), {payload, {}}, {});
  }
  void on_frame(OnFrame handler) { on_frame_ = std::move(handler); }

 private:
  class Side final : public Receiver {
   public:
    Side(Pair& pair, int side, size_t bytes) : pair_(pair), side_(side), landing_(bytes) {}
    Result<Landing> on_head(Connection& connection, const Arrival& arrival) override {
      if (connection.lends()) return Landing::borrow();
      return Landing::into(MutableBytes(landing_).first(arrival.payload_bytes));
    }
    Status on_frame(Connection&, const Arrival&, Bytes payload) override {
      pair_.on_frame_(side_, payload.size());
      return Status::ok();
    }
    void on_closed(Connection&, const Status&) override {}  // the pair goes

   private:
    Pair& pair_;
    int side_;
    std::vector<std::byte> landing_;
  };

  void connect_tcp() {
    const auto transport = make_tcp_transport({.credentials = {"secret", "bench"}});
    std::promise<void> accepted;
    std::promise<void> connected;
    auto listener =
        transport->listen(*loops_[1], {"127.0.0.1", 0}, [&](std::unique_ptr<Connection> connection) {
          ends_[1] = std::move(connection);
          accepted.set_value();
        });
    const TimeUs deadline_us = now_us() + seconds_to_us(5);
    transport->connect(*loops_[0], (*listener)->address(), deadline_us,
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

void ping_pong(benchmark::State& state, bool tcp) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> payload(bytes);
  Pair pair(tcp, bytes);
  constexpr int kBatch = 500;
  int left = 0;
  std::promise<void> done;
  pair.on_frame([&](int side, size_t) {
    if (side == 1) return pair.send(1, payload);
    if (--left == 0) return done.set_value();
    pair.send(0, payload);
  });
  while (state.KeepRunningBatch(kBatch)) {
    done = {};
    pair.run(0, [&] {
      left = kBatch;
      pair.send(0, payload);
    });
    done.get_future().wait();
  }
}

// 32 frames in flight each way, until each side has got `kFrames`.
void stream_both_ways(benchmark::State& state, bool tcp) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> payload(bytes);
  Pair pair(tcp, bytes);
  constexpr int kFrames = 64;
  std::array<int, 2> left{};
  std::array<std::promise<void>, 2> done;
  pair.on_frame([&](int side, size_t) {
    if (--left[side] == 0) done[side].set_value();
  });
  for (auto _ : state) {
    done = {};
    left = {kFrames, kFrames};
    for (int side : {0, 1}) {
      pair.run(side, [&, side] {
        for (int i = 0; i < kFrames; ++i) pair.send(side, payload);
      });
    }
    for (auto& each : done) each.get_future().wait();
  }
  state.SetBytesProcessed(state.iterations() * 2 * kFrames * static_cast<int64_t>(bytes));
}

// Many small tensors at once: `kFrames` frames go out, and each is answered by one of the same size.
void burst(benchmark::State& state, bool tcp) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> payload(bytes);
  Pair pair(tcp, bytes);
  constexpr int kFrames = 200;
  int left = 0;
  std::promise<void> done;
  pair.on_frame([&](int side, size_t) {
    if (side == 1) return pair.send(1, payload);
    if (--left == 0) done.set_value();
  });
  for (auto _ : state) {
    done = {};
    pair.run(0, [&] {
      left = kFrames;
      for (int i = 0; i < kFrames; ++i) pair.send(0, payload);
    });
    done.get_future().wait();
  }
  state.SetBytesProcessed(state.iterations() * 2 * kFrames * static_cast<int64_t>(bytes));
}

BENCHMARK_CAPTURE(ping_pong, tcp, true)
    ->Arg(64)
    ->Arg(4 << 10)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(ping_pong, inproc, false)
    ->Arg(64)
    ->Arg(4 << 10)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(stream_both_ways, tcp, true)
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->Arg(4 << 20)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(burst, tcp, true)
    ->Arg(256)
    ->Arg(16 << 10)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(burst, inproc, false)
    ->Arg(256)
    ->Arg(16 << 10)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace byteps::transport
