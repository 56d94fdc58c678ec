// Tests with real devices of libibverbs. They need two devices that reach each other, such as
// Soft-RoCE in a virtual machine. So ctest does not run them, and they are skipped without such
// devices.
#include "transport/rdma/verbs_nic.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <thread>

#include "rdma_device/device_pair.h"
#include "transport/harness.h"

namespace byteps::transport::rdma {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::vector<std::byte> pattern(size_t bytes, int seed) {
  std::vector<std::byte> data(bytes);
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (std::byte& each : data) {
    state = state * 1664525u + 1013904223u;
    each = static_cast<std::byte>(state >> 24);
  }
  return data;
}

class RdmaDevice : public DevicePairTest {};

TEST_F(RdmaDevice, ThePortIsDescribed) {
  const NicInfo& info = nic(0).info();
  EXPECT_EQ(info.device, port(0).device);
  EXPECT_EQ(info.to_string(), port(0).device + " port 1");
  EXPECT_EQ(info.is_ethernet, port(0).is_ethernet);
  EXPECT_EQ(info.interface, port(0).interface);
  EXPECT_GE(info.mtu_bytes, 256);
  EXPECT_GE(info.max_message_bytes, 8 * kMiB);
}

TEST_F(RdmaDevice, TheGidOfThePreferredAddressIsChosen) {
  if (!port(0).is_ethernet) GTEST_SKIP() << "InfiniBand has one GID";
  for (const GidEntry& gid : port(0).gids) {
    const std::string text = to_text(gid.gid);
    const std::string ip = text.starts_with("::ffff:") ? text.substr(7) : text;
    const auto opened = open_verbs_nic({.device = port(0).device, .ip = ip}, {});
    ASSERT_TRUE(opened) << opened.status();
    EXPECT_EQ((*opened)->info().gid, gid.gid);
    EXPECT_NE((*opened)->info().gid_text.find(text), std::string::npos) << (*opened)->info().gid_text;
  }
  const auto wrong = open_verbs_nic({.device = port(0).device}, {.gid_index = 255});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RdmaDevice, AnUnknownDeviceIsAnsweredWithThoseThereAre) {
  const auto nic = open_verbs_nic({.device = "none0"}, {});
  ASSERT_FALSE(nic);
  EXPECT_EQ(nic.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(nic.status().message().find(port(0).to_string()), std::string::npos) << nic.status();
}

TEST_F(RdmaDevice, WritesWithAnImmediateArriveBothWays) {
  ASSERT_NO_FATAL_FAILURE(connect());
  for (const int from : {0, 1}) {
    End& sender = end(from);
    End& receiver = end(1 - from);
    const auto data = pattern(10'000, from);
    std::ranges::copy(data, sender.out.begin());
    ASSERT_TRUE(receiver.queue_pair->post_arrivals(1).is_ok());
    ASSERT_TRUE(sender.queue_pair->post({{sender.write(data.size(), receiver, 0xdeadbeef)}}).is_ok());
    const Completion arrived = receiver.wait();
    ASSERT_TRUE(arrived.ok()) << receiver.queue_pair->describe(arrived.status);
    EXPECT_EQ(arrived.kind, Completion::Kind::kArrived);
    EXPECT_EQ(arrived.immediate, 0xdeadbeefu);
    EXPECT_TRUE(std::ranges::equal(data, std::span(receiver.in).first(data.size())));
    const Completion written = sender.wait();
    ASSERT_TRUE(written.ok()) << sender.queue_pair->describe(written.status);
    EXPECT_EQ(written.kind, Completion::Kind::kWritten);
    EXPECT_EQ(written.id, kWriteId);
  }
}

TEST_F(RdmaDevice, OneCompletionStandsForAllWritesBefore) {
  ASSERT_NO_FATAL_FAILURE(connect());
  constexpr uint32_t kWrites = 100;  // more than one batch
  ASSERT_TRUE(end(1).queue_pair->post_arrivals(kWrites).is_ok());
  std::vector<Write> writes(kWrites, end(0).write(16, end(1), 0));
  for (uint32_t i = 0; i < kWrites; ++i) {
    writes[i].id = i;
    writes[i].immediate = i;
    writes[i].completes = i + 1 == kWrites;
  }
  ASSERT_TRUE(end(0).queue_pair->post(writes).is_ok());
  for (uint32_t i = 0; i < kWrites; ++i) {
    const Completion arrived = end(1).wait();
    ASSERT_TRUE(arrived.ok());
    ASSERT_EQ(arrived.immediate, i);
  }
  const Completion written = end(0).wait();
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(written.id, kWrites - 1);
}

TEST_F(RdmaDevice, WhatHasNoBytesTellsItsImmediate) {
  ASSERT_NO_FATAL_FAILURE(connect());
  ASSERT_TRUE(end(1).queue_pair->post_arrivals(1).is_ok());
  ASSERT_TRUE(end(0)
                  .queue_pair->post({{Write{.id = kWriteId, .data = {}, .immediate = 7, .completes = true}}})
                  .is_ok());
  EXPECT_EQ(end(1).wait().immediate, 7u);
  EXPECT_TRUE(end(0).wait().ok());
}

TEST_F(RdmaDevice, LargeWritesArriveWhole) {
  ASSERT_NO_FATAL_FAILURE(connect());
  const auto data = pattern(8 * kMiB, 5);
  std::ranges::copy(data, end(0).out.begin());
  ASSERT_TRUE(end(1).queue_pair->post_arrivals(1).is_ok());
  Write bulk = end(0).write(data.size(), end(1), 0);
  bulk.immediate.reset();
  bulk.completes = false;
  Write tell{.id = 2, .data = {}, .immediate = 9, .completes = true};
  ASSERT_TRUE(end(0).queue_pair->post({{bulk, tell}}).is_ok());
  EXPECT_EQ(end(1).wait().immediate, 9u);
  EXPECT_TRUE(std::ranges::equal(data, end(1).in));
  EXPECT_EQ(end(0).wait().id, 2u);
}

TEST_F(RdmaDevice, InlineWritesNeedNoRegistrationAndAreCopiedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(connect());
  const uint32_t most = end(0).queue_pair->max_inline_bytes();
  ASSERT_GE(most, 64u);
  auto data = pattern(most, 3);
  const auto expected = data;
  ASSERT_TRUE(end(1).queue_pair->post_arrivals(1).is_ok());
  Write write = end(0).write(0, end(1), 1);
  write.data = data;
  write.local_key = 0;
  ASSERT_TRUE(end(0).queue_pair->post({{write}}).is_ok());
  std::ranges::fill(data, std::byte{0});
  EXPECT_TRUE(end(1).wait().ok());
  EXPECT_TRUE(std::ranges::equal(expected, std::span(end(1).in).first(most)));
  EXPECT_TRUE(end(0).wait().ok());
  const std::vector<std::byte> more(most + 1);
  write.data = more;
  EXPECT_EQ(end(0).queue_pair->post({{write}}).code(), StatusCode::kInternal);
}

TEST_F(RdmaDevice, MoreThanAnyDeviceTakesInlineIsLowered) {
  auto queue_pair = nic(0).make_queue_pair(*end(0).channel, nullptr, {.max_inline_bytes = 1 << 20});
  ASSERT_TRUE(queue_pair) << queue_pair.status();
  EXPECT_LT((*queue_pair)->max_inline_bytes(), 1u << 20);
}

TEST_F(RdmaDevice, AWriteWithAWrongKeyFailsWithAReason) {
  ASSERT_NO_FATAL_FAILURE(connect());
  Write write = end(0).write(64, end(1), 1);
  write.to_key ^= 0x5a5a;
  ASSERT_TRUE(end(1).queue_pair->post_arrivals(1).is_ok());
  ASSERT_TRUE(end(0).queue_pair->post({{write}}).is_ok());
  const Completion failed = end(0).wait();
  EXPECT_FALSE(failed.ok());
  const std::string why = end(0).queue_pair->describe(failed.status);
  EXPECT_EQ(why, "remote access error (10)");
}

TEST_F(RdmaDevice, WhatOneEndLetsFailFailsOnTheOther) {
  ASSERT_NO_FATAL_FAILURE(make_ends({.timeout = 10, .retries = 1}));
  ASSERT_NO_FATAL_FAILURE(connect());
  ASSERT_TRUE(end(0).queue_pair->post_arrivals(1).is_ok());
  end(0).queue_pair->fail();
  const Completion flushed = end(0).wait();
  EXPECT_FALSE(flushed.ok());
  EXPECT_EQ(end(0).queue_pair->describe(flushed.status), "Work Request Flushed Error (5)");
  ASSERT_TRUE(end(1).queue_pair->post({{end(1).write(64, end(0), 1)}}).is_ok());
  EXPECT_FALSE(end(1).wait().ok());
}

TEST_F(RdmaDevice, AnEndThatIsNobodyIsGivenUp) {
  ASSERT_NO_FATAL_FAILURE(make_ends({.timeout = 10, .retries = 1}));
  QueuePairAddress nobody = end(1).queue_pair->address();
  end(1).queue_pair.reset();
  ASSERT_TRUE(end(0).queue_pair->connect(nobody).is_ok());
  ASSERT_TRUE(end(0).queue_pair->post({{end(0).write(64, end(1), 1)}}).is_ok());
  const Completion failed = end(0).wait();
  const std::string text = end(0).queue_pair->describe(failed.status);
  EXPECT_TRUE(text.starts_with("transport retry counter exceeded (12): ")) << text;
}

TEST_F(RdmaDevice, AnEndThatPostedNoArrivalIsAnErrorInBoundedTime) {
  ASSERT_NO_FATAL_FAILURE(connect());
  ASSERT_TRUE(end(0).queue_pair->post({{end(0).write(64, end(1), 1)}}).is_ok());
  const Completion failed = end(0).wait();
  EXPECT_EQ(end(0).queue_pair->describe(failed.status), "RNR retry counter exceeded (13)");
}

TEST_F(RdmaDevice, AnImpossibleAddressIsAnError) {
  QueuePairAddress other = end(1).queue_pair->address();
  for (const int wrong : {0, -1, 1000}) {
    other.mtu_bytes = wrong;
    const Status status = end(0).queue_pair->connect(other);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
  }
  other.mtu_bytes = 1 << 20;  // larger than this end's MTU, so this end's is used
  EXPECT_TRUE(end(0).queue_pair->connect(other).is_ok());
}

TEST_F(RdmaDevice, MoreThanTheDeviceHoldsIsRefusedBeforehand) {
  const auto refused = nic(0).make_queue_pair(*end(0).channel, nullptr, {.max_writes = 1u << 30});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("expected at most"), std::string::npos) << refused.status();
}

TEST_F(RdmaDevice, AnIdleChannelHasNothing) {
  EXPECT_EQ(end(0).channel->next(), nullptr);
  EXPECT_EQ(nic(0).next_event(), NicEvent::kNone);
}

TEST_F(RdmaDevice, ReadOnlyMemoryCanBeSentFrom) {
  const size_t bytes = 1 << 16;
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const MutableBytes range(static_cast<std::byte*>(memory), bytes);
  EXPECT_TRUE(nic(0).register_memory(range, Access::kLocal));
  EXPECT_FALSE(nic(0).register_memory(range, Access::kRemoteWrite));
  ::munmap(memory, bytes);
}

TEST_F(RdmaDevice, SoftwareDevicesTakeNoDmabuf) {
  if (!port(0).device.starts_with("rxe")) GTEST_SKIP() << "others may";
  const auto region = nic(0).register_dmabuf(0, 0, 4096, 0, Access::kRemoteWrite);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.status().code(), StatusCode::kUnimplemented) << region.status();
}

// Root is exempt from the limit of locked memory; drops that capability for this thread only.
void drop_right_to_lock() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
  data[0].effective &= ~(1u << CAP_IPC_LOCK);
  ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
}

