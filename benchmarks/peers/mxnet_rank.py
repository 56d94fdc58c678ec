"""A rank that trains a gluon model on MXNet: python -m benchmarks.peers.mxnet_rank METHOD.

Where DMLC_ROLE says so, the process is MXNet's own scheduler or a server of its instead, until
their job ends.

A step understands `model` (keyword arguments of one of MODELS, and its name as `kind`) and `batch`,
the samples of each rank, and trains on a global batch that all methods make alike, of which each
rank has its share. It makes one step more than `calls`, which is not timed: there the ranks meet.
What is timed ends when the last step's weights are there. The answer has `begin` and `end` of that,
and `weights`: some of each parameter's values.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import byteps.mxnet as bps  # before MXNet, for newer releases of NumPy; a server ends in here
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from benchmarks.harness.rank import serve

BATCHES = 4  # different ones
SAMPLES_OF_A_PARAMETER = 16
SGD = {"learning_rate": 1e-3, "momentum": 0.9}


def mlp(width: int, layers: int) -> tuple[Any, tuple[int, ...], int]:
    """Layers of `width`^2 parameters; the last one's outputs are `width` classes."""
    net = gluon.nn.HybridSequential()
    for _ in range(layers - 1):
        net.add(gluon.nn.Dense(width, activation="relu", in_units=width))
    net.add(gluon.nn.Dense(width, in_units=width))
    return net, (width,), width


