#include "node/peer_check.h"

#include <memory>
#include <optional>
#include <utility>

#include "node/transports.h"
#include "transport/epoll_loop.h"

namespace byteps::node {
namespace {

using transport::Address;
using transport::Connection;
using transport::Transport;

// A result that a loop passes to a waiting thread.
template <typename T>
struct WaitSlot {
  EventFlag done;
  std::optional<Result<T>> result;

  void put(Result<T> value) {
    result.emplace(std::move(value));
    done.set();
  }
};

// Runs steps one after the other; the destructor stops the loop before it destroys their state.
class Steps {
 public:
  Steps(std::unique_ptr<transport::EventLoop> loop, TimeUs step_us, const KeepWaiting& keep_waiting)
      : step_us_(step_us), keep_waiting_(keep_waiting), loop_(std::move(loop)) {}
  ~Steps() { loop_->stop(); }

  Result<PeerRun*> connect(Transport& transport, const Address& address);
  Result<PeerRun::Outcome> run(PeerRun& run, bool asks_for_facts);

 private:
  // Calls `begin` on the loop, and waits until it has called its argument with the result.
  template <typename T, typename Begin>
  Result<T> wait_for_result(const char* what, Begin begin) {
    const auto slot = std::make_shared<WaitSlot<T>>();
    held_.push_back(slot);
    loop_->post([begin, slot] { begin([slot](Result<T> result) { slot->put(std::move(result)); }); });
    // Steps have their own deadlines; this one is for a loop that hangs.
    const Status status = wait_for(slot->done, now_us() + 2 * step_us_, keep_waiting_);
    if (!status.is_ok()) return status.with_context(what);
    return std::move(*slot->result);
  }

  const TimeUs step_us_;
  const KeepWaiting& keep_waiting_;
  const std::unique_ptr<transport::EventLoop> loop_;
  // These live until the loop has stopped, because a connection may arrive after an interrupted
  // wait.
  std::vector<std::shared_ptr<void>> held_;
  std::vector<std::unique_ptr<PeerRun>> runs_;
};

Result<PeerRun*> Steps::connect(Transport& transport, const Address& address) {
  auto connection = wait_for_result<std::unique_ptr<Connection>>(
      "connecting", [this, &transport, address](transport::ConnectCallback done) {
        transport.connect(*loop_, address, now_us() + step_us_, std::move(done));
      });
  if (!connection) return connection.status();
  runs_.push_back(std::make_unique<PeerRun>(std::move(*connection)));
  return runs_.back().get();
}

Result<PeerRun::Outcome> Steps::run(PeerRun& run, bool asks_for_facts) {
  auto outcome =
      wait_for_result<PeerRun::Outcome>("measuring", [this, &run, asks_for_facts](PeerRun::Done done) {
        run.start(asks_for_facts, now_us() + step_us_, std::move(done));
      });
  loop_->post([&run] { run.close(); });
  return outcome;
}

PeerRail check_rail(Steps& steps, Transport& rdma, const Address& address, std::string own) {
  PeerRail rail{.own = std::move(own), .other = "", .status = {}, .speed = {}};
  const auto run = steps.connect(rdma, address);
  if (!run) {
    rail.status = run.status().with_context("introduction");
    return rail;
  }
  rail.other = (*run)->peer();
  const auto outcome = steps.run(**run, false);
  rail.status = outcome.status().with_context("frames");
  if (outcome) rail.speed = outcome->speed;
  return rail;
}

std::vector<std::string> names_of(const Result<RdmaCards>& cards) {
  std::vector<std::string> names;
  if (!cards) return names;
  for (const auto& card : *cards) names.push_back(card->info().to_string() + ", " + card->info().gid_text);
  return names;
}

Status why_not_tried(const Transport& rdma, const PeerFacts& facts) {
  BPS_RETURN_IF_ERROR(rdma.viable());
  if (!facts.rdma_address.empty()) return Status::ok();
  const std::string why = facts.host + " has no RDMA: " + facts.why_no_rdma;
  return facts.has_no_rdma_device ? unimplemented(why) : unavailable(why);
}

}  // namespace

Result<PeerReport> check_peer(const NodeConfig& config, const Address& peer, Result<RdmaCards> cards,
                              TimeUs step_us, const KeepWaiting& keep_waiting) {
  const auto tcp = make_tcp(config);
  const std::vector<std::string> own_cards = names_of(cards);
  const auto rdma = make_rdma(config, std::move(cards));
  auto loop = transport::EpollLoop::create("bps-doctor");
  if (!loop) return loop.status();
  Steps steps(std::move(*loop), step_us, keep_waiting);

  const auto run = steps.connect(*tcp, peer);
  if (!run) return run.status();
  auto outcome = steps.run(**run, true);
  if (!outcome) return outcome.status();
  auto facts = decode_peer_facts(outcome->facts);
  if (!facts) return facts.status().with_context((*run)->peer());
  PeerReport report{
      .facts = *facts, .tcp = outcome->speed, .rdma = why_not_tried(*rdma, *facts), .rails = {}};
  if (!report.rdma.is_ok()) return report;
  const auto address = transport::parse_address(facts->rdma_address);
  if (!address) return address.status().with_context((*run)->peer());
  // Successive connections use the cards in turn.
  for (const std::string& own : own_cards) {
    report.rails.push_back(check_rail(steps, *rdma, *address, own));
    if (report.rails.back().status.code() == StatusCode::kAborted) return report.rails.back().status;
  }
  return report;
}

}  // namespace byteps::node
