// Events of a port, tested on a device created on a new pair of interfaces, so that existing
// devices are not affected. Soft-RoCE devices do not disappear while they are open; that case is in
// transport/verbs_calls_test.cc.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>

#include "transport/rdma/verbs_nic.h"

namespace byteps::transport::rdma {
namespace {

bool run(const std::string& command) {
  return std::system(("PATH=$PATH:/sbin:/usr/sbin; { " + command + "\n} >/dev/null 2>&1").c_str()) == 0;
}

class RdmaDeviceEvents : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!run("rdma link show")) GTEST_SKIP() << "no RDMA device";
    const bool made =
        run("ip link add bps0 type veth peer name bps1 && ip link set bps0 up && ip link set bps1 up && "
            "ip address add 10.78.0.1/24 dev bps0 && rdma link add bpsrxe0 type rxe netdev bps0");
    if (!made) GTEST_SKIP() << "no right, or no module, to make an RDMA device";
  }
  void TearDown() override { run("rdma link delete bpsrxe0; ip link delete bps0"); }

  static bool wait_for(Nic& nic, NicEvent wanted) {
    pollfd readable{nic.event_fd(), POLLIN, 0};
    while (::poll(&readable, 1, 60'000) == 1) {
      if (nic.next_event() == wanted) return true;
    }
    return false;
  }
};

TEST_F(RdmaDeviceEvents, ACableThatIsPulledAndPutBackIsTold) {
  auto nic = open_verbs_nic({.device = "bpsrxe0", .ip = "10.78.0.1"}, {});
  ASSERT_TRUE(nic) << nic.status();
  EXPECT_EQ((*nic)->info().gid_text.substr(0, 16), "::ffff:10.78.0.1");
  ASSERT_TRUE(run("ip link set bps1 down"));
  EXPECT_TRUE(wait_for(**nic, NicEvent::kPortDown));
  const auto down = open_verbs_nic({.device = "bpsrxe0"}, {});
  ASSERT_FALSE(down);
  EXPECT_EQ(down.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(down.status().message().find("bpsrxe0 port 1 is DOWN"), std::string::npos) << down.status();
  ASSERT_TRUE(run("ip link set bps1 up"));
  EXPECT_TRUE(wait_for(**nic, NicEvent::kPortUp));
}

}  // namespace
}  // namespace byteps::transport::rdma
