"""Measures, one in each file: modules with TITLE, DEADLINE_S and run(recorder)."""

MEASURES = (
    "lab",
    "unequal",
    "servers",
    "fast_lab",
    "plan",
    "bad_networks",
    "changing_links",
    "faults",
    "elastic",
    "one_machine",
    "latency",
    "c10d",
    "overlap",
    "training",
    "training_tensorflow",
    "training_mxnet",
    "rdma",
    "system_calls",
)
