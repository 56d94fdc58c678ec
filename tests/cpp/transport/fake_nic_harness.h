// Helpers for tests of simulated NICs: connected ends with some memory.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "support/fake_nic.h"
#include "transport/harness.h"

namespace byteps::transport::rdma {

inline bool is_readable(int fd, int wait_ms = 0) {
  pollfd waited{fd, POLLIN, 0};
  return ::poll(&waited, 1, wait_ms) == 1;
}

// A NIC with a queue pair and 64 KiB of memory that the peer may write to.
struct Side {
  explicit Side(FakeFabric& fabric, FakeNicOptions nic_options = {}, QueuePairOptions options = {16, 16, 64})
      : nic(fabric.make_nic(std::move(nic_options))),
        memory(65536),
        channel(std::move(*nic->make_channel())) {
    region = std::move(*nic->register_memory(memory, Access::kRemoteWrite));
    pair = std::move(*nic->make_queue_pair(*channel, this, options));
  }
  void fill(uint32_t seed) { std::memcpy(memory.data(), pattern(memory.size(), seed).data(), memory.size()); }
  Write write(const Side& to, size_t bytes, uint64_t id = 1) const {
    return {.id = id,
            .data = Bytes(memory).first(bytes),
            .local_key = region->key().local,
            .to_address = reinterpret_cast<uintptr_t>(to.memory.data()),
            .to_key = to.region->key().remote,
            .immediate = {},
            .completes = true};
  }
  Status post(const Write& write) { return pair->post({&write, 1}); }
  std::optional<Completion> poll() {
    Completion completion;
    return *pair->poll({&completion, 1}) == 1 ? std::optional(completion) : std::nullopt;
  }
  // Waits as the transport does.
  Completion next() {
    while (true) {
      EXPECT_TRUE(pair->arm().is_ok());
      if (const auto completion = poll()) return *completion;
      if (!is_readable(channel->fd(), 20'000)) break;
      channel->next();
    }
    ADD_FAILURE() << "no completion";
    return {.status = -1};
  }
  Completion outcome(const Write& write) {
    EXPECT_TRUE(post(write).is_ok());
    return next();
  }

  std::unique_ptr<FakeNic> nic;
  std::vector<std::byte> memory;
  std::unique_ptr<CompletionChannel> channel;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> pair;
};

inline void connect(Side& a, Side& b) {
  ASSERT_TRUE(a.pair->connect(b.pair->address()).is_ok());
  ASSERT_TRUE(b.pair->connect(a.pair->address()).is_ok());
}

struct Ends {
  explicit Ends(FakeNicOptions nic_options = {}) : a(fabric, nic_options), b(fabric, nic_options) {
    connect(a, b);
    a.fill(7);
  }
  // Each check sees what the wire has done so far; it may have more to do.
  bool wait_until(const std::function<bool(const FakeFabricStatistics&)>& is_true) {
    const TimeUs deadline_us = soon_us();
    while (!is_true(fabric.statistics())) {
      if (now_us() > deadline_us) return false;
    }
    return true;
  }
  FakeFabric fabric;
  Side a;
  Side b;
};

}  // namespace byteps::transport::rdma
