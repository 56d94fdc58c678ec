"""MXNet's NaiveEngine, for debugging: it has no threads, so that push_pulls wait."""

from __future__ import annotations

import byteps.mxnet as bps  # must come before mxnet
from frameworks.mxnet_ops_cases import mine, sum_of_ranks
from frameworks.mxnet_training import assert_close, assert_equal_on_all_ranks, model, reference, train
from mxnet import nd
from support.expect import expect_error

from byteps import rank, size
from byteps.errors import InvalidArgumentError


def case_results() -> None:
    array = mine(5)
    for _ in range(10):
        bps.byteps_push_pull(array, name="naive")
    assert array.asnumpy().tolist() == [sum_of_ranks() / size()] * 5
    assert bps.broadcast(mine(3), 0, "broadcast").asnumpy().tolist() == [1, 1, 1]


def case_errors_come_from_the_call() -> None:
    for _ in range(2):
        array = nd.ones((4 + (rank() == 1),))
        if size() > 1:
            with expect_error(InvalidArgumentError, "'misfit'", "rank 1"):
                bps.byteps_push_pull(array, name="misfit")
    bps.byteps_push_pull(nd.ones((4,)), name="fit")


def case_training() -> None:
    options = {"learning_rate": 0.1, "momentum": 0.9}
    values = train(model(rank()), lambda net: bps.DistributedTrainer(net.collect_params(), "sgd", options))
    assert_equal_on_all_ranks(values)
    assert_close(values, reference("sgd", options))
