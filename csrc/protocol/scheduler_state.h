// The scheduler's decisions: membership of the job, placement of tensors, verdicts on lost nodes.
// Pure.
//
// Phases: joining -> measuring (if a network card's speed is unknown) -> running -> finished or
// failed. A scheduler that is started again, after a standby has taken its place (protocol/standby.h),
// goes from joining to moved: the new scheduler of the job tells it where the job is, and it sends
// there whoever comes to join. A failure is final; every node is told once, and the message names the failed node, its
// host and the cause. A server that is lost is no failure, unless it stores tensors (Removed): the
// job goes on without it, and others may come (Added). Nothing here is on the data path.
//
// Peers are connections, numbered by the caller; a peer becomes a node with its Join.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/barriers.h"
#include "protocol/link_speeds.h"
#include "protocol/message.h"
#include "protocol/nic_survey.h"
#include "protocol/notice_timer.h"
#include "protocol/numbering.h"
#include "protocol/placement.h"
#include "protocol/tensor_directory.h"

namespace byteps::protocol {

using PeerId = uint64_t;

struct SendTo {
  PeerId peer;
  Control message;
};
// The roster, to all nodes: `peers[i]` is node i. Its `self` has no meaning. One action, because it
// has the description of every node, and there are as many receivers.
struct SendRoster {
  std::vector<PeerId> peers;
  Roster roster;
};
// Close the connection after sending what was queued for it; its later events are ignored.
struct ClosePeer {
  PeerId peer;
};
// The scheduler still waits; the text says for which nodes. To be logged unless another node of
// this process does so.
struct LogWaiting {
  std::string text;
};
using SchedulerAction = std::variant<SendTo, SendRoster, ClosePeer, LogWaiting>;
using SchedulerActions = std::vector<SchedulerAction>;

struct SchedulerOptions {
  uint32_t num_workers = 0;  // 0: as the first worker says
  uint32_t num_servers = 0;
  TimeUs start_timeout_us = 0;  // all nodes must have joined within this time
  // The job ends if nodes are still missing this long after a caller was refused and after the last
  // node joined: waiting will not fix a wrong secret. 0: callers with another secret are strangers
  // and are ignored.
  TimeUs refusal_timeout_us = 0;
  TimeUs timeout_us = 0;         // a node that is silent for this long is lost
  TimeUs op_timeout_us = 0;      // a barrier that lacks a rank for this long fails
  uint64_t partition_bytes = 0;  // 0: by PartitionRule
  PlacementPolicy placement = {};
  bool failover = true;  // the job goes on when a server is lost (may_lose())
  // The job waits at its start for rank 0 to be the standby (protocol/standby.h).
  bool has_standby = false;
  bool probe_nics = false;            // measure unknown speeds of network cards before the start
  bool fit_shards = false;            // limit the shards to what a measured speed needs
  TimeUs long_path_us = kLongPathUs;  // for NicSurvey
  // Time between two reports of a node about its traffic, in jobs of up to 64 nodes; larger ones
  // report less often. 0: speeds are not learned from traffic.
  TimeUs report_us = 0;
  // Epoch of the roster. Choose it at random: it distinguishes members of this job from processes
  // of other jobs with the same secret.
  uint32_t first_epoch = 1;
};

class SchedulerState {
 public:
  SchedulerState(SchedulerOptions options, TimeUs now);

  void on_message(PeerId peer, const Control& message, TimeUs now, SchedulerActions& actions);
  // The connection ended without ClosePeer. A node that has not left is lost.
  void on_closed(PeerId peer, const Status& why, TimeUs now, SchedulerActions& actions);
  // A caller with another secret was refused. While nodes are missing it is most likely one of
  // them: see SchedulerOptions::refusal_timeout_us.
  void on_refused(const std::string& caller, const Status& why, TimeUs now);
  // Checks the start deadline, silence, suspicions and barriers.
  void on_tick(TimeUs now, SchedulerActions& actions);
  TimeUs next_tick_us() const;
  // The scheduler's own process (rank 0) leaves in order: sends Finished to all nodes, or a verdict
  // if a suspicion is still open, since nobody else could decide it.
  void on_shutdown(const std::string& text, SchedulerActions& actions);

  enum class Phase : uint8_t { kJoining, kMeasuring, kRunning, kMoved, kFinished, kFailed };
  Phase phase() const { return phase_; }
  const Status& failure() const { return failure_; }  // ok unless kFailed
  bool has_standby() const { return standby_ && !standby_->empty(); }
  // This state is that of a standby, which takes the scheduler's place now: all nodes have to come
  // within the timeout.
  void take_over(TimeUs now);
  // The node's peer; nullopt: the node does not exist, is lost, or has closed the connection.
  std::optional<PeerId> peer_of(uint32_t node) const;
  // TCP address of the first shard of the peer's service; empty: the peer is not a node.
  std::string service_of(PeerId peer) const;
  // The peers of the nodes that have not left.
  std::vector<PeerId> present() const;
  // As the roster's. Precondition: the job has started.
  uint32_t epoch_of_job() const { return roster_->epoch; }
  TimeUs timeout_us() const { return options_.timeout_us; }

  // The numbers of the names that not all ranks have forgotten.
  std::set<uint64_t> known_tensors() const { return tensors_ ? tensors_->numbers() : std::set<uint64_t>(); }

 private:
  // A node that has joined. While joining ordered by time of joining, later by node number.
  struct Member {
    PeerId peer = 0;
    NodeInfo node;
    TimeUs last_heard_us = 0;
    bool connected = true;
    bool left = false;
    bool lingers = false;             // Lingers
    std::string waits_for = {};       // text of its last Waits
    std::set<uint32_t> unaware = {};  // nodes that have not confirmed its Leaving yet
  };
  // `reporter` lost its connection to `node`, which the scheduler still believes to be alive. A
  // node is known to be alive only if it was heard of after the report.
  struct Suspicion {
    uint32_t reporter;
    uint32_t node;
    std::string text;
    TimeUs reported_us;
  };

