// A process of a simulated cluster: a real node (node/async_node.h), or a member of an elastic job
// (elastic/async_elastic_node.h), in virtual time.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "elastic/async_elastic_node.h"
#include "node/async_node.h"
#include "sim/world.h"

namespace byteps::sim {

// What a process finds on its host.
struct HostFacts {
  std::string ip;       // equal for all processes of a machine
  std::string machine;  // likewise
  std::string host;     // name of the host for messages; here one per process
  uint64_t process_id = 0;
  size_t arena_bytes = 0;  // memory of a shared-memory connection
  double nic_mbps = 0;     // what the kernel says of its network card; 0: nothing
  int usable_cores = 1;
  TimeUs long_path_us = kNever;
  protocol::NameLimits names = {};
  TimeUs preemption_us = 0;  // its threads stand still for up to this time
};

// Used outside of the process's loops, unless stated otherwise.
class SimProcess {
 public:
  SimProcess(World& world, std::string name, HostFacts facts);
  ~SimProcess();

  // Creates a node, which joins. `on_started` gets the outcome, on the program's loop.
  void start(const NodeConfig& config, const std::string& scheduler_ip,
             UniqueFunction<void(const Status&)> on_started);
  // The same for a member of an elastic job, whose coordinator is at this address.
  void start_member(const NodeConfig& config, const transport::Address& coordinator,
                    UniqueFunction<void(const Status&)> on_started);
  // On any loop. Leaves (AsyncNode::leave); reap() destroys the node some time later.
  void leave(const std::string& cause, const std::string& after);
  // Of a member, while the others go on.
  void leave_others();
  // If the node has left, destroys it: the process has ended.
  void reap();
  // Sets a function that is called when a node that leaves has stopped, before it is destroyed.
  void on_stopped(UniqueFunction<void()> callback) { on_stopped_ = std::move(callback); }
  // As SIGSTOP and SIGCONT.
  void pause(bool paused);
  // As SIGKILL: nothing runs any more, and the kernel closes the connections.
  void kill();

  const std::string& name() const { return name_; }
  const HostFacts& facts() const { return facts_; }
  node::AsyncNode* node() { return node_.get(); }                // null: not started, or ended
  elastic::AsyncElasticNode* member() { return member_.get(); }  // likewise
  // The thread of the program.
  VirtualLoop& program() { return *program_; }
  bool is_gone() const { return is_gone_; }
  bool is_leaving() const { return is_leaving_; }  // or has left
  bool was_killed() const { return was_killed_; }
  bool is_paused() const { return is_paused_; }
  // Of the present or last node.
  bool job_started() const { return job_started_; }
  int rank() const { return rank_; }
  Status failure() const { return node_ ? node_->failure() : member_ ? member_->failure() : failure_; }
  // As the node's, when it has left.
  const std::set<uint64_t>& summed_tensors() const { return summed_tensors_; }
  const std::set<uint64_t>& known_tensors() const { return known_tensors_; }

 private:
  void leave_as_member(const std::string& cause, bool others_stay);

  class Environment;
  friend class Environment;

  World& world_;
  const std::string name_;
  const HostFacts facts_;
  std::unique_ptr<VirtualLoop> program_;
  std::vector<VirtualLoop*> loops_;  // of the node, or of the member's nodes
  std::unique_ptr<node::AsyncNode> node_;
  std::unique_ptr<elastic::AsyncElasticNode> member_;
  UniqueFunction<void()> on_stopped_;
  bool is_leaving_ = false;
  bool has_left_ = false;
  bool is_gone_ = false;
  bool was_killed_ = false;
  bool is_paused_ = false;
  bool job_started_ = false;
  int rank_ = -1;
  Status failure_;  // of a node that has ended
  std::set<uint64_t> summed_tensors_;
  std::set<uint64_t> known_tensors_;
};

}  // namespace byteps::sim
