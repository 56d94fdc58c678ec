// Messages between a worker of an elastic job (a member) and the job's coordinator, which
// protocol/coordinator_state.h explains. They are parts of Control (protocol/message.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace byteps::protocol {

// member -> coordinator, as the first message: it wants to take part.
struct Enrol {
  uint64_t pid = 0;
  std::string host;     // host name, for messages
  std::string version;  // version of the package; must be equal on all members
  bool operator==(const Enrol&) const = default;

  // "host node7, pid 1234".
  std::string describe() const;
};
struct Enrolled {           // coordinator -> member
  uint32_t member = 0;      // its number, which no other member of the job ever has
  uint64_t timeout_us = 0;  // whoever is silent for this long is lost
  bool operator==(const Enrolled&) const = default;
};
// coordinator -> member: start a node of this generation, beside the present one.
struct Form {
  uint32_t generation = 0;
  // The generation that has numbered the ranks last. Equal to `generation`: this one numbers them
  // anew, and is entered when all members agree. Smaller: members of that epoch are lost, and the
  // others go on with this generation at once.
  uint32_t epoch = 0;
  std::vector<uint32_t> members;  // by rank
  // Rank 0 runs the scheduler: its address, "ip:port". Empty: the receiver is rank 0.
  std::string scheduler;
  std::string why;  // who is lost, for the log; empty: nobody
  bool operator==(const Form&) const = default;

  bool is_recovery() const { return generation != epoch; }
};
struct Hosting {  // rank 0 -> coordinator: it runs the scheduler of this generation
  uint32_t generation = 0;
  std::string scheduler;  // "ip:port"
  bool operator==(const Hosting&) const = default;
};
struct Formed {  // member -> coordinator: its node of this generation has started
  uint32_t generation = 0;
  bool operator==(const Formed&) const = default;
};
// member -> coordinator: it has entered this generation, as all members have agreed.
// coordinator -> member: one has, or all are new: enter.
struct Entered {
  uint32_t generation = 0;
  bool operator==(const Entered&) const = default;
};
struct Cancelled {  // coordinator -> member: nobody will enter this generation
  uint32_t generation = 0;
  bool operator==(const Cancelled&) const = default;
};
struct Broken {  // member -> coordinator: its node of this generation has failed
  uint32_t generation = 0;
  std::string text;
  bool operator==(const Broken&) const = default;
};
struct Resign {  // member -> coordinator: it leaves
  // The exception that ends its program; empty: it leaves in order.
  std::string cause;
  // Only this worker leaves, for example because its machine is needed for something else. Else its
  // program is done, and those of the others will soon be.
  bool others_stay = false;
  bool operator==(const Resign&) const = default;
};
// coordinator -> all other members, which confirm it with the same message; then to the member
// itself, which leaves its node.
struct Resigned {
  uint32_t member = 0;
  std::string text;  // names the member
  bool operator==(const Resigned&) const = default;
};
// coordinator -> member: so many workers are missing. Not 0: wait at the next commit.
struct Missing {
  uint32_t workers = 0;
  bool operator==(const Missing&) const = default;
};

}  // namespace byteps::protocol
