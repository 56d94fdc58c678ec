// Faults that tests can inject into simulated NICs, and the NICs' limits.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <thread>

#include "support/fake_nic.h"
#include "transport/fake_nic_harness.h"

namespace byteps::transport::rdma {
namespace {

TEST(FakeNicFaults, ACutHoldsWritesUntilMendedOrGivenUp) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  fabric.cut(*b.nic, *a.nic);
  ASSERT_TRUE(a.post(a.write(b, 10)).is_ok());
  EXPECT_EQ(fabric.statistics().writes, 0u);
  fabric.mend(*a.nic, *b.nic);
  EXPECT_TRUE(a.next().ok());
  fabric.cut(*a.nic, *b.nic);
  ASSERT_TRUE(a.post(a.write(b, 10)).is_ok());
  EXPECT_FALSE(a.poll());
  fabric.set_options({.unreachable_retry_us = 1000});
  const int status = a.next().status;
  EXPECT_EQ(status, kRetryExceeded);
  EXPECT_EQ(a.pair->describe(status), "transport retry counter exceeded (12)");
}

TEST(FakeNicFaults, AFailedQueuePairFlushesAndTheOtherEndGivesUp) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  fabric.set_options({.delay_us = kNever});
  ASSERT_TRUE(a.pair->post_arrivals(2).is_ok());
  Write silent = a.write(b, 10, 77);
  silent.completes = false;
  ASSERT_TRUE(a.post(silent).is_ok());
  a.pair->fail();
  std::array<Completion, 8> completions;
  ASSERT_EQ(*a.pair->poll(completions), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(completions[i].status, kFlushed);
  EXPECT_EQ(completions[0].id, 77u);
  EXPECT_EQ(a.outcome(silent).status, kFlushed) << "what is posted later, too";
  fabric.set_options({});
  EXPECT_EQ(b.outcome(b.write(a, 10)).status, kRetryExceeded);
}

TEST(FakeNicFaults, APortGoesDownAndComesUp) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  EXPECT_FALSE(is_readable(b.nic->event_fd()));
  b.nic->set_port(false);
  EXPECT_TRUE(is_readable(b.nic->event_fd()));
  EXPECT_EQ(b.nic->next_event(), NicEvent::kPortDown);
  EXPECT_EQ(b.nic->next_event(), NicEvent::kNone);
  ASSERT_TRUE(a.post(a.write(b, 10)).is_ok());
  EXPECT_EQ(fabric.statistics().writes, 0u);
  b.nic->set_port(true);
  EXPECT_EQ(b.nic->next_event(), NicEvent::kPortUp);
  EXPECT_TRUE(a.next().ok());
}

TEST(FakeNicFaults, ADeviceThatIsGoneTakesItsQueuePairsAlong) {
  Ends ends;
  auto& [fabric, a, b] = ends;
  ASSERT_TRUE(b.pair->post_arrivals(1).is_ok());
  b.nic->be_gone();
  EXPECT_EQ(b.nic->next_event(), NicEvent::kGone);
  EXPECT_EQ(b.next().status, kFlushed);
  EXPECT_EQ(a.outcome(a.write(b, 10)).status, kRetryExceeded);
  EXPECT_EQ(b.nic->register_memory(b.memory, Access::kLocal).status().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(b.nic->make_queue_pair(*b.channel, nullptr, {}));
}

TEST(FakeNicFaults, RegistrationsAreCountedLimitedAndMadeToFail) {
  FakeFabric fabric;
  const auto nic = fabric.make_nic({.device = "fake3", .memlock_bytes = 3 * 4096});
  alignas(4096) static std::array<std::byte, 4 * 4096> memory;
  const MutableBytes all = memory;
  auto first = nic->register_memory(all.subspan(4000, 200), Access::kLocal);  // spans two pages
  ASSERT_TRUE(first);
  const auto refused = nic->register_memory(all.first(4097), Access::kLocal);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("fake3 port 1: more than the limit"), std::string::npos)
      << refused.status();
  nic->fail_next_registration(internal("as the test wants"));
  EXPECT_EQ(nic->register_memory(all.first(1), Access::kLocal).status().code(), StatusCode::kInternal);
  const auto second = nic->register_memory(all.first(1), Access::kLocal);
  ASSERT_TRUE(second);
  EXPECT_NE((*first)->key().local, (*second)->key().local);
  FakeNicStatistics counts = nic->statistics();
  EXPECT_EQ(counts.registrations, 2u);
  EXPECT_EQ(counts.failed_registrations, 2u);
  EXPECT_EQ(counts.live_regions, 2u);
  EXPECT_EQ(counts.live_pages, 3u);
  EXPECT_EQ(counts.live_bytes, 201u);
  (*first).reset();
  counts = nic->statistics();
  EXPECT_EQ(counts.live_pages, 1u);
  EXPECT_EQ(counts.registered_pages, 3u);
  const auto paging = fabric.make_nic({.memlock_bytes = 4096, .on_demand_paging = true});
  EXPECT_TRUE(paging->info().on_demand_paging);
  EXPECT_NE(paging->info().gid, nic->info().gid);
  EXPECT_TRUE(paging->register_memory(all, Access::kLocal)) << "pins nothing";
}