def cnn(channels: int, image: int, hidden: int, classes: int) -> tuple[Any, tuple[int, ...], int]:
    """A network of two pairs of convolutions, which halve the image, and two dense layers."""
    net = gluon.nn.HybridSequential()
    inputs = 1
    for outputs in (channels, 2 * channels):
        net.add(gluon.nn.Conv2D(outputs, 3, padding=1, activation="relu", in_channels=inputs))
        net.add(gluon.nn.Conv2D(outputs, 3, padding=1, activation="relu", in_channels=outputs))
        net.add(gluon.nn.MaxPool2D())
        inputs = outputs
    net.add(gluon.nn.Flatten())
    net.add(gluon.nn.Dense(hidden, activation="relu", in_units=inputs * (image // 4) ** 2))
    net.add(gluon.nn.Dense(classes, in_units=hidden))
    return net, (1, image, image), classes


# Each returns the network, the shape of a sample and the number of classes.
MODELS: Mapping[str, Callable[..., tuple[Any, tuple[int, ...], int]]] = {"mlp": mlp, "cnn": cnn}


class Library:
    """Plain gluon, which sends no gradients; the others differ in the trainer."""

    sums = False  # gradients over ranks; else averages them

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["BENCH_RANK"]), int(os.environ["BENCH_SIZE"])

    def leave(self) -> None:
        """The job."""

    def meet(self) -> None:
        """Waits for the other ranks before the measurement, if the first step did not."""

    def trainer(self, parameters: Any, sgd: Mapping[str, float]) -> Any:
        return gluon.Trainer(parameters, "sgd", sgd, kvstore=None)


class Nothing(Library):
    """Sends no gradients. byteps makes the ranks begin together."""

    def __init__(self) -> None:
        super().__init__()
        bps.init()
        self.leave, self.meet = bps.shutdown, bps.barrier  # type: ignore[method-assign]


class Ours(Library):
    """byteps by its own trainer, or by the plain trainer with byteps's store."""

    def __init__(self, way: str) -> None:
        super().__init__()
        bps.init()
        self.rank, self.leave = bps.rank(), bps.shutdown  # type: ignore[method-assign]
        self.sums = way == "kvstore"

    def trainer(self, parameters: Any, sgd: Mapping[str, float]) -> Any:
        if self.sums:
            return gluon.Trainer(parameters, "sgd", sgd, kvstore="dist_byteps")
        return bps.DistributedTrainer(parameters, "sgd", sgd)


class Store(Library):
    """MXNet's own parameter server. It finds its scheduler by DMLC_PS_ROOT_URI."""

    sums = True

    def __init__(self, name: str, *, update_on_servers: bool) -> None:
        super().__init__()
        self._name, self._update_on_servers = name, update_on_servers

    def trainer(self, parameters: Any, sgd: Mapping[str, float]) -> Any:
        trainer = gluon.Trainer(parameters, "sgd", sgd, kvstore=self._name, update_on_kvstore=self._update_on_servers)
        # MXNet 1.9.1 does this in the first step, and there nothing keeps a rank from asking for
        # the first weights when the server already has the first gradients in their place; so here,
        # before all gradients.
        trainer._init_kvstore()
        trainer._init_params()
        mx.nd.waitall()
        return trainer


METHODS: Mapping[str, Callable[[], Library]] = {
    "dist_sync-workers": lambda: Store("dist_sync", update_on_servers=False),
    "dist_sync-servers": lambda: Store("dist_sync", update_on_servers=True),
    "p3": lambda: Store("p3store_dist", update_on_servers=False),
    "trainer": lambda: Ours("trainer"),
    "kvstore": lambda: Ours("kvstore"),
    "nothing": Nothing,
}


class Training:
    """The training of one model by one method."""

    def __init__(self, library: Library, kind: str, settings: Mapping[str, Any], samples: int) -> None:
        self._library = library
        mx.random.seed(0)
        np.random.seed(0)  # seed of MXNet's initializers
        self._net, shape, classes = MODELS[kind](**settings)
        self._net.initialize(mx.init.Xavier())
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        for block in (self._net, self._loss):
            block.hybridize(static_alloc=True, static_shape=True)
        self._batches = share(shape, classes, samples, library.rank, library.size)
        divisor = samples * (library.size if library.sums else 1)
        self._trainer = library.trainer(self._net.collect_params(), SGD | {"rescale_grad": 1 / divisor})
        self._step = 0

    def steps(self, number: int) -> None:
        for _ in range(number):
            images, labels = self._batches[self._step % BATCHES]
            with autograd.record():
                loss = self._loss(self._net(images), labels)
            loss.backward()
            self._trainer.step(1)
            self._step += 1
        mx.nd.waitall()

    def turn(self, steps: int) -> Mapping[str, Any]:
        self.steps(1)
        self._library.meet()
        begin = time.monotonic()
        self.steps(steps)
        return {"begin": begin, "end": time.monotonic(), "weights": list(self.weights())}

    def weights(self) -> Iterator[float]:
        """The same few values of each parameter, on every rank and by every method."""
        for parameter in self._net.collect_params().values():
            flat = parameter.data().asnumpy().ravel()
            yield from flat[:: max(1, flat.size // SAMPLES_OF_A_PARAMETER)].tolist()


def share(shape: tuple[int, ...], classes: int, samples: int, rank: int, size: int) -> list[tuple[Any, Any]]:
    """Returns this rank's part of each global batch."""
    random = np.random.default_rng(0)
    images = random.standard_normal((BATCHES, size * samples, *shape), dtype=np.float32)
    labels = random.integers(classes, size=(BATCHES, size * samples))
    mine = slice(rank * samples, (rank + 1) * samples)
    return [(mx.nd.array(x[mine]), mx.nd.array(y[mine])) for x, y in zip(images, labels, strict=True)]


def main() -> None:
    """Entry point."""
    library = METHODS[sys.argv[1]]()
    trainings: list[Training] = []

    def step(request: Mapping[str, Any]) -> Mapping[str, Any]:
        if not trainings:
            settings = dict(request["model"])
            trainings.append(Training(library, settings.pop("kind"), settings, request["batch"]))
            trainings[0].steps(2)
        return trainings[0].turn(request["calls"] or 1)

    serve(library.rank, step)
    trainings.clear()
    library.leave()


if __name__ == "__main__":
    main()
