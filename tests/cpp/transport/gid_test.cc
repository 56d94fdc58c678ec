#include "transport/rdma/gid.h"

#include <gtest/gtest.h>

namespace byteps::transport::rdma {
namespace {

GidEntry entry(int index, const std::string& text, GidType type, std::string interface = "eth0") {
  return {index, parse_gid(text).value(), type, std::move(interface)};
}

// The table of a port with an IPv4 and a global IPv6 address, and of a VLAN with another address.
const std::vector<GidEntry> kTable = {
    entry(0, "fe80::1", GidType::kV1),
    entry(1, "fe80::1", GidType::kV2),
    entry(2, "2001:db8::5", GidType::kV1),
    entry(3, "2001:db8::5", GidType::kV2),
    entry(4, "::ffff:10.0.0.2", GidType::kV1),
    entry(5, "::ffff:10.0.0.2", GidType::kV2),
    entry(6, "::ffff:10.9.0.2", GidType::kV1, "eth0.9"),
    entry(7, "::ffff:10.9.0.2", GidType::kV2, "eth0.9"),
};

int chosen(std::span<const GidEntry> table, const GidPreference& preference) {
  const auto gid = choose_gid(table, preference);
  return gid ? gid->index : -1;
}

TEST(Gid, TextOfSysfsAndOfPeopleIsRead) {
  const auto gid = parse_gid("0000:0000:0000:0000:0000:ffff:0a00:0002");
  ASSERT_TRUE(gid);
  EXPECT_EQ(to_text(*gid), "::ffff:10.0.0.2");
  EXPECT_EQ(gid, parse_gid("::ffff:10.0.0.2"));
  for (const char* wrong : {"", "10.0.0.2", "fe80", "fe80::1%eth0", "0000:0000"})
    EXPECT_FALSE(parse_gid(wrong)) << wrong;
}

TEST(Gid, AnIpAddressHasItsGid) {
  EXPECT_EQ(gid_of_ip("10.0.0.2"), parse_gid("::ffff:10.0.0.2"));
  EXPECT_EQ(gid_of_ip("2001:db8::5"), parse_gid("2001:db8::5"));
  EXPECT_EQ(gid_of_ip("fe80::1%eth0"), parse_gid("fe80::1"));
  for (const char* wrong : {"", "host", "10.0.0", "@name"}) EXPECT_FALSE(gid_of_ip(wrong)) << wrong;
}

TEST(Gid, EntriesSayTheirVersionOnEthernetOnly) {
  EXPECT_EQ(to_text(kTable[5], true), "::ffff:10.0.0.2 (RoCE v2, index 5)");
  EXPECT_EQ(to_text(kTable[4], true), "::ffff:10.0.0.2 (RoCE v1, index 4)");
  EXPECT_EQ(to_text(kTable[0], false), "fe80::1 (index 0)");
}

TEST(GidChoice, WithoutAWishItIsTheFirstIpv4OfVersion2) { EXPECT_EQ(chosen(kTable, {}), 5); }

TEST(GidChoice, TheWantedAddressComesBeforeAllElse) {
  EXPECT_EQ(chosen(kTable, {.ip = "10.9.0.2"}), 7);
  EXPECT_EQ(chosen(kTable, {.ip = "2001:db8::5"}), 3);
  EXPECT_EQ(chosen(kTable, {.ip = "fe80::1%eth0"}), 1);
  EXPECT_EQ(chosen(std::span(kTable).first(5), {.ip = "10.0.0.2"}), 4)
      << "even if there it is version 1 only";
}

TEST(GidChoice, ThenItsInterface) {
  EXPECT_EQ(chosen(kTable, {.ip = "10.9.0.77", .interface = "eth0.9"}), 7);
  EXPECT_EQ(chosen(kTable, {.ip = "10.9.0.77", .interface = "eth1"}), 5);
}

TEST(GidChoice, VersionTwoComesBeforeHowFarItReaches) {
  EXPECT_EQ(chosen(std::span(kTable).first(3), {}), 1);
  EXPECT_EQ(chosen(std::span(kTable).first(4), {}), 3);
}

TEST(GidChoice, AnIndexIsAnOrder) {
  EXPECT_EQ(chosen(kTable, {.index = 0, .ip = "10.0.0.2"}), 0);
  const auto none = choose_gid(kTable, {.index = 9});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(none.status().message().find("no GID of index 9"), std::string::npos);
  EXPECT_NE(none.status().message().find("10.9.0.2 (RoCE v2, index 7)"), std::string::npos);
}

TEST(GidChoice, InfiniBandTakesTheFirst) {
  const std::vector<GidEntry> table = {entry(0, "fe80::2:c903:1", GidType::kV1, ""),
                                       entry(1, "2001:db8::7", GidType::kV1, "")};
  EXPECT_EQ(chosen(table, {.is_ethernet = false}), 0);
  EXPECT_EQ(chosen(table, {.is_ethernet = false, .index = 1}), 1);
}

TEST(GidChoice, AnEmptyTableHasNone) {
  const auto none = choose_gid({}, {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace byteps::transport::rdma
