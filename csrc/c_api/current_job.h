// The job that the C functions refer to: at most one in a process. Python's byteps.runtime sets it.
//
// Any thread. A push_pull in progress keeps the node alive while it starts.
#pragma once

#include <memory>
#include <string>

#include "c_api/c_api.h"
#include "node/job_node.h"

namespace byteps::c_api {

const BpsCApi& table();

void enter_job(std::shared_ptr<node::JobNode> node);
// A job of one rank, which needs no node. The returned counters start from zero.
std::shared_ptr<Metrics> enter_job_alone();
// From now on push_pulls fail with kFailedPrecondition and `why`.
void leave_job(std::string why);
// leave_job in a forked child: touches nothing that a thread of the parent may have been using.
void abandon_job(std::string why);

}  // namespace byteps::c_api
