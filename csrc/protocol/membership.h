// A node's view of its job: joined or not, alive or failed, whether the scheduler still answers. Pure.
//
// A broken connection to a peer is not yet a failure: the scheduler knows better whether that peer died, left or
// was only cut off, and names the guilty one to all nodes alike. So it is told (Suspect), and its verdict (Lost or
// Left) awaited for the job's timeout and a half: the scheduler itself waits one to learn who is guilty.
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
struct JobStarted {};  // roster() is complete
// The job has failed, or the scheduler is lost; final.
struct JobFailed {
  Status status;
};
// The node has left in order.
struct NodeLeft {
  uint32_t node;
};
// All workers have left (a server can end), or the scheduler's process has left. Answers on their way to a worker
// still come; JobFailed follows a timeout later if it has not left by then: nobody would tell it of losses any more.
struct JobFinished {
  std::string text;
};
// The scheduler seems to be that of a job which is over: close the connection, if it still is there, and connect again,
// soon. `why` is what went wrong if that never leads to an answer.
struct TryAgain {
  Status why;
};
// This node still waits, for whom the text says. To be logged.
struct LogStillWaiting {
  std::string text;
};
using MembershipAction =
    std::variant<SendControl, JobStarted, JobFailed, NodeLeft, JobFinished, TryAgain, LogStillWaiting>;
using MembershipActions = std::vector<MembershipAction>;

class Membership {
 public:
  // `scheduler` is how messages name it before the roster is known: "scheduler at 10.0.0.1:9000".
  // `hosted_by_rank_0`: it lives in rank 0's process. `start_deadline_us`: the roster must have come by then; later
  // than the scheduler's own deadline, which says who is missing. `timeout_us` holds until the roster brings its own.
  Membership(std::string scheduler, bool hosted_by_rank_0, TimeUs start_deadline_us, TimeUs timeout_us);

  // The node begins to look for the scheduler.
  void on_begin(TimeUs now) { notices_.emplace(now); }
  // The connection to the scheduler stands: sends the Join.
  void on_connected(Join join, TimeUs now, MembershipActions& actions);
  // Roster, Heartbeat, Lost, Left, Finished change the state; other messages only show that the scheduler lives.
  // kDataLoss for a message that no scheduler sends (the caller closes the connection). When the job has failed or
  // finished, nothing changes any more.
  Status on_message(const Control& message, TimeUs now, MembershipActions& actions);
  // It could not be reached, or has hung up.
  void on_scheduler_closed(const Status& why, MembershipActions& actions);
  // This node's connection to `node` broke, or, where that is this node itself, a part of it hangs.
  void on_suspect(uint32_t node, const Status& why, TimeUs now, MembershipActions& actions);
  // This node leaves: in order, or because of `cause`, by which the job then fails for all.
  void leave(const std::string& cause, MembershipActions& actions);
  // This node can no longer speak with the scheduler: the job has failed for it, because of `why`.
  void give_up(const Status& why, MembershipActions& actions);
  // Heartbeats, silence of the scheduler, verdicts that do not come.
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
  // What a message may add: the first one whose fate is open. Empty if there is none.
  std::string name_suspect() const;
  void fail(Status why, MembershipActions& actions);
  void try_again(Status why, MembershipActions& actions);
  Status on_roster(const Roster& roster, TimeUs now, MembershipActions& actions);
  Status on_left(const Left& left, MembershipActions& actions);
  void finish(const std::string& text, TimeUs now, MembershipActions& actions);

  std::string scheduler_;
  bool hosted_by_rank_0_;
  TimeUs start_deadline_us_;
  TimeUs timeout_us_;
  bool connected_ = false;
  bool answered_ = false;  // since it has connected
  bool leaving_ = false;
  bool finished_ = false;
  std::optional<NoticeTimer> notices_;  // of no connection
  TimeUs finish_deadline_us_ = kNever;  // of a worker that has not left
  TimeUs last_heard_us_ = 0;
  TimeUs next_heartbeat_us_ = 0;
  std::optional<Roster> roster_;
  std::vector<bool> left_;                  // by node
  std::map<uint32_t, Suspicion> suspects_;  // by node
  Status failure_;
};

}  // namespace byteps::protocol
