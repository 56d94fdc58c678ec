#include "transport/rdma/port_report.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "transport/rdma/port_facts.h"

namespace byteps::transport::rdma {
namespace {

namespace fs = std::filesystem;

PortFacts roce() {
  PortFacts facts;
  facts.device = "mlx5_0";
  facts.node_type = "1: CA";
  facts.link_layer = "Ethernet";
  facts.state = "4: ACTIVE";
  facts.physical = "5: LinkUp";
  facts.rate = "100 Gb/sec (4X EDR)";
  facts.lid = "0x0";
  facts.numa_node = "1";
  facts.gids = {{0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", "eth0"},
                {1, "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2", "eth0"},
                {2, "0000:0000:0000:0000:0000:0000:0000:0000", "", ""}};
  facts.character_device = "/dev/infiniband/uverbs0";
  return facts;
}

PortFacts infiniband() {
  PortFacts facts = roce();
  facts.link_layer = "InfiniBand";
  facts.lid = "0x1f";
  facts.gids = {{0, "fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1", ""}};
  return facts;
}

TEST(PortReport, ARoCEPortIsUnderstood) {
  const PortReport port = make_report(roce());
  EXPECT_TRUE(port.usable()) << port.why_not;
  EXPECT_EQ(port.to_string(), "mlx5_0 port 1");
  EXPECT_TRUE(port.is_ethernet);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.physical, "LinkUp");
  EXPECT_EQ(port.mbps, 100000u);
  EXPECT_EQ(port.numa_node, 1);
  EXPECT_EQ(port.interface, "eth0");
  ASSERT_EQ(port.gids.size(), 2u) << "entries of zeros are not in use";
  EXPECT_EQ(port.gids[1].type, GidType::kV2);
  EXPECT_EQ(to_text(port.gids[1].gid), "::ffff:10.0.0.2");
}

TEST(PortReport, AnInfiniBandPortHasALidAndNoInterface) {
  const PortReport port = make_report(infiniband());
  EXPECT_TRUE(port.usable()) << port.why_not;
  EXPECT_FALSE(port.is_ethernet);
  EXPECT_EQ(port.lid, 0x1f);
  EXPECT_EQ(port.interface, "");
}

TEST(PortReport, WhatIsNotThereIsUnknown) {
  PortFacts facts = roce();
  facts.rate = facts.numa_node = "";
  facts.gids = {{1, "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2", ""}};
  facts.interface = "eth7";
  const PortReport port = make_report(facts);
  EXPECT_EQ(port.mbps, 0u);
  EXPECT_EQ(port.numa_node, -1);
  EXPECT_EQ(port.interface, "eth7");
  facts.rate = "2.5 Gb/sec (1X SDR)";
  EXPECT_EQ(make_report(facts).mbps, 2500u);
}

TEST(PortReport, AReasonSaysWhatToDo) {
  struct Case {
    PortFacts facts;
    std::vector<std::string> says;
  };
  PortFacts down = roce();
  down.state = "1: DOWN";
  down.physical = "3: Disabled";
  PortFacts unmanaged = infiniband();
  unmanaged.state = "2: INIT";
  PortFacts unplugged = infiniband();
  unplugged.state = "1: DOWN";
  unplugged.physical = "2: Polling";
  PortFacts without_gid = roce();
  without_gid.gids.clear();
  without_gid.interface = "eth0";
  PortFacts iwarp = roce();
  iwarp.node_type = "4: RNIC";
  PortFacts no_module = roce();
  no_module.character_device = "";
  PortFacts forbidden = roce();
  forbidden.character_device_error = EACCES;
  const Case cases[] = {
      {down, {"mlx5_0 port 1 is DOWN (physical state: Disabled)", "cable", "ip link show eth0"}},
      {unmanaged, {"is INIT", "subnet manager"}},
      {unplugged, {"is DOWN (physical state: Polling)", "cable"}},
      {without_gid, {"has no GID", "eth0", "ip address add"}},
      {iwarp, {"neither InfiniBand nor RoCE", "4: RNIC"}},
      {no_module, {"modprobe ib_uverbs"}},
      {forbidden, {"/dev/infiniband/uverbs0: Permission denied", "--device /dev/infiniband/uverbs0"}},
  };
  for (const Case& each : cases) {
    const std::string why = make_report(each.facts).why_not;
    for (const std::string& part : each.says) EXPECT_NE(why.find(part), std::string::npos) << why;
  }
}

// A fake sysfs in a temporary folder.
class PortFactsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = (fs::temp_directory_path() / "byteps-sysfs-XXXXXX").string();
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void put_port(const std::string& device, int port) {
    const std::string folder = "sys/class/infiniband/" + device + "/ports/" + std::to_string(port) + "/";
    put("sys/class/infiniband/" + device + "/node_type", "1: CA");
    put(folder + "state", "4: ACTIVE");
    put(folder + "link_layer", "Ethernet");
    put(folder + "gids/0", "0000:0000:0000:0000:0000:0000:0000:0000");
    put(folder + "gids/10", "0000:0000:0000:0000:0000:ffff:0a00:0002");
    put(folder + "gids/2", "fe80:0000:0000:0000:0000:0000:0000:0001");
    put(folder + "gid_attrs/types/10", "RoCE v2");
    put(folder + "gid_attrs/ndevs/10", "eth1");
  }
  std::vector<PortFacts> read(const std::string& device = "") const {
    return read_port_facts(root_ / "sys", root_ / "dev", device);
  }

