// Simulated NICs are as strict as fake_nic.h says: code that passes with them should pass on
// hardware.
#include "support/fake_nic.h"

#include <gtest/gtest.h>

#include <cstring>

#include "transport/fake_nic_harness.h"

namespace byteps::transport::rdma {
namespace {

TEST(FakeNic, WritesInOrderAndTellsTheOtherEndAfterwards) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  ASSERT_TRUE(b.pair->post_arrivals(1).is_ok());
  std::vector<Write> writes{a.write(b, 1000, 1), a.write(b, 0, 2), a.write(b, 0, 3)};
  writes[0].completes = writes[1].completes = false;
  writes[1].immediate = 0xabcdef01;
  ASSERT_TRUE(a.pair->post(writes).is_ok());
  const Completion arrived = b.next();
  EXPECT_TRUE(arrived.ok());
  EXPECT_EQ(arrived.kind, Completion::Kind::kArrived);
  EXPECT_EQ(arrived.immediate, 0xabcdef01u);
  EXPECT_EQ(std::memcmp(a.memory.data(), b.memory.data(), 1000), 0);
  EXPECT_NE(b.memory[1000], a.memory[1000]);
  EXPECT_EQ(a.next().id, 3u) << "of those that were not to complete there is nothing";
  EXPECT_EQ(fabric.statistics().mistakes(), 0u);
  EXPECT_EQ(fabric.statistics().writes, 3u);
}

TEST(FakeNic, ReadsOnlyWhatIsRegisteredWithItsKey) {
  const auto attempt = [](const std::function<void(Ends&, Write&)>& spoil) {
    Ends ends;
    std::vector<Write> writes{ends.a.write(ends.b, 100), ends.a.write(ends.b, 1, 2)};
    writes[1].completes = false;
    spoil(ends, writes[0]);
    EXPECT_TRUE(ends.a.pair->post(writes).is_ok());
    const int status = ends.a.next().status;
    if (status != 0) {
      EXPECT_EQ(ends.a.next().status, kFlushed) << "what fails is told even if not asked for";
    }
    const auto counts = ends.fabric.statistics();
    EXPECT_EQ(counts.local_protection_errors, status != 0);
    EXPECT_EQ(counts.writes_from_freed_regions, ends.a.region == nullptr);
    return status;
  };
  EXPECT_EQ(attempt([](Ends&, Write&) {}), 0);
  EXPECT_EQ(attempt([](Ends&, Write& w) { w.data = {w.data.data() + 65530, 7}; }), kLocalProtectionError);
  EXPECT_EQ(attempt([](Ends&, Write& w) { w.data = {w.data.data() - 1, 7}; }), kLocalProtectionError);
  EXPECT_EQ(attempt([](Ends& e, Write& w) { w.local_key = e.a.region->key().remote; }),
            kLocalProtectionError);
  EXPECT_EQ(attempt([](Ends& e, Write& w) {
              w.data = Bytes(e.b.memory).first(100);
              w.local_key = e.b.region->key().local;
            }),
            kLocalProtectionError)
      << "registered at another card";
  EXPECT_EQ(attempt([](Ends&, Write& w) { w.local_key = 0; }), kLocalProtectionError) << "too long to inline";
  EXPECT_EQ(attempt([](Ends& e, Write&) { e.a.region.reset(); }), kLocalProtectionError);
}

TEST(FakeNic, WritesOnlyWhereItMayAndFailsBothEndsOtherwise) {
  const auto attempt = [](const std::function<void(Ends&, Write&)>& spoil) {
    Ends ends;
    Write write = ends.a.write(ends.b, 100);
    spoil(ends, write);
    EXPECT_TRUE(ends.b.pair->post_arrivals(1).is_ok());
    const int status = ends.a.outcome(write).status;
    const auto counts = ends.fabric.statistics();
    EXPECT_EQ(counts.remote_access_errors, status != 0);
    EXPECT_EQ(counts.writes_into_freed_regions, ends.b.region == nullptr);
    if (status != 0) {
      EXPECT_EQ(ends.b.next().status, kFlushed);
    }
    return status;
  };
  EXPECT_EQ(attempt([](Ends&, Write&) {}), 0);
  EXPECT_EQ(attempt([](Ends&, Write& w) { w.to_address += 65437; }), kRemoteAccessError);
  EXPECT_EQ(attempt([](Ends&, Write& w) { w.to_address -= 1; }), kRemoteAccessError);
  EXPECT_EQ(attempt([](Ends& e, Write& w) { w.to_key = e.b.region->key().local; }), kRemoteAccessError);
  EXPECT_EQ(attempt([](Ends& e, Write& w) {
              w.to_address = reinterpret_cast<uintptr_t>(e.a.memory.data());
              w.to_key = e.a.region->key().remote;
            }),
            kRemoteAccessError)
      << "registered at another card";
  EXPECT_EQ(attempt([](Ends& e, Write&) { e.b.region.reset(); }), kRemoteAccessError);
  EXPECT_EQ(attempt([&](Ends& e, Write& w) {
              e.b.region = std::move(*e.b.nic->register_memory(e.b.memory, Access::kLocal));
              w.to_key = e.b.region->key().remote;
            }),
            kRemoteAccessError);
}

TEST(FakeNic, CopiesWhatIsInlinedAndReadsTheRestLater) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  fabric.set_options({.delay_us = kNever});
  Write inlined = a.write(b, 64);
  inlined.local_key = 0;
  Write read_later = a.write(b, 64, 2);
  read_later.to_address += 64;
  ASSERT_TRUE(a.post(inlined).is_ok());
  ASSERT_TRUE(a.post(read_later).is_ok());
  EXPECT_EQ(fabric.statistics().writes, 0u);  // the wire has seen both
  a.fill(8);
  fabric.set_options({});
  EXPECT_EQ(a.next().id, 1u);
  EXPECT_EQ(a.next().id, 2u);
  EXPECT_EQ(as_text(Bytes(b.memory).first(64)), pattern(64, 7));
  EXPECT_EQ(as_text(Bytes(b.memory).subspan(64, 64)), pattern(64, 8));
  EXPECT_EQ(fabric.statistics().changed_while_posted, 1u);
}

