// Two RDMA devices of this machine that reach each other, with a queue pair each. Tests are skipped
// if there are none.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "transport/rdma/port_report.h"
#include "transport/rdma/verbs_nic.h"

namespace byteps::transport::rdma {

constexpr uint64_t kWriteId = 41;
constexpr size_t kMemoryBytes = 8 << 20;

// Memory and a queue pair on one of the devices.
struct End {
  std::vector<std::byte> in = std::vector<std::byte>(kMemoryBytes);
  std::vector<std::byte> out = std::vector<std::byte>(kMemoryBytes);
  std::unique_ptr<Nic> nic;
  std::unique_ptr<MemoryRegion> in_region;
  std::unique_ptr<MemoryRegion> out_region;
  std::unique_ptr<CompletionChannel> channel;
  std::unique_ptr<QueuePair> queue_pair;

  // A write of the first bytes of `out` to the peer's `in`.
  Write write(size_t bytes, const End& to, uint32_t immediate) const {
    return {.id = kWriteId,
            .data = std::span(out).first(bytes),
            .local_key = out_region->key().local,
            .to_address = reinterpret_cast<uint64_t>(to.in.data()),
            .to_key = to.in_region->key().remote,
            .immediate = immediate,
            .completes = true};
  }

  // Waits for the next completion as an event loop does: arms, polls once more, then waits for the
  // descriptor.
  Completion wait() {
    Completion next{.status = -1};
    EXPECT_TRUE(queue_pair->arm().is_ok());
    for (;;) {
      const auto count = queue_pair->poll({&next, 1});
      EXPECT_TRUE(count) << count.status();
      if (!count || *count == 1) return next;
      pollfd readable{channel->fd(), POLLIN, 0};
      EXPECT_EQ(::poll(&readable, 1, kTimeoutMs), 1) << "no completion within a minute";
      if (readable.revents == 0) return next;
      EXPECT_EQ(channel->next(), this);
      EXPECT_TRUE(queue_pair->arm().is_ok());
    }
  }

  static constexpr int kTimeoutMs = 60'000;
};

class DevicePairTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ports_.clear();
    for (PortReport& report : report_ports()) {
      if (report.usable()) ports_.push_back(std::move(report));
    }
  }
  void SetUp() override {
    if (ports_.size() < 2) GTEST_SKIP() << "no two RDMA devices: " << ports_.size() << " usable";
    // Emulated processors are slow: with a shorter timeout, late packets would be retransmitted.
    make_ends({.timeout = 20});
  }

  void make_ends(const VerbsOptions& options) {
    for (size_t i = 0; i < ends_.size(); ++i) {
      ends_[i] = std::make_unique<End>();
      const PortChoice choice{.device = ports_[i].device, .port = ports_[i].port};
      ASSERT_NO_FATAL_FAILURE(make_end(*ends_[i], choice, options));
    }
  }
  void connect() {
    ASSERT_TRUE(end(0).queue_pair->connect(end(1).queue_pair->address()).is_ok());
    ASSERT_TRUE(end(1).queue_pair->connect(end(0).queue_pair->address()).is_ok());
  }

  const PortReport& port(size_t i) const { return ports_[i]; }
  End& end(size_t i) { return *ends_[i]; }
  Nic& nic(size_t i) { return *ends_[i]->nic; }

 private:
  template <typename T>
  static void keep(Result<std::unique_ptr<T>> made, std::unique_ptr<T>* into) {
    ASSERT_TRUE(made) << made.status();
    *into = std::move(*made);
  }
  static void make_end(End& end, const PortChoice& choice, const VerbsOptions& options) {
    ASSERT_NO_FATAL_FAILURE(keep(open_verbs_nic(choice, options), &end.nic));
    ASSERT_NO_FATAL_FAILURE(keep(end.nic->register_memory(end.in, Access::kRemoteWrite), &end.in_region));
    ASSERT_NO_FATAL_FAILURE(keep(end.nic->register_memory(end.out, Access::kLocal), &end.out_region));
    ASSERT_NO_FATAL_FAILURE(keep(end.nic->make_channel(), &end.channel));
    ASSERT_NO_FATAL_FAILURE(
        keep(end.nic->make_queue_pair(*end.channel, &end, {.max_inline_bytes = 128}), &end.queue_pair));
  }

  static inline std::vector<PortReport> ports_;
  std::array<std::unique_ptr<End>, 2> ends_;
};

}  // namespace byteps::transport::rdma
