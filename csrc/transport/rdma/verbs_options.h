// Options of connections over libibverbs.
#pragma once

namespace byteps::transport::rdma {

struct VerbsOptions {
  int gid_index = -1;  // -1: chosen by choose_gid() of gid.h
  // 0 to 255; on RoCE v2 the IP header's field, whose upper six bits are the DSCP
  int traffic_class = 0;
  int service_level = 0;  // 0 to 15; on RoCE in VLANs the priority, 0 to 7
  int pkey_index = 0;     // InfiniBand: index of the partition key
  // A packet is retransmitted after 4.096 us * 2^timeout without an acknowledgement (timeout: 0 to
  // 31; NICs may take up to four times as long), at most `retries` times (0 to 7). 18 and 6 give up
  // some ten seconds after the peer has gone. With 7 Soft-RoCE never gives up.
  int timeout = 18;
  int retries = 6;
  // Number of retries when the peer is not ready to receive (0 to 6; 7: unlimited). As no write is
  // sent without a posted receive request, not-ready replies indicate a bug, which 6 makes visible.
  // But NICs with on-demand paging also reply so while they fetch a page, which takes arbitrarily
  // long. -1: 7 if this end's NIC uses on-demand paging, as the peer's probably does, too; else 6.
  int not_ready_retries = -1;
  bool relaxed_ordering = true;
  bool on_demand_paging = true;  // where supported
};

}  // namespace byteps::transport::rdma