  fs::path root_;
};

TEST_F(PortFactsTest, AMachineWithoutDevicesHasNoPorts) { EXPECT_TRUE(read().empty()); }

TEST_F(PortFactsTest, PortsComeInOrderWithWhatTheirFilesSay) {
  put_port("mlx5_1", 1);
  put_port("mlx5_0", 2);
  put_port("mlx5_0", 1);
  put("sys/class/infiniband/mlx5_0/device/numa_node", "1");
  const auto ports = read();
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_EQ(ports[0].device + std::to_string(ports[0].port), "mlx5_01");
  EXPECT_EQ(ports[1].device + std::to_string(ports[1].port), "mlx5_02");
  EXPECT_EQ(ports[2].device, "mlx5_1");
  EXPECT_EQ(ports[0].numa_node, "1");
  EXPECT_EQ(ports[2].numa_node, "");
  EXPECT_EQ(read("mlx5_0").size(), 2u);
  EXPECT_TRUE(read("mlx5").empty());
  ASSERT_EQ(ports[0].gids.size(), 2u);
  EXPECT_EQ(ports[0].gids[0].index, 2);
  EXPECT_EQ(ports[0].gids[0].type, "");
  EXPECT_EQ(ports[0].gids[1].index, 10);
  EXPECT_EQ(ports[0].gids[1].type, "RoCE v2");
  EXPECT_EQ(ports[0].gids[1].interface, "eth1");
}

TEST_F(PortFactsTest, TheInterfaceOfAPortWithoutGidsIsFound) {
  put_port("mlx5_0", 1);
  put_port("mlx5_0", 2);
  put_port("rxe0", 1);
  put("sys/class/infiniband/mlx5_0/device/net/ens1/dev_port", "0");
  put("sys/class/infiniband/mlx5_0/device/net/ens1d1/dev_port", "1");
  put("sys/class/infiniband/rxe0/parent", "eth5");
  const auto ports = read();
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_EQ(ports[0].interface, "ens1");
  EXPECT_EQ(ports[1].interface, "ens1d1");
  EXPECT_EQ(ports[2].interface, "eth5");
}

TEST_F(PortFactsTest, TheCharacterDeviceIsTried) {
  put_port("mlx5_0", 1);
  EXPECT_EQ(read().at(0).character_device, "");
  put("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0");
  EXPECT_EQ(read().at(0).character_device, root_ / "dev/infiniband/uverbs3");
  EXPECT_EQ(read().at(0).character_device_error, ENOENT);
  put("dev/infiniband/uverbs3", "");
  EXPECT_EQ(read().at(0).character_device_error, 0);
}

}  // namespace
}  // namespace byteps::transport::rdma
