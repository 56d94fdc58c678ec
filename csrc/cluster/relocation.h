// Tells a scheduler that was started again, at the address of a lost one, where the job is now.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/control_channel.h"
#include "transport/transport.h"

namespace byteps::cluster {

// Tries again and again to reach a scheduler at one of the addresses, until finish(). Everything
// happens on the loop, which has stopped when this is destroyed.
class Relocation final : public ControlEvents {
 public:
  // `job_address`: of the scheduler of the job. `beat_us`: the other end gets a message so often.
  Relocation(transport::EventLoop& loop, transport::Transport& tcp, std::vector<transport::Address> addresses,
             std::string job_address, TimeUs beat_us);

  // The job is over, or this process leaves it. Calls `done` when the other end, if there is one,
  // has been told.
  void finish(const std::string& text, UniqueFunction<void()> done);

  Status on_control(ControlChannel& channel, const protocol::Control& message) override;
  void on_channel_closed(ControlChannel& channel, const Status& why) override;

 private:
  void try_next();
  void on_connected(Result<std::unique_ptr<transport::Connection>> connection);
  void beat();

  transport::EventLoop& loop_;
  transport::Transport& tcp_;
  const std::vector<transport::Address> addresses_;
  const std::string job_address_;
  const TimeUs beat_us_;
  size_t attempt_ = 0;
  bool finished_ = false;
  UniqueFunction<void()> finish_done_;
  std::unique_ptr<ControlChannel> channel_;
};

}  // namespace byteps::cluster
