"""Models, data and training loops that the cases of MXNet share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from byteps import rank, size

BATCH, STEPS, CLASSES = 16, 5, 10
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.01},
    "nag": {"learning_rate": 0.1, "momentum": 0.9},
    "adam": {"learning_rate": 0.01},
}
HYBRID: dict[str, Mapping[str, bool] | None] = {
    "imperative": None,
    "hybrid": {},
    "static": {"static_alloc": True, "static_shape": True},
}

_random = np.random.default_rng(3)
IMAGES = _random.normal(size=(STEPS, BATCH, 3, 8, 8)).astype("float32")
LABELS = _random.integers(0, CLASSES, (STEPS, BATCH)).astype("float32")
MakeTrainer = Callable[[gluon.Block], gluon.Trainer]

loss_of = gluon.loss.SoftmaxCrossEntropyLoss()


def part_of_rank(batch: np.ndarray) -> np.ndarray:
    each = len(batch) // size()
    return batch[rank() * each : (rank() + 1) * each]


class HalfDense(gluon.HybridBlock):
    """A layer of weights in half precision.

    It computes in float32, as MXNet cannot multiply others on a CPU.
    """

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(units, 0), dtype="float16", allow_deferred_init=True)

    def hybrid_forward(self, space: Any, x: Any, weight: Any) -> Any:
        return space.FullyConnected(x, space.cast(weight, "float32"), num_hidden=self.units, no_bias=True)


def half_model(seed: int) -> gluon.nn.HybridSequential:
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    net.add(HalfDense(16), gluon.nn.Activation("relu"), HalfDense(CLASSES))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def model(seed: int, hybrid: str = "hybrid") -> gluon.nn.HybridSequential:
    """A model with deferred shapes, and without layers that depend on the whole batch."""
    mx.random.seed(seed)
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(8, 3, padding=1, activation="relu"),
        gluon.nn.BatchNorm(use_global_stats=True),
        gluon.nn.MaxPool2D(),
        gluon.nn.Dense(CLASSES),
    )
    net.initialize(mx.init.Xavier())
    flags = HYBRID[hybrid]
    if flags is not None:
        net.hybridize(**flags)
    return net


def train(
    net: gluon.Block, make_trainer: MakeTrainer, *, whole: bool = False, step_size: int | None = None, passes: int = 1
) -> list[np.ndarray]:
    """The parameters after some steps.

    Args:
        net: not used before.
        make_trainer: called before the first batch.
        whole: train on all ranks' data, as one process does.
        step_size: what `step` is told; by default the size of the batch.
        passes: backward passes a step, each over a part of the batch.
    """
    trainer = make_trainer(net)
    for images, labels in zip(IMAGES, LABELS, strict=True):
        x, y = (images, labels) if whole else (part_of_rank(images), part_of_rank(labels))
        for xs, ys in zip(np.split(x, passes), np.split(y, passes), strict=True):
            with autograd.record():
                loss = loss_of(net(mx.nd.array(xs)), mx.nd.array(ys))
            loss.backward()
        trainer.step(step_size or len(x))
        if passes > 1:
            net.collect_params().zero_grad()
    return values_of(net)


def values_of(net: gluon.Block) -> list[np.ndarray]:
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def reference(
    optimizer: str, options: Mapping[str, Any], make_model: Callable[[int], gluon.Block] = model
) -> list[np.ndarray]:
    """Returns the weights that one process gets, which begins with rank 0's."""

    def trainer(net: gluon.Block) -> gluon.Trainer:
        return gluon.Trainer(net.collect_params(), optimizer, dict(options), kvstore=None)

    return train(make_model(0), trainer, whole=True)


def assert_close(got: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 1e-5) -> None:
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def assert_equal_on_all_ranks(values: list[np.ndarray]) -> None:
    for root in range(size()):
        theirs = bps.broadcast_object(values, root)
        equal = [np.array_equal(one, other) for one, other in zip(values, theirs, strict=True)]
        assert all(equal), f"rank {root} differs in {equal.index(False)}"
