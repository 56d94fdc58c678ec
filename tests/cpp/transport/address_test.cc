#include "transport/address.h"

#include <gtest/gtest.h>

namespace byteps::transport {
namespace {

TEST(Address, ParsesWhatItPrints) {
  for (const Address& address : {Address{"10.0.0.2", 9000}, Address{"::1", 1}, Address{"fe80::1%lo", 65535},
                                 Address{"0.0.0.0", 0}, Address{"::ffff:127.0.0.1", 80},
                                 Address{"@byteps-1:x", 0}, Address{"@" + std::string(107, 'x'), 0}}) {
    const auto parsed = parse_address(address.to_string());
    ASSERT_TRUE(parsed.is_ok()) << parsed.status();
    EXPECT_EQ(*parsed, address);
  }
  EXPECT_EQ((Address{"::1", 9000}).to_string(), "[::1]:9000");
  EXPECT_EQ((Address{"@name", 0}).to_string(), "@name");
  EXPECT_EQ((Address{}).to_string(), "a peer that has already disconnected");
}

TEST(Address, RejectsEverythingElse) {
  for (const char* text : {"",
                           ":",
                           "10.0.0.2",
                           "10.0.0.2:",
                           ":9000",
                           "10.0.0.2:65536",
                           "10.0.0.2:-1",
                           "10.0.0.2:1x",
                           "10.0.0.2: 1",
                           "10.0.0:1:2",
                           "host:9000",
                           "::1",
                           "::1:9000",
                           "[::1]",
                           "[::1]9000",
                           "[10.0.0.2]:9000",
                           "[]:9000",
                           "10.0.0.256:1",
                           "[::1]:+1",
                           "@",
                           "@a b",
                           "@\n"}) {
    const auto parsed = parse_address(text);
    EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument) << text;
  }
}

TEST(Address, KnowsLoopback) {
  for (const char* ip : {"127.0.0.1", "127.0.1.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE((Address{ip, 1}).is_loopback()) << ip;
  }
  for (const char* ip : {"10.0.0.2", "128.0.0.1", "0.0.0.0", "::", "::2", "fe80::1", "::ffff:10.0.0.1",
                         "localhost", "", "@name"}) {
    EXPECT_FALSE((Address{ip, 1}).is_loopback()) << ip;
  }
}

TEST(Address, ResolvesNamesAndNumbers) {
  const auto local = resolve("localhost", 7);
  ASSERT_TRUE(local.is_ok()) << local.status();
  ASSERT_FALSE(local->empty());
  for (const Address& address : *local) {
    EXPECT_TRUE(address.is_loopback()) << address.to_string();
    EXPECT_EQ(address.port, 7);
  }
  EXPECT_EQ(resolve("10.1.2.3", 9).value(), (std::vector<Address>{{"10.1.2.3", 9}}));
  const auto missing = resolve("no-such-host.invalid", 1);
  EXPECT_EQ(missing.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(missing.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST(Address, FindsTheAddressOfAnInterface) {
  EXPECT_EQ(address_of_interface("lo").value(), "127.0.0.1");
  EXPECT_EQ(interface_of_address("127.0.0.1").value(), "lo");
  EXPECT_EQ(interface_of_address("192.0.2.1").status().code(), StatusCode::kInvalidArgument);
  const auto missing = address_of_interface("nope0");
  EXPECT_EQ(missing.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(missing.status().message().find("nope0"), std::string::npos);
  EXPECT_NE(missing.status().message().find("lo"), std::string::npos) << "says which interfaces there are";
}

TEST(Address, TheRouteDecidesWhichAddressIsOurs) {
  EXPECT_EQ(address_by_route({"127.0.0.1", 80}).value(), "127.0.0.1");
  EXPECT_EQ(address_by_route({"127.0.0.1", 0}).value(), "127.0.0.1");
  // The address of this host in /etc/hosts (127.0.1.1 on Debian) cannot be reached by other
  // machines.
  if (const auto outside = address_by_route({"192.0.2.1", 80})) {
    EXPECT_FALSE((Address{*outside, 0}).is_loopback()) << *outside;
  }
  EXPECT_EQ(address_by_route({"some-host", 80}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace byteps::transport
