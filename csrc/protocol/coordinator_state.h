// The decisions of the coordinator of an elastic job: which workers take part. Pure.
//
// Workers come and go while training goes on. A *member* is a worker of the job, with a number that
// is never used twice. A *generation* is a job of its own, with a roster that never changes: nodes,
// trees, placements and rounds know nothing of other generations. So everything in this library
// that holds for a job of fixed size holds in each generation. The coordinator only decides which
// generation comes next; it is not on the path of the data, and rank 0 of a generation runs the
// scheduler of it.
//
//   - A generation that *numbers the ranks* (its number is its *epoch*) is formed beside the present
//     one, while training goes on: all members start a node of it. They enter it when they agree that
//     all have, at a commit of the training state (elastic/elastic_node.h). It has the members of the
//     present generation, in their order, and then those that have come.
//   - A *recovery* follows when a member is lost: the others start nodes of a generation without it at
//     once, exchange what some of them have already got of the push_pulls in flight, and go on
//     (protocol/ledger.h). The ranks that programs see stay those of the epoch. A generation that
//     numbers the ranks follows.
//
// A generation whose members were lost while it was formed is given up, and another one takes its
// number plus one. Only one generation is formed at a time. A generation that breaks although all its
// members are there is tried again; a present or a first one three times in a row, then the job fails.
//
// Peers are connections, numbered by the caller; a peer becomes a member with its Enrol.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/message.h"
#include "protocol/scheduler_state.h"

namespace byteps::protocol {

struct CoordinatorOptions {
  uint32_t min_workers = 1;
  uint32_t max_workers = 0;      // further members wait until others are lost; 0: no limit
  uint32_t initial_workers = 1;  // the first generation waits for so many, but see start_timeout_us
  // If fewer have come by then, the job starts with them, or fails if they are fewer than min_workers.
  TimeUs start_timeout_us = 0;
  TimeUs timeout_us = 0;  // a member that is silent for this long is lost
  // A job that has fewer than min_workers for this long fails.
  TimeUs shortage_timeout_us = 0;
  // Members that come within this time enter together.
  TimeUs gather_us = 0;
  std::string version;  // of the package
};

class CoordinatorState {
 public:
  // SendTo and ClosePeer, as of a scheduler.
  using Actions = SchedulerActions;

  CoordinatorState(CoordinatorOptions options, TimeUs now);

  void on_message(PeerId peer, const Control& message, TimeUs now, Actions& actions);
  // The connection ended without ClosePeer. A member that has not resigned is lost.
  void on_closed(PeerId peer, const Status& why, TimeUs now, Actions& actions);
  void on_tick(TimeUs now, Actions& actions);
  TimeUs next_tick_us() const;
  // The launcher ends the job: all members are told.
  void on_shutdown(const std::string& text, Actions& actions);

  // The job is over: all members have resigned in order (ok), or it has failed.
  bool has_ended() const { return ended_; }
  const Status& failure() const { return failure_; }

  // For the launcher: members of the present generation that are not gone, and those that wait.
  uint32_t num_active() const;
  uint32_t num_waiting() const;
  uint32_t epoch() const { return epoch_; }

 private:
  struct Member {
    PeerId peer = 0;
    std::string text;  // "worker 3 (host node7, pid 1234)"
    TimeUs enrolled_us = 0;
    TimeUs last_heard_us = 0;
    bool is_gone = false;  // lost, or has resigned
    // While it resigns: members that have not confirmed it yet.
    bool resigns = false;
    bool others_stay = false;
    std::set<uint32_t> unaware = {};
  };
  struct Generation {
    uint32_t number = 0;
    uint32_t epoch = 0;
    std::vector<uint32_t> members;  // by rank
    std::string scheduler;          // empty: rank 0 has not told it yet
    std::set<uint32_t> formed;      // members whose nodes have started
    std::string why;                // Form::why

    bool has(uint32_t member) const;
    bool is_formed() const { return formed.size() == members.size(); }
  };

  void on_enrol(PeerId peer, const Enrol& enrol, TimeUs now, Actions& actions);
  void on_member_message(uint32_t number, const Control& message, TimeUs now, Actions& actions);
  void on_hosting(uint32_t number, const Hosting& hosting, TimeUs now, Actions& actions);
  void on_formed(uint32_t number, const Formed& formed, TimeUs now, Actions& actions);
  void on_entered(uint32_t number, const Entered& entered, TimeUs now, Actions& actions);
  void on_broken(uint32_t number, const Broken& broken, TimeUs now, Actions& actions);
  void on_resign(uint32_t number, const Resign& resign, TimeUs now, Actions& actions);
  // `number` knows that `leaver` resigns, or is gone.
  void on_aware(uint32_t leaver, uint32_t number, TimeUs now, Actions& actions);
  // Those that resign do not wait for `number` any more.
  void on_gone(uint32_t number, TimeUs now, Actions& actions);
  void lose(uint32_t number, const std::string& why, TimeUs now, Actions& actions);
  // A generation has broken although nobody is lost. True: once too often, the job has failed.
  bool is_beyond_repair(const std::string& why, Actions& actions);
  // The job is over if nobody is left.
  void end_if_nobody_is_left(const std::string& why, Actions& actions);
  void recover(const std::string& why, TimeUs now, Actions& actions);
  // The generation that numbers the ranks is entered.
  void enter(Generation generation, TimeUs now, Actions& actions);
  void cancel_next(Actions& actions);
  // Forms the generation that numbers the ranks next, if there is a reason.
  void plan(TimeUs now, Actions& actions);
  // Time at which plan() has to be called again; kNever: something else has to happen first.
  TimeUs plan_us() const;
  bool lacks_workers_to_start() const;
  size_t least_workers() const;
  void start_forming(const Generation& generation, Actions& actions);
  void tell_shortage(TimeUs now, Actions& actions);
  void refuse(PeerId peer, const Status& why, Actions& actions);
  void fail(Status why, Actions& actions);
  void refuse_all(const Status& why, Actions& actions);
  void tell(uint32_t number, Control message, Actions& actions);
  void close(Member& member, Actions& actions);
  std::vector<uint32_t> living(const Generation& generation) const;
  std::vector<uint32_t> newcomers() const;
  Generation* find(uint32_t generation);

  const CoordinatorOptions options_;
  const TimeUs start_deadline_us_;
  Status failure_;
  bool ended_ = false;
  bool finishes_ = false;  // a member's program is done: nobody enters any more
  uint32_t epoch_ = 0;
  uint32_t last_member_ = 0;
  uint32_t last_generation_ = 0;
  std::map<uint32_t, Member> members_;  // by number; also those that are gone
  std::unordered_map<PeerId, uint32_t> member_of_peer_;
  std::optional<Generation> present_;  // perhaps a recovery that is still being formed
  std::optional<Generation> next_;     // numbers the ranks; nobody has entered it, as far as is known
  // Cancelled ones, by number, which a member may have entered before it heard so.
  std::map<uint32_t, Generation> cancelled_;
  TimeUs plan_again_us_ = 0;  // no generation is planned before, as the last one could not be formed
  // The present generation is broken although nobody is lost: time of its recovery, and why.
  TimeUs recover_us_ = kNever;
  std::string broken_;
  uint32_t breaks_without_loss_ = 0;
  TimeUs shortage_deadline_us_ = kNever;
  TimeUs last_tick_us_;
};

}  // namespace byteps::protocol
