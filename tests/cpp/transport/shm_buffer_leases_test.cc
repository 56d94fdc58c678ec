// The pure parts of the shared-memory transport (slots, references, leases) and the memory itself.
#include "transport/shm/buffer_leases.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "transport/shm/segment.h"
#include "transport/slots.h"

namespace byteps::transport {
namespace {

constexpr size_t kUnit = Slots::kAlignBytes;

// ---- Slots ----

TEST(Slots, TheLowestRoomThatIsLargeEnoughIsTaken) {
  Slots slots(10 * kUnit);
  EXPECT_EQ(slots.take(1), 0u);
  EXPECT_EQ(slots.take(2 * kUnit), kUnit);
  EXPECT_EQ(slots.take(3 * kUnit + 1), 3 * kUnit);
  EXPECT_EQ(slots.take(4 * kUnit), std::nullopt);
  EXPECT_EQ(slots.take(3 * kUnit), 7 * kUnit);
  EXPECT_EQ(slots.take(1), std::nullopt);
  slots.put_back(7 * kUnit, 3 * kUnit);
  slots.put_back(kUnit, 2 * kUnit);
  EXPECT_EQ(slots.take(3 * kUnit), 7 * kUnit) << "the hole below is too small";
  EXPECT_EQ(slots.take(1), kUnit);
}

TEST(Slots, WhatDoesNotFillAUnitIsNotUsed) {
  EXPECT_EQ(Slots(kUnit - 1).take(1), std::nullopt);
  EXPECT_EQ(Slots(3 * kUnit - 1).free_bytes(), 2 * kUnit);
}

// Compares with a bitmap of units.
TEST(Slots, NeverOverlapAlwaysLowestAndAllComesBack) {
  constexpr size_t kUnits = 200;
  struct Taken {
    size_t offset;
    size_t bytes;
  };
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    Slots slots(kUnits * kUnit);
    std::vector<bool> used(kUnits);
    std::vector<Taken> taken;
    const auto mark = [&](const Taken& slot, bool value) {
      for (size_t i = slot.offset / kUnit; i * kUnit < slot.offset + slot.bytes; ++i) {
        ASSERT_NE(used[i], value) << "seed " << seed;
        used[i] = value;
      }
    };
    const auto lowest_room = [&](size_t units) -> std::optional<size_t> {
      const auto room = std::search_n(used.begin(), used.end(), units, false);
      if (room == used.end()) return std::nullopt;
      return static_cast<size_t>(room - used.begin()) * kUnit;
    };
    for (int step = 0; step < 2000; ++step) {
      if (taken.empty() || random() % 2) {
        const size_t bytes = 1 + random() % (random() % 8 == 0 ? 60 * kUnit : 5 * kUnit);
        const auto offset = slots.take(bytes);
        ASSERT_EQ(offset, lowest_room((bytes + kUnit - 1) / kUnit)) << "seed " << seed;
        if (offset) mark(taken.emplace_back(Taken{*offset, bytes}), true);
      } else {
        std::swap(taken[random() % taken.size()], taken.back());
        slots.put_back(taken.back().offset, taken.back().bytes);
        mark(taken.back(), false);
        taken.pop_back();
      }
    }
    for (const Taken& slot : taken) slots.put_back(slot.offset, slot.bytes);
    EXPECT_EQ(slots.take(kUnits * kUnit), 0u) << "seed " << seed << ": one piece again";
  }
}

// ---- References ----

using ReferenceBytes = std::array<std::byte, kReferenceBytes>;

ReferenceBytes encode_reference(const Reference& reference) {
  ReferenceBytes bytes;
  encode_reference(reference, bytes);
  return bytes;
}

TEST(Reference, IsLaidOutAsDocumented) {
  const ReferenceBytes bytes = encode_reference({ReferenceType::kLent, 0x04030201, 0x08070605, 0x0c0b0a09});
  const unsigned char expected[] = {2, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(Reference, SoundOnesComeBackAndOthersAreRefused) {
  constexpr std::array<uint32_t, 3> kValues{0, 1, 0xffffffff};
  for (uint32_t type = 0; type < 9; ++type) {
    for (const uint32_t lease : kValues) {
      for (const uint32_t data : kValues) {
        for (const uint32_t reply : kValues) {
          const Reference reference{static_cast<ReferenceType>(type), lease, data, reply};
          const bool sound = (type == 1 && !data && !reply) || (type == 2 && lease && (data || reply)) ||
                             (type == 3 && lease && data && !reply) ||
                             (type == 4 && lease && !data && !reply) ||
                             (type == 5 && !lease && !data && !reply);
          const auto decoded = decode_reference(encode_reference(reference));
          EXPECT_EQ(decoded.is_ok(), sound) << type << " " << lease << " " << data << " " << reply;
          if (decoded) {
            EXPECT_EQ(*decoded, reference);
          }
        }
      }
    }
  }
}

TEST(Reference, ArbitraryBytesAreRefusedOrMeanWhatTheySay) {
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    ReferenceBytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 4 ? 0 : random());
    bytes[0] = static_cast<std::byte>(random() % 8);
    const auto decoded =
        decode_reference(Bytes(bytes).first(random() % 50 ? bytes.size() : random() % bytes.size()));
    if (decoded) {
      EXPECT_EQ(encode_reference(*decoded), bytes);
    } else {
      EXPECT_EQ(decoded.status().code(), StatusCode::kDataLoss);
    }
  }
}

// ---- BufferLeases ----

struct BothEnds {
  explicit BothEnds(size_t bytes) : memory(bytes), lease_owner(memory), lease_holder(memory) {}
  std::vector<std::byte> memory;
  LeaseOwner lease_owner;
  LeaseHolder lease_holder;
};

TEST(BufferLeases, DataGoesThereAndTheAnswerComesBackInTheSameMemory) {
  BothEnds ends(1000);
  const std::string_view question = "what is it?";
  std::vector<std::byte> answer_space(20);
  const auto granted = ends.lease_owner.lease({as_bytes(question), answer_space});
  ASSERT_TRUE(granted);
  auto leased = ends.lease_holder.accept(*granted);
  ASSERT_TRUE(leased.is_ok()) << leased.status();
  EXPECT_EQ(as_text(leased->data), question);
  ASSERT_EQ(leased->reply_space.size(), answer_space.size());
  std::memcpy(leased->reply_space.data(), "nothing", 7);
  const Reference returned =
      ends.lease_holder.return_lease(granted->lease, Bytes(leased->reply_space).first(7));
  EXPECT_EQ(returned.type, ReferenceType::kReturned);
  EXPECT_EQ(as_text(ends.lease_owner.answer(returned).value()), "nothing");
  EXPECT_TRUE(ends.lease_owner.take_back(returned.lease).is_ok());
  EXPECT_FALSE(ends.lease_owner.take_back(returned.lease).is_ok()) << "has ended at both ends";
  EXPECT_TRUE(ends.lease_holder.accept(*granted).is_ok());
}

TEST(BufferLeases, AnAnswerFromElsewhereIsSent) {
  BothEnds ends(1000);
  std::vector<std::byte> space(100);
  const auto granted = ends.lease_owner.lease({{}, space});
  ASSERT_TRUE(ends.lease_holder.accept(*granted).is_ok());
  EXPECT_EQ(ends.lease_holder.return_lease(granted->lease, space),
            (Reference{ReferenceType::kInline, granted->lease}));
}

TEST(BufferLeases, OnlyWhatFitsIntoTheMemoryIsLeased) {
  std::vector<std::byte> memory(10 * kUnit + 5);
  std::vector<std::byte> large(memory.size());
  LeaseOwner lease_owner(memory);
  EXPECT_FALSE(lease_owner.may_lease({}));
  EXPECT_TRUE(lease_owner.may_lease({Bytes(large).first(10 * kUnit), {}}));
  EXPECT_TRUE(lease_owner.may_lease({{}, MutableBytes(large).first(1)}));
  EXPECT_FALSE(lease_owner.may_lease({large, {}}));
  EXPECT_FALSE(lease_owner.may_lease({{}, large}));
  // With nothing leased, any payload that may be leased finds room.
  const auto all = lease_owner.lease({Bytes(large).first(10 * kUnit), {}});
  ASSERT_TRUE(all);
  EXPECT_FALSE(lease_owner.lease({Bytes(large).first(1), {}}));
  EXPECT_TRUE(lease_owner.take_back(all->lease).is_ok());
  EXPECT_TRUE(lease_owner.lease({Bytes(large).first(1), {}}));
}

TEST(BufferLeases, OfLargePayloadsNoMoreIsLeasedThanStaysInTheCacheButAlwaysTwo) {
  std::vector<std::byte> memory(8 * kMostLeasedBytes);
  LeaseOwner lease_owner(memory);
  const auto lease = [&](size_t bytes) {
    return lease_owner.lease(
        {.data = Bytes(memory).last(bytes), .reply_space = {}, .is_answered_soon = true});
  };
  const auto first = lease(kMostLeasedBytes - kLargePayloadBytes);
  ASSERT_TRUE(first);
  EXPECT_TRUE(lease(kLargePayloadBytes));
  EXPECT_FALSE(lease(kLargePayloadBytes)) << "although there is room";
  EXPECT_TRUE(lease_owner.lease({Bytes(memory).last(kLargePayloadBytes), {}})) << "waits for the network";
  EXPECT_TRUE(lease(kLargePayloadBytes - 1)) << "a small one";
  EXPECT_TRUE(lease_owner.take_back(first->lease).is_ok());
  EXPECT_TRUE(lease(kLargePayloadBytes));

  std::vector<std::byte> more(16 * kMostLeasedBytes);
  LeaseOwner of_large(more);
  const Payload large{
      .data = Bytes(more).last(2 * kMostLeasedBytes), .reply_space = {}, .is_answered_soon = true};
  EXPECT_TRUE(of_large.lease(large));
  EXPECT_TRUE(of_large.lease(large));
  EXPECT_FALSE(of_large.lease(large));
}

TEST(BufferLeases, ForgedReferencesReachNoMemory) {
  BothEnds ends(4096);
  for (const Reference& forged : {
           Reference{ReferenceType::kLent, 1, 4097, 0},
           Reference{ReferenceType::kLent, 1, 0, 4097},
           Reference{ReferenceType::kLent, 64, 65, 0},
           Reference{ReferenceType::kLent, 65, 1, 0},
           Reference{ReferenceType::kLent, 66, 1, 0},
           Reference{ReferenceType::kLent, 2, 0xffffffff, 0},
           Reference{ReferenceType::kLent, 0xffffffff, 0xffffffff, 0xffffffff},
       }) {
    EXPECT_EQ(ends.lease_holder.accept(forged).status().code(), StatusCode::kDataLoss)
        << forged.lease << " " << forged.data_bytes;
  }
  const Reference sound{ReferenceType::kLent, 64, 64, 64};
  EXPECT_TRUE(ends.lease_holder.accept(sound).is_ok());
  EXPECT_FALSE(ends.lease_holder.accept(sound).is_ok()) << "twice";

  std::vector<std::byte> space(100);
  const auto granted = ends.lease_owner.lease({{}, space});
  EXPECT_FALSE(ends.lease_owner.answer({ReferenceType::kReturned, granted->lease, 101}).is_ok());
  EXPECT_FALSE(ends.lease_owner.answer({ReferenceType::kReturned, granted->lease + 1, 1}).is_ok());
  EXPECT_FALSE(ends.lease_owner.take_back(granted->lease + 1).is_ok());
  EXPECT_TRUE(ends.lease_owner.take_back(granted->lease).is_ok());
  EXPECT_FALSE(ends.lease_owner.take_back(granted->lease).is_ok()) << "twice";
}

// ---- Memory ----

TEST(Segment, TwoMappingsAreTheSameMemory) {
  const auto fd = create_segment(10'000);
  ASSERT_TRUE(fd.is_ok()) << fd.status();
  auto one = Segment::map(fd->get());
  auto two = Segment::map(fd->get());
  ASSERT_TRUE(one.is_ok() && two.is_ok()) << one.status() << two.status();
  ASSERT_EQ(two->bytes().size(), 10'000u);
  EXPECT_NE(one->bytes().data(), two->bytes().data());
  one->bytes().back() = std::byte{7};
  EXPECT_EQ(two->bytes().back(), std::byte{7});
}

TEST(Segment, NobodyCanCutMemoryAwayFromAnother) {
  const auto fd = create_segment(8192);
  ASSERT_TRUE(fd.is_ok()) << fd.status();
  EXPECT_NE(ftruncate(fd->get(), 0), 0);
  EXPECT_NE(ftruncate(fd->get(), 100'000), 0);
  EXPECT_NE(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(Segment, OnlySealedMemoryIsMapped) {
  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(Segment::map(unsealed.get()).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(Segment::map(unsealed.get()).status().code(), StatusCode::kDataLoss) << "half sealed";
  const UniqueFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const int other : {file.get(), -1}) {
    EXPECT_EQ(Segment::map(other).status().code(), StatusCode::kDataLoss);
  }
  const auto empty = create_segment(0);
  EXPECT_EQ(Segment::map(empty->get()).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace byteps::transport
