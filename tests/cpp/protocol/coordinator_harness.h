// Shared by the tests of CoordinatorState.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "protocol/coordinator_state.h"

namespace byteps::protocol {

// A coordinator, and what its last call has told whom. Peers have the numbers of their members.
class CoordinatorStateTest : public testing::Test {
 protected:
  static constexpr TimeUs kTimeoutUs = 8'000'000;
  static constexpr TimeUs kStartUs = 30'000'000;
  static constexpr TimeUs kShortageUs = 60'000'000;
  static constexpr TimeUs kGatherUs = 1'000'000;
  static constexpr TimeUs kBlameUs = kTimeoutUs / 4;

  using Numbers = std::vector<uint32_t>;
  using Texts = std::vector<std::string>;

  CoordinatorStateTest() { create(options_); }

  void create(CoordinatorOptions options) {
    state_ = std::make_unique<CoordinatorState>(std::move(options), 0);
    connected_.clear();
  }
  void receive(uint32_t peer, const Control& message, TimeUs now = 0) {
    connected_.insert(peer);
    collect([&](auto& actions) { state_->on_message(peer, message, now, actions); });
  }
  void enrol(uint32_t peer, TimeUs now = 0) {
    receive(peer, Enrol{.pid = 100 + peer, .host = "h", .version = "1"}, now);
  }
  void close(uint32_t peer, TimeUs now = 0) {
    connected_.erase(peer);
    collect([&](auto& actions) { state_->on_closed(peer, unavailable("end of file"), now, actions); });
  }
  // Those whose connections are open are not silent.
  void tick(TimeUs now) {
    for (const uint32_t peer : std::set(connected_)) receive(peer, Heartbeat{}, now);
    tick_only(now);
  }
  void tick_only(TimeUs now) {
    collect([&](auto& actions) { state_->on_tick(now, actions); });
    EXPECT_GT(state_->next_tick_us(), now);
  }
  // All nodes of the generation start.
  void form(uint32_t generation, const Numbers& members, TimeUs now = 0) {
    receive(members[0], Hosting{generation, "ip:1"}, now);
    for (const uint32_t member : members) receive(member, Formed{generation}, now);
  }
  // The first generation, of members 1 to `workers`.
  void start(uint32_t workers) {
    CoordinatorOptions options = options_;
    options.initial_workers = workers;
    create(options);
    Numbers members;
    for (uint32_t member = 1; member <= workers; ++member) members.push_back(member);
    for (const uint32_t member : members) enrol(member);
    form(1, members);
    ASSERT_EQ(state_->epoch(), 1u);
    ASSERT_EQ(state_->num_active(), workers);
  }
  void expect_failed(StatusCode code, const std::string& why) {
    EXPECT_TRUE(state_->has_ended());
    EXPECT_EQ(state_->failure().code(), code);
    EXPECT_EQ(state_->failure().message(), why);
    EXPECT_EQ(state_->next_tick_us(), kNever);
  }
  static std::string describe(const Control& message) {
    const auto numbered = [](const char* name, uint32_t number) { return name + std::to_string(number); };
    if (const auto* form = std::get_if<Form>(&message)) {
      std::string text =
          "Form " + std::to_string(form->generation) + " of " + std::to_string(form->epoch) + ":";
      for (const uint32_t member : form->members) text += " " + std::to_string(member);
      return text + (form->scheduler.empty() ? "" : " at " + form->scheduler);
    }
    if (const auto* enrolled = std::get_if<Enrolled>(&message))
      return numbered("Enrolled ", enrolled->member);
    if (const auto* entered = std::get_if<Entered>(&message))
      return numbered("Entered ", entered->generation);
    if (const auto* its = std::get_if<Cancelled>(&message)) return numbered("Cancelled ", its->generation);
    if (const auto* resigned = std::get_if<Resigned>(&message))
      return numbered("Resigned ", resigned->member);
    if (const auto* missing = std::get_if<Missing>(&message)) return numbered("Missing ", missing->workers);
    if (const auto* lost = std::get_if<Lost>(&message)) return "Lost: " + lost->text;
    return std::holds_alternative<Heartbeat>(message) ? "Heartbeat" : "unexpected";
  }
  template <typename Body>
  void collect(Body body) {
    CoordinatorState::Actions actions;
    body(actions);
    told_.clear();
    for (const SchedulerAction& action : actions) {
      if (const auto* send = std::get_if<SendTo>(&action)) {
        told_.push_back(std::to_string(send->peer) + ": " + describe(send->message));
        if (const auto* form = std::get_if<Form>(&send->message)) why_ = form->why;
      } else if (const auto* close = std::get_if<ClosePeer>(&action)) {
        told_.push_back(std::to_string(close->peer) + ": closed");
        connected_.erase(static_cast<uint32_t>(close->peer));
      }
    }
  }

  CoordinatorOptions options_{.min_workers = 1,
                              .max_workers = 0,
                              .initial_workers = 2,
                              .start_timeout_us = kStartUs,
                              .timeout_us = kTimeoutUs,
                              .shortage_timeout_us = kShortageUs,
                              .gather_us = kGatherUs,
                              .version = "1"};
  std::unique_ptr<CoordinatorState> state_;
  std::set<uint32_t> connected_;
  Texts told_;
  std::string why_;  // of the last Form
};

}  // namespace byteps::protocol
