"""Measures, one in each file: modules with TITLE, DEADLINE_S and run(recorder)."""

MEASURES = (
    "lab",
    "unequal",
    "fast_lab",
    "plan",
    "bad_networks",
    "one_machine",
    "latency",
    "overlap",
    "training",
    "training_tensorflow",
    "training_mxnet",
    "rdma",
    "system_calls",
)
