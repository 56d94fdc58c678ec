// The part of libibverbs's binary interface that the RDMA transport uses. Declared here so that
// neither the header nor the library is needed to build; verbs_library.h loads the library at run
// time.
//
// Layouts and values are those since IBVERBS_1.1, which may only grow where this file does not
// look. Objects created by the library (Context, QueuePair, …) are declared as far as they are
// read. tests/cpp/transport/verbs_abi_test.cc compares everything with the real header. Source: the
// manual pages of ibverbs (ibv_create_qp(3) and those it names).
#pragma once

#include <cstddef>
#include <cstdint>

namespace byteps::transport::rdma::abi {

// Values of enums; variables of enum type have the size of int.
enum Mtu : int32_t { kMtu256 = 1, kMtu512 = 2, kMtu1024 = 3, kMtu2048 = 4, kMtu4096 = 5 };
enum EventType : int32_t {
  kEventCqError = 0,
  kEventDeviceFatal = 8,
  kEventPortActive = 9,
  kEventPortError = 10,
};
enum WcStatus : int32_t { kWcSuccess = 0 };
enum WcOpcode : int32_t { kWcReceiveRdmaWithImmediate = (1 << 7) + 1 };
enum AccessFlags : uint32_t {
  kAccessLocalWrite = 1,
  kAccessRemoteWrite = 1 << 1,
  kAccessOnDemand = 1 << 6,
  kAccessRelaxedOrdering = 1 << 20,
};
enum QpType : int32_t { kQpReliableConnection = 2 };
enum QpState : int32_t { kQpInit = 1, kQpReadyToReceive = 2, kQpReadyToSend = 3, kQpError = 6 };
enum QpAttrMask : int32_t {
  kQpState = 1 << 0,
  kQpAccessFlags = 1 << 3,
  kQpPkeyIndex = 1 << 4,
  kQpPort = 1 << 5,
  kQpAddressVector = 1 << 7,
  kQpPathMtu = 1 << 8,
  kQpTimeout = 1 << 9,
  kQpRetryCount = 1 << 10,
  kQpRnrRetry = 1 << 11,
  kQpReceivePsn = 1 << 12,
  kQpMaxReadAtomic = 1 << 13,
  kQpMinRnrTimer = 1 << 15,
  kQpSendPsn = 1 << 16,
  kQpMaxDestReadAtomic = 1 << 17,
  kQpDestNumber = 1 << 20,
};
enum WrOpcode : int32_t { kWrRdmaWrite = 0, kWrRdmaWriteWithImmediate = 1 };
enum SendFlags : uint32_t { kSendSignaled = 1 << 1, kSendInline = 1 << 3 };

// Opaque.
struct Device;
struct Pd;
struct SharedReceiveQueue;

struct Context;
struct Cq;
struct QueuePair;
struct Wc;
struct SendWr;
struct ReceiveWr;

// Posting and polling are not functions of the library; they call the device's driver directly.
struct ContextOps {
  void* before_poll[11];
  int (*poll_cq)(Cq* cq, int most, Wc* into);
  int (*request_notify_cq)(Cq* cq, int solicited_only);
  void* before_post[12];
  int (*post_send)(QueuePair* qp, SendWr* first, SendWr** bad);
  int (*post_receive)(QueuePair* qp, ReceiveWr* first, ReceiveWr** bad);
  void* after_post[5];
};
struct Context {
  Device* device;
  ContextOps ops;
  int cmd_fd;
  int async_fd;
};

struct CompletionChannel {
  Context* context;
  int fd;
};
struct Cq {
  Context* context;
};
struct Mr {
  Context* context;
  Pd* pd;
  void* address;
  size_t length;
  uint32_t handle;
  uint32_t local_key;
  uint32_t remote_key;
};

struct DeviceAttr {
  char firmware_version[64];
  uint64_t node_guid;
  uint64_t system_image_guid;
  uint64_t max_mr_bytes;
  uint64_t page_sizes;
  uint32_t vendor_id;
  uint32_t vendor_part_id;
  uint32_t hardware_version;
  int max_qp;
  int max_qp_wr;
  uint32_t capabilities;
  int max_sge;
  int max_sge_read;
  int max_cq;
  int max_cqe;
  int unused[22];  // max_mr to max_srq_sge
  uint16_t max_pkeys;
  uint8_t local_ack_delay;
  uint8_t physical_ports;
};

struct PortAttr {
  int32_t state;
  int32_t max_mtu;
  int32_t active_mtu;
  int gids;
  uint32_t capabilities;
  uint32_t max_message_bytes;
  uint32_t bad_pkeys;
  uint32_t qkey_violations;
  uint16_t pkeys;
  uint16_t lid;
  uint16_t subnet_manager_lid;
  uint8_t unused[8];  // lmc to phys_state
  uint8_t link_layer;
  uint8_t flags;           // not filled in by ibv_query_port
  uint16_t capabilities2;  // not filled in either
};

struct AsyncEvent {
  union {
    void* object;
    int port;
  } element;
  int32_t type;
};

struct Wc {
  uint64_t id;
  int32_t status;
  int32_t opcode;
  uint32_t vendor_error;
  uint32_t bytes;
  uint32_t immediate;  // in network byte order
  uint32_t qp_number;
  uint32_t source_qp;
  uint32_t flags;
  uint16_t pkey_index;
  uint16_t source_lid;
  uint8_t service_level;
  uint8_t path_bits;
};

struct Sge {
  uint64_t address;
  uint32_t bytes;
  uint32_t local_key;
};
struct SendWr {
  uint64_t id;
  SendWr* next;
  Sge* sges;
  int sge_count;
  int32_t opcode;
  uint32_t flags;
  uint32_t immediate;  // in network byte order
  struct {
    uint64_t remote_address;
    uint32_t remote_key;
    uint64_t unused[2];  // of other operations
  } rdma;
  uint32_t unused1;
  uint64_t unused2[6];
};
struct ReceiveWr {
  uint64_t id;
  ReceiveWr* next;
  Sge* sges;
  int sge_count;
};

struct GlobalRoute {
  alignas(8) uint8_t destination[16];
  uint32_t flow_label;
  uint8_t source_index;
  uint8_t hop_limit;
  uint8_t traffic_class;
};
struct AddressVector {
  GlobalRoute global;
  uint16_t lid;
  uint8_t service_level;
  uint8_t source_path_bits;
  uint8_t static_rate;
  uint8_t is_global;
  uint8_t port;
};

struct QpCapacity {
  uint32_t max_send_wr;
  uint32_t max_receive_wr;
  uint32_t max_send_sge;
  uint32_t max_receive_sge;
  uint32_t max_inline_bytes;
};
struct QpInitAttr {
  void* qp_context;
  Cq* send_cq;
  Cq* receive_cq;
  SharedReceiveQueue* shared_receive_queue;
  QpCapacity capacity;
  int32_t type;
  int signal_all;
};
struct QpAttr {
  int32_t state;
  int32_t current_state;
  int32_t path_mtu;
  int32_t path_migration;
  uint32_t qkey;
  uint32_t receive_psn;
  uint32_t send_psn;
  uint32_t dest_number;
  uint32_t access_flags;
  QpCapacity capacity;
  AddressVector address_vector;
  AddressVector alternative;
  uint16_t pkey_index;
  uint16_t alternative_pkey_index;
  uint8_t drain_notify;
  uint8_t draining;
  uint8_t max_read_atomic;
  uint8_t max_dest_read_atomic;
  uint8_t min_rnr_timer;
  uint8_t port;
  uint8_t timeout;
  uint8_t retry_count;
  uint8_t rnr_retry;
  uint8_t alternative_port;
  uint8_t alternative_timeout;
  uint32_t rate_limit;
};
struct QueuePair {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* receive_cq;
  SharedReceiveQueue* shared_receive_queue;
  uint32_t handle;
  uint32_t number;
};

}  // namespace byteps::transport::rdma::abi