TEST_F(RdmaDevice, TheLimitOfLockedMemoryIsExplained) {
  std::vector<std::byte> memory(4 * kMiB);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small{64 * 1024, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &small), 0);
  Status status;
  std::thread([&] {
    drop_right_to_lock();
    status = nic(0).register_memory(memory, Access::kRemoteWrite).status();
  }).join();
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  for (const char* part :
       {"registering 4096 KiB", "is 64 KiB", "ulimit -l unlimited", "LimitMEMLOCK", "memlock=-1"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
}

TEST_F(RdmaDevice, OpeningAndClosingLeavesNothingBehind) {
  std::vector<std::byte> memory(1 << 16);
  const size_t before = open_descriptors();
  for (int opened = 0; opened < 20; ++opened) {
    auto nic = open_verbs_nic({.device = port(0).device}, {});
    ASSERT_TRUE(nic) << opened << ": " << nic.status();
    for (int used = 0; used < 10; ++used) {
      const auto region = (*nic)->register_memory(memory, Access::kRemoteWrite);
      ASSERT_TRUE(region) << used << ": " << region.status();
      const auto channel = (*nic)->make_channel();
      ASSERT_TRUE(channel) << used << ": " << channel.status();
      const auto queue_pair = (*nic)->make_queue_pair(**channel, nullptr, {});
      ASSERT_TRUE(queue_pair) << used << ": " << queue_pair.status();
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace byteps::transport::rdma
