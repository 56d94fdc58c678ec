// Names of push_pulls that an elastic member makes for itself.
#pragma once

namespace byteps::elastic {

inline constexpr const char* kBarrierName = "byteps.elastic.barrier";
inline constexpr const char* kFlagsName = "byteps.elastic.commit";
// And a number: the rest of a tensor of which parts are there since a recovery.
inline constexpr const char* kRest = "byteps.elastic.rest.";

}  // namespace byteps::elastic