TEST(FakeNic, CountsAndHoldsWhatNoArrivalWasPostedFor) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  Write write = a.write(b, 10);
  write.immediate = 5;
  ASSERT_TRUE(a.post(write).is_ok());
  ASSERT_TRUE(ends.wait_until([](const auto& counts) { return counts.receiver_not_ready > 0; }));
  EXPECT_FALSE(a.poll());
  ASSERT_TRUE(b.pair->post_arrivals(1).is_ok());
  EXPECT_EQ(b.next().immediate, 5u);
  EXPECT_TRUE(a.next().ok());
  EXPECT_EQ(fabric.statistics().receiver_not_ready, 1u);
  fabric.set_options({.receiver_not_ready_retry_us = 1000});
  EXPECT_EQ(a.outcome(write).status, kReceiverNotReadyExceeded);
}

TEST(FakeNic, TakesNoMoreThanWasAskedForUntilCompletionsAreSeen) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  std::vector<Write> writes(15, a.write(b, 1, 1));
  for (Write& write : writes) write.completes = false;
  ASSERT_TRUE(a.pair->post(writes).is_ok());
  ASSERT_TRUE(a.post(a.write(b, 1, 16)).is_ok());
  ASSERT_TRUE(ends.wait_until([](const auto& counts) { return counts.writes == 16; }));
  EXPECT_FALSE(a.post(a.write(b, 1)).is_ok()) << "done, but nobody has seen it";
  EXPECT_EQ(a.next().id, 16u);
  EXPECT_TRUE(a.pair->post(writes).is_ok());
  EXPECT_TRUE(b.pair->post_arrivals(16).is_ok());
  EXPECT_FALSE(b.pair->post_arrivals(1).is_ok());
}

TEST(FakeNic, ChannelTellsOncePerArmOfWhatComesAfterIt) {
  Ends ends;
  Side& a = ends.a;
  auto complete_one = [&, done = uint64_t{0}]() mutable {
    ASSERT_TRUE(a.post(a.write(ends.b, 1)).is_ok());
    ++done;
    ASSERT_TRUE(ends.wait_until([&](const auto& counts) { return counts.writes == done; }));
  };
  complete_one();
  EXPECT_FALSE(is_readable(a.channel->fd())) << "not armed";
  ASSERT_TRUE(a.pair->arm().is_ok());
  EXPECT_FALSE(is_readable(a.channel->fd())) << "came before";
  complete_one();
  complete_one();
  EXPECT_TRUE(is_readable(a.channel->fd()));
  EXPECT_EQ(a.channel->next(), &a);
  EXPECT_FALSE(is_readable(a.channel->fd())) << "one event per arm";
  EXPECT_EQ(a.channel->next(), nullptr);
  ASSERT_TRUE(a.pair->arm().is_ok());
  complete_one();
  a.pair.reset();
  EXPECT_EQ(a.channel->next(), nullptr) << "of a queue pair that is destroyed";
}

TEST(FakeNic, TouchesNothingForADestroyedQueuePair) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  fabric.set_options({.delay_us = kNever});
  ASSERT_TRUE(a.post(a.write(b, 1000)).is_ok());
  a.pair.reset();
  a.region.reset();
  a.memory = {};
  fabric.set_options({.absent_retry_us = 100});
  EXPECT_EQ(b.outcome(b.write(b, 1)).status, kRetryExceeded);
  EXPECT_EQ(fabric.statistics().writes, 0u);
}

TEST(FakeNic, ReachesOnlyWhoIsThereAndExpectsIt) {
  const auto attempt = [](const std::function<void(QueuePairAddress&)>& spoil) {
    FakeFabric fabric({.absent_retry_us = 100});
    Side a(fabric);
    Side b(fabric);
    QueuePairAddress address = b.pair->address();
    spoil(address);
    EXPECT_TRUE(a.pair->connect(address).is_ok()) << "nobody is asked";
    EXPECT_FALSE(a.pair->connect(address).is_ok()) << "once";
    EXPECT_TRUE(b.pair->connect(a.pair->address()).is_ok());
    return a.outcome(a.write(b, 1)).status;
  };
  EXPECT_EQ(attempt([](QueuePairAddress&) {}), 0);
  EXPECT_EQ(attempt([](QueuePairAddress& to) { to.number ^= 0x800000; }), kRetryExceeded);
  EXPECT_EQ(attempt([](QueuePairAddress& to) { to.gid[15] ^= 0x80; }), kRetryExceeded);
  EXPECT_EQ(attempt([](QueuePairAddress& to) { to.packet_sequence ^= 1; }), kRetryExceeded);
  FakeFabric fabric;
  Side a(fabric);
  EXPECT_FALSE(a.post(a.write(a, 1)).is_ok()) << "not connected";
  EXPECT_FALSE(a.pair->connect({.number = 1, .mtu_bytes = 1500}).is_ok());
}

}  // namespace
}  // namespace byteps::transport::rdma
