// The part of libibverbs's binary interface that the RDMA transport uses. Declared here so that
// neither the header nor the library is needed to build; verbs_library.h loads the library at run
// time.
//
// Layouts and values are those since IBVERBS_1.1, which may only grow where this file does not
// look. Objects created by the library (Context, QueuePair, …) are declared as far as they are
// read; `unused` stands for members that are neither read nor set.
// tests/cpp/transport/verbs_abi_test.cc compares everything with the real header. Source: the
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
  int unused;
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
  void* unused1[4];  // context to length
  uint32_t unused2;
  uint32_t local_key;
  uint32_t remote_key;
};

struct DeviceAttr {
  alignas(8) uint8_t unused1[112];  // fw_ver to max_qp
  int max_qp_wr;
  int unused2[4];  // device_cap_flags to max_cq
  int max_cqe;
  int unused3[24];  // max_mr to phys_port_cnt
};

struct PortAttr {
  int32_t unused1[2];
  int32_t active_mtu;
  int32_t unused2[2];
  uint32_t max_message_bytes;
  uint32_t unused3[2];
  uint16_t unused4;
  uint16_t lid;
  uint8_t unused5[14];  // sm_lid to port_cap_flags2
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
  uint32_t unused1[2];
  uint32_t immediate;   // in network byte order
  uint32_t unused2[5];  // qp_num to dlid_path_bits
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
  } rdma;
  uint64_t unused[9];  // of other operations
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
  uint8_t unused[2];
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
  void* unused1;
  Cq* send_cq;
  Cq* receive_cq;
  void* unused2;
  QpCapacity capacity;
  int32_t type;
  int signal_all;
};
struct QpAttr {
  int32_t state;
  int32_t unused1;
  int32_t path_mtu;
  int32_t unused2[2];
  uint32_t receive_psn;
  uint32_t send_psn;
  uint32_t dest_number;
  uint32_t access_flags;
  QpCapacity unused3;
  AddressVector address_vector;
  AddressVector unused4;
  uint16_t pkey_index;
  uint8_t unused5[4];  // alt_pkey_index to sq_draining
  uint8_t max_read_atomic;
  uint8_t max_dest_read_atomic;
  uint8_t min_rnr_timer;
  uint8_t port;
  uint8_t timeout;
  uint8_t retry_count;
  uint8_t rnr_retry;
  uint8_t unused6[2];
  uint32_t unused7;
};
struct QueuePair {
  Context* context;
  void* unused1[5];  // qp_context to srq
  uint32_t unused2;
  uint32_t number;
};

}  // namespace byteps::transport::rdma::abi
