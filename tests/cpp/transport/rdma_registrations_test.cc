#include "transport/rdma/registrations.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/slab.h"
#include "support/fake_nic.h"

namespace byteps::transport::rdma {
namespace {

constexpr size_t kPage = 4096;

// Memory of a framework, whose addresses may be reused.
class Foreign {
 public:
  explicit Foreign(size_t pages, void* at = nullptr) : bytes_(pages * kPage) {
    start_ =
        mmap(at, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  }
  ~Foreign() { munmap(start_, bytes_); }
  MutableBytes bytes() const { return {static_cast<std::byte*>(start_), bytes_}; }

 private:
  const size_t bytes_;
  void* start_;
};

struct CountedCard {
  explicit CountedCard(const FakeNicOptions& options = {}) : nic(fabric.make_nic(options)) {}
  Registrations::Ref registration(Registrations& all, Bytes range, Access access = Access::kLocal) {
    auto leased = all.registration(range, access);
    EXPECT_TRUE(leased.is_ok()) << leased.status();
    return *leased;
  }
  uint64_t live() const { return nic->statistics().live_regions; }
  FakeFabric fabric;
  std::unique_ptr<FakeNic> nic;
};

TEST(RdmaRegistrationsTest, ASlabIsRegisteredOnceForAllOfItAndKept) {
  CountedCard card;
  Registrations all(*card.nic);
  const Slab slab(100 * kPage);
  uint32_t key = 0;
  for (size_t i = 0; i < 100; ++i) {
    const auto registration = card.registration(all, slab.bytes().subspan(i * kPage, 10),
                                                i % 2 ? Access::kRemoteWrite : Access::kLocal);
    if (i == 0) key = registration->key().remote;
    EXPECT_EQ(registration->key().remote, key);
  }
  const RegistrationCounts counts = all.counts();
  EXPECT_EQ(counts.made, 1u);
  EXPECT_EQ(counts.regions, 1u) << "kept without a lease";
  EXPECT_EQ(counts.bytes, 100 * kPage);
  EXPECT_EQ(card.live(), 1u);
}

TEST(RdmaRegistrationsTest, OtherMemoryIsForgottenWithItsLastLease) {
  CountedCard card;
  Registrations all(*card.nic);
  const Foreign memory(3);
  auto one = card.registration(all, memory.bytes());
  auto two = card.registration(all, memory.bytes());
  EXPECT_EQ(one->key().local, two->key().local);
  EXPECT_EQ(all.counts().made, 1u);
  one = {};
  EXPECT_EQ(card.live(), 1u);
  two = {};
  EXPECT_EQ(card.live(), 0u);
  EXPECT_EQ(all.counts().regions, 0u);
  card.registration(all, memory.bytes());
  EXPECT_EQ(all.counts().made, 2u);
}

// A neighbour on the same page keeps the region alive, but the rest of it may be other memory by
// now.
TEST(RdmaRegistrationsTest, ANeighboursRegistrationDoesNotVouchForMemoryThatHasGone) {
  CountedCard card;
  Registrations all(*card.nic);
  const Foreign memory(4);
  auto tensor = card.registration(all, memory.bytes().first(3 * kPage + 100));
  const auto neighbour = card.registration(all, memory.bytes().subspan(3 * kPage + 200, 1000));
  const uint32_t old_key = tensor->key().local;
  tensor = {};
  const Foreign other(3, memory.bytes().data());
  tensor = card.registration(all, memory.bytes().first(3 * kPage + 100));
  EXPECT_NE(tensor->key().local, old_key);
  EXPECT_EQ(all.counts().made, 3u);
}

TEST(RdmaRegistrationsTest, LeasesToReadDoNotAllowToWrite) {
  CountedCard card;
  Registrations all(*card.nic);
  const Foreign memory(1);
  const auto reads = card.registration(all, memory.bytes(), Access::kLocal);
  const auto writes = card.registration(all, memory.bytes(), Access::kRemoteWrite);
  EXPECT_NE(reads->key().remote, writes->key().remote);
  EXPECT_EQ(card.registration(all, memory.bytes(), Access::kRemoteWrite)->key().remote, writes->key().remote);
}

TEST(RdmaRegistrationsTest, WithOnDemandPagingOtherMemoryIsKeptToo) {
  CountedCard card({.on_demand_paging = true});
  Registrations all(*card.nic);
  const Foreign memory(8);
  card.registration(all, memory.bytes());
  for (size_t i = 0; i < 8; ++i) card.registration(all, memory.bytes().subspan(i * kPage, 100));
  EXPECT_EQ(all.counts().made, 1u);
  EXPECT_EQ(card.live(), 1u);
}

TEST(RdmaRegistrationsTest, ASlabAtTheAddressesOfAnotherIsAnother) {
  CountedCard card;
  Registrations all(*card.nic);
  auto slab = std::make_unique<Slab>(64 * kPage);
  const std::byte* const first = slab->bytes().data();
  const uint32_t key = card.registration(all, slab->bytes())->key().local;
  int again = 0;
  for (int i = 0; i < 200 && again == 0; ++i) {
    slab.reset();
    slab = std::make_unique<Slab>(64 * kPage);
    const auto registration = card.registration(all, slab->bytes());
    EXPECT_NE(registration->key().local, key);
    again += slab->bytes().data() == first;
    EXPECT_EQ(card.live(), 1u) << "what has gone is forgotten";
  }
  if (again == 0) GTEST_SKIP() << "the kernel gave other addresses each time";
}

TEST(RdmaRegistrationsTest, WhatNobodyNeedsIsKeptUpToABound) {
  CountedCard card;
  Registrations all(*card.nic, 4 * kPage);
  std::vector<std::unique_ptr<Slab>> slabs;
  for (int i = 0; i < 10; ++i) slabs.push_back(std::make_unique<Slab>(2 * kPage));
  const auto in_use = card.registration(all, slabs[0]->bytes());
  for (int i = 1; i < 10; ++i) card.registration(all, slabs[i]->bytes());
  EXPECT_LE(card.live(), 4u) << "one in use, two idle, and the last";
  EXPECT_EQ(card.registration(all, slabs[0]->bytes())->key().local, in_use->key().local);
  EXPECT_EQ(all.counts().made, 10u);
  card.registration(all, slabs[9]->bytes());
  EXPECT_EQ(all.counts().made, 10u) << "the last used ones are kept";
}

TEST(RdmaRegistrationsTest, TheCardsReasonPassesThroughAndNothingIsLeft) {
  CountedCard card({.memlock_bytes = 2 * kPage});
  Registrations all(*card.nic);
  const Slab large(3 * kPage);
  const auto refused = all.registration(large.bytes().first(10), Access::kLocal);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.status().message().find("limit of locked memory"), std::string::npos) << refused.status();
  const Slab small(2 * kPage);
  card.registration(all, small.bytes());
  EXPECT_EQ(all.counts().made, 1u);
  EXPECT_EQ(all.counts().regions, 1u);
}

TEST(RdmaRegistrationsTest, SeveralLoopsShareThem) {
  CountedCard card;
  Registrations all(*card.nic);
  const Slab slab(64 * kPage);
  const Foreign memory(16);
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < 300; ++i) {
        const auto own =
            all.registration(slab.bytes().subspan((thread * 16 + i % 16) * kPage, 10), Access::kLocal);
        const auto foreign =
            all.registration(memory.bytes().subspan(i % 4 * 4 * kPage, kPage), Access::kRemoteWrite);
        failed += !own || !foreign;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(card.live(), 1u);
  EXPECT_EQ(all.counts().regions, 1u);
}

}  // namespace
}  // namespace byteps::transport::rdma
