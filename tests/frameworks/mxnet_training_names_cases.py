"""Names and values of MXNet parameters that differ between ranks."""

from __future__ import annotations


import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
from frameworks.mxnet_training import (
    OPTIMIZERS,
    IMAGES,
    assert_close,
    assert_equal_on_all_ranks,
    model,
    reference,
    train,
)
from mxnet import autograd, gluon, nd
from support.expect import expect_error

from byteps import rank, size
from byteps.errors import InvalidArgumentError


def case_parameters_that_differ() -> None:
    if size() == 1:
        return
    net = gluon.nn.HybridSequential()
    for _ in range(2 + (rank() == 1)):
        net.add(gluon.nn.Dense(2, in_units=2))
    net.initialize()
    with expect_error(InvalidArgumentError, "DistributedTrainer", "rank 1", "parameter 4"):
        bps.DistributedTrainer(net.collect_params(), "sgd")


def layers_by_other_names() -> dict[str, gluon.Parameter]:
    """Returns parameters of two layers whose order by name differs between ranks."""
    params: dict[str, gluon.Parameter] = {}
    for number in range(2):
        layer = gluon.nn.Dense(1, in_units=1, use_bias=False, prefix=f"dense{number + 9 * (rank() == 1)}_")
        layer.initialize(mx.init.Constant(number))
        params.update(layer.collect_params())
    return params


def case_layers_that_gluon_numbers_otherwise_on_another_rank() -> None:
    params = layers_by_other_names()
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
    values = list(params.values())
    with autograd.record():
        out = values[0].data() * 1 + values[1].data() * 10
    out.backward()
    trainer.step(1)
    assert [value.data().asnumpy().item() for value in values] == [-1, -9]
    if size() == 1:
        return
    for make in (
        lambda: gluon.Trainer(params, "sgd", kvstore="dist_byteps"),
        lambda: gluon.Trainer(params, bps.DistributedOptimizer(mx.optimizer.SGD()), kvstore=None),
    ):
        with autograd.record():
            out = values[0].data() * 1 + values[1].data() * 10
        out.backward()
        with expect_error(InvalidArgumentError, "the ranks differ", "prefix="):
            make().step(1)


def case_broadcast_parameters_before_a_trainer_where_one_rank_has_loaded_a_file() -> None:
    net = model(rank())
    if rank() == 0:
        net(nd.array(IMAGES[0]))
    bps.broadcast_parameters(net.collect_params())
    values = train(net, lambda net: bps.DistributedTrainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"]))
    assert_equal_on_all_ranks(values)
    assert_close(values, reference("sgd", OPTIMIZERS["sgd"]))
