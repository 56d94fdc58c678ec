#include "node/host.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace byteps::node {
namespace {

TEST(NicMbps, IsTheSettingIfThereIsOne) {
  NodeConfig config;
  config.nic_mbps = 250;
  EXPECT_EQ(nic_mbps(config, "127.0.0.1"), 250);
  EXPECT_EQ(nic_mbps(config, "192.0.2.1"), 250);
}

TEST(NicMbps, IsUnknownWhereTheKernelDoesNotTell) {
  EXPECT_EQ(nic_mbps({}, "127.0.0.1"), 0);
  EXPECT_EQ(nic_mbps({}, "192.0.2.1"), 0) << "no interface has this address";
}

NodeConfig config_of(const std::string& scheduler_host) {
  NodeConfig config;
  config.scheduler_host = scheduler_host;
  return config;
}

TEST(SchedulerHost, IsAwaitedUntilTheDeadline) {
  const auto found = await_scheduler_host(config_of("127.0.0.1"), 0, [] { return true; });
  ASSERT_TRUE(found.is_ok()) << found.status();
  EXPECT_EQ(found->front().ip, "127.0.0.1");
  const TimeUs deadline_us = now_us() + 200'000;
  const auto absent =
      await_scheduler_host(config_of("no-such-host.invalid"), deadline_us, [] { return true; });
  EXPECT_GE(now_us(), deadline_us);
  EXPECT_EQ(absent.status().code(), StatusCode::kUnavailable) << absent.status();
  EXPECT_NE(absent.status().message().find("no-such-host.invalid"), std::string::npos) << absent.status();
}

// A directory like /sys/class/net.
class KernelMbps : public testing::Test {
 protected:
  KernelMbps() { std::filesystem::create_directories(net_); }
  ~KernelMbps() override { std::filesystem::remove_all(net_); }

  void add(const std::string& interface, const std::string& speed, const std::vector<std::string>& has) {
    std::filesystem::create_directories(net_ / interface);
    std::ofstream(net_ / interface / "speed") << speed << '\n';
    for (const std::string& name : has) std::filesystem::create_directories(net_ / interface / name);
  }
  double of(const std::string& interface) const { return kernel_mbps(interface, net_); }

  const std::filesystem::path net_ =
      std::filesystem::path(testing::TempDir()) / ("net-" + std::to_string(getpid()));
};

TEST_F(KernelMbps, BelievesHardwareThatTells) {
  add("eth0", "25000", {"device"});
  add("eth1", "-1", {"device"});
  EXPECT_EQ(of("eth0"), 25000);
  EXPECT_EQ(of("eth1"), 0) << "a virtual machine's card, or no cable";
  EXPECT_EQ(of("eth2"), 0) << "no such interface";
}

TEST_F(KernelMbps, BelievesNoInterfaceWithoutHardware) {
  add("veth0", "10000", {});
  add("bridge0", "10000", {"lower_veth0", "lower_veth1"});
  EXPECT_EQ(of("veth0"), 0);
  EXPECT_EQ(of("bridge0"), 0);
}

TEST_F(KernelMbps, LooksBelowAVlan) {
  add("eth0", "25000", {"device"});
  add("eth0.7", "10000", {"lower_eth0"});
  add("veth0", "10000", {});
  add("veth0.7", "10000", {"lower_veth0"});
  EXPECT_EQ(of("eth0.7"), 25000);
  EXPECT_EQ(of("veth0.7"), 0);
}

TEST_F(KernelMbps, BelievesTheSumOfABondOfHardware) {
  add("eth0", "25000", {"device"});
  add("eth1", "25000", {"device"});
  add("veth0", "10000", {});
  add("bond0", "50000", {"lower_eth0", "lower_eth1", "bonding"});
  add("bond1", "35000", {"lower_eth0", "lower_veth0", "bonding"});
  add("bridge0", "10000", {"lower_eth0", "lower_eth1"});
  EXPECT_EQ(of("bond0"), 50000);
  EXPECT_EQ(of("bond1"), 0);
  EXPECT_EQ(of("bridge0"), 0);
}

}  // namespace
}  // namespace byteps::node
