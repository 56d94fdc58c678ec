"""Training by several ranks comes to what training by one process comes to."""

from __future__ import annotations

import copy
import pickle
import tempfile
from pathlib import Path
from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from frameworks.mxnet_training_names_cases import *  # noqa: F403
from frameworks.mxnet_training import (
    BATCH,
    OPTIMIZERS,
    HYBRID,
    IMAGES,
    LABELS,
    assert_close,
    assert_equal_on_all_ranks,
    half_model,
    loss_of,
    model,
    part_of_rank,
    reference,
    train,
    values_of,
)
from mxnet import autograd, gluon, nd
from mxnet.util import np_shape
from support.expect import expect_error

from byteps import rank, size
from byteps.errors import AbortedError, InvalidArgumentError, UnsupportedError
from byteps.mxnet.exchange import GradientExchange


def case_distributed_trainer() -> None:
    for hybrid in HYBRID:
        for optimizer, options in OPTIMIZERS.items():
            values = train(
                model(rank(), hybrid),
                lambda net, name=optimizer, its=options: bps.DistributedTrainer(net.collect_params(), name, its),
            )
            assert_equal_on_all_ranks(values)
            expected = reference(optimizer, options, lambda seed, flags=hybrid: model(seed, flags))
            assert_close(values, expected, 1e-4 if optimizer == "adam" else 1e-5)


def case_distributed_trainer_in_half_precision() -> None:
    options = {"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True}
    net = half_model(rank())
    values = train(net, lambda net: bps.DistributedTrainer(net.collect_params(), "sgd", options))
    assert {value.dtype for value in values} == {np.dtype("float16")}
    assert_equal_on_all_ranks(values)
    assert_close(values, reference("sgd", options, half_model), 5e-3)


def case_trainer_with_a_distributed_optimizer() -> None:
    for optimizer, options in OPTIMIZERS.items():

        def trainer(net: gluon.Block, name: str = optimizer, its: Any = options) -> gluon.Trainer:
            bps.broadcast_parameters(net.collect_params())
            distributed = bps.DistributedOptimizer(mx.optimizer.create(name, **its))
            assert type(distributed).__name__.lower() == name
            return gluon.Trainer(net.collect_params(), distributed, kvstore=None)

        values = train(model(rank()), trainer)
        assert_equal_on_all_ranks(values)
        assert_close(values, reference(optimizer, options), 1e-4 if optimizer == "adam" else 1e-5)


def case_multi_precision_of_every_optimizer_that_has_it() -> None:
    for name in ("sgd", "nag", "adam", "lamb"):
        options = {"learning_rate": 0.05, "multi_precision": True}

        def trainer(net: gluon.Block, name: str = name, its: Any = options) -> gluon.Trainer:
            bps.broadcast_parameters(net.collect_params())
            distributed = bps.DistributedOptimizer(mx.optimizer.create(name, **its))
            return gluon.Trainer(net.collect_params(), distributed, kvstore=None)

        values = train(half_model(rank()), trainer)
        assert_equal_on_all_ranks(values)
        assert_close(values, reference(name, options, half_model), 5e-3 if name in ("sgd", "nag") else 5e-2)


def case_gradients_that_add_up_over_several_passes() -> None:
    def trainer(net: gluon.Block) -> gluon.Trainer:
        net.collect_params().setattr("grad_req", "add")
        return bps.DistributedTrainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"])

    values = train(model(rank()), trainer, passes=2)
    assert_close(values, reference("sgd", OPTIMIZERS["sgd"]))


def case_another_root_and_compression() -> None:
    options = {"learning_rate": 0.1}
    values = train(
        model(0 if rank() == size() - 1 else rank() + 5),
        lambda net: bps.DistributedTrainer(
            net.collect_params(), "sgd", options, root_rank=size() - 1, compression_params={"fp16": True}
        ),
    )
    assert_equal_on_all_ranks(values)
    assert_close(values, reference("sgd", options), 1e-3)


def case_several_devices_of_each_rank_with_arrays_of_numpy_style() -> None:
    mx.npx.set_np()
    try:
        devices = [mx.cpu(0), mx.cpu(1)]
        for kvstore in (None, "dist_byteps"):
            weight = gluon.Parameter("weight", shape=(3,))
            weight.initialize(mx.init.Zero(), ctx=devices)
            if kvstore is None:
                trainer = bps.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})
            else:
                trainer = gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kvstore=kvstore)
            with autograd.record():
                losses = [weight.data(device).sum() for device in devices]
            autograd.backward(losses)
            trainer.step(1 if kvstore is None else size())
            for data in weight.list_data():
                assert data.tolist() == [-2] * 3
    finally:
        mx.npx.reset_np()


