"""Trains a small convolutional network of gluon on real images, on any number of ranks.

    python examples/mxnet/gluon_cnn.py
    bpslaunch --nproc-per-node 2 -- python examples/mxnet/gluon_cnn.py

The batch of one step is the same for any number of ranks, which share it out, so all train the same
network. The exit code is 0 only if the ranks end with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

import byteps.mxnet as bps  # must come before MXNet, for newer releases of NumPy

# isort: split
import mxnet as mx
from mxnet import autograd, gluon

sys.path.append(str(Path(__file__).resolve().parents[1]))
from images import Images, load_images
from results import report, say

BATCH = 120  # images of all ranks in one step


def main() -> int:
    options = parse_options()
    bps.init()
    if BATCH % bps.size() != 0:
        sys.exit(f"{bps.size()} ranks cannot share a batch of {BATCH} images evenly")
    data = load_images(options.digits)
    mx.random.seed(bps.rank())  # the trainer gives all ranks the weights of rank 0
    net = make_net()
    images, seconds = train(net, data, options)
    accuracy = test_accuracy(net, data)
    parameters = b"".join(parameter.data().asnumpy().tobytes() for parameter in net.collect_params().values())
    return report(accuracy, images, seconds, parameters)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--digits", action="store_true", help="train on scikit-learn's digits: 1,797 images of 8 x 8")
    return parser.parse_args()


def make_net() -> gluon.nn.HybridSequential:
    layers = gluon.nn
    net = layers.HybridSequential()
    net.add(
        layers.Conv2D(16, 3, padding=1, activation="relu"),
        layers.MaxPool2D(2),
        layers.Conv2D(32, 3, padding=1, activation="relu"),
        layers.MaxPool2D(2),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10),
    )
    net.initialize(mx.init.Xavier())  # done by the first batch, which tells the shapes
    net.hybridize(static_alloc=True)
    return net


def train(net: gluon.nn.HybridSequential, data: Images, options: argparse.Namespace) -> tuple[int, float]:
    """Trains. Returns the number of images on all ranks, and the time in seconds."""
    trainer = bps.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 2e-3})
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    steps = max(1, min(options.limit or len(data.train_labels), len(data.train_labels)) // BATCH)
    begin = time.perf_counter()
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(steps * BATCH)  # the same on all ranks
        losses = []
        for batch in np.split(order, steps):
            mine = np.split(batch, bps.size())[bps.rank()]
            with autograd.record():
                loss = loss_of(net(as_input(data.train_images[mine])), mx.nd.array(data.train_labels[mine]))
            loss.backward()
            trainer.step(len(mine))  # averaged over all ranks
            losses.append(loss.mean().asscalar())  # waits for forward only
        mean = bps.push_pull(mx.nd.array(losses).mean(), name="loss").asscalar()
        say(f"epoch {epoch + 1}/{options.epochs}: loss {mean:.4f}, {time.perf_counter() - begin:.1f} s")
    mx.nd.waitall()
    return options.epochs * steps * BATCH, time.perf_counter() - begin


def as_input(images: np.ndarray) -> mx.nd.NDArray:
    """Batch, channel, height, width."""
    return mx.nd.array(images[:, np.newaxis])


def test_accuracy(net: gluon.nn.HybridSequential, data: Images) -> float:
    """Every rank tests its share of the images."""
    images, labels = (np.array_split(part, bps.size())[bps.rank()] for part in (data.test_images, data.test_labels))
    guesses = [net(as_input(part)).asnumpy().argmax(1) for part in np.array_split(images, -(-len(images) // 1000))]
    right = mx.nd.array([(np.concatenate(guesses) == labels).sum()])
    return bps.push_pull(right, name="right answers", op=bps.Sum).asscalar() / len(data.test_labels)


if __name__ == "__main__":
    sys.exit(main())
