// A node's view of its job: whether it has joined, whether the job has failed, whether the
// scheduler still answers. Pure.
//
// A broken connection to a peer is not a failure yet: the scheduler can tell whether the peer died,
// left, or only became unreachable. So the node reports a Suspect and waits for the verdict (Lost
// or Left) for 1.5 times the job's timeout, as the scheduler may need one timeout to decide.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/message.h"
#include "protocol/notice_timer.h"

namespace byteps::protocol {

struct SendControl {
  Control message;
};
struct JobStarted {};  // roster() is valid from now on
// The job has failed, or the scheduler is lost; final.
struct JobFailed {
  Status status;
};
// The node has left in order.
struct NodeLeft {
  uint32_t node;
};
// The server is lost, and the job goes on without it.
struct NodeRemoved {
  Removed removed;
};
// A server has come. It is the last one of roster().nodes.
struct NodeAdded {};
// All workers have left (servers may end), or the scheduler's process has. Results on their way to
// a worker still arrive. A worker that stays for a timeout gets JobFailed: nobody would tell it of
// losses.
struct JobFinished {
  std::string text;
};
// The scheduler seems to belong to a job that is over: close the connection if it is still open,
// and connect again soon. `why` is the error if no attempt ever gets an answer.
struct TryAgain {
  Status why;
};
// The scheduler is lost, and its standby takes its place: close the connection if it is still open,
// and connect to this address.
struct FollowStandby {
  std::string address;
  Status why;
};
// The job that this node wants to join is at this address: close the connection, and join there.
struct JoinElsewhere {
  std::string address;
};
// This node still waits; the text says for which nodes. To be logged.
struct LogStillWaiting {
  std::string text;
};
using MembershipAction = std::variant<SendControl, JobStarted, JobFailed, NodeLeft, NodeRemoved, NodeAdded,
                                      JobFinished, TryAgain, FollowStandby, JoinElsewhere, LogStillWaiting>;
using MembershipActions = std::vector<MembershipAction>;

class Membership {
 public:
  // `scheduler`: its name in messages, "scheduler at 10.0.0.1:9000". `hosted_by_rank_0`: it runs in
  // rank 0's process. `start_deadline_us`: the roster must have arrived by then; choose it later
  // than the scheduler's own deadline, whose message says which nodes are missing. `timeout_us`
  // holds until the roster brings the job's own.
  Membership(std::string scheduler, bool hosted_by_rank_0, TimeUs start_deadline_us, TimeUs timeout_us);

  // The node starts to connect to the scheduler.
  void on_begin(TimeUs now) { notices_.emplace(now); }
  // The connection to the scheduler is established: sends the Join.
  void on_connected(Join join, TimeUs now, MembershipActions& actions);
  // The connection to the standby is established, and it has taken over.
  void on_resumed(TimeUs now);
  // Roster, Heartbeat, Lost, Left, Removed, Added and Finished change the state; other messages only prove
  // that the scheduler is alive. kDataLoss for a message that no scheduler sends (the caller closes
  // the connection). Ignored once the job has failed or finished.
  Status on_message(const Control& message, TimeUs now, MembershipActions& actions);
  // The scheduler is unreachable, or has closed the connection.
  void on_scheduler_closed(const Status& why, TimeUs now, MembershipActions& actions);
  // The connection to `node` broke. If `node` is this node, one of its threads hangs.
  void on_suspect(uint32_t node, const Status& why, TimeUs now, MembershipActions& actions);
  // This node leaves: in order if `cause` is empty, else because of `cause`, and the job fails for
  // all.
  void leave(const std::string& cause, MembershipActions& actions);
  // This node can no longer communicate with the scheduler: for it, the job has failed with `why`.
  void give_up(const Status& why, MembershipActions& actions);
  // Sends heartbeats, checks the scheduler's silence and overdue verdicts.
  void on_tick(TimeUs now, MembershipActions& actions);
  TimeUs next_tick_us() const;

  bool started() const { return roster_.has_value(); }
  const Roster& roster() const { return *roster_; }  // precondition: started()
  const Status& failure() const { return failure_; }
  bool has_left(uint32_t node) const;

 private:
  struct Suspicion {
    Status why;
    TimeUs deadline_us;
  };

  bool ended() const { return finished_ || !failure_.is_ok(); }
  std::string name_scheduler() const;
  // Text to append to a message: the first suspect without a verdict. Empty if there is none.
  std::string name_suspect() const;
  void fail(Status why, MembershipActions& actions);
  // The scheduler is lost: follows the standby, or fails.
  void lose_scheduler(const Status& why, TimeUs now, MembershipActions& actions);
  void fail_to_resume(const Status& why, MembershipActions& actions);
  void try_again(Status why, MembershipActions& actions);
  Status on_roster(const Roster& roster, TimeUs now, MembershipActions& actions);
  Status on_left(const Left& left, MembershipActions& actions);
  Status on_removed(const Removed& removed, MembershipActions& actions);
  Status on_added(const Added& added, MembershipActions& actions);
  void finish(const std::string& text, TimeUs now, MembershipActions& actions);

  std::string scheduler_;
  bool hosted_by_rank_0_;
  TimeUs start_deadline_us_;
  TimeUs timeout_us_;
  bool connected_ = false;
  bool answered_ = false;  // a message has arrived since the connection was established
  bool leaving_ = false;
  bool finished_ = false;
  std::optional<NoticeTimer> notices_;  // while there is no connection
  std::string standby_;                 // its address; empty: there is none
  TimeUs resume_deadline_us_ = kNever;  // from FollowStandby to on_resumed()
  Status scheduler_loss_;               // why it follows the standby
  TimeUs finish_deadline_us_ = kNever;  // only for a worker that has not left
  TimeUs last_heard_us_ = 0;
  TimeUs next_heartbeat_us_ = 0;
  std::optional<Roster> roster_;
  std::vector<bool> left_;                  // indexed by node
  std::map<uint32_t, Suspicion> suspects_;  // key: node
  Status failure_;
};

}  // namespace byteps::protocol
