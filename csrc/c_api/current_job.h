// The job that the C functions speak for: at most one in a process, as in Python's byteps.runtime, which sets it.
//
// Any thread. A push_pull that has begun keeps the node alive while it starts.
#pragma once

#include <memory>
#include <string>

#include "c_api/c_api.h"
#include "node/node.h"

namespace byteps::c_api {

const BpsCApi& table();

// What push_pulls of a rank that is alone came to; they need no node.
struct AloneMetrics {
  Counter push_pulls{0};
  Counter push_pull_bytes{0};
};

void enter_job(std::shared_ptr<node::Node> node);
// The counters are the caller's to read, from zero.
std::shared_ptr<AloneMetrics> enter_job_alone();
// From now on push_pulls fail with kFailedPrecondition and `why`.
void leave_job(std::string why);
// leave_job in a forked child: touches nothing that a thread of the parent may have been using.
void abandon_job(std::string why);

}  // namespace byteps::c_api
