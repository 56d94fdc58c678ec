"""Trains a small convolutional network on real images by a loop of its own, on any number of ranks.

    python examples/tensorflow/fashion_mnist.py
    bpslaunch --nproc-per-node 2 -- python examples/tensorflow/fashion_mnist.py

The batch of one step is the same for any number of ranks, which share it out, so all train the same
network. The exit code is 0 only if the ranks end with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

import byteps.tensorflow as bps

sys.path.append(str(Path(__file__).resolve().parents[1]))
from images import Images, load_images
from results import report, say

BATCH = 120  # images of all ranks in one step


def main() -> int:
    options = parse_options()
    bps.init()
    # The ranks of a machine share its cores. TensorFlow must know before it computes anything.
    tf.config.threading.set_intra_op_parallelism_threads(max(1, len(os.sched_getaffinity(0)) // bps.local_size()))
    if BATCH % bps.size() != 0:
        sys.exit(f"{bps.size()} ranks cannot share a batch of {BATCH} images evenly")
    data = load_images(options.digits)
    tf.keras.utils.set_random_seed(bps.rank())  # train gives all ranks the weights of rank 0
    model = make_model(data)
    images, seconds = train(model, data, options)
    accuracy = test_accuracy(model, data)
    parameters = b"".join(variable.numpy().tobytes() for variable in model.variables)
    return report(accuracy, images, seconds, parameters)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--digits", action="store_true", help="train on scikit-learn's digits: 1,797 images of 8 x 8")
    return parser.parse_args()


def make_model(data: Images) -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input(data.train_images.shape[1:]),
            layers.Reshape((*data.train_images.shape[1:], 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, "relu"),
            layers.Dense(10),
        ]
    )


def train(model: tf.keras.Model, data: Images, options: argparse.Namespace) -> tuple[int, float]:
    """Trains. Returns the number of images on all ranks, and the time in seconds."""
    optimizer = tf.keras.optimizers.Adam(2e-3)
    optimizer.build(model.trainable_variables)
    bps.broadcast_variables(model.variables + optimizer.variables, root_rank=0)
    step = make_step(model, optimizer)
    steps = max(1, min(options.limit or len(data.train_labels), len(data.train_labels)) // BATCH)
    begin = time.perf_counter()
    for epoch in range(options.epochs):
        order = np.random.default_rng(epoch).permutation(steps * BATCH)  # the same on all ranks
        losses = []
        for batch in np.split(order, steps):
            mine = np.split(batch, bps.size())[bps.rank()]
            losses.append(step(data.train_images[mine], data.train_labels[mine]))
        loss = bps.allreduce(tf.reduce_mean(losses), name="loss")
        say(f"epoch {epoch + 1}/{options.epochs}: loss {loss:.4f}, {time.perf_counter() - begin:.1f} s")
    return options.epochs * steps * BATCH, time.perf_counter() - begin


def make_step(model: tf.keras.Model, optimizer: tf.keras.Optimizer) -> Callable[..., tf.Tensor]:
    """Makes one step of training, as a graph that the ranks' gradients are averaged in."""
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with bps.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)  # averaged over all ranks
        optimizer.apply(gradients, model.trainable_variables)
        return loss  # the loss of this rank's share

    return step


def test_accuracy(model: tf.keras.Model, data: Images) -> float:
    """Every rank tests its share of the images."""
    images, labels = (np.array_split(part, bps.size())[bps.rank()] for part in (data.test_images, data.test_labels))
    right = tf.constant((model.predict(images, batch_size=1000, verbose=0).argmax(1) == labels).sum())
    return int(bps.allreduce(right, name="right answers", op=bps.Sum)) / len(data.test_labels)


if __name__ == "__main__":
    sys.exit(main())
