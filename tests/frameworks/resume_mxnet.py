"""resume_program.py's Trainer with MXNet: three kinds of trainers."""

from __future__ import annotations

from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from support.expect import expect_error

from byteps.errors import InvalidArgumentError

__all__ = ["Trainer", "bps"]


class Trainer:
    def __init__(self, distributed: bool) -> None:
        self.distributed = distributed
        mx.random.seed(0 if bps.rank() == 0 else 1)
        self.nets = []
        self.size = bps.size()
        for _ in range(3):
            net = gluon.nn.HybridSequential()
            net.add(gluon.nn.Dense(8, "tanh", in_units=6), gluon.nn.Dense(2, in_units=8))
            net.initialize(mx.init.Normal(0.5))
            self.nets.append(net)
        self.loss = gluon.loss.L2Loss()
        self.trainers = [gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, None) for net in self.nets]

    @staticmethod
    def before() -> None:
        for _ in range(2):
            net = gluon.nn.Dense(2, in_units=2)
            net.initialize()
            bps.DistributedTrainer(net.collect_params(), "sgd")
            bps.push_pull(mx.nd.ones(3)).wait_to_read()

    def broadcast(self) -> None:
        if self.distributed and bps.size() > self.size:  # some ranks lack the store
            with expect_error(InvalidArgumentError, f"created in a job of {self.size} ranks", "create the store"):
                self.trainers[2].allreduce_grads()
            self.trainers[2] = self.with_kvstore()
        self.size = bps.size()
        for net in self.nets:
            bps.broadcast_parameters(net.collect_params(), 0)

    def distribute(self) -> None:
        first, second, _ = (net.collect_params() for net in self.nets)
        optimizer = bps.DistributedOptimizer(mx.optimizer.create("sgd", learning_rate=0.1))
        self.trainers = [
            bps.DistributedTrainer(first, "sgd", {"learning_rate": 0.1}),
            gluon.Trainer(second, optimizer, kvstore=None),
            self.with_kvstore(),
        ]

    def with_kvstore(self) -> gluon.Trainer:
        return gluon.Trainer(self.nets[2].collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="dist_byteps")

    def step(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> None:
        for net, trainer in zip(self.nets, self.trainers, strict=True):
            with autograd.record():
                loss = self.loss(net(mx.nd.array(x)), mx.nd.array(y))
            loss.backward()
            # The kvstore adds up, the others average.
            adds_up = trainer is self.trainers[2] and self.distributed
            trainer.step(len(x) * bps.size() if adds_up else len(x))
        if self.distributed:
            assert bps.push_pull(mx.nd.ones(3), average=False).asnumpy()[0] == bps.size()

    def weights(self) -> list[Any]:
        return [parameter.data().asnumpy() for net in self.nets for parameter in net.collect_params().values()]
