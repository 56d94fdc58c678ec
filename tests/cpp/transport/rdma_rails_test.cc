#include "transport/rdma/rails.h"

#include <gtest/gtest.h>

namespace byteps::transport::rdma {
namespace {

RailPreference of_ip(const std::string& ip) { return {.devices = "", .ip = ip}; }
RailPreference of_devices(const std::string& devices) { return {.devices = devices, .ip = ""}; }
RailPreference of_node(int node) { return {.devices = "", .ip = "", .numa_node = node}; }

struct Port {
  std::string device;
  int port = 1;
  uint64_t mbps = 100'000;
  int numa_node = -1;
  std::string ip = "";
  bool is_ethernet = true;
  std::string why_not = "";
};

PortReport report(const Port& port) {
  PortReport report;
  report.device = port.device;
  report.port = port.port;
  report.mbps = port.mbps;
  report.numa_node = port.numa_node;
  report.is_ethernet = port.is_ethernet;
  report.why_not = port.why_not;
  if (!port.ip.empty())
    report.gids.push_back({.index = 1, .gid = *gid_of_ip(port.ip), .type = GidType::kV2, .interface = {}});
  return report;
}

// "b:1 a:1", or the error message.
std::string chosen_rails(const std::vector<Port>& ports, const RailPreference& preference) {
  std::vector<PortReport> reports;
  for (const Port& port : ports) reports.push_back(report(port));
  const auto rails = choose_rails(reports, preference);
  if (!rails) return rails.status().to_string();
  std::string text;
  for (const PortReport& rail : *rails) {
    text += (text.empty() ? "" : " ") + rail.device + ":" + std::to_string(rail.port);
  }
  return text;
}

TEST(RdmaRailsTest, TheOnesToUseAndTheirOrder) {
  const Port down{.device = "d", .why_not = "d port 1 is down: plug it in"};
  struct Case {
    std::vector<Port> ports;
    RailPreference preference;
    std::string expected;
  };
  const std::vector<Case> cases{
      {{{.device = "b"}, {.device = "a", .port = 2}, {.device = "a"}}, {}, "a:1 a:2 b:1"},
      {{{.device = "a"}, down}, {}, "a:1"},
      {{{.device = "a", .mbps = 25'000}, {.device = "b", .mbps = 100'000}, {.device = "c", .mbps = 100'000}},
       {},
       "b:1 c:1"},
      {{{.device = "a", .is_ethernet = false}, {.device = "b"}}, {}, "a:1"},
      // The one with the address and equal ones, even if others are faster.
      {{{.device = "a", .mbps = 25'000, .ip = "10.0.0.2"},
        {.device = "b", .mbps = 100'000},
        {.device = "c", .mbps = 25'000},
        {.device = "d", .mbps = 25'000, .is_ethernet = false}},
       of_ip("10.0.0.2"),
       "a:1 c:1"},
      {{{.device = "a", .mbps = 25'000, .ip = "10.0.0.2"}, {.device = "b"}}, of_ip("10.0.0.9"), "b:1"},
      {{{.device = "a", .ip = "10.0.0.2", .why_not = "a port 1: no"}, {.device = "b"}},
       of_ip("10.0.0.2"),
       "b:1"},
      {{{.device = "a", .numa_node = 0}, {.device = "b", .numa_node = 1}}, of_node(1), "b:1"},
      {{{.device = "a", .numa_node = 0}, {.device = "b", .numa_node = 1}}, of_node(7), "a:1 b:1"},
      {{{.device = "a", .numa_node = 0}, {.device = "b", .numa_node = 1}}, of_node(-1), "a:1 b:1"},
      // BYTEPS_RDMA_DEVICES overrides everything, including the order.
      {{{.device = "a", .mbps = 1}, {.device = "b"}, {.device = "c"}}, of_devices("c,a"), "c:1 a:1"},
      {{{.device = "a"}, {.device = "a", .port = 2}}, of_devices("a:2"), "a:2"},
      {{{.device = "a", .why_not = "a port 1: no"}, {.device = "a", .port = 2}}, of_devices("a"), "a:2"},
  };
  for (const Case& each : cases) EXPECT_EQ(chosen_rails(each.ports, each.preference), each.expected);
}

TEST(RdmaRailsTest, WhereThereIsNoneItSaysWhy) {
  const Port down{.device = "d", .why_not = "d port 1 is down: plug it in"};
  struct Case {
    std::vector<Port> ports;
    RailPreference preference;
    StatusCode code;
    std::string part;
  };
  const std::vector<Case> cases{
      {{}, {}, StatusCode::kUnavailable, "no RDMA device"},
      {{}, of_devices("a"), StatusCode::kUnavailable, "no RDMA device"},
      {{down}, {}, StatusCode::kUnavailable, "plug it in"},
      {{down, {.device = "a"}}, of_devices("d"), StatusCode::kUnavailable, "plug it in"},
      {{{.device = "a"}}, of_devices("b"), StatusCode::kInvalidArgument, "no device b: there is a:1"},
      {{{.device = "a"}}, of_devices("a:2"), StatusCode::kInvalidArgument, "no device a:2"},
      {{{.device = "a"}}, of_devices("a,,a"), StatusCode::kInvalidArgument, "no device"},
      {{{.device = "a"}}, of_devices(","), StatusCode::kInvalidArgument, "no device"},
  };
  for (const Case& each : cases) {
    std::vector<PortReport> reports;
    for (const Port& port : each.ports) reports.push_back(report(port));
    const auto rails = choose_rails(reports, each.preference);
    EXPECT_EQ(rails.status().code(), each.code) << each.part;
    EXPECT_NE(rails.status().message().find(each.part), std::string::npos) << rails.status();
  }
}

TEST(RdmaRailsTest, TheProcessKnowsItsNodeOrThatItHasSeveral) { EXPECT_GE(numa_node_of_process(), -1); }

}  // namespace
}  // namespace byteps::transport::rdma
