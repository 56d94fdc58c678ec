#include "base/unique_fd.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>

namespace byteps {
namespace {

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  return ends;
}

TEST(UniqueFd, AForkedChildHoldsNothingOpen) {
  const std::array<int, 2> data = make_pipe();
  const std::array<int, 2> life = make_pipe();
  const UniqueFd reader(data[0]);
  UniqueFd first(data[1]);
  UniqueFd writer(std::move(first));
  const pid_t child = ::fork();
  if (child == 0) {
    close_descriptors_in_child();
    ::close(life[1]);
    char byte = 0;
    // Lives until its parent has seen the end of the data.
    ::_exit(static_cast<int>(::read(life[0], &byte, 1)));
  }
  ::close(life[0]);
  writer.reset();
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0) << "the end, though the child lives";
  ::close(life[1]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(UniqueFd, WhatWasGivenAwayStaysOpenInAChild) {
  const std::array<int, 2> ends = make_pipe();
  UniqueFd reader(ends[0]);
  EXPECT_EQ(reader.release(), ends[0]);
  const UniqueFd writer(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    close_descriptors_in_child();
    char byte = 0;
    ::_exit(::read(ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  EXPECT_EQ(::write(writer.get(), "x", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
}

}  // namespace
}  // namespace byteps
