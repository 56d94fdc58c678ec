#include "node/routes.h"

#include <algorithm>
#include <utility>

#include "transport/rdma/rdma_transport.h"

namespace byteps::node {
namespace {

using protocol::NodeInfo;

bool reaches(Reach reach, const NodeInfo& self, const NodeInfo& node) {
  const bool is_near = node.machine == self.machine;
  switch (reach) {
    case Reach::kWorkersOfOneMachine: return is_near && node.role == protocol::Role::kWorker;
    case Reach::kBetweenMachines: return !is_near;
    case Reach::kEverywhere: break;
  }
  return true;
}

void log_at(log::Level level, const std::string& text) {
  if (log::enabled(level)) log::Line(level, __FILE__, __LINE__).stream() << text;
}

}  // namespace

Routes::Routes(const NodeConfig& config, Transports transports)
    : timeout_us_(seconds_to_us(config.timeout_s)), transports_(std::move(transports)) {}

Result<std::unique_ptr<Routes>> Routes::open(const NodeConfig& config, Transports transports) {
  for (const OpenTransport& each : transports) {
    const Status absent = each.transport.status();
    if (absent.is_ok() || config.role == "scheduler") continue;
    if (each.is_required) return absent.with_context("BYTEPS_TRANSPORT is " + each.name);
    if (each.reach == Reach::kWorkersOfOneMachine) continue;  // logged with the names of the others
    const bool is_fault = absent.code() != StatusCode::kUnimplemented;
    log_at(is_fault ? log::Level::kWarning : log::Level::kInfo,
           "no " + each.title + (is_fault ? ", TCP instead: " : ": ") + absent.message());
  }
  return std::unique_ptr<Routes>(new Routes(config, std::move(transports)));
}

Result<std::vector<protocol::Endpoint>> Routes::listen(summation::Service& service) {
  std::vector<protocol::Endpoint> endpoints;
  for (const OpenTransport& each : transports_) {
    if (!each.transport) continue;
    auto addresses = service.listen(**each.transport, {each.listen_ip, 0});
    if (!addresses) return addresses.status();
    endpoints.push_back({each.name, std::move(*addresses)});
  }
  return endpoints;
}

transport::rdma::RegistrationCounts Routes::rdma_counts() const {
  const auto rdma = std::ranges::find(transports_, "rdma", &OpenTransport::name);
  if (rdma == transports_.end() || !rdma->transport) return {};
  return transport::registration_counts(**rdma->transport);
}

void Routes::connect(transport::EventLoop& loop, const NodeInfo& self, const NodeInfo& node, size_t shard,
                     transport::ConnectCallback done) {
  connect_from(0, {loop, self, node, shard, std::move(done)});
}

void Routes::connect_from(size_t index, Request request) {
  const OpenTransport& each = transports_[index];
  const bool is_last = index + 1 == transports_.size();
  const std::span<const std::string> addresses = request.node.addresses(each.name);
  const bool none_has_it = !each.transport && addresses.empty();
  const bool is_of_no_use =
      !reaches(each.reach, request.self, request.node) || (none_has_it && !each.is_expected);
  if (is_of_no_use && !is_last) return connect_from(index + 1, std::move(request));
  if (!each.transport) return fall_back(index, std::move(request), each.transport.status());
  if (request.shard >= addresses.size()) {
    return fall_back(index, std::move(request), unimplemented("it offers none; its own log may say why"));
  }
  connect_by(index, addresses[request.shard], std::move(request));
}

void Routes::fall_back(size_t index, Request request, const Status& why) {
  const OpenTransport& each = transports_[index];
  if (each.is_required || index + 1 == transports_.size()) {
    return request.done(why.with_context(each.title + " with " + request.node.describe()));
  }
  log_fallback(each, request.node, why);
  connect_from(index + 1, std::move(request));
}

void Routes::connect_by(size_t index, const std::string& address, Request request) {
  const auto parsed = transport::parse_address(address);
  if (!parsed) return request.done(parsed.status());
  transport::EventLoop& loop = request.loop;
  transports_[index].transport.value()->connect(
      loop, *parsed, loop.now_us() + timeout_us_,
      [this, index, request = std::move(request)](auto connection) mutable {
        const bool is_last = index + 1 == transports_.size();
        if (connection || is_last) return request.done(std::move(connection));
        fall_back(index, std::move(request), connection.status());
      });
}

void Routes::log_fallback(const OpenTransport& from, const NodeInfo& node, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!fallbacks_.insert(node.describe()).second) return;
  }
  log_at(from.transport ? log::Level::kWarning : from.absence_level,
         "no " + from.title + " with " + node.describe() + ", TCP instead: " + why.message());
}

}  // namespace byteps::node
