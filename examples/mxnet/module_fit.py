"""Trains a small convolutional network on images by MXNet's `Module.fit`, on several ranks.

    python examples/mxnet/module_fit.py
    bpslaunch --nproc-per-node 2 -- python examples/mxnet/module_fit.py

The batch of one step is the same for any number of ranks, which share it out, so all train the same
network. The exit code is 0 only if the ranks end with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy as np

import byteps.mxnet as bps  # must come before MXNet, for newer releases of NumPy

# isort: split
import mxnet as mx

sys.path.append(str(Path(__file__).resolve().parents[1]))
from images import Images, load_images
from results import report

BATCH = 120  # images of all ranks in one step


def main() -> int:
    options = parse_options()
    bps.init()
    if BATCH % bps.size() != 0:
        sys.exit(f"{bps.size()} ranks cannot share a batch of {BATCH} images evenly")
    logging.basicConfig(level=logging.INFO if bps.rank() == 0 else logging.WARNING, format="%(message)s")
    data = load_images(options.digits)
    mx.random.seed(bps.rank())  # the kvstore gives all ranks the weights of rank 0
    module = mx.mod.Module(make_symbol())
    images, seconds = train(module, data, options)
    accuracy = test_accuracy(module, data)
    weights, _ = module.get_params()
    parameters = b"".join(weights[name].asnumpy().tobytes() for name in sorted(weights))
    return report(accuracy, images, seconds, parameters)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--digits", action="store_true", help="train on scikit-learn's digits: 1,797 images of 8 x 8")
    return parser.parse_args()


def make_symbol() -> mx.sym.Symbol:
    output = mx.sym.Variable("data")
    for filters in (16, 32):
        output = mx.sym.Convolution(output, num_filter=filters, kernel=(3, 3), pad=(1, 1))
        output = mx.sym.Activation(output, act_type="relu")
        output = mx.sym.Pooling(output, kernel=(2, 2), stride=(2, 2), pool_type="max")
    output = mx.sym.Activation(mx.sym.FullyConnected(output, num_hidden=128), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(output, num_hidden=10), name="softmax")


class Share(mx.io.DataIter):
    """Returns this rank's part of every batch, in an order that changes with each epoch."""

    def __init__(self, data: Images, count: int) -> None:
        super().__init__(BATCH // bps.size())
        self.data, self.count, self.epoch = data, count, 0
        shape = (self.batch_size, 1, *data.train_images.shape[1:])
        self.provide_data = [mx.io.DataDesc("data", shape)]
        self.provide_label = [mx.io.DataDesc("softmax_label", (self.batch_size,))]
        self.reset()

    def reset(self) -> None:
        order = np.random.default_rng(self.epoch).permutation(self.count)
        self.batches = iter(np.split(order, self.count // BATCH))
        self.epoch += 1

    def next(self) -> mx.io.DataBatch:
        mine = np.split(next(self.batches), bps.size())[bps.rank()]
        images = mx.nd.array(self.data.train_images[mine][:, np.newaxis])
        return mx.io.DataBatch([images], [mx.nd.array(self.data.train_labels[mine])], pad=0)


def train(module: mx.mod.Module, data: Images, options: argparse.Namespace) -> tuple[int, float]:
    """Trains. Returns the number of images on all ranks, and the time in seconds."""
    count = min(options.limit or len(data.train_labels), len(data.train_labels)) // BATCH * BATCH
    share = Share(data, max(count, BATCH))
    begin = time.perf_counter()
    module.fit(
        share,
        kvstore="dist_byteps",
        optimizer="adam",
        optimizer_params={"learning_rate": 2e-3},
        initializer=mx.init.Xavier(),
        num_epoch=options.epochs,
    )
    mx.nd.waitall()
    return options.epochs * share.count, time.perf_counter() - begin


def test_accuracy(module: mx.mod.Module, data: Images) -> float:
    """Every rank tests its share of the images."""
    images, labels = (np.array_split(part, bps.size())[bps.rank()] for part in (data.test_images, data.test_labels))
    batches = mx.io.NDArrayIter(images[:, np.newaxis], labels, batch_size=BATCH // bps.size())
    guesses = module.predict(batches).asnumpy().argmax(1)
    right = mx.nd.array([(guesses == labels).sum()])
    return bps.push_pull(right, name="right answers", op=bps.Sum).asscalar() / len(data.test_labels)


if __name__ == "__main__":
    sys.exit(main())
