// The faults of a scenario: what fails, where and when.
#pragma once

#include "sim/random.h"
#include "sim/scenario.h"

namespace byteps::sim {

// Adds perhaps one fault of a program, and perhaps up to four that happen at a time. The scenario
// has its job and its programs already, which the former changes.
void make_faults(Random& random, Scenario& scenario);
// Some servers are lost while they answer: some ranks get the answer, and others do not.
void aim_at_answers(Random random, Scenario& scenario);
// Perhaps: at the end of the faults.
void add_loss_of_scheduler(Random random, Scenario& scenario);
// For reports: "network cut one way".
const char* text_of(FaultKind kind);

}  // namespace byteps::sim