TEST(FakeNicFaults, ADmabufIsReachedAtTheAddressesOfItsDevice) {
  constexpr uint64_t kDeviceAddress = 0x7000'0000'0000;
  const UniqueFd file(memfd_create("dma-buf", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 8192), 0);
  Ends ends({.takes_dmabuf = true});
  auto& [fabric, a, b] = ends;
  EXPECT_FALSE(b.nic->register_dmabuf(file.get(), 4096, 4097, kDeviceAddress, Access::kRemoteWrite));
  auto region = b.nic->register_dmabuf(file.get(), 100, 1000, kDeviceAddress, Access::kRemoteWrite);
  ASSERT_TRUE(region) << region.status();
  Write into = a.write(b, 500);
  into.to_address = kDeviceAddress + 500;
  into.to_key = (*region)->key().remote;
  ASSERT_TRUE(a.outcome(into).ok());
  std::string got(500, '\0');
  ASSERT_EQ(pread(file.get(), got.data(), 500, 600), 500);
  EXPECT_EQ(got, pattern(500, 7));
  Write out_of = b.write(a, 0);
  out_of.data = {reinterpret_cast<const std::byte*>(kDeviceAddress + 500), 500};
  out_of.local_key = (*region)->key().local;
  out_of.to_address += 1000;
  ASSERT_TRUE(b.outcome(out_of).ok());
  EXPECT_EQ(as_text(Bytes(a.memory).subspan(1000, 500)), got);
  const auto plain = fabric.make_nic();
  EXPECT_EQ(plain->register_dmabuf(file.get(), 0, 1, 0, Access::kLocal).status().code(),
            StatusCode::kUnimplemented);
}

TEST(FakeNicFaults, AMessageMayBeTooLong) {
  Ends ends({.max_message_bytes = 4096});
  EXPECT_EQ(ends.a.nic->info().max_message_bytes, 4096u);
  EXPECT_TRUE(ends.a.outcome(ends.a.write(ends.b, 4096)).ok());
  EXPECT_EQ(ends.a.outcome(ends.a.write(ends.b, 4097)).status, kLocalLengthError);
}

// Each side answers every arrival with a write of its own, on its own thread.
void play(Side& side, Side& other, bool begins, uint32_t rounds) {
  const auto send = [&](uint32_t round) {
    std::memset(side.memory.data(), static_cast<int>(round & 0xff), 1000);
    Write write = side.write(other, 1000);
    write.to_address += 2000;
    write.immediate = round;
    ASSERT_TRUE(side.post(write).is_ok());
  };
  ASSERT_TRUE(side.pair->post_arrivals(2).is_ok());
  if (begins) send(0);
  for (uint32_t arrived = 0, written = 0; arrived + written < 2 * rounds;) {
    const Completion completion = side.next();
    ASSERT_TRUE(completion.ok()) << side.pair->describe(completion.status);
    if (completion.kind == Completion::Kind::kWritten) {
      ++written;
      continue;
    }
    ASSERT_EQ(completion.immediate, begins ? 2 * arrived + 1 : 2 * arrived);
    for (size_t i = 2000; i < 3000; ++i) {
      ASSERT_EQ(side.memory[i], static_cast<std::byte>(completion.immediate & 0xff));
    }
    ++arrived;
    ASSERT_TRUE(side.pair->post_arrivals(1).is_ok());
    if (!begins || arrived < rounds) send(completion.immediate + 1);
  }
}

TEST(FakeNicFaults, ThereAreNoneBetweenTwoThreads) {
  Ends ends;
  // The first side posts its receive requests on its own thread, so the second side writes only
  // after the first message.
  std::thread first([&] { play(ends.a, ends.b, true, 500); });
  play(ends.b, ends.a, false, 500);
  first.join();
  const auto counts = ends.fabric.statistics();
  EXPECT_EQ(counts.writes, 1000u);
  EXPECT_EQ(counts.changed_while_posted + counts.remote_access_errors + counts.local_protection_errors, 0u);
}

}  // namespace
}  // namespace byteps::transport::rdma
