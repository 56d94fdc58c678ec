// The barriers of a job's workers. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace byteps::protocol {

class Barriers {
 public:
  // A barrier that still lacks a rank after `timeout_us` fails.
  Barriers(std::vector<std::string> describe_rank, TimeUs timeout_us);

  struct Answer {
    uint32_t rank;
    uint32_t sequence;
    Status status;
  };
  using Answers = std::vector<Answer>;

  // kDataLoss if the rank's last barrier was not `sequence` - 1, or has not been answered.
  Status on_arrival(uint32_t rank, uint32_t sequence, TimeUs now, Answers& answers);
  // Barriers that lack the rank fail, now and later.
  void on_left(uint32_t rank, Answers& answers);
  // A server is lost: barriers begin to wait anew. The ranks that they wait for may have waited for
  // that server.
  void restart_waits(TimeUs now);
  void on_tick(TimeUs now, Answers& answers);
  TimeUs next_tick_us() const;

 private:
  struct Round {
    std::vector<uint32_t> waiting;  // ranks that have arrived and are not answered
    TimeUs started_us = 0;
    Status failure;  // the answer to ranks that arrive later
  };

  Status departure(uint32_t sequence) const;
  std::string missing(uint32_t sequence) const;

  std::vector<std::string> describe_rank_;
  TimeUs timeout_us_;
  std::vector<uint32_t> last_sequence_;  // indexed by rank
  std::vector<uint32_t> left_;           // ranks that have left
  // key: sequence number; barriers that some rank has not reached
  std::map<uint32_t, Round> rounds_;
};

}  // namespace byteps::protocol
