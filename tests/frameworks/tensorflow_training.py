"""Small models of TensorFlow, trained on a whole batch and on shares of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from byteps import rank, size

STEPS = 4
BATCH = 24  # divisible by 1, 2, 3 and 4 ranks
WORDS, WIDTH = 11, 5
Batch = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


def data(step: int) -> Batch:
    """Words [BATCH, 3], numbers [BATCH, 4], and what is to be learned [BATCH, 2]."""
    random = np.random.default_rng(step)
    return (
        tf.constant(random.integers(0, WORDS, (BATCH, 3))),
        tf.constant(random.normal(size=(BATCH, 4)), tf.float32),
        tf.constant(random.normal(size=(BATCH, 2)), tf.float32),
    )


def share(batch: Batch) -> Batch:
    """Returns this rank's part of a batch."""
    rows = BATCH // size()
    words, numbers, wanted = (part[rank() * rows : (rank() + 1) * rows] for part in batch)
    return words, numbers, wanted


class Model(tf.Module):
    """An embedding (with tf.IndexedSlices), two layers, and a variable without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(7)

        def variable(*shape: int, name: str) -> tf.Variable:
            return tf.Variable(random.normal(size=shape).astype(np.float32) / 2, name=name)

        self.embedding = variable(WORDS, WIDTH, name="embedding")
        self.kernel = variable(WIDTH + 4, 8, name="kernel")
        self.bias = variable(8, name="bias")
        self.head = variable(8, 2, name="head")
        self.unused = variable(3, name="unused")

    @property
    def variables_in_order(self) -> list[tf.Variable]:
        return [self.embedding, self.kernel, self.bias, self.head, self.unused]

    def loss(self, batch: Batch) -> tf.Tensor:
        words, numbers, wanted = batch
        x = tf.concat([tf.reduce_mean(tf.gather(self.embedding, words), axis=1), numbers], axis=1)
        y = tf.tanh(x @ self.kernel + self.bias) @ self.head
        return tf.reduce_mean(tf.square(y - wanted))


def weights(model: Model) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.variables_in_order]


Train = Callable[[Model, Callable[[Batch], Batch]], Any]


def assert_trains_as_one_process(train: Train, tolerance: float = 1e-6) -> None:
    """`train(model, part)` makes STEPS steps on `part(data(step))`.

    It must learn the same on shares as on the whole.

    It is to be told by `part` whether its ranks communicate: with `alone` they do not.
    """
    together, single = Model(), Model()
    train(together, share)
    train(single, alone)
    for mine, whole in zip(weights(together), weights(single), strict=True):
        np.testing.assert_allclose(mine, whole, rtol=0, atol=tolerance)
    moved = max(np.abs(a - b).max() for a, b in zip(weights(single), weights(Model()), strict=True))
    assert moved > 1e-2, "nothing was learned"


def alone(batch: Batch) -> Batch:
    return batch
