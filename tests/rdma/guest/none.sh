# No RDMA devices, and no network but lo.
