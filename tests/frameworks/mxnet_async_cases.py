"""Asynchronous training (BYTEPS_ENABLE_ASYNC=1): weights live in the summation services."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from frameworks.mxnet_training import assert_equal_on_all_ranks, half_model, values_of
from mxnet import autograd, gluon, nd
from support.expect import expect_error

from byteps import rank, size
from byteps.errors import UnsupportedError

STEPS = 40
TARGET = np.array([[1.0, -2.0, 3.0]], dtype="float32")


def regress(
    make_trainer: Callable[[gluon.Block], gluon.Trainer], settle: Callable[[gluon.Trainer], None]
) -> gluon.Block:
    """Fits a plane, at another pace on each rank."""
    net = gluon.nn.Dense(1, in_units=3, use_bias=False)
    net.initialize(mx.init.Constant(rank()))
    trainer = make_trainer(net)
    random = np.random.default_rng(rank())
    for _ in range(STEPS + rank()):
        x = random.normal(size=(32, 3)).astype("float32")
        with autograd.record():
            loss = gluon.loss.L2Loss()(net(nd.array(x)), nd.array(x @ TARGET.T))
        loss.backward()
        trainer.step(32)
        time.sleep(0.001 * rank())
    settle(trainer)
    assert_equal_on_all_ranks(values_of(net))
    return net


def case_distributed_trainer() -> None:
    net = regress(
        lambda net: bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.3}),
        lambda trainer: trainer.settle(),
    )
    np.testing.assert_allclose(net.weight.data().asnumpy(), TARGET, atol=0.05)


def case_trainer_with_the_kvstore() -> None:
    store: list[Any] = []

    def trainer(net: gluon.Block) -> gluon.Trainer:
        store.append(mx.kv.create("dist_byteps"))
        assert store[-1].type == "dist_async_byteps"
        return gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.3}, kvstore=store[-1])

    net = regress(trainer, lambda _: store[-1].settle())
    np.testing.assert_allclose(net.weight.data().asnumpy(), TARGET, atol=0.05)


def case_trainer_with_a_distributed_optimizer() -> None:
    def trainer(net: gluon.Block) -> gluon.Trainer:
        optimizer = bps.DistributedOptimizer(mx.optimizer.create("adam", learning_rate=0.3))
        return gluon.Trainer(net.collect_params(), optimizer, kvstore=None)

    net = regress(trainer, lambda trainer: trainer.optimizer.settle())
    np.testing.assert_allclose(net.weight.data().asnumpy(), TARGET, atol=0.5)


def case_module_fit() -> None:
    x = np.random.default_rng(rank()).normal(size=(320, 3)).astype("float32")
    plane = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1, no_bias=True, name="plane")
    module = mx.mod.Module(mx.sym.LinearRegressionOutput(plane, mx.sym.Variable("label")), label_names=["label"])
    store = mx.kv.create("dist_byteps")
    module.fit(
        mx.io.NDArrayIter(x, x @ TARGET.T, 32, label_name="label"),
        num_epoch=8,
        kvstore=store,
        eval_metric="mse",
        optimizer_params={"learning_rate": 0.1},
    )
    store.settle()
    weight = module._exec_group.param_arrays[0][0].asnumpy()
    assert_equal_on_all_ranks([weight])
    np.testing.assert_allclose(weight, TARGET, atol=0.05)
    assert np.array_equal(module.get_params()[0]["plane_weight"].asnumpy(), weight)


def on_two_devices(make_trainer: Callable[[gluon.Parameter], gluon.Trainer]) -> tuple[gluon.Parameter, gluon.Trainer]:
    """Runs a step in which all ranks join, then one with a gradient of -1 on each device."""
    devices = [mx.cpu(0), mx.cpu(1)]
    weight = gluon.Parameter("weight", shape=(3,))
    weight.initialize(mx.init.Zero(), ctx=devices)
    trainer = make_trainer(weight)
    for slope in (0, -1):
        with autograd.record():
            losses = [(slope * weight.data(device)).sum() for device in devices]
        autograd.backward(losses)
        trainer.step(1)
        mx.nd.waitall()
        bps.barrier()  # a rank that joins late skips its first update
    return weight, trainer


def case_several_devices_with_the_kvstore() -> None:
    store = mx.kv.create("dist_byteps")
    weight, _ = on_two_devices(lambda its: gluon.Trainer([its], "sgd", {"learning_rate": 1.0}, kvstore=store))
    store.settle()
    for data in weight.list_data():
        np.testing.assert_allclose(data.asnumpy(), 2, rtol=1e-6)


def case_several_devices_without_a_kvstore_are_refused() -> None:
    if size() == 1:
        return
    with expect_error(UnsupportedError, "cpu(0) and cpu(1)", "'dist_byteps'"):
        on_two_devices(lambda its: bps.DistributedTrainer([its], "sgd"))


def case_states_from_a_file() -> None:
    store = mx.kv.create("dist_byteps")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "states"))
        for kvstore in (None, store):
            net = gluon.nn.Dense(1, in_units=1)
            net.initialize(mx.init.Constant(1))
            if kvstore is None:
                trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
            else:
                trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
            for step in range(4):
                if step == 2:
                    trainer.save_states(path)
                    trainer.load_states(path)
                with autograd.record():
                    out = net(nd.ones((1, 1)) * (rank() + 1))
                out.backward()
                trainer.step(1)
            trainer.settle() if kvstore is None else kvstore.settle()
            assert_equal_on_all_ranks(values_of(net))
            assert net.weight.data().asnumpy().item() < 0.8  # the first update may be skipped


def case_stale_gradients_are_refused() -> None:
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
    with expect_error(UnsupportedError, "ignore_stale_grad"):
        trainer.step(1, ignore_stale_grad=True)


def case_compression_is_refused() -> None:
    with expect_error(UnsupportedError, "no compression"):
        bps.DistributedOptimizer(mx.optimizer.SGD(), compression=bps.Compression.fp16)
    with expect_error(UnsupportedError, "no compression"):
        mx.kv.create("dist_byteps").set_gradient_compression({"type": "fp16"})


def case_a_rank_does_not_wait_for_the_slowest() -> None:
    """Rank 0 makes all its steps while the others make none."""
    if size() == 1:
        return
    weight = nd.zeros((1000,))
    optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=1.0), op=bps.Sum)
    updater = mx.optimizer.get_updater(optimizer)
    updater(0, nd.zeros((1000,)), weight)  # all ranks join
    nd.waitall()
    bps.barrier()
    if rank() == 0:
        for _ in range(10):
            updater(0, nd.full((1000,), -1.0), weight)
        assert weight.asnumpy()[0] == 10
    bps.barrier()
    if rank() != 0:
        updater(0, nd.zeros((1000,)), weight)
        assert weight.asnumpy()[0] == 10
    optimizer.settle()
    assert weight.asnumpy()[0] == 10


def case_half_precision_is_refused() -> None:
    if size() == 1:
        return
    net = half_model(0)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"multi_precision": True})
    with autograd.record():
        loss = net(nd.ones((2, 3))).sum()
    loss.backward()
    with expect_error(UnsupportedError, "float16"):
        trainer.step(2)
