// How connections over libibverbs behave.
#pragma once

namespace byteps::transport::rdma {

struct VerbsOptions {
  int gid_index = -1;     // -1: choose_gid() of gid.h
  int traffic_class = 0;  // 0 to 255; RoCE v2: the IP header's, its upper six bits are the DSCP
  int service_level = 0;  // 0 to 15; RoCE in VLANs: the priority, 0 to 7
  int pkey_index = 0;     // InfiniBand: which partition
  // A packet is sent again when 4.096 us * 2^timeout have gone by without an answer (0 to 31; cards take up to four times
  // as long), `retries` times at most (0 to 7): 18 and 6 give up some ten seconds after the other end has gone.
  // With 7 Soft-RoCE never does.
  int timeout = 18;
  int retries = 6;
  // How often to try again when the other end says that it is not ready (0 to 6; 7: without end). It always is, since no
  // write goes out that it has posted no arrival for: so a not-ready end is a fault that has to be seen, and 6 shows it. But
  // cards that page on demand say "not ready" while they fetch a page, and that may take any time. -1: 7 if this end's
  // card pages on demand, as then the other's will; else 6.
  int not_ready_retries = -1;
  bool relaxed_ordering = true;
  bool on_demand_paging = true;  // where it works
};

}  // namespace byteps::transport::rdma
