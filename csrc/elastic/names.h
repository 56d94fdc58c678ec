// Names of push_pulls that an elastic member makes for itself.
#pragma once

namespace byteps::elastic {

inline constexpr const char* kBarrierName = "byteps.elastic.barrier";
inline constexpr const char* kFlagsName = "byteps.elastic.commit";

}  // namespace byteps::elastic