def case_several_devices_of_each_rank() -> None:
    devices = [mx.cpu(0), mx.cpu(1)]
    for kvstore in (None, "dist_byteps"):
        net = model(rank() if kvstore is None else 0)
        net.collect_params().reset_ctx(devices)
        if kvstore is None:
            trainer = bps.DistributedTrainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"])
        else:
            trainer = gluon.Trainer(net.collect_params(), "sgd", dict(OPTIMIZERS["sgd"]), kvstore=kvstore)
        for images, labels in zip(IMAGES, LABELS, strict=True):
            x, y = part_of_rank(images), part_of_rank(labels)
            with autograd.record():
                losses = [
                    loss_of(net(nd.array(xs, ctx=device)), nd.array(ys, ctx=device))
                    for xs, ys, device in zip(np.split(x, 2), np.split(y, 2), devices, strict=True)
                ]
            autograd.backward(losses)
            trainer.step(len(x) if kvstore is None else BATCH)
        for parameter in net.collect_params().values():
            assert np.array_equal(parameter.data(devices[0]).asnumpy(), parameter.data(devices[1]).asnumpy())
        values = [parameter.data(devices[0]).asnumpy() for parameter in net.collect_params().values()]
        assert_close(values, reference("sgd", OPTIMIZERS["sgd"]))


def case_gradients_that_some_ranks_do_not_have() -> None:
    """Layer 0 is everybody's, layer 1 that of rank 0 alone, and layer 2 nobody's."""
    layers = [gluon.nn.Dense(1, in_units=1, use_bias=False, prefix=f"layer{number}_") for number in range(3)]
    params: dict[str, Any] = {}
    for layer in layers:
        layer.initialize(mx.init.Constant(1))
        params.update(layer.collect_params())
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 1.0})
    for step in range(3):
        with autograd.record():
            out = layers[0](nd.ones((1, 1)))
            if rank() == 0:
                out = out + layers[1](nd.ones((1, 1)))
        out.backward()
        trainer.step(1, ignore_stale_grad=True)
        weights = [layer.weight.data().asnumpy().item() for layer in layers]
        assert np.allclose(weights, [1 - (step + 1), 1 - (step + 1) / size(), 1])
    with autograd.record():
        out = layers[0](nd.ones((1, 1)))
    out.backward()
    with expect_error(UserWarning, "layer1_weight"):  # as in gluon
        trainer.step(1)


def case_gradients_are_clipped_between_exchange_and_update() -> None:
    net = model(rank())
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        loss = loss_of(net(nd.array(part_of_rank(IMAGES[0]))), nd.array(part_of_rank(LABELS[0])))
    loss.backward()
    trainer.allreduce_grads()
    gradients = [each.grad() for each in net.collect_params().values() if each.grad_req != "null"]
    assert_equal_on_all_ranks([gradient.asnumpy() for gradient in gradients])
    gluon.utils.clip_global_norm(gradients, 0.01)
    trainer.update(len(part_of_rank(IMAGES[0])))
    assert_equal_on_all_ranks(values_of(net))


