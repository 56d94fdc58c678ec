#include "transport/rdma/port_report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <utility>

namespace byteps::transport::rdma {
namespace {

namespace fs = std::filesystem;

// A fake sysfs in a temporary folder.
class PortReportTest : public ::testing::Test {
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
  void remove(const std::string& path) { EXPECT_GT(fs::remove_all(root_ / path), 0u) << path; }
  // A RoCE port that can be used.
  void put_port(const std::string& device, int port) {
    const std::string folder = "sys/class/infiniband/" + device + "/ports/" + std::to_string(port) + "/";
    put("sys/class/infiniband/" + device + "/node_type", "1: CA");
    put("sys/class/infiniband_verbs/uverbs_" + device + "/ibdev", device);
    put("dev/infiniband/uverbs_" + device, "");
    put(folder + "state", "4: ACTIVE");
    put(folder + "phys_state", "5: LinkUp");
    put(folder + "link_layer", "Ethernet");
    put(folder + "rate", "100 Gb/sec (4X EDR)");
    put(folder + "lid", "0x0");
    put(folder + "gids/0", "0000:0000:0000:0000:0000:0000:0000:0000");
    put(folder + "gids/10", "0000:0000:0000:0000:0000:ffff:0a00:0002");
    put(folder + "gids/2", "fe80:0000:0000:0000:0000:0000:0000:0001");
    put(folder + "gid_attrs/types/2", "IB/RoCE v1");
    put(folder + "gid_attrs/types/10", "RoCE v2");
    put(folder + "gid_attrs/ndevs/10", "eth1");
  }
  std::vector<PortReport> read(const std::string& device = "") const {
    return report_ports(device, root_ / "sys", root_ / "dev");
  }

  fs::path root_;
};

const std::string kPort = "sys/class/infiniband/mlx5_0/ports/1/";

TEST_F(PortReportTest, AMachineWithoutDevicesHasNoPorts) { EXPECT_TRUE(read().empty()); }

TEST_F(PortReportTest, ARoCEPortIsUnderstood) {
  put_port("mlx5_0", 1);
  put("sys/class/infiniband/mlx5_0/device/numa_node", "1");
  const PortReport port = read().at(0);
  EXPECT_TRUE(port.usable()) << port.why_not;
  EXPECT_EQ(port.to_string(), "mlx5_0 port 1");
  EXPECT_TRUE(port.is_ethernet);
  EXPECT_EQ(port.state, "ACTIVE");
  EXPECT_EQ(port.physical, "LinkUp");
  EXPECT_EQ(port.mbps, 100000u);
  EXPECT_EQ(port.numa_node, 1);
  EXPECT_EQ(port.interface, "eth1");
  ASSERT_EQ(port.gids.size(), 2u) << "entries of zeros are not in use";
  EXPECT_EQ(port.gids[0].index, 2);
  EXPECT_EQ(port.gids[0].type, GidType::kV1);
  EXPECT_EQ(port.gids[0].interface, "");
  EXPECT_EQ(port.gids[1].index, 10);
  EXPECT_EQ(port.gids[1].type, GidType::kV2);
  EXPECT_EQ(port.gids[1].interface, "eth1");
  EXPECT_EQ(to_text(port.gids[1].gid), "::ffff:10.0.0.2");
}

TEST_F(PortReportTest, AnInfiniBandPortHasALidAndNoInterface) {
  put_port("mlx5_0", 1);
  put(kPort + "link_layer", "InfiniBand");
  put(kPort + "lid", "0x1f");
  const PortReport port = read().at(0);
  EXPECT_TRUE(port.usable()) << port.why_not;
  EXPECT_FALSE(port.is_ethernet);
  EXPECT_EQ(port.lid, 0x1f);
  EXPECT_EQ(port.interface, "");
}

TEST_F(PortReportTest, WhatIsNotThereIsUnknown) {
  put_port("mlx5_0", 1);
  remove(kPort + "rate");
  EXPECT_EQ(read().at(0).mbps, 0u);
  EXPECT_EQ(read().at(0).numa_node, -1);
  put(kPort + "rate", "2.5 Gb/sec (1X SDR)");
  EXPECT_EQ(read().at(0).mbps, 2500u);
}

TEST_F(PortReportTest, PortsComeInOrder) {
  put_port("mlx5_1", 1);
  put_port("mlx5_0", 2);
  put_port("mlx5_0", 1);
  std::string names;
  for (const PortReport& port : read()) names += port.to_string() + "; ";
  EXPECT_EQ(names, "mlx5_0 port 1; mlx5_0 port 2; mlx5_1 port 1; ");
  EXPECT_EQ(read("mlx5_0").size(), 2u);
  EXPECT_TRUE(read("mlx5").empty());
}

TEST_F(PortReportTest, TheInterfaceOfAPortWithoutGidsIsFound) {
  for (const auto& [device, port] : {std::pair("mlx5_0", 1), {"mlx5_0", 2}, {"rxe0", 1}}) {
    put_port(device, port);
    remove("sys/class/infiniband/" + std::string(device) + "/ports/" + std::to_string(port) + "/gids");
  }
  put("sys/class/infiniband/mlx5_0/device/net/ens1/dev_port", "0");
  put("sys/class/infiniband/mlx5_0/device/net/ens1d1/dev_port", "1");
  put("sys/class/infiniband/rxe0/parent", "eth5");
  const auto ports = read();
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_EQ(ports[0].interface, "ens1");
  EXPECT_EQ(ports[1].interface, "ens1d1");
  EXPECT_EQ(ports[2].interface, "eth5");
}

TEST_F(PortReportTest, AReasonSaysWhatToDo) {
  const auto expect = [this](const std::vector<std::string>& says) {
    const std::string why = read().at(0).why_not;
    for (const std::string& part : says) EXPECT_NE(why.find(part), std::string::npos) << why;
    remove("sys");
    put_port("mlx5_0", 1);
  };
  put_port("mlx5_0", 1);
  put(kPort + "state", "1: DOWN");
  put(kPort + "phys_state", "3: Disabled");
  expect({"mlx5_0 port 1 is DOWN (physical state: Disabled)", "cable", "ip link show eth1"});
  put(kPort + "link_layer", "InfiniBand");
  put(kPort + "state", "2: INIT");
  expect({"is INIT", "subnet manager"});
  put(kPort + "link_layer", "InfiniBand");
  put(kPort + "state", "1: DOWN");
  put(kPort + "phys_state", "2: Polling");
  expect({"is DOWN (physical state: Polling)", "cable"});
  remove(kPort + "gids");
  put("sys/class/infiniband/mlx5_0/parent", "eth0");
  expect({"has no GID", "eth0", "ip address add"});
  put("sys/class/infiniband/mlx5_0/node_type", "4: RNIC");
  expect({"neither InfiniBand nor RoCE", "4: RNIC"});
  remove("sys/class/infiniband_verbs");
  expect({"modprobe ib_uverbs"});
  const std::string file = root_ / "dev/infiniband/uverbs_mlx5_0";
  remove("dev");
  expect({file + ": No such file or directory", "--device " + file});
}

}  // namespace
}  // namespace byteps::transport::rdma