  void on_join(PeerId peer, const Join& join, TimeUs now, SchedulerActions& actions);
  // The job of `peer`, its scheduler, is at this address.
  void move_to(PeerId peer, const std::string& address, TimeUs now, SchedulerActions& actions);
  void on_message_of_successor(const Control& message, TimeUs now, SchedulerActions& actions);
  bool has_left(const NodeInfo& node) const;
  // A server comes to the running job.
  void add_server(PeerId peer, const Join& join, TimeUs now, SchedulerActions& actions);
  // Tells a server that has come what the others know.
  void tell_of_job(uint32_t member, const LinkSpeeds::Change& change, SchedulerActions& actions);
  void refuse(PeerId peer, const Status& why, SchedulerActions& actions);
  TimeUs join_deadline_us() const;
  void fail_to_start(TimeUs now, SchedulerActions& actions);
  void measure_or_start(TimeUs now, SchedulerActions& actions);
  void on_probe_answer(uint32_t member, const Control& message, TimeUs now, SchedulerActions& actions);
  // Sends the survey's messages, and starts the job when the survey is over.
  void go_on_measuring(NicSurvey::Orders orders, TimeUs now, SchedulerActions& actions);
  void start(TimeUs now, SchedulerActions& actions);
  Roster number_members(TimeUs now);
  void on_member_message(uint32_t member, const Control& message, TimeUs now, SchedulerActions& actions);
  void on_declare(uint32_t rank, const Declare& declare, SchedulerActions& actions);
  void on_round_failed(uint32_t rank, const RoundFailed& failed, SchedulerActions& actions);
  void on_forget(uint32_t rank, const Forget& forget, SchedulerActions& actions);
  void on_traffic(uint32_t member, const Traffic& traffic, TimeUs now, SchedulerActions& actions);
  void apply(LinkSpeeds::Change change, SchedulerActions& actions);
  void on_standby(uint32_t member, const Standby& standby, SchedulerActions& actions);
  void on_leaving(uint32_t member, const Leaving& leaving, SchedulerActions& actions);
  // `member` knows that `leaver` leaves, or has left itself.
  void on_aware(uint32_t leaver, uint32_t member, SchedulerActions& actions);
  void on_stalled(uint32_t member, const Stalled& stalled, SchedulerActions& actions);
  void on_barrier(uint32_t rank, const Barrier& barrier, TimeUs now, SchedulerActions& actions);
  void on_waits(uint32_t rank, const Waits& waits, SchedulerActions& actions);
  // Describes the ranks that wait for something else, or for nothing.
  std::string what_others_wait_for(uint32_t rank) const;
  void say_who_is_missing(TimeUs now, SchedulerActions& actions);
  std::string who_is_missing() const;
  void on_lingers(uint32_t member, const Lingers& lingers, SchedulerActions& actions);
  void tell_if_all_linger(SchedulerActions& actions);
  void on_suspect(uint32_t member, const Suspect& suspect, TimeUs now, SchedulerActions& actions);
  void on_leave(uint32_t member, const std::string& cause, TimeUs now, SchedulerActions& actions);
  // The member broke the protocol.
  void expel(uint32_t member, const std::string& why, SchedulerActions& actions);

  // Whether the job can go on without the member: a server that stores no tensor.
  bool may_lose(uint32_t member) const;
  // The member is lost for this reason, which names it: the job goes on without it, or fails.
  void lose(uint32_t member, const Status& why, TimeUs now, SchedulerActions& actions);
  void check_silence(TimeUs now, SchedulerActions& actions);
  void check_suspicions(TimeUs now, SchedulerActions& actions);
  std::vector<Suspicion>::const_iterator find_suspicion(uint32_t reporter, uint32_t node) const;
  TimeUs verdict_us(const Suspicion& suspicion) const;
  void answer_barriers(const Barriers::Answers& answers, SchedulerActions& actions);
  void send_to_all(const Control& message, SchedulerActions& actions);
  void fail(Status why, SchedulerActions& actions);
  void finish(const std::string& text, SchedulerActions& actions);

  SchedulerOptions options_;
  TimeUs start_deadline_us_;
  std::string refused_;  // the last refused caller and the reason
  TimeUs refusal_deadline_us_ = kNever;
  NoticeTimer notices_;  // notices about nodes that have not joined
  Phase phase_ = Phase::kJoining;
  Status failure_;
  uint32_t epoch_ = 0;
  Numbering numbering_;
  std::vector<Member> members_;
  // No node has been silent for too long before this time.
  TimeUs silence_check_us_ = kNever;
  std::unordered_map<PeerId, uint32_t> member_of_peer_;
  std::vector<Suspicion> suspicions_;
  // Set when all have joined:
  std::optional<Roster> roster_;  // without nodes and shares from the start on
  std::optional<NicSurvey> survey_;
  // Set at the start:
  std::optional<TensorDirectory> tensors_;
  // What all were told last. A server that comes may be a root of these rounds, if the names are new.
  std::deque<Refused> failed_rounds_;
  std::optional<Barriers> barriers_;
  std::optional<LinkSpeeds> link_speeds_;
  uint8_t placement_ = 0;
  std::optional<std::string> standby_;  // its address; empty: there is none any more
  // kMoved: the scheduler of the job.
  struct Successor {
    PeerId peer;
    std::string address;
    TimeUs last_heard_us;
  };
  std::optional<Successor> successor_;
};

}  // namespace byteps::protocol