def case_states_of_a_trainer_are_those_of_a_plain_one() -> None:
    """And a trainer that loads them goes on with all ranks."""

    def plain(net: gluon.Block) -> gluon.Trainer:
        return gluon.Trainer(net.collect_params(), "adam", kvstore=None)

    def distributed_trainer(net: gluon.Block) -> gluon.Trainer:
        return bps.DistributedTrainer(net.collect_params(), "adam")

    def distributed_optimizer(net: gluon.Block) -> gluon.Trainer:
        bps.broadcast_parameters(net.collect_params())
        return gluon.Trainer(net.collect_params(), bps.DistributedOptimizer(mx.optimizer.Adam()), kvstore=None)

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "states"))
        for make in (distributed_trainer, distributed_optimizer):
            net = model(0)
            trainer = make(net)
            for step, (images, labels) in enumerate(zip(IMAGES, LABELS, strict=True)):
                if step == 2:
                    trainer.save_states(path)
                    trainer = make(net)
                    trainer.load_states(path)
                with autograd.record():
                    loss = loss_of(net(nd.array(part_of_rank(images))), nd.array(part_of_rank(labels)))
                loss.backward()
                trainer.step(len(part_of_rank(images)))
            assert_equal_on_all_ranks(values_of(net))
            assert_close(values_of(net), reference("adam", {}), 1e-4)
            plain(net).load_states(path)
    distributed = bps.DistributedOptimizer(mx.optimizer.create("adam", learning_rate=0.5))
    plain_one = pickle.loads(pickle.dumps(distributed))
    assert type(plain_one) is mx.optimizer.Adam
    assert plain_one.learning_rate == 0.5


def case_as_scripts_of_byteps_call_it() -> None:
    """Compression parameters that ask for nothing, and an optimizer that is distributed already."""
    nothing = {"compressor": "", "ef": "", "momentum": "", "scaling": False, "k": 1, "fp16": False}
    optimizer, twin = (bps.DistributedOptimizer(mx.optimizer.SGD(learning_rate=0.5)) for _ in range(2))
    for number, (given, options) in enumerate(
        (("sgd", {"learning_rate": 0.5}), (mx.optimizer.SGD(learning_rate=0.5), None), (optimizer, None), (twin, None))
    ):
        net = gluon.nn.Dense(1, in_units=1, use_bias=False)
        net.initialize(mx.init.Constant(rank() + 1))
        bps.byteps_declare_tensor("acc")
        trainer = bps.DistributedTrainer(net.collect_params(), given, options, compression_params=nothing)
        with autograd.record():
            loss = net(nd.full((1, 1), rank()))
        loss.backward()
        trainer.step(1)
        mean = sum(range(size())) / size()  # sum of the gradients, which are the inputs
        assert net.weight.data().asscalar() == 1 - 0.5 * mean, number
    assert type(optimizer) is mx.optimizer.SGD and "exchange" not in vars(optimizer)
    twin.set_learning_rate(0.25)
    assert trainer.learning_rate == 0.25


def case_wrong_arguments() -> None:
    net = model(0)
    params = net.collect_params()
    with expect_error(InvalidArgumentError, "already"):
        bps.DistributedOptimizer(bps.DistributedOptimizer(mx.optimizer.SGD()))
    with expect_error(InvalidArgumentError, "'sgd'", "expected an Optimizer"):
        bps.DistributedOptimizer("sgd")
    net = gluon.nn.Dense(1)
    for call in (
        lambda: bps.DistributedOptimizer(net),
        lambda: bps.broadcast_parameters(net),
        lambda: bps.DistributedTrainer(net, "sgd"),
    ):
        with expect_error(TypeError, "net.collect_params()"):
            call()
    with expect_error(InvalidArgumentError, "Average or Sum"):
        bps.DistributedOptimizer(mx.optimizer.SGD(), op=bps.Max)
    with expect_error(UnsupportedError, "'compressor'", "fp16"):
        bps.DistributedTrainer(params, "sgd", compression_params={"compressor": "onebit"})
    with expect_error(InvalidArgumentError, "'compresor'", "compressor, ef, momentum"):
        bps.DistributedTrainer(params, "sgd", compression_params={"compresor": "onebit"})
    with expect_error(InvalidArgumentError, "root_rank"):
        bps.DistributedTrainer(params, "sgd", root_rank=size())
    rows = gluon.nn.Embedding(4, 2, sparse_grad=True)
    rows.weight._stype = "row_sparse"
    rows.initialize()
    with expect_error(UnsupportedError, "sparse rows"):
        bps.DistributedTrainer(rows.collect_params(), "sgd")
    with expect_error(ValueError, "list or dict"):  # as in gluon
        bps.DistributedTrainer(3, "sgd")


