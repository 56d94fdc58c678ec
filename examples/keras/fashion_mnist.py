"""Trains a small convolutional network on real images by Keras's `fit`, on any number of ranks.

    python examples/keras/fashion_mnist.py
    bpslaunch --nproc-per-node 2 -- python examples/keras/fashion_mnist.py
    KERAS_BACKEND=torch bpslaunch --nproc-per-node 2 -- python examples/keras/fashion_mnist.py

The batch of one step is the same for any number of ranks, which share it out, so all train the same
network. The exit code is 0 only if the ranks end with the same parameters, bit for bit.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import keras
import numpy as np

import byteps.keras as bps

sys.path.append(str(Path(__file__).resolve().parents[1]))
from images import Images, load_images
from results import report

BATCH = 120  # images of all ranks in one step
RATE = 2e-3


def main() -> int:
    options = parse_options()
    bps.init()
    if BATCH % bps.size() != 0:
        sys.exit(f"{bps.size()} ranks cannot share a batch of {BATCH} images evenly")
    data = load_images(options.digits)
    keras.utils.set_random_seed(bps.rank())  # the callback gives all ranks the weights of rank 0
    model = make_model(data)
    optimizer = bps.DistributedOptimizer(keras.optimizers.Adam(RATE))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    images, seconds = train(model, data, options)
    accuracy = test_accuracy(model, data)
    parameters = b"".join(weights.tobytes() for weights in model.get_weights())
    return report(accuracy, images, seconds, parameters)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on Fashion-MNIST.")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int, help="train on so many images only")
    parser.add_argument("--digits", action="store_true", help="train on scikit-learn's digits: 1,797 images of 8 x 8")
    parser.add_argument("--warmup-epochs", type=float, default=0, help="raise the learning rate slowly for so long")
    return parser.parse_args()


def make_model(data: Images) -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((*data.train_images.shape[1:], 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, "relu"),
            layers.Dense(10, "softmax"),
        ]
    )


class Share(keras.utils.PyDataset):
    """Returns this rank's part of every batch, in an order that changes with each epoch."""

    def __init__(self, data: Images, count: int) -> None:
        super().__init__()
        self.data, self.count, self.epoch = data, count, 0
        self.on_epoch_end()

    def __len__(self) -> int:
        return self.count // BATCH

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        mine = np.split(self.order[step * BATCH : (step + 1) * BATCH], bps.size())[bps.rank()]
        return self.data.train_images[mine][..., np.newaxis], self.data.train_labels[mine]

    def on_epoch_end(self) -> None:
        self.order = np.random.default_rng(self.epoch).permutation(self.count)
        self.epoch += 1


def train(model: keras.Model, data: Images, options: argparse.Namespace) -> tuple[int, float]:
    """Trains. Returns the number of images on all ranks, and the time in seconds."""
    count = min(options.limit or len(data.train_labels), len(data.train_labels)) // BATCH * BATCH
    share = Share(data, max(count, BATCH))
    callbacks = [
        bps.callbacks.BroadcastGlobalVariablesCallback(0),
        bps.callbacks.MetricAverageCallback(),
    ]
    if options.warmup_epochs:
        callbacks.append(
            bps.callbacks.LearningRateWarmupCallback(RATE, options.warmup_epochs, verbose=int(bps.rank() == 0))
        )
    begin = time.perf_counter()
    # shuffle=False: the order is Share's, and must be the same on all ranks
    verbose = 2 if bps.rank() == 0 else 0
    model.fit(share, epochs=options.epochs, callbacks=callbacks, shuffle=False, verbose=verbose)
    return options.epochs * share.count, time.perf_counter() - begin


def test_accuracy(model: keras.Model, data: Images) -> float:
    """Every rank tests its share of the images."""
    images, labels = (np.array_split(part, bps.size())[bps.rank()] for part in (data.test_images, data.test_labels))
    guesses = model.predict(images[..., np.newaxis], batch_size=1000, verbose=0).argmax(1)
    return bps.allreduce(int((guesses == labels).sum()), name="right answers", op=bps.Sum) / len(data.test_labels)


if __name__ == "__main__":
    sys.exit(main())
