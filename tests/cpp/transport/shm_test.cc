// Specific to shared memory: access control, and hostile or dying peers.
#include "transport/shm_harness.h"

namespace byteps::transport {
namespace {

// ---- Access control ----

TEST_F(Shm, IsViableHere) { EXPECT_TRUE(shm_->viable().is_ok()) << shm_->viable(); }

TEST_F(Shm, NamesAreRandomAndSayTheJob) {
  listen();
  Acceptor second(*shm_, *loop_, kAnyName);
  const std::string name = acceptor_->address().to_string();
  EXPECT_EQ(name.rfind("@byteps-job-7-", 0), 0u) << name;
  EXPECT_NE(name, second.address().to_string());
  EXPECT_EQ(parse_address(name).value(), acceptor_->address());
  const auto taken = shm_->listen(*loop_, second.address(), [](auto) {});
  EXPECT_EQ(taken.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(taken.status().message().find(second.address().to_string()), std::string::npos) << taken.status();
}

TEST_F(Shm, AddressesOfOtherKindsAreRefused) {
  const Address tcp{"127.0.0.1", 9};
  EXPECT_EQ(shm_->listen(*loop_, tcp, [](auto) {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(connect_and_wait(*shm_, *loop_, tcp, soon_us()).status().code(), StatusCode::kInvalidArgument);
}

// So ranks that wrongly believe to be on one machine fall back to TCP without delay.
TEST_F(Shm, NobodyListeningIsReportedAtOnce) {
  const auto nobody = connect_and_wait(*shm_, *loop_, {"@byteps-nobody", 0}, kNever);
  EXPECT_EQ(nobody.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(nobody.status().message().find("shm: connect to @byteps-nobody"), std::string::npos)
      << nobody.status();
}

TEST_F(Shm, AnotherSecretOrJobIsRefusedAtOnce) {
  listen();
  for (const Credentials& other :
       {Credentials{"wrong", "job 7"}, Credentials{"a secret of the test", "job 8"}}) {
    const auto result = connect_and_wait(*transport(other), *loop_, acceptor_->address(), soon_us());
    EXPECT_EQ(result.status().code(), StatusCode::kPermissionDenied) << result.status();
  }
  EXPECT_EQ(acceptor_->waiting(), 0u);
}

TEST_F(Shm, NoSecretIsNeededAmongProcessesOfOneUser) {
  const auto open = transport({"", "job"});
  Acceptor acceptor(*open, *loop_, kAnyName);
  auto connected = connect_and_wait(*open, *loop_, acceptor.address(), soon_us());
  EXPECT_TRUE(connected.is_ok()) << connected.status();
  run_on(*loop_, [&] { connected = internal("done"); });
}

TEST_F(Shm, OtherUsersAreDroppedBeforeAWord) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  listen();
  std::thread([&] {
    constexpr int kNobody = 65534;
    ASSERT_EQ(syscall(SYS_setresuid, kNobody, kNobody, kNobody), 0);  // of this thread only
    RawLeaseOwner stranger(acceptor_->address());
    EXPECT_TRUE(stranger.wait_until_closed());
  }).join();
  EXPECT_EQ(acceptor_->waiting(), 0u);
}

TEST_F(Shm, WhoPassesNoSoundMemoryIsDropped) {
  listen();
  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  const UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int passed_fd : {-1, unsealed.get(), null.get()}) {
    RawLeaseOwner peer(acceptor_->address());
    peer.authenticate(passed_fd);
    EXPECT_TRUE(peer.wait_until_closed()) << passed_fd;
  }
  EXPECT_EQ(acceptor_->waiting(), 0u);
}

// ---- Hostile and dying peers ----

TEST_F(Shm, ForgedFramesCloseTheConnection) {
  const std::string no_reference = "short";
  const std::vector<std::function<void(RawLeaseOwner&)>> forgeries{
      // beyond the end
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kLent, 2, 8192}); },
      // far beyond
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kLent, 0xffffffff, 1, 1}); },
      // twice
      [](RawLeaseOwner& peer) {
        peer.send_frame({ReferenceType::kLent, 1, 64});
        peer.send_frame({ReferenceType::kLent, 1, 64});
      },
      // Types that only the other end may send.
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kReturned, 1, 1}); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kGivenBack, 1}); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kInline, 1}); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kLent, 1, 64}, "head", "and a payload"); },
      [](RawLeaseOwner& peer) { peer.send_frame({ReferenceType::kStarving}, "", "payload"); },
      [](RawLeaseOwner& peer) { peer.send_frame({static_cast<ReferenceType>(9), 1, 64}); },
      [&](RawLeaseOwner& peer) { peer.send_raw_frame(no_reference, ""); },
      [&](RawLeaseOwner& peer) { peer.send_raw_frame(no_reference, "payload"); },
      [](RawLeaseOwner& peer) { peer.send_frame({}, std::string(kMaxHeadBytes + 1, 'x')); },
  };
  listen();
  const auto memory = create_segment(8192);
  for (size_t i = 0; i < forgeries.size(); ++i) {
    RawLeaseOwner peer(acceptor_->address());
    ASSERT_TRUE(peer.authenticate(memory->get()));
    auto connection = acceptor_->take();
    ASSERT_TRUE(connection);
    Recorder recorder;
    recorder.keeps_leases = true;
    run_on(*loop_, [&] { connection->start(&recorder); });
    forgeries[i](peer);
    EXPECT_EQ(recorder.why_closed().code(), StatusCode::kDataLoss) << i << ": " << recorder.why_closed();
    run_on(*loop_, [&] { connection.reset(); });
  }
}

TEST_F(Shm, LeasesOfADeadPeerStayReadableUntilTheConnectionGoes) {
  listen();
  auto memory = create_segment(8192);
  RawLeaseOwner peer(acceptor_->address());
  ASSERT_TRUE(peer.authenticate(memory->get()));
  other_ = acceptor_->take();
  ASSERT_TRUE(other_);
  start_holder();
  Bytes leased;
  run_on(*loop_, [&] {
    lease_holder_.frame = [&](Connection&, const Arrival&, Bytes payload) {
      leased = payload;
      return Status::ok();
    };
  });
  {
    auto mapped = Segment::map(memory->get());
    std::memcpy(mapped->bytes().data(), "last words", 10);
  }
  peer.send_frame({ReferenceType::kLent, 1, 10, 10}, "head");
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  peer.close();
  memory->reset();
  EXPECT_EQ(lease_holder_.why_closed().code(), StatusCode::kUnavailable);
  run_on(*loop_, [&] {
    EXPECT_EQ(as_text(leased), "last words");
    other_->return_lease(1);  // has no effect
  });
}

TEST_F(Shm, NothingIsLeftAndNothingWasEverInAFileSystem) {
  const auto before = names_in("/dev/shm");
  connect();
  const std::string name = acceptor_->address().to_string();
  send("head", "payload");
  ASSERT_TRUE(lease_holder_.wait_for_frames(1));
  EXPECT_EQ(names_in("/dev/shm"), before);
  EXPECT_NE(content_of("/proc/net/unix").find(name), std::string::npos);
  EXPECT_NE(content_of("/proc/self/maps").find("memfd:byteps"), std::string::npos);
  run_on(*loop_, [this] {
    mine_.reset();
    other_.reset();
  });
  acceptor_.reset();
  EXPECT_EQ(content_of("/proc/net/unix").find(name), std::string::npos);
  EXPECT_EQ(content_of("/proc/self/maps").find("memfd:byteps"), std::string::npos);
}

}  // namespace
}  // namespace byteps::transport
