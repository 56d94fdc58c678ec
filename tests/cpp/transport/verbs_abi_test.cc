// Compares verbs_abi.h with libibverbs's own header. Not built where that is not installed.
#include "transport/rdma/verbs_abi.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <type_traits>

namespace byteps::transport::rdma::abi {
namespace {

// Compares a member's offset and size.
#define SAME_MEMBER(ours, our_member, theirs, their_member)                             \
  EXPECT_EQ(offsetof(ours, our_member), offsetof(theirs, their_member)) << #our_member; \
  EXPECT_EQ(sizeof(ours::our_member), sizeof(theirs::their_member)) << #our_member
// Compares the sizes of types that the library reads or writes as a whole.
#define SAME_SIZE(ours, theirs)            \
  EXPECT_EQ(sizeof(ours), sizeof(theirs)); \
  EXPECT_EQ(alignof(ours), alignof(theirs))

TEST(VerbsAbi, ValuesOfPortsAndEventsAreTheHeaders) {
  EXPECT_EQ(int{kMtu256}, int{IBV_MTU_256});
  EXPECT_EQ(int{kMtu512}, int{IBV_MTU_512});
  EXPECT_EQ(int{kMtu1024}, int{IBV_MTU_1024});
  EXPECT_EQ(int{kMtu2048}, int{IBV_MTU_2048});
  EXPECT_EQ(int{kMtu4096}, int{IBV_MTU_4096});
  EXPECT_EQ(int{kEventCqError}, int{IBV_EVENT_CQ_ERR});
  EXPECT_EQ(int{kEventDeviceFatal}, int{IBV_EVENT_DEVICE_FATAL});
  EXPECT_EQ(int{kEventPortActive}, int{IBV_EVENT_PORT_ACTIVE});
  EXPECT_EQ(int{kEventPortError}, int{IBV_EVENT_PORT_ERR});
}

TEST(VerbsAbi, ValuesOfRequestsAndCompletionsAreTheHeaders) {
  EXPECT_EQ(int{kWcSuccess}, int{IBV_WC_SUCCESS});
  EXPECT_EQ(int{kWcReceiveRdmaWithImmediate}, int{IBV_WC_RECV_RDMA_WITH_IMM});
  EXPECT_EQ(int{kWrRdmaWrite}, int{IBV_WR_RDMA_WRITE});
  EXPECT_EQ(int{kWrRdmaWriteWithImmediate}, int{IBV_WR_RDMA_WRITE_WITH_IMM});
  EXPECT_EQ(int{kSendSignaled}, int{IBV_SEND_SIGNALED});
  EXPECT_EQ(int{kSendInline}, int{IBV_SEND_INLINE});
  EXPECT_EQ(int{kAccessLocalWrite}, int{IBV_ACCESS_LOCAL_WRITE});
  EXPECT_EQ(int{kAccessRemoteWrite}, int{IBV_ACCESS_REMOTE_WRITE});
  EXPECT_EQ(int{kAccessOnDemand}, int{IBV_ACCESS_ON_DEMAND});
  EXPECT_EQ(int{kAccessRelaxedOrdering}, int{IBV_ACCESS_RELAXED_ORDERING});
}

TEST(VerbsAbi, ValuesOfQueuePairsAreTheHeaders) {
  EXPECT_EQ(int{kQpReliableConnection}, int{IBV_QPT_RC});
  EXPECT_EQ(int{kQpInit}, int{IBV_QPS_INIT});
  EXPECT_EQ(int{kQpReadyToReceive}, int{IBV_QPS_RTR});
  EXPECT_EQ(int{kQpReadyToSend}, int{IBV_QPS_RTS});
  EXPECT_EQ(int{kQpError}, int{IBV_QPS_ERR});
  EXPECT_EQ(int{kQpState}, int{IBV_QP_STATE});
  EXPECT_EQ(int{kQpAccessFlags}, int{IBV_QP_ACCESS_FLAGS});
  EXPECT_EQ(int{kQpPkeyIndex}, int{IBV_QP_PKEY_INDEX});
  EXPECT_EQ(int{kQpPort}, int{IBV_QP_PORT});
  EXPECT_EQ(int{kQpAddressVector}, int{IBV_QP_AV});
  EXPECT_EQ(int{kQpPathMtu}, int{IBV_QP_PATH_MTU});
  EXPECT_EQ(int{kQpTimeout}, int{IBV_QP_TIMEOUT});
  EXPECT_EQ(int{kQpRetryCount}, int{IBV_QP_RETRY_CNT});
  EXPECT_EQ(int{kQpRnrRetry}, int{IBV_QP_RNR_RETRY});
  EXPECT_EQ(int{kQpReceivePsn}, int{IBV_QP_RQ_PSN});
  EXPECT_EQ(int{kQpMaxReadAtomic}, int{IBV_QP_MAX_QP_RD_ATOMIC});
  EXPECT_EQ(int{kQpMinRnrTimer}, int{IBV_QP_MIN_RNR_TIMER});
  EXPECT_EQ(int{kQpSendPsn}, int{IBV_QP_SQ_PSN});
  EXPECT_EQ(int{kQpMaxDestReadAtomic}, int{IBV_QP_MAX_DEST_RD_ATOMIC});
  EXPECT_EQ(int{kQpDestNumber}, int{IBV_QP_DEST_QPN});
}

TEST(VerbsAbi, ObjectsOfTheLibraryAreReadWhereTheyAre) {
  SAME_MEMBER(Context, device, ibv_context, device);
  SAME_MEMBER(Context, ops, ibv_context, ops);
  SAME_MEMBER(Context, async_fd, ibv_context, async_fd);
  SAME_MEMBER(ContextOps, poll_cq, ibv_context_ops, poll_cq);
  SAME_MEMBER(ContextOps, request_notify_cq, ibv_context_ops, req_notify_cq);
  SAME_MEMBER(ContextOps, post_send, ibv_context_ops, post_send);
  SAME_MEMBER(ContextOps, post_receive, ibv_context_ops, post_recv);
  SAME_MEMBER(CompletionChannel, fd, ibv_comp_channel, fd);
  SAME_MEMBER(Cq, context, ibv_cq, context);
  SAME_MEMBER(Mr, local_key, ibv_mr, lkey);
  SAME_MEMBER(Mr, remote_key, ibv_mr, rkey);
  SAME_MEMBER(QueuePair, context, ibv_qp, context);
  SAME_MEMBER(QueuePair, number, ibv_qp, qp_num);
}

TEST(VerbsAbi, AnswersOfTheLibraryFitAndAreReadWhereTheyAre) {
  SAME_SIZE(DeviceAttr, ibv_device_attr);
  SAME_MEMBER(DeviceAttr, max_qp_wr, ibv_device_attr, max_qp_wr);
  SAME_MEMBER(DeviceAttr, max_cqe, ibv_device_attr, max_cqe);
  SAME_SIZE(PortAttr, ibv_port_attr);
  SAME_MEMBER(PortAttr, active_mtu, ibv_port_attr, active_mtu);
  SAME_MEMBER(PortAttr, max_message_bytes, ibv_port_attr, max_msg_sz);
  SAME_MEMBER(PortAttr, lid, ibv_port_attr, lid);
  SAME_SIZE(AsyncEvent, ibv_async_event);
  SAME_MEMBER(AsyncEvent, element.port, ibv_async_event, element.port_num);
  SAME_MEMBER(AsyncEvent, type, ibv_async_event, event_type);
  SAME_SIZE(Wc, ibv_wc);
  SAME_MEMBER(Wc, id, ibv_wc, wr_id);
  SAME_MEMBER(Wc, status, ibv_wc, status);
  SAME_MEMBER(Wc, opcode, ibv_wc, opcode);
  SAME_MEMBER(Wc, immediate, ibv_wc, imm_data);
}

TEST(VerbsAbi, RequestsAreWhatTheLibraryExpects) {
  SAME_SIZE(Sge, ibv_sge);
  SAME_MEMBER(Sge, address, ibv_sge, addr);
  SAME_MEMBER(Sge, bytes, ibv_sge, length);
  SAME_MEMBER(Sge, local_key, ibv_sge, lkey);
  SAME_SIZE(SendWr, ibv_send_wr);
  SAME_MEMBER(SendWr, id, ibv_send_wr, wr_id);
  SAME_MEMBER(SendWr, next, ibv_send_wr, next);
  SAME_MEMBER(SendWr, sges, ibv_send_wr, sg_list);
  SAME_MEMBER(SendWr, sge_count, ibv_send_wr, num_sge);
  SAME_MEMBER(SendWr, opcode, ibv_send_wr, opcode);
  SAME_MEMBER(SendWr, flags, ibv_send_wr, send_flags);
  SAME_MEMBER(SendWr, immediate, ibv_send_wr, imm_data);
  SAME_MEMBER(SendWr, rdma.remote_address, ibv_send_wr, wr.rdma.remote_addr);
  SAME_MEMBER(SendWr, rdma.remote_key, ibv_send_wr, wr.rdma.rkey);
  SAME_SIZE(ReceiveWr, ibv_recv_wr);
  SAME_MEMBER(ReceiveWr, next, ibv_recv_wr, next);
  SAME_MEMBER(ReceiveWr, sges, ibv_recv_wr, sg_list);
  SAME_MEMBER(ReceiveWr, sge_count, ibv_recv_wr, num_sge);
}

TEST(VerbsAbi, AddressesAreWhatTheLibraryExpects) {
  SAME_SIZE(GlobalRoute, ibv_global_route);
  SAME_MEMBER(GlobalRoute, destination, ibv_global_route, dgid);
  SAME_MEMBER(GlobalRoute, source_index, ibv_global_route, sgid_index);
  SAME_MEMBER(GlobalRoute, hop_limit, ibv_global_route, hop_limit);
  SAME_MEMBER(GlobalRoute, traffic_class, ibv_global_route, traffic_class);
  SAME_SIZE(AddressVector, ibv_ah_attr);
  SAME_MEMBER(AddressVector, lid, ibv_ah_attr, dlid);
  SAME_MEMBER(AddressVector, service_level, ibv_ah_attr, sl);
  SAME_MEMBER(AddressVector, is_global, ibv_ah_attr, is_global);
  SAME_MEMBER(AddressVector, port, ibv_ah_attr, port_num);
}

TEST(VerbsAbi, QueuePairsAreDescribedAsTheLibraryExpects) {
  SAME_SIZE(QpCapacity, ibv_qp_cap);
  SAME_MEMBER(QpCapacity, max_receive_wr, ibv_qp_cap, max_recv_wr);
  SAME_MEMBER(QpCapacity, max_send_sge, ibv_qp_cap, max_send_sge);
  SAME_MEMBER(QpCapacity, max_inline_bytes, ibv_qp_cap, max_inline_data);
  SAME_SIZE(QpInitAttr, ibv_qp_init_attr);
  SAME_MEMBER(QpInitAttr, send_cq, ibv_qp_init_attr, send_cq);
  SAME_MEMBER(QpInitAttr, receive_cq, ibv_qp_init_attr, recv_cq);
  SAME_MEMBER(QpInitAttr, capacity, ibv_qp_init_attr, cap);
  SAME_MEMBER(QpInitAttr, type, ibv_qp_init_attr, qp_type);
  SAME_MEMBER(QpInitAttr, signal_all, ibv_qp_init_attr, sq_sig_all);
  SAME_SIZE(QpAttr, ibv_qp_attr);
  SAME_MEMBER(QpAttr, state, ibv_qp_attr, qp_state);
  SAME_MEMBER(QpAttr, path_mtu, ibv_qp_attr, path_mtu);
  SAME_MEMBER(QpAttr, receive_psn, ibv_qp_attr, rq_psn);
  SAME_MEMBER(QpAttr, send_psn, ibv_qp_attr, sq_psn);
  SAME_MEMBER(QpAttr, dest_number, ibv_qp_attr, dest_qp_num);
  SAME_MEMBER(QpAttr, access_flags, ibv_qp_attr, qp_access_flags);
  SAME_MEMBER(QpAttr, address_vector, ibv_qp_attr, ah_attr);
  SAME_MEMBER(QpAttr, pkey_index, ibv_qp_attr, pkey_index);
  SAME_MEMBER(QpAttr, max_read_atomic, ibv_qp_attr, max_rd_atomic);
  SAME_MEMBER(QpAttr, max_dest_read_atomic, ibv_qp_attr, max_dest_rd_atomic);
  SAME_MEMBER(QpAttr, min_rnr_timer, ibv_qp_attr, min_rnr_timer);
  SAME_MEMBER(QpAttr, port, ibv_qp_attr, port_num);
  SAME_MEMBER(QpAttr, timeout, ibv_qp_attr, timeout);
  SAME_MEMBER(QpAttr, retry_count, ibv_qp_attr, retry_cnt);
  SAME_MEMBER(QpAttr, rnr_retry, ibv_qp_attr, rnr_retry);
}

}  // namespace
}  // namespace byteps::transport::rdma::abi
