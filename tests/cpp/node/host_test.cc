#include "node/host.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace byteps::node
