"""The kvstore `dist_byteps`, for gluon's Trainer and for Module."""

from __future__ import annotations

from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from frameworks.mxnet_training import (
    BATCH,
    OPTIMIZERS,
    CLASSES,
    IMAGES,
    LABELS,
    assert_close,
    assert_equal_on_all_ranks,
    loss_of,
    model,
    part_of_rank,
    reference,
    train,
    values_of,
)
from mxnet import autograd, gluon, nd
from support.expect import expect_error
from support.said import Said

from byteps import rank, size
from byteps.errors import InvalidArgumentError, UnsupportedError


def case_trainer_with_the_kvstore() -> None:
    for flag in (None, False):
        for optimizer, options in OPTIMIZERS.items():
            values = train(
                model(0),
                lambda net, name=optimizer, its=options, flag=flag: gluon.Trainer(
                    net.collect_params(), name, dict(its), kvstore="dist_byteps", update_on_kvstore=flag
                ),
                step_size=BATCH,
            )
            assert_equal_on_all_ranks(values)
            assert_close(values, reference(optimizer, options), 1e-4 if optimizer == "adam" else 1e-5)


def symbol() -> mx.sym.Symbol:
    data = mx.sym.Variable("data")
    hidden = mx.sym.Convolution(data, kernel=(3, 3), num_filter=8, name="conv")
    hidden = mx.sym.Activation(hidden, act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=CLASSES, name="dense"), name="softmax")


def fit(kvstore: Any, optimizer: Any, *, seed: int, whole: bool = False, contexts: Any = None) -> list[np.ndarray]:
    """The parameters after an epoch of Module.fit."""
    images, labels = (IMAGES, LABELS) if whole else (map(part_of_rank, IMAGES), map(part_of_rank, LABELS))
    images, labels = np.concatenate(list(images)), np.concatenate(list(labels))
    mx.random.seed(seed)
    module = mx.mod.Module(symbol(), context=contexts or mx.cpu())
    module.fit(
        mx.io.NDArrayIter(images, labels, len(images) // len(IMAGES)),
        num_epoch=1,
        kvstore=kvstore,
        initializer=mx.init.Xavier(),
        optimizer=optimizer,
        optimizer_params=() if isinstance(optimizer, mx.optimizer.Optimizer) else OPTIMIZERS[optimizer],
    )
    return [array.asnumpy() for _, array in sorted(module.get_params()[0].items())]


def case_module_fit() -> None:
    for optimizer in OPTIMIZERS:
        expected = fit(None, optimizer, seed=0, whole=True)
        for kvstore in ("dist_byteps", mx.kv.create("dist_byteps")):
            values = fit(kvstore, optimizer, seed=rank())
            assert_equal_on_all_ranks(values)
            assert_close(values, expected, 1e-4 if optimizer == "adam" else 1e-5)


def case_module_fit_on_several_devices() -> None:
    values = fit("dist_byteps", "sgd", seed=rank(), contexts=[mx.cpu(0), mx.cpu(1)])
    assert_equal_on_all_ranks(values)
    assert_close(values, fit(None, "sgd", seed=0, whole=True))


def case_module_fit_with_a_distributed_optimizer() -> None:
    options = {**OPTIMIZERS["sgd"], "rescale_grad": size() / BATCH}
    values = fit(None, bps.DistributedOptimizer(mx.optimizer.SGD(**options)), seed=0)
    assert_equal_on_all_ranks(values)
    plain = mx.optimizer.SGD(**{**options, "rescale_grad": 1 / BATCH})
    assert_close(values, fit(None, plain, seed=0, whole=True))


def case_what_a_kvstore_keeps() -> None:
    store = mx.kv.create("dist_byteps")
    assert (store.rank, store.num_workers, store.type) == (rank(), size(), "dist_sync_byteps")
    total = size() * (size() + 1) // 2
    mine = nd.full((3,), rank() + 1)
    out = nd.zeros((3,))
    store.init("a", mine)
    store.pull("a", out=out)
    assert out.asnumpy().tolist() == [1, 1, 1]  # rank 0's
    store.push("a", mine)
    store.pull("a", out=out)
    assert out.asnumpy().tolist() == [total] * 3
    store.pushpull(["b", "c"], [mine, mine * 2], out=[out, mine])
    assert out.asnumpy().tolist() == [total] * 3
    assert mine.asnumpy().tolist() == [2 * total] * 3
    store.set_gradient_compression({"type": "fp16"})
    store.pushpull("d", mine)
    assert mine.asnumpy().tolist() == [2 * total * size()] * 3
    store.barrier()
    with expect_error(InvalidArgumentError, "'e'", "init('e', value)"):
        store.pull("e", out=out)
    with expect_error(UnsupportedError, "'type'"):
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
    with expect_error(InvalidArgumentError, "update_on_kvstore", "BYTEPS_ENABLE_ASYNC"):
        store.set_optimizer(mx.optimizer.SGD())


def case_no_kvstore_goes_unnoticed() -> None:
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    loss_of(net(nd.ones((1, 1))), nd.ones((1,)))

    def trainer(kvstore: str) -> gluon.Trainer:
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=kvstore)
        with autograd.record():
            out = net(nd.ones((1, 1)) * (rank() + 1))
        out.backward()
        trainer.step(size())
        return trainer

    for name in ("bytes", "horovod", "dist_sync", "dist_async", "distbyteps"):
        with expect_error(InvalidArgumentError, f"'{name}'", "'dist_byteps'"):
            trainer(name)
        with expect_error(InvalidArgumentError, f"'{name}'", "'dist_byteps'"):
            mx.kv.create(name)
    for name in ("byteps", "BytePS", "dist_byteps"):
        assert trainer(name)._kvstore.type == "dist_sync_byteps"
    assert_equal_on_all_ranks(values_of(net))
    trainer("device")  # a store of this rank alone


def case_ranks_that_would_train_apart_are_told_so() -> None:
    """Once, at the first step; a DistributedTrainer gives them the same parameters."""
    last = size() - 1
    rate = {"learning_rate": 0.5 if rank() == last else 0.25}
    for by_optimizer in (True, False):
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize(mx.init.Constant(1 + (rank() == last)))
        params = net.collect_params()
        if by_optimizer:
            optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", **rate))
            trainer = gluon.Trainer(params, optimizer, kvstore=None)
        else:
            trainer = bps.DistributedTrainer(params, "sgd", rate)
        with Said() as lines:
            for batch in (1 + rank(), 2):
                with autograd.record():
                    loss = net(nd.ones((batch, 3)))
                loss.backward()
                trainer.step(batch)
        assert len(lines) == (last > 0 and rank() in (0, last)), lines
        for line in lines:
            assert "rank 0 has learning_rate=0.25" in line and f"rank {last} having learning_rate=0.5" in line, line
            assert ("the weights of" in line) == by_optimizer, line
