#include "bindings/name_family.h"

#include "base/check.h"

namespace byteps::bindings {

NameFamily::NameFamily(const std::string& family) {
  for (uint32_t i = 0; i < kAutomaticNames; ++i) names_.push_back(family + "." + std::to_string(i));
}

const std::string& NameFamily::next_name() {
  const std::string& name = peek();
  next_ = (next_ + 1) % kAutomaticNames;
  return name;
}

std::vector<std::string> NameFamily::reserved() const {
  std::vector<std::string> found;
  for (size_t i = 0; i < names_.size(); ++i)
    if (reserved_[i]) found.push_back(names_[i]);
  return found;
}

size_t NameFamily::index_of(const std::string& name) const {
  const size_t index = std::stoul(name.substr(name.rfind('.') + 1));
  BPS_CHECK(index < names_.size() && names_[index] == name) << name << " is of another family";
  return index;
}

}  // namespace byteps::bindings
