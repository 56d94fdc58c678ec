#include "protocol/message_log.h"

#include <gtest/gtest.h>

namespace byteps::protocol {
namespace {

TEST(MessageLog, KeepsWhatIsNotConfirmedInItsOrder) {
  MessageLog log;
  for (const uint32_t sequence : {1u, 2u, 3u}) log.push(Barrier{sequence});
  EXPECT_TRUE(log.confirm(1));
  EXPECT_EQ(log.unconfirmed(), (std::deque<Control>{Barrier{2}, Barrier{3}}));
  EXPECT_TRUE(log.confirm(0)) << "an old confirmation says nothing new";
  EXPECT_EQ(log.unconfirmed().size(), 2u);
  EXPECT_EQ(log.total(), 3u);
  log.confirm_all();
  EXPECT_TRUE(log.unconfirmed().empty());
  EXPECT_EQ(log.total(), 3u);
}

TEST(MessageLog, MoreThanWasSentCannotBeConfirmed) {
  MessageLog log;
  log.push(AllLinger{});
  EXPECT_FALSE(log.confirm(2));
  EXPECT_EQ(log.unconfirmed().size(), 1u);
}

}  // namespace
}  // namespace byteps::protocol
