// The fixture of the tests that every event loop has to pass (loop_conformance_test.cc).
#pragma once

#include <functional>
#include <memory>

#include "transport/harness.h"

namespace byteps::transport {

struct LoopKind {
  const char* name;
  // What the loops of a test share may be kept in `context`.
  std::function<std::unique_ptr<EventLoop>(std::shared_ptr<void>& context)> make;
};

class LoopConformance : public testing::TestWithParam<LoopKind> {
 protected:
  std::unique_ptr<EventLoop> new_loop() { return GetParam().make(context_); }

 private:
  std::shared_ptr<void> context_;
};

}  // namespace byteps::transport
