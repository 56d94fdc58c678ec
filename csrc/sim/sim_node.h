// A process of the job, as node/ and cluster/client are: a service, a membership, and in workers a program.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "protocol/membership.h"
#include "protocol/outbox.h"
#include "sim/sim_probe.h"
#include "sim/sim_scheduler.h"
#include "sim/sim_shard.h"
#include "sim/sim_uplink.h"
#include "sim/sim_user.h"
#include "sim/sim_worker.h"
#include "sim/world.h"

namespace byteps::sim {

class SimNode final : public Receiver, public ShardEvents, public WorkerEvents, public Session {
 public:
  // `index`: place in Scenario's order of processes. `user`: null in a server.
  SimNode(World& world, VirtualProcess& process, size_t index, SimUser* user);

  // The process starts.
  void start();

  bool job_started() const { return membership_ && membership_->started(); }
  // Ok, or why the job failed for this node.
  Status failure() const { return membership_ ? membership_->failure() : Status::ok(); }
  // Those to whom connections had broken before the job ended for this node.
  const std::string& suspects() const { return suspects_; }
  // "rank 3", "server 0" as far as anybody can know.
  std::string known_name() const;

  void on_head(Endpoint&, const Frame&) override {}
  void on_frame(Endpoint& endpoint, const Frame& frame) override;
  void on_closed(Endpoint& endpoint, const Status& why) override;
  void on_child_lost(uint32_t child, const Status& why) override { suspect(child, why); }
  void on_stalled(const protocol::Stalled& stalled) override { send(stalled); }
  void on_link_lost(uint32_t service, const Status& why) override { suspect(service, why); }
  void send_to_scheduler(protocol::Control message) override { send(std::move(message)); }
  void on_credit(uint64_t credit_bytes) override {
    process_.soon([this, credit_bytes] { outbox_.set_credit(credit_bytes); });
  }
  void on_handle_done(protocol::Handle handle, const Status& status) override {
    user_->on_handle_done(handle, status);
  }

  uint32_t rank() const override { return static_cast<uint32_t>(self().rank); }
  Status declare(const std::string& name, DType dtype, uint64_t bytes) override;
  Status push_pull(protocol::Handle handle, const protocol::PushPull& request, const View& input,
                   const View& output) override;
  Status barrier(uint32_t sequence) override;
  void shutdown() override;
  void fail_job(const std::string& cause) override;

 private:
  const protocol::NodeInfo& self() const { return membership_->roster().nodes[membership_->roster().self]; }
  bool is_worker() const { return user_ != nullptr; }
  std::string address_of_shard(size_t shard) const;
  protocol::Join make_join() const;
  void connect();
  void connect_again();
  void on_connected(Result<Endpoint*> endpoint);
  void send(const protocol::Control& message);
  void suspect(uint32_t node, const Status& why);
  void apply(const protocol::MembershipActions& actions);
  void on_started();
  void on_failed(const Status& why);
  void on_node_left(uint32_t node);
  void on_finished(const std::string& text);
  Status on_answer(const protocol::Control& message);
  void on_probe_message(const protocol::Control& message);
  void start_service(const protocol::Tree& tree);
  void build_worker(const protocol::Tree& tree);
  void build_links(const protocol::Tree& tree, protocol::Level level, SimLanes& links, LinkEvents& events);
  std::unique_ptr<SimLink> make_link(uint32_t service, size_t shard, protocol::Level level,
                                     LinkEvents& events);
  SimLink::Connector make_connector(uint32_t service, size_t shard);
  TimeUs data_silence_us() const;
  GracePeriod grace_period() const;
  void schedule_tick();
  void on_verdict();
  void tell_why_it_leaves();
  void leave_worker();
  void leave_uplink();
  void leave_service();
  void leave_scheduler();
  void end_scheduler();
  void exit();

  World& world_;
  VirtualProcess& process_;
  size_t index_;
  SimUser* user_;
  protocol::Outbox outbox_;
  std::unique_ptr<SimScheduler> scheduler_;  // hosted in this process
  std::vector<std::unique_ptr<SimShard>> shards_;
  std::unique_ptr<SimUplink> parent_link_;  // null: nothing is above this node's service
  std::unique_ptr<SimWorker> worker_;
  std::unique_ptr<SimProbe> probe_;  // null: not asked to take part
  std::unique_ptr<protocol::Membership> membership_;
  Endpoint* channel_ = nullptr;
  TimeUs connect_deadline_us_ = 0;
  TimeUs tick_us_ = kNever;
  bool finished_ = false;
  std::string suspects_;
  bool shutting_down_ = false;
  bool leaving_ = false;
  bool awaits_verdict_ = false;  // in fail_job(), tell_why_it_leaves()
  std::set<uint32_t> barriers_;
};

}  // namespace byteps::sim