def case_ranks_that_train_in_different_ways() -> None:
    if size() == 1:
        return
    half = {"fp16": True} if rank() == 1 else None
    net = gluon.nn.Dense(1, in_units=1)
    net.initialize()
    with expect_error(InvalidArgumentError, "DistributedTrainer", "rank 1", "FP16Compressor"):
        bps.DistributedTrainer(net.collect_params(), "sgd", compression_params=half)
    with expect_error(InvalidArgumentError, "DistributedOptimizer", "rank 1", "op=Sum"):
        optimizer = bps.DistributedOptimizer(mx.optimizer.SGD(), op=bps.Sum if rank() == 1 else bps.Average)
        optimizer.update(0, nd.ones(1), nd.ones(1), None)


def case_copies_of_a_model_whose_shapes_are_not_known_yet() -> None:
    net = model(rank())
    bps.DistributedTrainer(net.collect_params(), "sgd")
    twin = copy.deepcopy(net)
    twin(nd.array(IMAGES[0]))
    net(nd.array(IMAGES[0]))
    assert_equal_on_all_ranks(values_of(net))


def case_a_model_that_is_cast_between_steps() -> None:
    net = gluon.nn.Dense(2, in_units=2)
    net.initialize(mx.init.Constant(rank()))
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd")
    for dtype in ("float32", "float64"):
        net.cast(dtype)
        with autograd.record():
            out = net(nd.ones((1, 2), dtype=dtype))
        out.backward()
        trainer.step(1)
        assert_equal_on_all_ranks(values_of(net))


def case_training_goes_on_in_another_job() -> None:
    net = model(rank())
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", OPTIMIZERS["sgd"])
    for step, (images, labels) in enumerate(zip(IMAGES, LABELS, strict=True)):
        if step == 2:
            number = rank()
            bps.suspend()
            bps.resume(1, 0, number)
        with autograd.record():
            loss = loss_of(net(nd.array(part_of_rank(images))), nd.array(part_of_rank(labels)))
        loss.backward()
        trainer.step(len(part_of_rank(images)))
    assert_close(values_of(net), reference("sgd", OPTIMIZERS["sgd"]))


def case_a_step_that_breaks_off_on_one_rank_leaves_no_rank_a_step_behind() -> None:
    """The others' gradient of that step fails; those of later steps meet."""
    exchange = GradientExchange(bps.Sum)
    culprit = size() - 1
    for step in range(5):
        gradients = [nd.full(3, 10.0 * step + rank()) for _ in range(2)]
        breaks_off = step == 2 and rank() == culprit
        for key, gradient in list(enumerate(gradients))[: 1 if breaks_off else 2]:
            exchange.reduce(key, [gradient], 0)
        for key, gradient in enumerate(gradients):
            if breaks_off:
                continue  # the other ranks wait for its next step
            if step == 2 and key == 1 and size() > 1:
                with expect_error(AbortedError, f"rank {culprit} (host ", "has gone on to step 4 without it"):
                    gradient.wait_to_read()
            else:
                assert (gradient.asnumpy() == 10 * step * size() + sum(range(size()))).all()


def case_arrays_without_elements_take_part() -> None:
    with np_shape(True):
        exchange = GradientExchange(bps.Sum)
        for step in range(3):
            rows = (0, 2)[rank() == 0] if step == 1 else 2
            array = nd.ones((rows, 3))
            exchange.reduce(0, [array], 0)
            if step == 1 and size() > 1:
                with expect_error(InvalidArgumentError, "of shape (0, 3)", "of shape (2, 3)"):
                    array.wait_to_read()
                nothing = nd.ones((0, 3))
                exchange.reduce(1, [nothing], 0)
                nothing.wait_to_read()
            else:
                assert (array.asnumpy() == size()).all()


def case_two_trainers_with_parameters_of_the_same_numbers() -> None:
    nets = [model(rank()), model(rank() + 1)]
    trainers = [bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}) for net in nets]
    for images, labels in zip(IMAGES, LABELS, strict=True):
        for net, trainer in zip(nets, trainers, strict=True):
            with autograd.record():
                loss = loss_of(net(nd.array(part_of_rank(images))), nd.array(part_of_rank(labels)))
            loss.backward()
            trainer.step(len(part_of_rank(images)))
    for net in nets:
        assert_equal_on_all_ranks(values_of(net))
    assert not np.array_equal(values_of(nets[0])[0], values_of(nets[1])[0])
