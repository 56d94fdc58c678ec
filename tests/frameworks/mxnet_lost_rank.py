"""A rank that trains in one of the modes until rank 1 dies in the middle of a step.

    python mxnet_lost_rank.py MODE

Rank 1 ends with 9; a rank that gets an exception prints it and ends with 3, by the way that any
program ends.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import byteps.mxnet as bps  # must come before mxnet
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.base import MXNetError

STEPS, FATAL_STEP = 1000, 3


class Bomb(autograd.Function):
    """Ends rank 1 in backward of that step, while gradients of later layers are in flight."""

    steps = 0

    def forward(self, x: nd.NDArray) -> nd.NDArray:
        return x.copy()

    def backward(self, gradient: nd.NDArray) -> nd.NDArray:
        Bomb.steps += 1
        if bps.rank() == 1 and Bomb.steps > FATAL_STEP:
            os._exit(9)
        return gradient


def layers() -> list[gluon.nn.Dense]:
    dense = [gluon.nn.Dense(256, in_units=256, prefix=f"layer{number}_") for number in range(4)]
    for layer in dense:
        layer.initialize()
    return dense


def trainer(wait: str) -> None:
    """Waits for what a step has changed: for one array, all of them, or by reading."""
    dense = layers()
    params = {name: value for layer in dense for name, value in layer.collect_params().items()}
    trainer = bps.DistributedTrainer(params, "sgd", {"learning_rate": 0.01})
    for _ in range(STEPS):
        with autograd.record():
            x = nd.ones((8, 256))
            for number, layer in enumerate(dense):
                x = layer(x)
                if number == 1:
                    x = Bomb()(x)
        x.backward()
        trainer.step(8)
        if wait == "wait_to_read":
            dense[0].weight.data().wait_to_read()
        elif wait == "waitall":
            nd.waitall()
        else:
            dense[0].bias.data().asnumpy()


def fit() -> None:
    class Batches(mx.io.NDArrayIter):
        def next(self) -> Any:
            Bomb.steps += 1
            if bps.rank() == 1 and Bomb.steps > FATAL_STEP:
                os._exit(9)
            return super().next()

    output = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=4), name="softmax")
    batches = Batches(np.ones((80, 5), dtype="float32"), np.ones(80, dtype="float32"), 8)
    mx.mod.Module(output).fit(batches, num_epoch=STEPS, kvstore="dist_byteps")


def main(mode: str) -> None:
    bps.init()
    try:
        fit() if mode == "fit" else trainer(mode)
    except MXNetError as error:
        print(f"\n{type(error).__name__} {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
